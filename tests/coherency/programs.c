/* Mistakes with caches, and the programs without them: `programs VARIANT NAME...` does some and prints of each its name and what came out, a letter for each byte of a run. */
#define _GNU_SOURCE
#include <npu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void need(npu_result_t result)
{
    if (result != NPU_SUCCESS) {
        printf("%s\n", npu_get_error_name(result));
        exit(3);
    }
}

/* Print a run-length code of bytes: "A64 .64"; a dot is a zero byte, a hash is poison. */
static void show(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i; end < count && bytes[end] == bytes[i]; end++)
            ;
        printf("%s%c%zu", i ? " " : "", bytes[i] == 0 ? '.' : bytes[i] == 0xff ? '#' : bytes[i], end - i);
    }
    putchar('\n');
}

/* Pinned memory that the device does not snoop: zeros. */
static unsigned char *cached(size_t size)
{
    void *memory;
    need(npu_malloc_host(&memory, size, NPU_HOST_NON_COHERENT));
    memset(memory, 0, size);
    need(npu_flush(memory, 0, size));
    return memory;
}

/* Write-combined memory with a letter in every line: no byte of it is poison, so that the lines are full. */
static unsigned char *combined(size_t size)
{
    void *memory;
    need(npu_malloc_host(&memory, size, NPU_HOST_WRITE_COMBINED));
    memset(memory, 'c', size);
    need(npu_flush(memory, 0, size));
    return memory;
}

/* Print what DMA reads of pinned memory. */
static void device_sees(const unsigned char *memory, size_t size)
{
    void *device, *seen;
    need(npu_malloc(&device, size, 0));
    need(npu_malloc_host(&seen, size, NPU_HOST_CACHED));
    need(npu_memcpy(device, size, memory, size, NPU_MEMCPY_HOST_TO_DEVICE));
    need(npu_memcpy(seen, size, device, size, NPU_MEMCPY_DEVICE_TO_HOST));
    show(seen, size);
}

/* Let DMA write `byte` to pinned memory, and wait. */
static void device_writes(unsigned char *memory, size_t size, int byte)
{
    void *device;
    need(npu_malloc(&device, size, 0));
    need(npu_memset(device, size, byte, size));
    need(npu_memcpy(memory, size, device, size, NPU_MEMCPY_DEVICE_TO_HOST));
}

static void lost_write(int right)
{
    unsigned char *memory = cached(128);
    memset(memory, 'A', 64);
    if (right)
        need(npu_flush(memory, 0, 64));
    device_sees(memory, 128);
}

static void stale_read(int right)
{
    unsigned char *memory = cached(128);
    device_writes(memory, 64, 'A');
    if (right)
        need(npu_invalidate(memory, 0, 64));
    show(memory, 128);
}

static void dirty_line(int right)
{
    unsigned char *memory = cached(128);
    void *device;
    need(npu_malloc(&device, 128, 0));
    need(npu_memset(device, 128, 'A', 128));
    memset(memory, 'x', 64);
    if (right)
        need(npu_flush(memory, 0, 64));
    need(npu_memcpy(memory, 128, device, 128, NPU_MEMCPY_DEVICE_TO_HOST));
    need(npu_invalidate(memory, 0, 128));
    show(memory, 128);
}

static void shared_line(int right)
{
    unsigned char *memory = cached(128);
    size_t apart = right ? 64 : 8;
    memory[0] = 'c';
    device_writes(memory + apart, 8, 'd');
    need(npu_flush(memory, 0, 1));
    need(npu_invalidate(memory, apart, 8));
    show(memory, 128);
}

static void early_invalidate(int right)
{
    unsigned char *memory = cached(64);
    if (!right)
        need(npu_invalidate(memory, 0, 64));
    device_writes(memory, 64, 'A');
    if (right)
        need(npu_invalidate(memory, 0, 64));
    show(memory, 64);
}

/* The module parameter bugs=skip_wmb is the mistake. */
static void undrained(int right)
{
    unsigned char *memory = combined(512);
    (void)right;
    for (int line = 0; line < 8; line++)
        memory[64 * line] = 'w';
    device_sees(memory, 512);
}

/* An object of device memory by two ways: the library's own, which is past the caches, and npu_map. Needs coherent=0. */
static void alias(int right)
{
    void *device, *mapping, *result;
    unsigned char fresh[64];
    memset(fresh, 'n', sizeof fresh);
    need(npu_malloc(&device, 64, 0));
    need(npu_malloc(&result, 64, 0));
    need(npu_map(&mapping, device, 64, NPU_BIDIRECTIONAL));
    memset(mapping, 'o', 64);
    if (right)
        need(npu_flush(mapping, 0, 64));
    need(npu_memcpy(device, 64, fresh, 64, NPU_MEMCPY_HOST_TO_DEVICE)); /* from pageable memory: the host copies */
    need(npu_memcpy(result, 64, device, 64, NPU_MEMCPY_DEVICE_TO_DEVICE)); /* some job ends */
    need(npu_memcpy(fresh, 64, device, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    show(fresh, 64);
}

static void short_flush(int right)
{
    unsigned char *memory = cached(128);
    memset(memory, 'A', 100);
    need(npu_flush(memory, 0, right ? 65 : 64));
    device_sees(memory, 128);
}

/* The module parameter bugs=skip_wmb is the mistake. */
static void unfenced(int right)
{
    void *memory;
    (void)right;
    need(npu_malloc_host(&memory, 64, NPU_HOST_NON_COHERENT));
    memset(memory, 'A', 64);
    need(npu_flush(memory, 0, 64));
    device_sees(memory, 64);
}

/* Needs allow_uncached=1. */
static void uncached(int right)
{
    void *memory;
    (void)right;
    need(npu_malloc_host(&memory, 64, NPU_HOST_UNCACHED));
    memset(memory, 'A', 64);
    device_sees(memory, 64);
    device_writes((unsigned char *)memory + 8, 8, 'd');
    show(memory, 64);
}

/* The module parameter bugs=skip_tlbi is the mistake: the device goes on to write a page that belongs to other memory now. */
static void old_page(int right)
{
    void *first, *second, *other, *seen;
    (void)right;
    need(npu_malloc_host(&seen, 4096, 0));
    need(npu_malloc(&first, 4096, 0));
    need(npu_memset(first, 4096, 'o', 4096));
    need(npu_free(first));
    need(npu_malloc(&other, 4096, 0)); /* gets the page */
    need(npu_memset(other, 4096, 'p', 4096));
    need(npu_malloc(&second, 4096, 0));
    for (int i = 0; i < 64; i++) { /* the last 64 that were freed keep theirs */
        need(npu_free(second));
        need(npu_malloc(&second, 4096, 0));
    } /* gets the address */
    printf("%d\n", first == second);
    need(npu_memset(second, 64, 'n', 64));
    need(npu_memcpy(seen, 4096, other, 4096, NPU_MEMCPY_DEVICE_TO_HOST));
    show(seen, 4096);
}

/* Pointers of the program are pointers of the device. */
static void shared_addresses(int right)
{
    unsigned char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *device;
    memset(memory, 'A', 64);
    need(npu_host_register(memory, 4096, right ? NPU_REGISTER_SVA : 0));
    need(npu_host_get_device_pointer(&device, memory + 8, 0));
    printf("%d\n", device == (void *)(memory + 8));
    need(npu_memset(memory + 8, 8, 'd', 8));
    show(memory, 64);
    need(npu_host_unregister(memory));
}

static const struct { const char *name; void (*run)(int right); } PROGRAMS[] = {
    {"lost_write", lost_write}, {"stale_read", stale_read}, {"dirty_line", dirty_line}, {"shared_line", shared_line},
    {"early_invalidate", early_invalidate}, {"undrained", undrained}, {"alias", alias}, {"short_flush", short_flush}, {"unfenced", unfenced},
    {"uncached", uncached}, {"old_page", old_page}, {"shared_addresses", shared_addresses},
};

int main(int argc, char **argv)
{
    need(npu_init(0));
    for (int k = 2; k < argc; k++)
        for (size_t i = 0; i < sizeof PROGRAMS / sizeof *PROGRAMS; i++)
            if (strcmp(PROGRAMS[i].name, argv[k]) == 0) {
                printf("%s:\n", argv[k]);
                PROGRAMS[i].run(strcmp(argv[1], "right") == 0);
            }
    return 0;
}
