/* graphs.c - what is enqueued while a stream is captured, made ready once and launched often. */
#include "expect.h"

static float output[16];

/* A graph of one memset of 64 bytes at `memory` to `value`. */
static npu_graph_t graph_of_memset(void *memory, int value)
{
    npu_stream_t stream = new_stream();
    npu_graph_t graph = NULL;

    OK(npu_stream_begin_capture(stream));
    OK(npu_memset_async(memory, 64, value, 64, stream));
    OK(npu_stream_end_capture(stream, &graph));
    OK(npu_destroy_stream(stream));
    return graph;
}

static npu_graph_exec_t ready(npu_graph_t graph)
{
    npu_graph_exec_t exec = NULL;

    OK(npu_graph_instantiate(&exec, graph));
    return exec;
}

static npu_graph_t stale_graph(void *memory)
{
    npu_graph_t graph = graph_of_memset(memory, 0);

    OK(npu_graph_destroy(graph));
    return graph;
}

static npu_graph_exec_t stale_exec(void *memory)
{
    npu_graph_t graph = graph_of_memset(memory, 0);
    npu_graph_exec_t exec = ready(graph);

    OK(npu_graph_destroy(graph));
    OK(npu_graph_exec_destroy(exec));
    return exec;
}

static void capture(void)
{
    npu_stream_t stream = new_stream(), other = new_stream();
    npu_event_t fork = NULL, join = NULL;
    npu_capture_status_t status = NPU_CAPTURE_INVALID;
    npu_graph_t graph = NULL;
    size_t count = 0;
    char *memory = allocate(4096);

    OK(npu_create_event(&fork, 0));
    OK(npu_create_event(&join, 0));
    OK(npu_stream_is_capturing(stream, &status));
    claim(status == NPU_CAPTURE_NONE);
    expect(NPU_ERROR_BAD_STATE, npu_stream_end_capture(stream, &graph));
    expect(NPU_ERROR_CAPTURE_UNSUPPORTED, npu_stream_begin_capture(NULL));
    expect(NPU_ERROR_INVALID_HANDLE, npu_stream_begin_capture(MADE_UP(npu_stream_t)));
    expect(NPU_ERROR_STALE_HANDLE, npu_stream_begin_capture(stale_stream()));
    OK(npu_stream_begin_capture(stream));
    expect(NPU_ERROR_BAD_STATE, npu_stream_begin_capture(stream));
    OK(npu_stream_is_capturing(stream, &status));
    claim(status == NPU_CAPTURE_ACTIVE);
    OK(npu_memset_async(memory, 64, 1, 64, stream));
    OK(npu_record_event(fork, stream));
    OK(npu_stream_wait_event(other, fork));
    OK(npu_stream_is_capturing(other, &status));
    claim(status == NPU_CAPTURE_ACTIVE);
    OK(npu_memset_async(memory + 64, 64, 2, 64, other));
    OK(npu_record_event(join, other));
    OK(npu_stream_wait_event(stream, join));
    OK(npu_memcpy_async(memory + 128, 64, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_DEVICE, stream));
    expect(NPU_ERROR_NULL_POINTER, npu_stream_end_capture(stream, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_stream_end_capture(stream, BAD));
    OK(npu_stream_end_capture(stream, &graph));
    OK(npu_graph_get_node_count(graph, &count));
    claim(count >= 3);

    expect(NPU_ERROR_INVALID_HANDLE, npu_stream_end_capture(MADE_UP(npu_stream_t), &graph));
    expect(NPU_ERROR_STALE_HANDLE, npu_stream_end_capture(stale_stream(), &graph));
    expect(NPU_ERROR_NULL_POINTER, npu_stream_is_capturing(stream, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_stream_is_capturing(stream, BAD));
    expect(NPU_ERROR_INVALID_HANDLE, npu_stream_is_capturing(MADE_UP(npu_stream_t), &status));
    expect(NPU_ERROR_STALE_HANDLE, npu_stream_is_capturing(stale_stream(), &status));

    expect(NPU_ERROR_NULL_POINTER, npu_graph_get_node_count(graph, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_graph_get_node_count(graph, BAD));
    expect(NPU_ERROR_INVALID_HANDLE, npu_graph_get_node_count(MADE_UP(npu_graph_t), &count));
    OK(npu_graph_destroy(graph));
    expect(NPU_ERROR_STALE_HANDLE, npu_graph_get_node_count(graph, &count));
    expect(NPU_ERROR_STALE_HANDLE, npu_graph_destroy(graph));
    expect(NPU_ERROR_INVALID_HANDLE, npu_graph_destroy(MADE_UP(npu_graph_t)));
    OK(npu_destroy_event(fork));
    OK(npu_destroy_event(join));
    OK(npu_destroy_stream(stream));
    OK(npu_destroy_stream(other));
    OK(npu_free(memory));
}

/* What waits, or copies pageable memory, ends the capture without a graph. */
static void invalid_capture(void)
{
    npu_stream_t stream = new_stream();
    npu_capture_status_t status = NPU_CAPTURE_NONE;
    npu_graph_t graph = (npu_graph_t)BAD;
    char *memory = allocate(64);

    OK(npu_stream_begin_capture(stream));
    expect(NPU_ERROR_CAPTURE_UNSUPPORTED, npu_synchronize_stream(stream));
    OK(npu_stream_is_capturing(stream, &status));
    claim(status == NPU_CAPTURE_INVALID);
    expect(NPU_ERROR_CAPTURE_INVALIDATED, npu_stream_end_capture(stream, &graph));
    claim(graph == (npu_graph_t)BAD);
    OK(npu_stream_begin_capture(stream));
    expect(NPU_ERROR_CAPTURE_UNSUPPORTED, npu_memcpy_async(memory, 64, output, 64, NPU_MEMCPY_HOST_TO_DEVICE, stream));
    expect(NPU_ERROR_CAPTURE_INVALIDATED, npu_stream_end_capture(stream, &graph));
    OK(npu_memset_async(memory, 64, 1, 64, stream)); /* a stream as before */
    OK(npu_synchronize_stream(stream));
    OK(npu_destroy_stream(stream));
    OK(npu_free(memory));
}

static void launching(void)
{
    char *memory = allocate(4096), *gone = allocate(64), *host = NULL;
    npu_graph_t graph = graph_of_memset(memory, 0x3f), of_gone = graph_of_memset(gone, 1);
    npu_graph_exec_t exec = ready(graph), exec_of_gone = ready(of_gone), none = NULL;
    npu_stream_t stream = new_stream(), elsewhere;
    npu_context_t context = NULL;

    OK(npu_memset(memory, 64, 0, 64));
    OK(npu_graph_launch(exec, stream));
    OK(npu_synchronize_stream(stream));
    OK(npu_memcpy(output, 64, memory, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    claim(((unsigned char *)output)[63] == 0x3f);

    expect(NPU_ERROR_NULL_POINTER, npu_graph_instantiate(NULL, graph));
    expect(NPU_ERROR_BAD_ADDRESS, npu_graph_instantiate(BAD, graph));
    expect(NPU_ERROR_INVALID_HANDLE, npu_graph_instantiate(&none, MADE_UP(npu_graph_t)));
    expect(NPU_ERROR_STALE_HANDLE, npu_graph_instantiate(&none, stale_graph(memory)));

    expect(NPU_ERROR_INVALID_HANDLE, npu_graph_launch(MADE_UP(npu_graph_exec_t), stream));
    expect(NPU_ERROR_STALE_HANDLE, npu_graph_launch(stale_exec(memory), stream));
    expect(NPU_ERROR_INVALID_HANDLE, npu_graph_launch(exec, MADE_UP(npu_stream_t)));
    OK(npu_create_context(&context, 0));
    elsewhere = new_stream();
    OK(npu_set_current_context(NULL));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_graph_launch(exec, elsewhere));
    OK(npu_destroy_context(context, NPU_DESTROY_FORCE));
    OK(npu_free(gone));
    expect(NPU_ERROR_STALE_HANDLE, npu_graph_launch(exec_of_gone, stream));
    expect(NPU_ERROR_STALE_HANDLE, npu_graph_instantiate(&none, of_gone));

    OK(npu_graph_exec_destroy(exec));
    expect(NPU_ERROR_STALE_HANDLE, npu_graph_exec_destroy(exec));
    expect(NPU_ERROR_INVALID_HANDLE, npu_graph_exec_destroy(MADE_UP(npu_graph_exec_t)));
    OK(npu_graph_exec_destroy(exec_of_gone));
    OK(npu_graph_destroy(graph));
    OK(npu_graph_destroy(of_gone));
    OK(npu_destroy_stream(stream));
    OK(npu_free(memory));
    (void)host;
}

static void updating(void)
{
    char *memory = allocate(4096);
    npu_graph_t first = graph_of_memset(memory, 1), second = graph_of_memset(memory, 2), other = NULL;
    npu_graph_exec_t exec = ready(first);
    npu_stream_t stream = new_stream();
    npu_blob_t blob = load("library");
    npu_kernel_t spin = NULL;
    npu_graph_exec_t slow = NULL;

    OK(npu_get_kernel(&spin, blob, "spin"));
    OK(npu_stream_begin_capture(stream));
    OK(npu_launch_kernel_async(spin, NULL, 0, stream));
    OK(npu_stream_end_capture(stream, &other));
    OK(npu_graph_update(exec, second));
    OK(npu_graph_launch(exec, stream));
    OK(npu_memcpy_async(output, 64, memory, 64, NPU_MEMCPY_DEVICE_TO_HOST, stream));
    claim(((unsigned char *)output)[63] == 2);
    expect(NPU_ERROR_INVALID_VALUE, npu_graph_update(exec, other));
    expect(NPU_ERROR_INVALID_HANDLE, npu_graph_update(MADE_UP(npu_graph_exec_t), second));
    expect(NPU_ERROR_INVALID_HANDLE, npu_graph_update(exec, MADE_UP(npu_graph_t)));
    expect(NPU_ERROR_STALE_HANDLE, npu_graph_update(stale_exec(memory), second));
    expect(NPU_ERROR_STALE_HANDLE, npu_graph_update(exec, stale_graph(memory)));
    slow = ready(other);
    OK(npu_graph_launch(slow, stream));
    expect(NPU_ERROR_IN_USE, npu_graph_update(slow, other));
    OK(npu_synchronize_stream(stream));
    OK(npu_graph_exec_destroy(slow));
    OK(npu_graph_exec_destroy(exec));
    OK(npu_graph_destroy(first));
    OK(npu_graph_destroy(second));
    OK(npu_graph_destroy(other));
    OK(npu_destroy_stream(stream));
    OK(npu_unload(blob));
    OK(npu_free(memory));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    capture();
    invalid_capture();
    launching();
    updating();
    return finish();
}
