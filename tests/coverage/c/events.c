/* events.c - events and notifies. */
#include "expect.h"

static npu_kernel_t spin; /* a kernel that takes long */

static npu_event_t new_event(uint32_t flags)
{
    npu_event_t event = NULL;

    OK(npu_create_event(&event, flags));
    return event;
}

static void making(void)
{
    npu_event_t event = NULL;

    expect(NPU_ERROR_NULL_POINTER, npu_create_event(NULL, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_create_event(BAD, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_create_event(&event, 2));
    event = new_event(0);
    OK(npu_destroy_event(event));
    expect(NPU_ERROR_STALE_HANDLE, npu_destroy_event(event));
    expect(NPU_ERROR_INVALID_HANDLE, npu_destroy_event(MADE_UP(npu_event_t)));
}

static void recording(void)
{
    npu_event_t first = new_event(0), second = new_event(0), silent = new_event(NPU_EVENT_DISABLE_TIMING), never = new_event(0);
    npu_stream_t stream = new_stream();
    double elapsed = 0;
    uint64_t time_ps = 0;

    OK(npu_query_event(never)); /* nothing was recorded, nothing is left */
    OK(npu_synchronize_event(never));
    OK(npu_stream_wait_event(stream, never));
    OK(npu_record_event(first, stream));
    OK(npu_launch_kernel_async(spin, NULL, 0, stream));
    OK(npu_record_event(second, stream));
    OK(npu_record_event(silent, stream));
    OK(npu_stream_wait_event(NULL, second));
    expect(NPU_NOT_READY, npu_query_event(second));
    expect(NPU_TIMEOUT, npu_synchronize_event_timeout(second, 10));
    expect(NPU_NOT_READY, npu_event_elapsed_time(&elapsed, first, second));
    expect(NPU_NOT_READY, npu_event_get_timestamp(&time_ps, second));
    OK(npu_synchronize_event_timeout(second, UINT64_MAX));
    OK(npu_synchronize_event(second));
    OK(npu_query_event(second));
    OK(npu_event_elapsed_time(&elapsed, first, second));
    claim(elapsed > 0);
    OK(npu_event_get_timestamp(&time_ps, second));
    claim(time_ps > 0);
    expect(NPU_ERROR_NOT_RECORDED, npu_event_elapsed_time(&elapsed, first, never));
    expect(NPU_ERROR_NO_TIMING, npu_event_elapsed_time(&elapsed, first, silent));
    expect(NPU_ERROR_NULL_POINTER, npu_event_elapsed_time(NULL, first, second));
    expect(NPU_ERROR_BAD_ADDRESS, npu_event_elapsed_time(BAD, first, second));
    expect(NPU_ERROR_INVALID_HANDLE, npu_event_elapsed_time(&elapsed, MADE_UP(npu_event_t), second));
    expect(NPU_ERROR_NOT_RECORDED, npu_event_get_timestamp(&time_ps, never));
    expect(NPU_ERROR_NO_TIMING, npu_event_get_timestamp(&time_ps, silent));
    expect(NPU_ERROR_NULL_POINTER, npu_event_get_timestamp(NULL, second));
    expect(NPU_ERROR_BAD_ADDRESS, npu_event_get_timestamp(BAD, second));
    expect(NPU_ERROR_INVALID_HANDLE, npu_event_get_timestamp(&time_ps, MADE_UP(npu_event_t)));
    OK(npu_reset_event(second, stream));
    OK(npu_synchronize_stream(stream));
    expect(NPU_ERROR_NOT_RECORDED, npu_event_get_timestamp(&time_ps, second));
    OK(npu_destroy_event(second));
    expect(NPU_ERROR_STALE_HANDLE, npu_event_elapsed_time(&elapsed, first, second));
    expect(NPU_ERROR_STALE_HANDLE, npu_event_get_timestamp(&time_ps, second));
    OK(npu_destroy_event(first));
    OK(npu_destroy_event(silent));
    OK(npu_destroy_event(never));
    OK(npu_synchronize_stream(NULL));
    OK(npu_destroy_stream(stream));
}

static void event_handles(void)
{
    npu_event_t stale = new_event(0), event = new_event(0), made_up = MADE_UP(npu_event_t), there;
    npu_stream_t no_stream = MADE_UP(npu_stream_t), stream_there;
    npu_context_t context = NULL;
    double elapsed = 0;

    OK(npu_destroy_event(stale));
    expect(NPU_ERROR_STALE_HANDLE, npu_record_event(stale, NULL));
    expect(NPU_ERROR_STALE_HANDLE, npu_stream_wait_event(NULL, stale));
    expect(NPU_ERROR_STALE_HANDLE, npu_reset_event(stale, NULL));
    expect(NPU_ERROR_STALE_HANDLE, npu_synchronize_event(stale));
    expect(NPU_ERROR_STALE_HANDLE, npu_synchronize_event_timeout(stale, 1));
    expect(NPU_ERROR_STALE_HANDLE, npu_query_event(stale));
    expect(NPU_ERROR_INVALID_HANDLE, npu_record_event(made_up, NULL));
    expect(NPU_ERROR_INVALID_HANDLE, npu_record_event(event, no_stream));
    expect(NPU_ERROR_INVALID_HANDLE, npu_stream_wait_event(NULL, made_up));
    expect(NPU_ERROR_INVALID_HANDLE, npu_stream_wait_event(no_stream, event));
    expect(NPU_ERROR_INVALID_HANDLE, npu_reset_event(made_up, NULL));
    expect(NPU_ERROR_INVALID_HANDLE, npu_synchronize_event(made_up));
    expect(NPU_ERROR_INVALID_HANDLE, npu_synchronize_event_timeout(made_up, 1));
    expect(NPU_ERROR_INVALID_HANDLE, npu_query_event(made_up));
    OK(npu_create_context(&context, 0));
    there = new_event(0);
    stream_there = new_stream();
    expect(NPU_ERROR_WRONG_CONTEXT, npu_record_event(event, stream_there));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_stream_wait_event(stream_there, event));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_reset_event(event, stream_there));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_event_elapsed_time(&elapsed, event, there));
    OK(npu_destroy_context(context, NPU_DESTROY_FORCE));
    OK(npu_destroy_event(event));
}

static void notifies(void)
{
    npu_notify_t notify = NULL, tokens = NULL, made_up = MADE_UP(npu_notify_t);
    npu_stream_t stream = new_stream(), no_stream = MADE_UP(npu_stream_t), there;
    npu_context_t context = NULL;
    npu_result_t result = NPU_SUCCESS;

    expect(NPU_ERROR_NULL_POINTER, npu_create_notify(NULL, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_create_notify(BAD, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_create_notify(&notify, 1));
    OK(npu_create_notify(&notify, 0));
    OK(npu_wait_notify(notify, stream));
    expect(NPU_ERROR_IN_USE, npu_destroy_notify(notify));
    OK(npu_record_notify(notify, NULL));
    OK(npu_synchronize_stream(stream));
    expect(NPU_ERROR_INVALID_HANDLE, npu_record_notify(made_up, NULL));
    expect(NPU_ERROR_INVALID_HANDLE, npu_record_notify(notify, no_stream));
    expect(NPU_ERROR_INVALID_HANDLE, npu_wait_notify(made_up, NULL));
    expect(NPU_ERROR_INVALID_HANDLE, npu_wait_notify(notify, no_stream));
    expect(NPU_ERROR_INVALID_HANDLE, npu_destroy_notify(made_up));
    OK(npu_create_context(&context, 0));
    there = new_stream();
    expect(NPU_ERROR_WRONG_CONTEXT, npu_record_notify(notify, there));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_wait_notify(notify, there));
    OK(npu_destroy_context(context, NPU_DESTROY_FORCE));
    OK(npu_create_notify(&tokens, 0)); /* a queue that is full and waits for nothing; ../python/streams.py gives all tokens, which takes long */
    OK(npu_wait_notify(notify, stream));
    for (int i = 0; i < 20000 && is(NPU_SUCCESS, result = npu_record_notify(tokens, stream)); i++)
        ;
    expect(NPU_ERROR_OUT_OF_RESOURCES, result);
    OK(npu_record_notify(notify, NULL));
    OK(npu_synchronize_stream(stream));
    OK(npu_destroy_notify(tokens));
    OK(npu_destroy_notify(notify));
    expect(NPU_ERROR_STALE_HANDLE, npu_record_notify(notify, NULL));
    expect(NPU_ERROR_STALE_HANDLE, npu_wait_notify(notify, NULL));
    expect(NPU_ERROR_STALE_HANDLE, npu_destroy_notify(notify));
    OK(npu_destroy_stream(stream));
}

/* An event that was never recorded is an error under strict rules. */
static void strict(void)
{
    npu_event_t event;

    OK(npu_shutdown());
    OK(npu_init(0));
    OK(npu_set_semantics(NPU_SEMANTICS_STRICT));
    event = new_event(0);
    expect(NPU_ERROR_NOT_RECORDED, npu_stream_wait_event(NULL, event));
    expect(NPU_ERROR_NOT_RECORDED, npu_synchronize_event(event));
    expect(NPU_ERROR_NOT_RECORDED, npu_synchronize_event_timeout(event, 1));
    expect(NPU_ERROR_NOT_RECORDED, npu_query_event(event));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    OK(npu_get_kernel(&spin, load("library"), "spin"));
    making();
    recording();
    event_handles();
    notifies();
    strict();
    return finish();
}
