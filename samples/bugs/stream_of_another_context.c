/* SPDX-License-Identifier: Apache-2.0
 * stream_of_another_context - A stream is used with memory of another context than its own.
 *
 * What is made in a context belongs to it. A thread that has another current context, or a library that makes one of its own, passes a stream on
 * to where it means nothing. The call is refused, and what it should have done is missing; nobody looks at its result.
 * The fix: make the context current to which the memory belongs, and use a stream of that.
 *
 *     catalogue: B49
 *     link: https://github.com/NVIDIA/TensorRT/issues/3028
 *     schedule: timed
 *     report: CTX-MISMATCH at second
 *     right: 5
 *     wrong: 0
 */
#include "../c/check.h"

enum { BYTES = 4096 };

int main(int argc, char **argv)
{
    int fixed = argc > 1 && strcmp(argv[1], "fixed") == 0;
    npu_context_t library;
    npu_stream_t stream;
    uint8_t result;
    void *memory;

    CHECK(npu_init(NPU_INIT_CHECK));
    if (!fixed)
        CHECK(npu_create_stream(&stream)); /* in the primary context */
    CHECK(npu_create_context(&library, 0));
    CHECK(npu_set_current_context(library));
    if (fixed)
        CHECK(npu_create_stream(&stream));
    CHECK(npu_malloc(&memory, BYTES, 0));
    CHECK(npu_memset(memory, BYTES, 0, BYTES));

    npu_memset_async(memory, BYTES, 5, BYTES, stream); /* <- second */
    CHECK(npu_synchronize_context());
    CHECK(npu_memcpy(&result, 1, memory, 1, NPU_MEMCPY_DEVICE_TO_HOST));
    printf("%d\n", result);
    CHECK(npu_shutdown());
    return 0;
}
