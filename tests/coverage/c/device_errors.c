/* device_errors.c - what a job can end with, and every call that reports it. */
#include "expect.h"

#include <pthread.h>

/* The work that fails is in `stream`; `event` was recorded behind it, and `memory` is used by it. */
enum { MEMORY = 1 << 20 };
static npu_stream_t stream;
static npu_event_t event;
static char *memory, host[64];

static npu_result_t device(void) { return npu_synchronize_device(); }
static npu_result_t context(void) { return npu_synchronize_context(); }
static npu_result_t completion(void) { return npu_wait_for_completion(); }
static npu_result_t completion_in_time(void) { return npu_wait_for_completion_timeout(1000000000); }
static npu_result_t synchronize(void) { return npu_synchronize_stream(stream); }
static npu_result_t synchronize_in_time(void) { return npu_synchronize_stream_timeout(stream, 1000000000); }
static npu_result_t of_event(void) { return npu_synchronize_event(event); }
static npu_result_t of_event_in_time(void) { return npu_synchronize_event_timeout(event, 1000000000); }
static npu_result_t copy(void) { return npu_memcpy(host, 64, memory, 64, NPU_MEMCPY_DEVICE_TO_HOST); }
static npu_result_t copy_rows(void) { return npu_memcpy_2d(host, 32, 64, memory, 32, 32, 2, NPU_MEMCPY_DEVICE_TO_HOST); }
static npu_result_t copy_async(void) { return npu_memcpy_async(host, 64, memory, 64, NPU_MEMCPY_DEVICE_TO_HOST, stream); }
static npu_result_t copy_rows_async(void) { return npu_memcpy_2d_async(host, 32, 64, memory, 32, 32, 2, NPU_MEMCPY_DEVICE_TO_HOST, stream); }
static npu_result_t fill(void) { return npu_memset(memory, 64, 1, 64); }
static npu_result_t peer(void) { return npu_memcpy_peer(memory, 64, memory + 64, 64); }

static npu_result_t query(void)
{
    npu_result_t result;

    while (is(NPU_NOT_READY, result = npu_query_stream(stream)))
        ;
    return result;
}

static npu_result_t destroy(void)
{
    npu_result_t result = npu_destroy_stream(stream);

    stream = NULL;
    return result;
}

static npu_result_t release(void)
{
    npu_result_t result = npu_free_sync(memory);

    memory = NULL;
    return result;
}

/* Calls that wait or ask. `on_default`: they do so for the default stream. `cleans`: they end a thing, which a lost context does not forbid. */
static const struct { const char *name; npu_result_t (*call)(void); int on_default, cleans; } calls[] = {
    {"npu_synchronize_device", device, 0, 0},
    {"npu_synchronize_context", context, 0, 0},
    {"npu_wait_for_completion", completion, 0, 0},
    {"npu_wait_for_completion_timeout", completion_in_time, 0, 0},
    {"npu_synchronize_stream", synchronize, 0, 0},
    {"npu_synchronize_stream_timeout", synchronize_in_time, 0, 0},
    {"npu_query_stream", query, 0, 0},
    {"npu_synchronize_event", of_event, 0, 0},
    {"npu_synchronize_event_timeout", of_event_in_time, 0, 0},
    {"npu_memcpy", copy, 1, 0},
    {"npu_memcpy_2d", copy_rows, 1, 0},
    {"npu_memcpy_async", copy_async, 0, 0},
    {"npu_memcpy_2d_async", copy_rows_async, 0, 0},
    {"npu_memset", fill, 1, 0},
    {"npu_memcpy_peer", peer, 1, 0},
    {"npu_free_sync", release, 0, 1},
    {"npu_destroy_stream", destroy, 0, 1},
};

static void leave(void *unused) { pthread_exit(unused); }

/* Work that ends with `result`: a model of that name, a kernel of the library, or one behind which something else ends so. */
static const struct { npu_result_t result; const char *model, *kernel; } failing[] = {
    {NPU_ERROR_DEVICE_PAGE_FAULT, "page_fault", NULL},
    {NPU_ERROR_BARRIER_DEADLOCK, "deadlock", NULL},
    {NPU_ERROR_BARRIER_UNDERFLOW, "underflow", NULL},
    {NPU_ERROR_KERNEL_FAULT, "library", "trap"},
    {NPU_ERROR_ABORTED_BY_PRIOR_ERROR, "library", "spin"},
    {NPU_ERROR_HOST_FUNCTION, "library", "spin"},
    {NPU_ERROR_DEVICE_LOST, "page_fault", NULL},
};

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    for (size_t f = 0; f < sizeof failing / sizeof failing[0]; f++)
        for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
            npu_result_t wanted = failing[f].result, found;
            npu_blob_t blob = load(failing[f].model);
            npu_kernel_t kernel = NULL;

            memory = allocate(MEMORY);
            stream = calls[c].on_default ? NULL : new_stream();
            OK(npu_create_event(&event, 0));
            npu_arg_t args[] = {NPU_BUFFER(memory), NPU_BUFFER(memory + 4096)};
            OK(npu_get_kernel(&kernel, blob, failing[f].kernel));
            OK(npu_memset_async(memory, MEMORY, 0, MEMORY, stream)); /* so that it fails when everything has been enqueued */
            OK(npu_launch_kernel_async(kernel, args, failing[f].kernel ? 0 : 2, stream));
            if (wanted == NPU_ERROR_HOST_FUNCTION)
                OK(npu_stream_add_host_function(stream, leave, NULL));
            OK(npu_record_event(event, stream));
            if (wanted == NPU_ERROR_ABORTED_BY_PRIOR_ERROR)
                OK(npu_stream_abort(stream));
            if (wanted == NPU_ERROR_DEVICE_LOST) {
                expect(NPU_ERROR_DEVICE_PAGE_FAULT, npu_synchronize_stream(stream)); /* reported once */
                while (is(NPU_ERROR_ABORTED_BY_PRIOR_ERROR, found = npu_query_stream(stream)))
                    ; /* what was behind it */
                expect(NPU_ERROR_DEVICE_LOST, found);
                if (calls[c].cleans)
                    wanted = NPU_SUCCESS;
            }
            expect_result(calls[c].call(), wanted, calls[c].name, failing[f].model, (int)f);
            OK(npu_reset_device());
        }
    return finish();
}
