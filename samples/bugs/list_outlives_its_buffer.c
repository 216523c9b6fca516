/* SPDX-License-Identifier: Apache-2.0
 * list_outlives_its_buffer - A buffer is destroyed at its last use in the source, before the list that names it is submitted.
 *
 * A command list is built, closed and submitted later. A compiler, or a scope, that ends the life of a buffer where its name is last used knows
 * nothing of the address in the list. Here the submit is refused, and the program does not look; elsewhere the list reads whatever has the
 * address by then.
 * The fix: keep what a list names until its last submit has ended.
 *
 *     catalogue: B28
 *     link: https://github.com/modular/modular/issues/6750
 *     schedule: timed
 *     report: UAF at first, second
 *     right: 12
 *     wrong: 0
 */
#include "../c/check.h"

enum { BYTES = 4096 };

int main(int argc, char **argv)
{
    int fixed = argc > 1 && strcmp(argv[1], "fixed") == 0;
    void *input, *output;
    uint8_t result;
    npu_stream_t stream;
    npu_cmdlist_t list;

    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_create_stream(&stream));
    CHECK(npu_malloc(&input, BYTES, 0));
    CHECK(npu_malloc(&output, BYTES, 0));
    CHECK(npu_memset(input, BYTES, 12, BYTES));
    CHECK(npu_memset(output, BYTES, 0, BYTES));
    CHECK(npu_cmdlist_create(&list, 0));
    CHECK(npu_cmdlist_append_memcpy(list, output, BYTES, input, BYTES, NPU_MEMCPY_DEVICE_TO_DEVICE));
    CHECK(npu_cmdlist_close(list));
    if (!fixed)
        CHECK(npu_free(input)); /* <- first */

    npu_cmdlist_submit(list, stream); /* <- second */
    CHECK(npu_synchronize_stream(stream));
    CHECK(npu_memcpy(&result, 1, output, 1, NPU_MEMCPY_DEVICE_TO_HOST));
    printf("%d\n", result);
    CHECK(npu_shutdown());
    return 0;
}
