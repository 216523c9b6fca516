/* ipc.c - handles of memory and events, between two contexts. */
#include "expect.h"

#define BYTES 4096

static npu_context_t there;

static void memory(void)
{
    npu_ipc_mem_handle_t handle, other, made_up;
    npu_event_t event = NULL;
    npu_ipc_event_handle_t event_handle;
    void *ptr = allocate(BYTES), *freed = allocate(BYTES), *view = NULL, *again = NULL;
    unsigned char bytes[BYTES];

    expect(NPU_ERROR_NULL_POINTER, npu_ipc_get_mem_handle(NULL, ptr));
    expect(NPU_ERROR_NULL_POINTER, npu_ipc_get_mem_handle(&handle, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_ipc_get_mem_handle(BAD, ptr));
    expect(NPU_ERROR_INVALID_VALUE, npu_ipc_get_mem_handle(&handle, (char *)ptr + 8));
    OK(npu_ipc_get_mem_handle(&handle, ptr));
    OK(npu_ipc_get_mem_handle(&other, freed));
    OK(npu_free(freed));
    expect(NPU_ERROR_STALE_HANDLE, npu_ipc_get_mem_handle(&other, freed));
    OK(npu_create_event(&event, NPU_EVENT_DISABLE_TIMING | NPU_EVENT_INTERPROCESS));
    OK(npu_ipc_get_event_handle(&event_handle, event));
    memcpy(&made_up, &event_handle, sizeof made_up);

    OK(npu_set_current_context(there));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_ipc_get_mem_handle(&made_up, ptr));
    expect(NPU_ERROR_NULL_POINTER, npu_ipc_open_mem_handle(NULL, &handle, 0));
    expect(NPU_ERROR_NULL_POINTER, npu_ipc_open_mem_handle(&view, NULL, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_ipc_open_mem_handle(BAD, &handle, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_ipc_open_mem_handle(&view, BAD, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_ipc_open_mem_handle(&view, &handle, 1));
    expect(NPU_ERROR_INVALID_VALUE, npu_ipc_open_mem_handle(&view, &made_up, 0));
    expect(NPU_ERROR_INVALID_HANDLE, npu_ipc_open_mem_handle(&view, &other, 0));
    OK(npu_ipc_open_mem_handle(&view, &handle, 0));
    OK(npu_ipc_open_mem_handle(&again, &handle, 0));
    claim(view != again);
    expect(NPU_ERROR_INVALID_VALUE, npu_ipc_get_mem_handle(&made_up, view));
    OK(npu_memset(view, BYTES, 7, BYTES));
    OK(npu_memcpy(bytes, BYTES, again, BYTES, NPU_MEMCPY_DEVICE_TO_HOST));
    claim(bytes[0] == 7 && bytes[BYTES - 1] == 7);
    freed = allocate(BYTES);
    expect(NPU_ERROR_NULL_POINTER, npu_ipc_close_mem_handle(NULL));
    expect(NPU_ERROR_INVALID_VALUE, npu_ipc_close_mem_handle(freed));
    OK(npu_free(freed));
    OK(npu_ipc_close_mem_handle(again));
    expect(NPU_ERROR_STALE_HANDLE, npu_ipc_close_mem_handle(again));
    OK(npu_set_device(0));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_ipc_close_mem_handle(view));
    OK(npu_free(ptr)); /* the other context still has it */
    OK(npu_set_current_context(there));
    OK(npu_memcpy(bytes, BYTES, view, BYTES, NPU_MEMCPY_DEVICE_TO_HOST));
    claim(bytes[0] == 7);
    OK(npu_ipc_close_mem_handle(view));
    OK(npu_set_device(0));
    OK(npu_destroy_event(event));
}

static void no_memory_for_tables(void)
{
    npu_ipc_mem_handle_t handle;
    void *large = NULL, *view = NULL;
    void *taken[64];
    size_t free_bytes = 0, total_bytes = 0;
    npu_result_t result;
    int count = 0;

    OK(npu_malloc(&large, 48 << 20, 0));
    OK(npu_ipc_get_mem_handle(&handle, large));
    OK(npu_set_current_context(there));
    OK(npu_mem_get_info(&free_bytes, &total_bytes));
    for (size_t piece = free_bytes; piece >= 4096 && count < 64; )
        if (is(NPU_SUCCESS, result = npu_malloc(&taken[count], piece & ~(size_t)4095, 0)))
            count++;
        else if (expect(NPU_ERROR_OUT_OF_DEVICE_MEMORY, result))
            piece /= 2;
    expect(NPU_ERROR_OUT_OF_DEVICE_MEMORY, npu_ipc_open_mem_handle(&view, &handle, 0));
    while (count > 0)
        OK(npu_free(taken[--count]));
    OK(npu_ipc_open_mem_handle(&view, &handle, 0));
    OK(npu_ipc_close_mem_handle(view));
    OK(npu_set_device(0));
    OK(npu_free(large));
}

static void events(void)
{
    npu_event_t event = NULL, plain = NULL, opened = NULL;
    npu_ipc_event_handle_t handle, other;
    npu_ipc_mem_handle_t of_memory;
    void *ptr = allocate(BYTES);

    expect(NPU_ERROR_INVALID_VALUE, npu_create_event(&event, NPU_EVENT_INTERPROCESS));
    OK(npu_create_event(&event, NPU_EVENT_DISABLE_TIMING | NPU_EVENT_INTERPROCESS));
    OK(npu_create_event(&plain, NPU_EVENT_DISABLE_TIMING));
    expect(NPU_ERROR_NULL_POINTER, npu_ipc_get_event_handle(NULL, event));
    expect(NPU_ERROR_BAD_ADDRESS, npu_ipc_get_event_handle(BAD, event));
    expect(NPU_ERROR_INVALID_HANDLE, npu_ipc_get_event_handle(&handle, MADE_UP(npu_event_t)));
    expect(NPU_ERROR_INVALID_VALUE, npu_ipc_get_event_handle(&handle, plain));
    OK(npu_ipc_get_event_handle(&handle, event));
    OK(npu_destroy_event(plain));
    expect(NPU_ERROR_STALE_HANDLE, npu_ipc_get_event_handle(&other, plain));
    OK(npu_ipc_get_mem_handle(&of_memory, ptr));
    memcpy(&other, &of_memory, sizeof other);

    OK(npu_set_current_context(there));
    expect(NPU_ERROR_NULL_POINTER, npu_ipc_open_event_handle(NULL, &handle));
    expect(NPU_ERROR_NULL_POINTER, npu_ipc_open_event_handle(&opened, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_ipc_open_event_handle(BAD, &handle));
    expect(NPU_ERROR_BAD_ADDRESS, npu_ipc_open_event_handle(&opened, BAD));
    expect(NPU_ERROR_INVALID_VALUE, npu_ipc_open_event_handle(&opened, &other));
    OK(npu_ipc_open_event_handle(&opened, &handle));
    expect(NPU_ERROR_INVALID_VALUE, npu_ipc_get_event_handle(&other, opened));
    OK(npu_query_event(opened));
    OK(npu_set_device(0));
    OK(npu_memset_async(ptr, BYTES, 1, BYTES, NULL));
    OK(npu_record_event(event, NULL));
    expect(NPU_NOT_READY, npu_query_event(opened));
    OK(npu_synchronize_event(opened));
    OK(npu_query_event(event));
    OK(npu_destroy_event(event));
    OK(npu_set_current_context(there));
    expect(NPU_ERROR_INVALID_HANDLE, npu_ipc_open_event_handle(&opened, &handle));
    OK(npu_destroy_event(opened));
    OK(npu_set_device(0));
    OK(npu_free(ptr));
}

static void strict(void)
{
    npu_ipc_mem_handle_t handle;
    void *ptr = NULL, *view = NULL;
    npu_stream_t stream = NULL;

    OK(npu_shutdown());
    OK(npu_init(0));
    OK(npu_set_semantics(NPU_SEMANTICS_STRICT));
    OK(npu_create_context(&there, 0));
    OK(npu_set_device(0));
    ptr = allocate(1 << 20);
    OK(npu_ipc_get_mem_handle(&handle, ptr));
    OK(npu_set_current_context(there));
    OK(npu_ipc_open_mem_handle(&view, &handle, 0));
    stream = new_stream();
    OK(npu_memset_async(view, 1 << 20, 1, 1 << 20, stream));
    expect(NPU_ERROR_IN_USE, npu_ipc_close_mem_handle(view));
    OK(npu_synchronize_stream(stream));
    OK(npu_ipc_close_mem_handle(view));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    OK(npu_create_context(&there, 0));
    OK(npu_set_device(0));
    memory();
    no_memory_for_tables();
    events();
    strict();
    return finish();
}
