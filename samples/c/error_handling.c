/* SPDX-License-Identifier: Apache-2.0
 * error_handling - who is told what, and when: mistakes in a call, failures of work, a context that is lost.
 *
 *     ./error_handling fault.blob        (made by blobs.py: its kernel writes where no memory is)
 *
 * 1. A mistake is answered by the call that makes it, and nothing has changed.
 * 2. A failure on the device is answered by the call that waits; the detail says where the failing operation was enqueued.
 * 3. A fault ends its context and no other: what it had can still be freed, and another context goes on.
 */
#include "timeline.h"

static void show(const char *what, npu_result_t result, npu_result_t expected)
{
    npu_error_detail_t detail = {.size = sizeof detail};

    printf("%-30s %s\n", what, npu_get_error_name(result));
    CLAIM(result == expected, npu_get_error_name(expected));
    if (result == NPU_SUCCESS || result == NPU_NOT_READY || result == NPU_TIMEOUT) /* nothing is wrong, there is no detail */
        return;
    CHECK(npu_get_last_error_detail(&detail));
    if (strstr(detail.message, "0x") == NULL) /* this page is to look the same everywhere */
        printf("    %s: %.*s\n", detail.function, (int)strcspn(detail.message, ";"), detail.message);
}

/* Wait for a stream, and let the timeline know. */
static void show_wait(const char *what, npu_stream_t stream, npu_result_t expected)
{
    uint64_t begin_ps, end_ps;
    npu_result_t result;

    CHECK(npu_get_time_ps(&begin_ps));
    result = npu_synchronize_stream(stream);
    CHECK(npu_get_time_ps(&end_ps));
    timeline_add(0, '.', what, begin_ps, end_ps);
    show(what, result, expected);
}

/* Called when its stream comes to it, on a thread of its own; it may not call the library. */
static void callback(void *user_data)
{
    uint64_t time_ps;

    *(npu_result_t *)user_data = npu_get_time_ps(&time_ps);
}

static void mistakes(void *memory, void *freed)
{
    npu_kernel_t copy;
    npu_arg_t args[] = {NPU_BUFFER(memory), NPU_BUFFER((char *)memory + 2048), NPU_INT(256)};
    npu_result_t in_callback;
    void *none;

    show("allocate 0 bytes", npu_malloc(&none, 0, 0), NPU_ERROR_INVALID_SIZE);
    show("free twice", npu_free(freed), NPU_ERROR_STALE_HANDLE);
    show("fill past the end", npu_memset(memory, 4096, 0, 8192), NPU_ERROR_OUT_OF_RANGE);
    show("a kernel that is none", npu_get_builtin_kernel(&copy, "conv3d"), NPU_ERROR_INVALID_VALUE);
    CHECK(npu_get_builtin_kernel(&copy, "copy"));
    show("too few arguments", npu_launch_kernel_async(copy, args, 2, NULL), NPU_ERROR_ARG_COUNT);

    CHECK(npu_launch_kernel_async(copy, args, 3, NULL));
    show("ask for work in flight", npu_query_stream(NULL), NPU_NOT_READY);
    show("wait, but too short", npu_synchronize_stream_timeout(NULL, 100), NPU_TIMEOUT);
    show_wait("wait", NULL, NPU_SUCCESS);

    CHECK(npu_stream_add_host_function(NULL, callback, &in_callback));
    CHECK(npu_synchronize_stream(NULL));
    printf("%-30s %s\n", "a call in a host function", npu_get_error_name(in_callback));
    CLAIM(in_callback == NPU_ERROR_NOT_PERMITTED, "host functions may not call the library");
}

__attribute__((noinline)) static void launch(npu_kernel_t kernel, npu_stream_t stream)
{
    CHECK(npu_launch_kernel_async(kernel, NULL, 0, stream)); /* returns at once: nothing is wrong with the call */
}

int main(int argc, char **argv)
{
    npu_context_t context;
    npu_stream_t stream;
    npu_notify_t never;
    npu_blob_t blob;
    npu_kernel_t fault;
    void *memory, *freed;
    npu_error_detail_t detail = {.size = sizeof detail};

    CLAIM(argc == 2, "it is started with fault.blob");
    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_malloc(&memory, 4096, 0));
    CHECK(npu_malloc(&freed, 4096, 0));
    CHECK(npu_free(freed));

    puts("1. mistakes");
    CHECK(npu_profiler_start());
    mistakes(memory, freed);
    CHECK(npu_profiler_stop());
    timeline_print();

    puts("2. failures");
    CHECK(npu_create_context(&context, 0)); /* current from here on */
    CHECK(npu_create_stream(&stream));
    CHECK(npu_profiler_start());
    CHECK(npu_create_notify(&never, 0));
    CHECK(npu_wait_notify(never, stream));
    show_wait("wait for what nobody signals", stream, NPU_ERROR_BARRIER_DEADLOCK);
    CHECK(npu_record_notify(never, NULL));
    show_wait("wait, now that it is signalled", stream, NPU_SUCCESS);

    CHECK(npu_load_blob(&blob, argv[1]));
    CHECK(npu_get_kernel(&fault, blob, NULL));
    launch(fault, stream);
    show_wait("wait for a kernel that faults", stream, NPU_ERROR_DEVICE_PAGE_FAULT);
    CHECK(npu_get_last_error_detail(&detail));
    CLAIM(detail.enqueue_site - (uint64_t)(uintptr_t)launch < 256, "the detail has the place in launch() that enqueued it");
    puts("    it was enqueued in launch(): addr2line has the line of detail.enqueue_site");
    timeline_print();

    puts("3. what is left");
    show("the context is lost", npu_create_stream(&stream), NPU_ERROR_DEVICE_LOST);
    CHECK(npu_destroy_context(context, NPU_DESTROY_FORCE)); /* the primary context is current again */
    show("the other context goes on", npu_memset(memory, 4096, 0, 4096), NPU_SUCCESS);
    show("its memory is freed", npu_free(memory), NPU_SUCCESS);
    CHECK(npu_shutdown());
    return 0;
}
