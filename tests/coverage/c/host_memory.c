/* host_memory.c - pinned and registered memory, mappings, cache maintenance. */
#include "expect.h"

#include <sys/resource.h>

enum { PAGE = 4096 };

static char *pages(size_t count)
{
    return mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static void *pinned(size_t size)
{
    void *memory = NULL;

    OK(npu_malloc_host(&memory, size, NPU_HOST_CACHED));
    return memory;
}

static npu_context_t elsewhere; /* a context that is not the current one */
static char *pinned_elsewhere, *registered_elsewhere;

static void pinning(void)
{
    void *memory = NULL;
    uint64_t free_bytes = 0, total_bytes = 0;

    OK(npu_mem_get_info(&free_bytes, &total_bytes));
    expect(NPU_ERROR_NULL_POINTER, npu_malloc_host(NULL, 64, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_malloc_host(BAD, 64, 0));
    expect(NPU_ERROR_INVALID_SIZE, npu_malloc_host(&memory, 0, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_malloc_host(&memory, 64, 4));
    expect(NPU_ERROR_NOT_SUPPORTED, npu_malloc_host(&memory, 64, NPU_HOST_UNCACHED));
    expect(NPU_ERROR_OUT_OF_DEVICE_MEMORY, npu_malloc_host(&memory, total_bytes + 1, 0));
    claim(memory == NULL);
    OK(npu_malloc_host(&memory, 64, NPU_HOST_WRITE_COMBINED));
    claim(((unsigned char *)memory)[63] == 0xff);
    OK(npu_free_host(memory));
    memory = pinned(PAGE);
    expect(NPU_ERROR_INVALID_VALUE, npu_free_host((char *)memory + 8));
    expect(NPU_ERROR_INVALID_VALUE, npu_free_host(&memory));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_free_host(pinned_elsewhere));
    expect(NPU_ERROR_NULL_POINTER, npu_free_host(NULL));
    OK(npu_free_host(memory));
    expect(NPU_ERROR_STALE_HANDLE, npu_free_host(memory));
}

static void registering(void)
{
    char *memory = pages(4), *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    size_t too_much = (size_t)1 << 40;
    char *huge = pages(too_much / PAGE);

    memory[5] = 'x';
    OK(npu_host_register(memory, 2 * PAGE, 0));
    claim(memory[5] == 'x');
    expect(NPU_ERROR_ALREADY_REGISTERED, npu_host_register(memory + PAGE, 2 * PAGE, 0));
    expect(NPU_ERROR_MISALIGNED, npu_host_register(memory + 2 * PAGE + 8, PAGE, 0));
    expect(NPU_ERROR_MISALIGNED, npu_host_register(memory + 2 * PAGE, 8, 0));
    expect(NPU_ERROR_INVALID_SIZE, npu_host_register(memory + 2 * PAGE, 0, 0));
    expect(NPU_ERROR_NULL_POINTER, npu_host_register(NULL, PAGE, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_host_register(memory + 2 * PAGE, PAGE, 2));
    expect(NPU_ERROR_OUT_OF_RESOURCES, npu_host_register(mmap((void *)0x200000000, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
                                                         PAGE, NPU_REGISTER_SVA)); /* where the device has its own addresses */
    expect(NPU_ERROR_BAD_ADDRESS, npu_host_register((void *)PAGE, PAGE, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_host_register(shared, PAGE, 0));
    expect(NPU_ERROR_OUT_OF_DEVICE_MEMORY, npu_host_register(huge, too_much, 0));
    expect(NPU_ERROR_NOT_REGISTERED, npu_host_unregister(memory + PAGE));
    expect(NPU_ERROR_NULL_POINTER, npu_host_unregister(NULL));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_host_unregister(registered_elsewhere));
    OK(npu_host_unregister(memory));
    claim(memory[5] == 'x');
    expect(NPU_ERROR_NOT_REGISTERED, npu_host_unregister(memory));
    munmap(memory, 4 * PAGE);
    munmap(shared, PAGE);
    munmap(huge, too_much);
}

static void device_pointers(void)
{
    char *memory = pinned(PAGE);
    void *found = NULL;

    OK(npu_host_get_device_pointer(&found, memory + 64, 0));
    claim(found != NULL && found != memory + 64);
    expect(NPU_ERROR_NULL_POINTER, npu_host_get_device_pointer(NULL, memory, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_host_get_device_pointer(BAD, memory, 0));
    expect(NPU_ERROR_NULL_POINTER, npu_host_get_device_pointer(&found, NULL, 0));
    expect(NPU_ERROR_NOT_REGISTERED, npu_host_get_device_pointer(&found, &found, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_host_get_device_pointer(&found, memory, 1));
    OK(npu_free_host(memory));
}

static void mapping(void)
{
    char *memory = allocate(PAGE), *there;
    void *host = NULL;
    npu_context_t current = NULL;

    OK(npu_memset(memory, PAGE, 0x21, PAGE));
    OK(npu_map(&host, memory + 64, 64, NPU_FROM_DEVICE));
    claim(((char *)host)[63] == 0x21);
    OK(npu_unmap(host));
    expect(NPU_ERROR_STALE_HANDLE, npu_unmap(host));
    expect(NPU_ERROR_INVALID_VALUE, npu_unmap(&host));
    expect(NPU_ERROR_NULL_POINTER, npu_unmap(NULL));
    expect(NPU_ERROR_NULL_POINTER, npu_map(NULL, memory, 64, NPU_BIDIRECTIONAL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_map(BAD, memory, 64, NPU_BIDIRECTIONAL));
    expect(NPU_ERROR_NULL_POINTER, npu_map(&host, NULL, 64, NPU_BIDIRECTIONAL));
    expect(NPU_ERROR_INVALID_SIZE, npu_map(&host, memory, 0, NPU_BIDIRECTIONAL));
    expect(NPU_ERROR_OUT_OF_RANGE, npu_map(&host, memory, PAGE + 1, NPU_BIDIRECTIONAL));
    expect(NPU_ERROR_INVALID_VALUE, npu_map(&host, memory, 64, (npu_direction_t)3));
    expect(NPU_ERROR_STALE_HANDLE, npu_map(&host, stale_memory(64), 64, NPU_BIDIRECTIONAL));
    OK(npu_get_current_context(&current));
    OK(npu_set_current_context(elsewhere));
    there = allocate(64);
    OK(npu_set_current_context(current));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_map(&host, there, 64, NPU_BIDIRECTIONAL));
    OK(npu_free(memory));
}

/* Both do the same checks. */
static void caches(npu_result_t (*maintain)(void *, size_t, size_t))
{
    char *memory = pinned(PAGE);

    OK(maintain(memory, 8, 64));
    expect(NPU_ERROR_NULL_POINTER, maintain(NULL, 0, 64));
    expect(NPU_ERROR_NOT_REGISTERED, maintain(&memory, 0, 8));
    expect(NPU_ERROR_OUT_OF_RANGE, maintain(memory, 8, PAGE));
    expect(NPU_ERROR_INVALID_SIZE, maintain(memory, 8, 0));
    OK(npu_free_host(memory));
}

/* Memory of work in flight. */
static void in_flight(void)
{
    npu_blob_t blob = load("long");
    npu_kernel_t kernel = kernel_of(blob);
    char *x = pages(64), *y = allocate(1 << 18), *z;
    void *host = NULL;

    OK(npu_host_register(x, 1 << 18, 0));
    OK(npu_map(&host, y, 64, NPU_BIDIRECTIONAL));
    npu_arg_t args[] = {NPU_BUFFER(x), NPU_BUFFER(y)};
    OK(npu_launch_kernel_async(kernel, args, 2, NULL));
    expect(NPU_ERROR_IN_USE, npu_host_unregister(x));
    expect(NPU_ERROR_IN_USE, npu_unmap(host));
    OK(npu_synchronize_stream(NULL));
    OK(npu_host_unregister(x));
    OK(npu_unmap(host));
    munmap(x, 1 << 18);
    OK(npu_shutdown());
    OK(npu_init(0));
    OK(npu_set_semantics(NPU_SEMANTICS_STRICT));
    kernel = kernel_of(load("long"));
    y = allocate(1 << 18);
    z = pinned(1 << 18);
    npu_arg_t others[] = {NPU_BUFFER(z), NPU_BUFFER(y)};
    OK(npu_launch_kernel_async(kernel, others, 2, NULL));
    expect(NPU_ERROR_IN_USE, npu_free_host(z));
    OK(npu_synchronize_stream(NULL));
    OK(npu_free_host(z));
}

/* Without host memory: a copy from pageable memory cannot be staged, and no page can be registered. Afterwards all is well. */
static void no_host_memory(void)
{
    size_t size = (size_t)16 << 20;
    char *x = pages(size / PAGE), *memory;
    unsigned long pages_used = 0;
    struct rlimit before, tight;
    FILE *used;

    OK(npu_shutdown());
    OK(npu_init(0));
    OK(npu_set_semantics(NPU_SEMANTICS_CUDA));
    memory = allocate(size);
    memset(x, 1, size);
    used = fopen("/proc/self/statm", "r");
    claim(fscanf(used, "%lu", &pages_used) == 1 && fclose(used) == 0 && getrlimit(RLIMIT_AS, &before) == 0);
    tight = before;
    tight.rlim_cur = pages_used * PAGE + (8 << 20);
    claim(setrlimit(RLIMIT_AS, &tight) == 0);
    expect(NPU_ERROR_OUT_OF_HOST_MEMORY, npu_memcpy_async(memory, size, x, size, NPU_MEMCPY_HOST_TO_DEVICE, NULL));
    expect(NPU_ERROR_OUT_OF_HOST_MEMORY, npu_host_register(x, size, 0));
    claim(setrlimit(RLIMIT_AS, &before) == 0);
    OK(npu_memcpy_async(memory, size, x, size, NPU_MEMCPY_HOST_TO_DEVICE, NULL));
    OK(npu_host_register(x, size, 0));
    OK(npu_host_unregister(x));
    OK(npu_memset(memory, size, 0, size));
}

static void annotations(npu_result_t (*annotate)(const void *, size_t))
{
    uint8_t *memory = pinned(PAGE);

    OK(annotate(memory + 8, 64));
    expect(NPU_ERROR_NULL_POINTER, annotate(NULL, 64));
    expect(NPU_ERROR_NOT_REGISTERED, annotate(&memory, 8));
    expect(NPU_ERROR_OUT_OF_RANGE, annotate(memory + 8, PAGE));
    expect(NPU_ERROR_INVALID_SIZE, annotate(memory, 0));
    OK(npu_free_host(memory));
    expect(NPU_ERROR_NOT_REGISTERED, annotate(memory, 8));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    OK(npu_create_context(&elsewhere, 0));
    pinned_elsewhere = pinned(PAGE);
    registered_elsewhere = pages(1);
    OK(npu_host_register(registered_elsewhere, PAGE, 0));
    OK(npu_set_current_context(NULL));
    pinning();
    registering();
    device_pointers();
    mapping();
    caches(npu_flush);
    caches(npu_invalidate);
    annotations(npu_annotate_host_read);
    annotations(npu_annotate_host_write);
    in_flight();
    no_host_memory();
    return finish();
}
