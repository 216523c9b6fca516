/* SPDX-License-Identifier: Apache-2.0
 * free_while_it_runs - Memory is freed while a kernel uses it, and read afterwards by a pointer that has become stale.
 *
 * A clean-up frees what the function had, without a thought of the kernel that was launched before. Some runtimes wait in the free, some keep
 * the memory until the kernel has ended, some give it to the next one who asks. Here the memory is kept and the pointer is stale at once: the
 * copy behind the free is refused, and the program, which looks at no result, prints what was in its variable.
 * The fix: wait for the stream and copy before the memory is freed.
 *
 *     catalogue: B24
 *     link: https://github.com/CHIP-SPV/chipStar/issues/181
 *     schedule: timed
 *     report: UAF at second, use
 *     report: FREE-IN-USE at first, second
 *     right: 1.5
 *     wrong: 0
 */
#include "../c/check.h"

enum { COUNT = 1024, BYTES = COUNT * sizeof(float) };

int main(int argc, char **argv)
{
    int fixed = argc > 1 && strcmp(argv[1], "fixed") == 0;
    static float values[COUNT];
    float result = 0;
    void *x, *y;
    npu_stream_t stream;
    npu_kernel_t relu;

    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_create_stream(&stream));
    CHECK(npu_get_builtin_kernel(&relu, "relu"));
    CHECK(npu_malloc(&x, BYTES, 0));
    CHECK(npu_malloc(&y, BYTES, 0));
    for (int i = 0; i < COUNT; i++)
        values[i] = 1.5f;
    CHECK(npu_memcpy(x, BYTES, values, BYTES, NPU_MEMCPY_HOST_TO_DEVICE));

    npu_arg_t args[] = {NPU_BUFFER(x), NPU_BUFFER(y), NPU_INT(COUNT)};
    CHECK(npu_launch_kernel_async(relu, args, 3, stream)); /* <- first */
    if (fixed) {
        CHECK(npu_synchronize_stream(stream));
        CHECK(npu_memcpy(&result, sizeof result, y, sizeof result, NPU_MEMCPY_DEVICE_TO_HOST));
    }
    CHECK(npu_free(y)); /* <- second */
    if (!fixed)
        npu_memcpy(&result, sizeof result, y, sizeof result, NPU_MEMCPY_DEVICE_TO_HOST); /* <- use */
    printf("%g\n", result);
    CHECK(npu_synchronize_stream(stream));
    CHECK(npu_shutdown());
    return 0;
}
