/* SPDX-License-Identifier: Apache-2.0
 * tail_never_written - Memory that was allocated without values is written in part, and read as a whole.
 *
 * The number of rows is rounded up for the kernel, and the rows behind the last real one are written by nobody. They hold what was in the memory
 * before: zeros in a test that is the first to use it, and somebody's numbers later. A sum over all rows then changes from run to run.
 * The fix: clear the tail.
 *
 *     catalogue: B47
 *     link: https://github.com/pytorch/FBGEMM/pull/5754
 *     schedule: timed
 *     report: UNINIT at read
 *     right: 64
 *     wrong: 16384
 */
#include "../c/check.h"

enum { BYTES = 128, USED = 64 };

int main(int argc, char **argv)
{
    int fixed = argc > 1 && strcmp(argv[1], "fixed") == 0;
    uint8_t values[BYTES];
    int sum = 0;
    void *memory;
    npu_stream_t stream;

    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_create_stream(&stream));
    CHECK(npu_malloc(&memory, BYTES, 0));
    CHECK(npu_memset_async(memory, BYTES, 1, USED, stream));
    if (fixed)
        CHECK(npu_memset_async((char *)memory + USED, BYTES - USED, 0, BYTES - USED, stream));
    CHECK(npu_synchronize_stream(stream));
    CHECK(npu_memcpy(values, BYTES, memory, BYTES, NPU_MEMCPY_DEVICE_TO_HOST)); /* <- read */
    for (int i = 0; i < BYTES; i++)
        sum += values[i];
    printf("%d\n", sum);
    CHECK(npu_shutdown());
    return 0;
}
