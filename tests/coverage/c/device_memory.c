/* device_memory.c - allocations and what a pointer is. */
#include "expect.h"

/* Two more ways to free than npu_free, which refuse the same. */
static npu_result_t free_async_default(void *memory) { return npu_free_async(memory, NULL); }

static npu_context_t elsewhere; /* a context that is not the current one, with memory */
static void *memory_elsewhere;

static void allocations(void)
{
    void *memory = NULL;
    uint64_t free_bytes = 0, total_bytes = 0;

    OK(npu_mem_get_info(&free_bytes, &total_bytes));
    claim(free_bytes <= total_bytes);
    expect(NPU_ERROR_NULL_POINTER, npu_mem_get_info(NULL, &total_bytes));
    expect(NPU_ERROR_NULL_POINTER, npu_mem_get_info(&free_bytes, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_mem_get_info(BAD, &total_bytes));
    expect(NPU_ERROR_BAD_ADDRESS, npu_mem_get_info(&free_bytes, BAD));
    expect(NPU_ERROR_INVALID_SIZE, npu_malloc(&memory, 0, 0));
    expect(NPU_ERROR_OUT_OF_DEVICE_MEMORY, npu_malloc(&memory, total_bytes + 1, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_malloc(&memory, 64, 1));
    expect(NPU_ERROR_NULL_POINTER, npu_malloc(NULL, 64, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_malloc(BAD, 64, 0));
    expect(NPU_ERROR_INVALID_SIZE, npu_malloc_async(&memory, 0, NULL));
    expect(NPU_ERROR_OUT_OF_DEVICE_MEMORY, npu_malloc_async(&memory, total_bytes + 1, NULL));
    expect(NPU_ERROR_NULL_POINTER, npu_malloc_async(NULL, 64, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_malloc_async(BAD, 64, NULL));
    expect(NPU_ERROR_INVALID_HANDLE, npu_malloc_async(&memory, 64, MADE_UP(npu_stream_t)));
    expect(NPU_ERROR_STALE_HANDLE, npu_malloc_async(&memory, 64, stale_stream()));
    claim(memory == NULL);
    OK(npu_malloc_async(&memory, 64, NULL));
    OK(npu_free_async(memory, NULL));
    expect(NPU_ERROR_INVALID_HANDLE, npu_free_async(memory_elsewhere, MADE_UP(npu_stream_t)));
    expect(NPU_ERROR_STALE_HANDLE, npu_free_async(memory_elsewhere, stale_stream()));
}

static void frees(npu_result_t (*give_back)(void *))
{
    char *memory = allocate(4096);

    expect(NPU_ERROR_INVALID_VALUE, give_back(memory + 64));
    expect(NPU_ERROR_INVALID_VALUE, give_back(&memory));
    expect(NPU_ERROR_WRONG_CONTEXT, give_back(memory_elsewhere));
    expect(NPU_ERROR_NULL_POINTER, give_back(NULL));
    OK(give_back(memory));
    expect(NPU_ERROR_STALE_HANDLE, give_back(memory));
}

static void attributes(void)
{
    npu_pointer_attributes_t found = {.size = sizeof found};
    char *memory = allocate(4096);

    OK(npu_pointer_get_attributes(&found, memory + 8));
    claim(found.kind == NPU_MEMORY_DEVICE && found.base == memory && found.size_bytes == 4096 && found.device_pointer == memory + 8);
    OK(npu_pointer_get_attributes(&found, &memory));
    claim(found.kind == NPU_MEMORY_PAGEABLE && found.base == NULL);
    expect(NPU_ERROR_NULL_POINTER, npu_pointer_get_attributes(NULL, memory));
    expect(NPU_ERROR_BAD_ADDRESS, npu_pointer_get_attributes(BAD, memory));
    found.size--;
    expect(NPU_ERROR_INVALID_SIZE, npu_pointer_get_attributes(&found, memory));
    found.size++;
    OK(npu_free(memory));
    expect(NPU_ERROR_STALE_HANDLE, npu_pointer_get_attributes(&found, memory + 8));
}

/* What is in use may not be freed under strict rules, and a free of nothing is fine under cuda's. */
static void other_rules(void)
{
    npu_blob_t blob;
    npu_kernel_t kernel;
    void *x, *y;

    OK(npu_shutdown());
    OK(npu_init(0));
    OK(npu_set_semantics(NPU_SEMANTICS_STRICT));
    blob = load("long");
    kernel = kernel_of(blob);
    x = allocate(1 << 18);
    y = allocate(1 << 18);
    npu_arg_t args[] = {NPU_BUFFER(x), NPU_BUFFER(y)};
    OK(npu_launch_kernel_async(kernel, args, 2, NULL));
    expect(NPU_ERROR_IN_USE, npu_free(x));
    OK(npu_free_sync(x));
    OK(npu_free(y));
    OK(npu_shutdown());
    OK(npu_init(0));
    OK(npu_set_semantics(NPU_SEMANTICS_CUDA));
    OK(npu_malloc(&x, 0, 0));
    claim(x == NULL);
    OK(npu_free(NULL));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    OK(npu_create_context(&elsewhere, 0));
    memory_elsewhere = allocate(4096);
    OK(npu_set_current_context(NULL));
    allocations();
    frees(npu_free);
    frees(npu_free_sync);
    frees(free_async_default);
    attributes();
    other_rules();
    return finish();
}
