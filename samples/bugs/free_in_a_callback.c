/* SPDX-License-Identifier: Apache-2.0
 * free_in_a_callback - A host function frees memory, which a host function must not do.
 *
 * A callback at the end of the work looks like the place to free what the work used. It runs on a thread of the library, with the stream waiting
 * for it: a call that waits for the stream waits for ever. Here calls are refused in host functions, so the memory is never freed.
 * The fix: free in the order of the stream, or let the callback hand the memory over to a thread of the program.
 *
 *     catalogue: B51
 *     link: https://github.com/AMReX-Codes/amrex/pull/4044
 *     schedule: timed
 *     report: CALLBACK-API at call
 *     right: 0 MiB are missing
 *     wrong: 1 MiB are missing
 */
#include "../c/check.h"

enum { BYTES = 1 << 20 };

static void give_back(void *memory)
{
    npu_free(memory); /* <- call */
}

int main(int argc, char **argv)
{
    int fixed = argc > 1 && strcmp(argv[1], "fixed") == 0;
    uint64_t before, after, total;
    npu_stream_t stream;
    void *memory;

    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_create_stream(&stream));
    CHECK(npu_mem_get_info(&before, &total));
    CHECK(npu_malloc(&memory, BYTES, 0));
    CHECK(npu_memset_async(memory, BYTES, 1, BYTES, stream));
    if (fixed)
        CHECK(npu_free_async(memory, stream));
    else
        CHECK(npu_stream_add_host_function(stream, give_back, memory));
    CHECK(npu_synchronize_stream(stream));
    CHECK(npu_mem_get_info(&after, &total));
    printf("%d MiB are missing\n", (int)((before - after) / BYTES));
    CHECK(npu_shutdown());
    return 0;
}
