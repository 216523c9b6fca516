/* streams.c - streams, host functions, failure modes. */
#include "expect.h"

static void making(void)
{
    npu_stream_t stream = NULL, many[4096];
    npu_result_t result = NPU_SUCCESS;
    int count = 0;

    expect(NPU_ERROR_NULL_POINTER, npu_create_stream(NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_create_stream(BAD));
    expect(NPU_ERROR_NULL_POINTER, npu_create_stream_with_priority(NULL, 0, NPU_PRIORITY_NORMAL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_create_stream_with_priority(BAD, 0, NPU_PRIORITY_NORMAL));
    expect(NPU_ERROR_INVALID_VALUE, npu_create_stream_with_priority(&stream, 2, NPU_PRIORITY_NORMAL));
    expect(NPU_ERROR_INVALID_VALUE, npu_create_stream_with_priority(&stream, 0, (npu_priority_t)0));
    OK(npu_create_stream_with_priority(&stream, NPU_STREAM_NON_BLOCKING, NPU_PRIORITY_REALTIME));
    OK(npu_destroy_stream(stream));
    while (count < 4096 && is(NPU_SUCCESS, result = npu_create_stream(&many[count])))
        count++;
    expect(NPU_ERROR_OUT_OF_RESOURCES, result);
    expect(NPU_ERROR_OUT_OF_RESOURCES, npu_create_stream_with_priority(&stream, 0, NPU_PRIORITY_IDLE));
    while (count > 0)
        OK(npu_destroy_stream(many[--count]));
}

static void handles(void)
{
    npu_stream_t stream = new_stream();
    uint64_t id = 0, other = 0;

    OK(npu_get_stream_id(stream, &id));
    OK(npu_get_stream_id(NULL, &other));
    claim(id != other);
    expect(NPU_ERROR_NULL_POINTER, npu_get_stream_id(stream, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_stream_id(stream, BAD));
    expect(NPU_ERROR_INVALID_HANDLE, npu_get_stream_id(MADE_UP(npu_stream_t), &id));
    expect(NPU_ERROR_INVALID_HANDLE, npu_destroy_stream(NULL));
    expect(NPU_ERROR_INVALID_HANDLE, npu_destroy_stream(MADE_UP(npu_stream_t)));
    expect(NPU_ERROR_INVALID_HANDLE, npu_synchronize_stream(MADE_UP(npu_stream_t)));
    expect(NPU_ERROR_INVALID_HANDLE, npu_synchronize_stream_timeout(MADE_UP(npu_stream_t), 1));
    expect(NPU_ERROR_INVALID_HANDLE, npu_query_stream(MADE_UP(npu_stream_t)));
    OK(npu_destroy_stream(stream));
    expect(NPU_ERROR_STALE_HANDLE, npu_get_stream_id(stream, &id));
    expect(NPU_ERROR_STALE_HANDLE, npu_destroy_stream(stream));
    expect(NPU_ERROR_STALE_HANDLE, npu_synchronize_stream(stream));
    expect(NPU_ERROR_STALE_HANDLE, npu_synchronize_stream_timeout(stream, 1));
    expect(NPU_ERROR_STALE_HANDLE, npu_query_stream(stream));
}

static void waiting(void)
{
    npu_blob_t blob = load("library");
    npu_kernel_t spin = NULL;
    npu_stream_t stream = new_stream();

    OK(npu_get_kernel(&spin, blob, "spin"));
    OK(npu_launch_kernel_async(spin, NULL, 0, stream));
    expect(NPU_NOT_READY, npu_query_stream(stream));
    expect(NPU_TIMEOUT, npu_synchronize_stream_timeout(stream, 10));
    OK(npu_synchronize_stream_timeout(stream, UINT64_MAX));
    OK(npu_query_stream(stream));
    OK(npu_synchronize_stream(stream));
    OK(npu_destroy_stream(stream));
    OK(npu_unload(blob));
}

static int called;

static void note(void *user_data)
{
    called = *(int *)user_data;
}

static void host_functions(void)
{
    npu_stream_t stream = new_stream();
    int value = 7;

    OK(npu_stream_add_host_function(stream, note, &value));
    OK(npu_synchronize_stream(stream));
    claim(called == 7);
    expect(NPU_ERROR_NULL_POINTER, npu_stream_add_host_function(stream, NULL, &value));
    expect(NPU_ERROR_INVALID_HANDLE, npu_stream_add_host_function(MADE_UP(npu_stream_t), note, &value));
    OK(npu_destroy_stream(stream));
    expect(NPU_ERROR_STALE_HANDLE, npu_stream_add_host_function(stream, note, &value));
}

static void failure_modes(void)
{
    npu_blob_t blob = load("library");
    npu_kernel_t spin = NULL;
    npu_stream_t stream = new_stream();

    OK(npu_get_kernel(&spin, blob, "spin"));
    expect(NPU_ERROR_INVALID_HANDLE, npu_stream_set_failure_mode(MADE_UP(npu_stream_t), NPU_STOP_ON_FAILURE));
    expect(NPU_ERROR_STALE_HANDLE, npu_stream_set_failure_mode(stale_stream(), NPU_STOP_ON_FAILURE));
    expect(NPU_ERROR_INVALID_VALUE, npu_stream_set_failure_mode(stream, (npu_failure_mode_t)2));
    OK(npu_launch_kernel_async(spin, NULL, 0, stream));
    expect(NPU_ERROR_IN_USE, npu_stream_set_failure_mode(stream, NPU_STOP_ON_FAILURE));
    OK(npu_synchronize_stream(stream));
    OK(npu_stream_set_failure_mode(stream, NPU_CONTINUE_ON_FAILURE));
    OK(npu_stream_set_failure_mode(stream, NPU_STOP_ON_FAILURE));
    expect(NPU_ERROR_BAD_STATE, npu_stream_set_failure_mode(stream, NPU_CONTINUE_ON_FAILURE));

    OK(npu_launch_kernel_async(spin, NULL, 0, stream));
    OK(npu_stream_abort(stream));
    expect(NPU_ERROR_ABORTED_BY_PRIOR_ERROR, npu_synchronize_stream(stream));
    OK(npu_launch_kernel_async(spin, NULL, 0, stream));
    OK(npu_synchronize_stream(stream));
    expect(NPU_ERROR_INVALID_HANDLE, npu_stream_abort(MADE_UP(npu_stream_t)));
    OK(npu_destroy_stream(stream));
    expect(NPU_ERROR_STALE_HANDLE, npu_stream_abort(stream));
    OK(npu_unload(blob));
}

/* A stream with work in flight cannot be destroyed under strict rules. */
static void strict(void)
{
    npu_kernel_t spin = NULL;
    npu_stream_t stream;

    OK(npu_shutdown());
    OK(npu_init(0));
    OK(npu_set_semantics(NPU_SEMANTICS_STRICT));
    OK(npu_get_kernel(&spin, load("library"), "spin"));
    stream = new_stream();
    OK(npu_launch_kernel_async(spin, NULL, 0, stream));
    expect(NPU_ERROR_IN_USE, npu_destroy_stream(stream));
    OK(npu_synchronize_stream(stream));
    OK(npu_destroy_stream(stream));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    making();
    handles();
    waiting();
    host_functions();
    failure_modes();
    strict();
    return finish();
}
