/* SPDX-License-Identifier: Apache-2.0
 * blocking_copy - A copy that is complete on return is taken for one that waits for the kernels before it.
 *
 * A blocking copy waits for itself. It runs on a stream of its own, here the default one, and is in no order with a kernel in another stream
 * unless somebody says so. A backend whose copies block and whose kernels do not returns old tensors.
 * The fix: wait for the stream of the kernel before the copy, or enqueue the copy there.
 *
 *     catalogue: B22
 *     link: https://github.com/PaddlePaddle/PaddleCustomDevice/pull/154
 *     schedule: lazy
 *     report: HD-RAW at first, second
 *     right: 2.5
 *     wrong: 0
 */
#include "../c/check.h"

enum { COUNT = 1024, BYTES = COUNT * sizeof(float) };

int main(int argc, char **argv)
{
    int fixed = argc > 1 && strcmp(argv[1], "fixed") == 0;
    static float values[COUNT];
    float result;
    void *x, *y;
    npu_stream_t compute;
    npu_kernel_t relu;

    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_create_stream(&compute));
    CHECK(npu_get_builtin_kernel(&relu, "relu"));
    CHECK(npu_malloc(&x, BYTES, 0));
    CHECK(npu_malloc(&y, BYTES, 0));
    CHECK(npu_memcpy(y, BYTES, values, BYTES, NPU_MEMCPY_HOST_TO_DEVICE));
    for (int i = 0; i < COUNT; i++)
        values[i] = 2.5f;
    CHECK(npu_memcpy(x, BYTES, values, BYTES, NPU_MEMCPY_HOST_TO_DEVICE));

    npu_arg_t args[] = {NPU_BUFFER(x), NPU_BUFFER(y), NPU_INT(COUNT)};
    CHECK(npu_launch_kernel_async(relu, args, 3, compute)); /* <- first */
    if (fixed)
        CHECK(npu_synchronize_stream(compute));
    CHECK(npu_memcpy(&result, sizeof result, y, sizeof result, NPU_MEMCPY_DEVICE_TO_HOST)); /* <- second */
    printf("%g\n", result);
    CHECK(npu_synchronize_stream(compute));
    CHECK(npu_shutdown());
    return 0;
}
