/* limits.c - what fills a command list or a graph, and a graph for which there is no memory. */
#include "expect.h"

enum { MANY = 8192 };
static void *memory[MANY]; /* more allocations than a submit can name */

static void full_list(void)
{
    npu_kernel_t spin = NULL;
    npu_cmdlist_t list = NULL;
    npu_stream_t stream = new_stream();
    npu_graph_t graph = NULL;
    npu_graph_exec_t exec = NULL;
    npu_result_t result;
    int last = -1;

    OK(npu_get_kernel(&spin, load("library"), "spin"));
    OK(npu_cmdlist_create(&list, 0));
    do { /* two allocations with each */
        memory[++last] = allocate(64);
        memory[++last] = allocate(64);
        result = npu_cmdlist_append_memcpy(list, memory[last], 64, memory[last - 1], 64, NPU_MEMCPY_DEVICE_TO_DEVICE);
    } while (is(NPU_SUCCESS, result) && last < MANY - 2);
    expect(NPU_ERROR_OUT_OF_RESOURCES, result);
    for (int i = last - 1; i <= last && is(NPU_SUCCESS, result = npu_cmdlist_append_memset(list, memory[i], 64, 1, 64)); i++)
        ; /* one with each */
    expect(NPU_ERROR_OUT_OF_RESOURCES, result);
    expect(NPU_ERROR_OUT_OF_RESOURCES, npu_cmdlist_append_kernel(list, spin, NULL, 0));
    OK(npu_cmdlist_append_memset(list, memory[0], 64, 2, 64));
    OK(npu_cmdlist_reset(list));
    OK(npu_cmdlist_destroy(list));

    OK(npu_stream_begin_capture(stream));
    for (int i = 0; i < last; i += 2)
        OK(npu_memcpy_async(memory[i + 1], 64, memory[i], 64, NPU_MEMCPY_DEVICE_TO_DEVICE, stream));
    OK(npu_stream_end_capture(stream, &graph));
    expect(NPU_ERROR_OUT_OF_RESOURCES, npu_graph_instantiate(&exec, graph));
    OK(npu_graph_destroy(graph));
}

/* A model in a graph needs task lists of its own. */
static void no_memory(void)
{
    npu_kernel_t copy;
    npu_stream_t stream;
    npu_graph_t graph = NULL;
    npu_graph_exec_t exec = NULL;
    uint64_t free_bytes = 0, total_bytes = 0;
    npu_result_t result;
    void *x, *y;
    int count = 0;

    OK(npu_reset_device());
    copy = kernel_of(load("copy"));
    stream = new_stream();
    x = allocate(64);
    y = allocate(64);
    npu_arg_t args[] = {NPU_BUFFER(x), NPU_BUFFER(y)};
    OK(npu_stream_begin_capture(stream));
    for (int i = 0; i < 64; i++) /* the first of them may take what the module has ready */
        OK(npu_launch_kernel_async(copy, args, 2, stream));
    OK(npu_stream_end_capture(stream, &graph));
    OK(npu_mem_get_info(&free_bytes, &total_bytes));
    for (uint64_t piece = free_bytes; piece >= 4096 && count < 64; )
        if (is(NPU_SUCCESS, result = npu_malloc(&memory[count], piece & ~(uint64_t)4095, 0)))
            count++;
        else if (expect(NPU_ERROR_OUT_OF_DEVICE_MEMORY, result))
            piece /= 2;
    expect(NPU_ERROR_OUT_OF_DEVICE_MEMORY, npu_graph_instantiate(&exec, graph));
    while (count > 0)
        OK(npu_free(memory[--count]));
    OK(npu_graph_instantiate(&exec, graph));
    OK(npu_graph_launch(exec, stream));
    OK(npu_synchronize_stream(stream));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    full_list();
    no_memory();
    return finish();
}
