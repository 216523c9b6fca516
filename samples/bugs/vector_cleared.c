/* SPDX-License-Identifier: Apache-2.0
 * vector_cleared - A vector is cleared while the copy that reads it is still queued.
 *
 * The vector's memory is pinned, so its copy to the device is only enqueued. The next statement clears the vector: its memory goes back to
 * an allocator, which overwrites it (a debug allocator at once, others with the next vector). What arrives is what happens to be there.
 * Nobody sees it while the copy is quick, or complete on return as for memory that is not pinned.
 * The fix: wait for the stream before the vector is cleared.
 *
 *     catalogue: B03
 *     link: https://github.com/ggml-org/llama.cpp/issues/26828
 *     schedule: lazy
 *     report: HD-WAR at first, unseen
 *     right: 42
 *     wrong: 221
 */
#include "../c/check.h"

enum { BYTES = 4096 };

int main(int argc, char **argv)
{
    int fixed = argc > 1 && strcmp(argv[1], "fixed") == 0;
    void *vector, *memory;
    uint8_t result;
    npu_stream_t stream;

    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_create_stream(&stream));
    CHECK(npu_malloc(&memory, BYTES, 0));
    CHECK(npu_malloc_host(&vector, BYTES, NPU_HOST_CACHED));
    memset(vector, 42, BYTES);
    CHECK(npu_memcpy_async(memory, BYTES, vector, BYTES, NPU_MEMCPY_HOST_TO_DEVICE, stream)); /* <- first */
    if (fixed)
        CHECK(npu_synchronize_stream(stream));
    memset(vector, 0xdd, BYTES); /* what the allocator does with memory that it gets back */
    CHECK(npu_synchronize_stream(stream));
    CHECK(npu_memcpy(&result, 1, memory, 1, NPU_MEMCPY_DEVICE_TO_HOST));
    printf("%d\n", result);
    CHECK(npu_shutdown());
    return 0;
}
