/* SPDX-License-Identifier: Apache-2.0
 * two_command_lists - Two command lists use one buffer and are submitted to two queues, one behind the other.
 *
 * The order of the submits is no order of the work: each queue goes its own way. Tests that submit dependent lists to queues which share an
 * engine are right by chance, and fail on a device that has more engines.
 * The fix: an event behind the first list, for which the second queue waits.
 *
 *     catalogue: B12
 *     link: https://github.com/oneapi-src/level-zero-tests/pull/359
 *     schedule: lazy
 *     report: XS-RAW at first, second
 *     right: 17
 *     wrong: 0
 */
#include "../c/check.h"

enum { BYTES = 4096 };

int main(int argc, char **argv)
{
    int fixed = argc > 1 && strcmp(argv[1], "fixed") == 0;
    void *buffer, *target;
    uint8_t result;
    npu_stream_t one, two;
    npu_event_t filled;
    npu_cmdlist_t fill, copy;

    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_create_stream(&one));
    CHECK(npu_create_stream(&two));
    CHECK(npu_create_event(&filled, NPU_EVENT_DEFAULT));
    CHECK(npu_malloc(&buffer, BYTES, 0));
    CHECK(npu_malloc(&target, BYTES, 0));
    CHECK(npu_memset(buffer, BYTES, 0, BYTES));
    CHECK(npu_cmdlist_create(&fill, 0));
    CHECK(npu_cmdlist_append_memset(fill, buffer, BYTES, 17, BYTES));
    CHECK(npu_cmdlist_close(fill));
    CHECK(npu_cmdlist_create(&copy, 0));
    CHECK(npu_cmdlist_append_memcpy(copy, target, BYTES, buffer, BYTES, NPU_MEMCPY_DEVICE_TO_DEVICE));
    CHECK(npu_cmdlist_close(copy));

    CHECK(npu_cmdlist_submit(fill, one)); /* <- first */
    if (fixed) {
        CHECK(npu_record_event(filled, one));
        CHECK(npu_stream_wait_event(two, filled));
    }
    CHECK(npu_cmdlist_submit(copy, two)); /* <- second */
    CHECK(npu_synchronize_stream(two));
    CHECK(npu_memcpy(&result, 1, target, 1, NPU_MEMCPY_DEVICE_TO_HOST));
    printf("%d\n", result);
    CHECK(npu_synchronize_stream(one));
    CHECK(npu_shutdown());
    return 0;
}
