"""Pinned, registered and mapped memory from C: use, and each misuse with its result."""

import pytest


def test_pinned_memory_is_poison_and_is_copied_by_the_device(run):
    program = r"""
    int main(void)
    {
        unsigned char *host;
        void *p, *device;
        npu_stream_t s;
        need(npu_init(0));
        need(npu_create_stream(&s));
        need(npu_malloc_host((void **)&host, 5000, NPU_HOST_CACHED));
        printf("%d %02x %02x\n", (int)((uintptr_t)host % 4096), host[0], host[4999]);
        need(npu_malloc(&p, 5000, 0));
        memset(host, 7, 5000);
        need(npu_memcpy_async(p, 5000, host, 5000, NPU_MEMCPY_HOST_TO_DEVICE, s));
        say(npu_query_stream(s)); /* a job of the device */
        need(npu_synchronize_stream(s));
        memset(host, 8, 5000);
        need(npu_memcpy_async(host + 1, 4999, p, 2, NPU_MEMCPY_DEVICE_TO_HOST, s));
        printf("%d\n", host[1]); /* not yet */
        need(npu_synchronize_stream(s));
        printf("%d %d %d %d\n", host[0], host[1], host[2], host[3]);
        need(npu_host_get_device_pointer(&device, host + 100, 0));
        need(npu_memcpy(device, 3, p, 3, NPU_MEMCPY_DEVICE_TO_DEVICE));
        printf("%d %d %d\n", host[99], host[102], host[103]);
        need(npu_memset(host, 10, 9, 10));
        printf("%d %d\n", host[9], host[10]);
        need(npu_flush(host, 0, 5000));
        need(npu_invalidate(host, 4000, 1000));
        need(npu_free_host(host));
    }
    """
    assert run(program) == ["0 ff ff", "NOT_READY", "8", "8 7 7 8", "8 7 8", "9 8"]


def test_pinned_memory_refuses_bad_arguments(run):
    program = r"""
    int main(void)
    {
        void *p = (void *)5, *device, *d;
        npu_context_t context;
        int local;
        need(npu_init(0));
        say(npu_malloc_host(NULL, 64, 0));
        say(npu_malloc_host(BAD, 64, 0));
        say(npu_malloc_host(&p, 0, 0));
        say(npu_malloc_host(&p, 64, 4));
        say(npu_malloc_host(&p, 64, NPU_HOST_UNCACHED));
        say(npu_malloc_host(&p, (size_t)1 << 60, 0));
        printf("%d\n", p == (void *)5);
        say(npu_free_host(NULL));
        say(npu_free_host(&local));
        need(npu_malloc_host(&p, 64, NPU_HOST_WRITE_COMBINED));
        say(npu_free_host((char *)p + 1));
        say(npu_host_get_device_pointer(NULL, p, 0));
        say(npu_host_get_device_pointer(BAD, p, 0));
        say(npu_host_get_device_pointer(&device, NULL, 0));
        say(npu_host_get_device_pointer(&device, &local, 0));
        say(npu_host_get_device_pointer(&device, p, 1));
        need(npu_host_get_device_pointer(&device, p, 0));
        say(npu_free(device));
        say(npu_free(p));
        say(npu_flush(NULL, 0, 64));
        say(npu_flush(&local, 0, 4));
        say(npu_flush(p, 1, 64));
        say(npu_flush(p, 0, 0));
        say(npu_invalidate(NULL, 0, 64));
        say(npu_invalidate((char *)p + 1, 0, 4));
        say(npu_invalidate(p, 64, 1));
        say(npu_invalidate(p, 64, 0));
        say(npu_memcpy(p, 65, device, 65, NPU_MEMCPY_DEFAULT));
        need(npu_create_context(&context, 0));
        need(npu_malloc(&d, 64, 0));
        say(npu_free_host(p));
        say(npu_memcpy(d, 64, p, 64, NPU_MEMCPY_DEFAULT));
        say(npu_memset(p, 64, 0, 64));
        need(npu_set_current_context(NULL));
        say(npu_free_host(p));
        say(npu_free_host(p));
        say(npu_host_get_device_pointer(&device, p, 0));
        need(npu_set_current_context(context));
        need(npu_malloc_host(&p, 64, 0));
        need(npu_destroy_context(context, NPU_DESTROY_FORCE));
        say(npu_free_host(p));
    }
    """
    assert run(program) == [
        *("NULL_POINTER", "BAD_ADDRESS", "INVALID_SIZE", "INVALID_VALUE", "NOT_SUPPORTED"),
        *("OUT_OF_DEVICE_MEMORY", "1"),
        *("NULL_POINTER", "INVALID_VALUE", "INVALID_VALUE"),
        *("NULL_POINTER", "BAD_ADDRESS", "NULL_POINTER", "NOT_REGISTERED", "INVALID_VALUE"),
        *("INVALID_VALUE", "INVALID_VALUE"),
        *("NULL_POINTER", "NOT_REGISTERED", "OUT_OF_RANGE", "INVALID_SIZE"),
        *("NULL_POINTER", "NOT_REGISTERED", "OUT_OF_RANGE", "INVALID_SIZE"),
        "OUT_OF_RANGE",
        *("WRONG_CONTEXT", "WRONG_CONTEXT", "WRONG_CONTEXT"),
        *("SUCCESS", "STALE_HANDLE", "NOT_REGISTERED"),
        "STALE_HANDLE",
    ]


REGISTER = r"""
#include <sys/mman.h>
static unsigned char *pages(int count)
{
    return mmap(NULL, count * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
"""


def test_registered_memory_keeps_its_content_and_is_copied_by_the_device(run):
    program = (
        REGISTER
        + r"""
    int main(void)
    {
        unsigned char *memory = pages(3);
        void *p;
        npu_stream_t s;
        memset(memory, 5, 3 * 4096);
        need(npu_init(0));
        need(npu_create_stream(&s));
        need(npu_malloc(&p, 4096, 0));
        need(npu_host_register(memory + 4096, 2 * 4096, 0));
        printf("%d %d\n", memory[0], memory[4096]);
        memory[4097] = 6;
        need(npu_memcpy_async(p, 4096, memory + 4096, 4096, NPU_MEMCPY_HOST_TO_DEVICE, s));
        need(npu_memcpy_async(memory + 8192, 4096, p, 2, NPU_MEMCPY_DEVICE_TO_HOST, s));
        say(npu_host_unregister(memory + 4096));
        need(npu_synchronize_stream(s));
        printf("%d %d %d\n", memory[8192], memory[8193], memory[8194]);
        say(npu_host_unregister(memory + 4096));
        printf("%d %d %d\n", memory[4096], memory[4097], memory[8193]);
        memory[4096] = 1;
        say(npu_host_unregister(memory + 4096));
        need(npu_host_register(memory, 3 * 4096, 0));
        need(npu_shutdown()); /* gives it back */
        printf("%d %d\n", memory[4096], memory[8193]);
        memory[8193] = 2;
        need(npu_init(0));
        need(npu_host_register(memory, 3 * 4096, 0));
        need(npu_reset_device());
        printf("%d\n", memory[8193]);
        need(npu_host_register(memory, 3 * 4096, 0));
        munmap(memory, 4096);
    }
    """
    )
    assert run(program) == ["5 5", "IN_USE", "5 6 5", "SUCCESS", "5 6 6", "NOT_REGISTERED", "1 6", "2"]


def test_registration_refuses_bad_arguments(run):
    program = (
        REGISTER
        + r"""
    int main(void)
    {
        unsigned char *memory = pages(4), *shared, *pinned;
        npu_context_t context;
        need(npu_init(0));
        say(npu_host_register(NULL, 4096, 0));
        say(npu_host_register(memory, 0, 0));
        say(npu_host_register(memory + 1, 4096, 0));
        say(npu_host_register(memory, 4097, 0));
        say(npu_host_register(memory, 4096, 2));
        say(npu_host_register((void *)4096, 4096, 0));
        say(npu_host_register(memory, (size_t)1 << 50, 0));
        shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        say(npu_host_register(shared, 4096, 0));
        mprotect(memory + 3 * 4096, 4096, PROT_READ);
        say(npu_host_register(memory, 4 * 4096, 0));
        need(npu_malloc_host((void **)&pinned, 8192, 0));
        say(npu_host_register(pinned + 4096, 4096, 0));
        need(npu_host_register(memory, 8192, 0));
        say(npu_host_register(memory + 4096, 8192, 0));
        say(npu_host_unregister(NULL));
        say(npu_host_unregister(memory + 4096));
        say(npu_host_unregister(pinned));
        say(npu_free_host(memory));
        need(npu_create_context(&context, 0));
        say(npu_host_register(memory, 4096, 0));
        say(npu_host_unregister(memory));
        need(npu_set_current_context(NULL));
        say(npu_host_unregister(memory));
    }
    """
    )
    assert run(program) == [
        *("NULL_POINTER", "INVALID_SIZE", "MISALIGNED", "MISALIGNED", "INVALID_VALUE"),
        *("BAD_ADDRESS", "BAD_ADDRESS", "BAD_ADDRESS", "BAD_ADDRESS"),
        *("ALREADY_REGISTERED", "ALREADY_REGISTERED"),
        *("NULL_POINTER", "NOT_REGISTERED", "NOT_REGISTERED", "INVALID_VALUE"),
        *("ALREADY_REGISTERED", "WRONG_CONTEXT", "SUCCESS"),
    ]


def test_mapping_shows_device_memory(run):
    program = r"""
    int main(void)
    {
        unsigned char *p, *host, *again;
        npu_stream_t s;
        int local;
        need(npu_init(0));
        need(npu_create_stream(&s));
        need(npu_malloc((void **)&p, 4096, 0));
        need(npu_memset(p, 4096, 3, 4096));
        need(npu_map((void **)&host, p + 100, 200, NPU_BIDIRECTIONAL));
        printf("%d %d\n", host[0], host[199]);
        host[1] = 9;
        need(npu_flush(host, 0, 200));
        need(npu_memcpy(&local, 4, p + 101, 1, NPU_MEMCPY_DEFAULT));
        printf("%d\n", local & 255);
        need(npu_map((void **)&again, p, 4096, NPU_FROM_DEVICE));
        printf("%d\n", again[101]);
        need(npu_memset_async(p, 4096, 4, 4096, s));
        say(npu_unmap(host));
        need(npu_synchronize_stream(s));
        need(npu_invalidate(host, 0, 1));
        printf("%d\n", host[0]);
        say(npu_unmap(host));
        say(npu_unmap(host));
        say(npu_unmap(again));
        say(npu_map(NULL, p, 64, NPU_TO_DEVICE));
        say(npu_map(BAD, p, 64, NPU_TO_DEVICE));
        say(npu_map((void **)&host, NULL, 64, NPU_TO_DEVICE));
        say(npu_map((void **)&host, p, 0, NPU_TO_DEVICE));
        say(npu_map((void **)&host, p + 1, 4096, NPU_TO_DEVICE));
        say(npu_map((void **)&host, &local, 4, NPU_TO_DEVICE));
        say(npu_map((void **)&host, p, 64, (npu_direction_t)3));
        say(npu_unmap(NULL));
        say(npu_unmap(&local));
        say(npu_flush(again, 0, 1));
        need(npu_map((void **)&host, p, 64, NPU_TO_DEVICE));
        say(npu_flush(host, 64, 1));
        say(npu_flush(host, 0, 0));
        need(npu_free(p));
        say(npu_unmap(host));
        say(npu_map((void **)&host, p, 64, NPU_TO_DEVICE));
        need(npu_malloc((void **)&p, 4096, 0));
        npu_context_t context;
        need(npu_create_context(&context, 0));
        say(npu_map((void **)&host, p, 64, NPU_TO_DEVICE));
    }
    """
    assert run(program) == [
        *("3 3", "9", "9", "IN_USE", "4", "SUCCESS", "STALE_HANDLE", "SUCCESS"),
        *("NULL_POINTER", "BAD_ADDRESS", "NULL_POINTER", "INVALID_SIZE", "OUT_OF_RANGE", "OUT_OF_RANGE"),
        *("INVALID_VALUE", "NULL_POINTER", "INVALID_VALUE", "NOT_REGISTERED"),
        *("OUT_OF_RANGE", "INVALID_SIZE", "STALE_HANDLE", "STALE_HANDLE", "WRONG_CONTEXT"),
    ]


def test_attributes_of_pointers(run, monkeypatch):
    program = (
        REGISTER
        + r"""
    static void show(const void *address, const char *base)
    {
        npu_pointer_attributes_t a = {.size = sizeof a};
        npu_result_t result = npu_pointer_get_attributes(&a, address);
        if (result != NPU_SUCCESS) {
            say(result);
            return;
        }
        printf("%u %u %u %d %d %d %d\n", a.kind, a.device, a.flags, a.base == base, (int)a.size_bytes, a.device_pointer != NULL,
               a.context != NULL);
    }
    int main(void)
    {
        char *p, *pinned, *registered = (char *)pages(1), *mapped, local, *device;
        npu_context_t context;
        npu_pointer_attributes_t a = {.size = sizeof a};
        need(npu_init(0));
        need(npu_set_device(1));
        need(npu_malloc((void **)&p, 100, 0));
        need(npu_malloc_host((void **)&pinned, 100, NPU_HOST_WRITE_COMBINED));
        need(npu_create_context(&context, 0));
        need(npu_host_register(registered, 4096, 0));
        need(npu_set_device(1));
        need(npu_map((void **)&mapped, p + 10, 20, NPU_TO_DEVICE));
        show(&local, NULL);
        show(NULL, NULL);
        show(p + 99, p);
        show(p + 100, NULL);
        show(pinned + 1, pinned);
        show(registered, registered);
        show(mapped + 19, mapped);
        show(mapped + 20, NULL);
        need(npu_host_get_device_pointer((void **)&device, pinned, 0));
        show(device, pinned);
        need(npu_pointer_get_attributes(&a, pinned + 5));
        printf("%d\n", a.device_pointer == device + 5);
        need(npu_pointer_get_attributes(&a, mapped + 5));
        printf("%d\n", a.device_pointer == p + 15);
        need(npu_free(p));
        show(p, NULL);
        need(npu_free_host(pinned));
        show(pinned, NULL);
        say(npu_pointer_get_attributes(NULL, p));
        say(npu_pointer_get_attributes(BAD, p));
        a.size = 0;
        say(npu_pointer_get_attributes(&a, p));
    }
    """
    )
    monkeypatch.setenv("NPU_PROFILE", "unit,unit")
    pageable = "0 0 0 1 0 0 0"
    assert run(program) == [
        *(pageable, pageable),
        *("1 1 0 1 100 1 0", pageable),
        *("2 1 1 1 100 1 0", "3 1 0 1 4096 1 1"),
        *("4 1 0 1 20 1 0", pageable),
        *("2 1 1 1 100 1 0", "1", "1"),
        *("STALE_HANDLE", "STALE_HANDLE"),
        *("NULL_POINTER", "BAD_ADDRESS", "INVALID_SIZE"),
    ]


@pytest.mark.parametrize(
    ("semantics", "expected"),
    [
        ("ascend", ["INVALID_SIZE", "NULL_POINTER", "SUCCESS", "STALE_HANDLE"]),
        ("cuda", ["SUCCESS", "1", "SUCCESS", "SUCCESS", "STALE_HANDLE"]),
        ("strict", ["INVALID_SIZE", "NULL_POINTER", "IN_USE", "IN_USE"]),
    ],
)
def test_frees_follow_the_semantics(run, monkeypatch, semantics, expected):
    program = r"""
    int main(void)
    {
        void *p = (void *)5;
        npu_stream_t s;
        need(npu_init(0));
        npu_result_t result = npu_malloc(&p, 0, 0);
        say(result);
        if (result == NPU_SUCCESS)
            printf("%d\n", p == NULL);
        say(npu_free(NULL));
        need(npu_create_stream(&s));
        need(npu_malloc(&p, 1 << 20, 0));
        need(npu_memset_async(p, 1 << 20, 1, 1 << 20, s));
        say(npu_free(p));
        say(npu_free(p));
    }
    """
    monkeypatch.setenv("NPU_SEMANTICS", semantics)
    assert run(program) == expected


def test_memory_in_stream_order(run):
    program = r"""
    int main(void)
    {
        void *p, *q = (void *)5;
        uint64_t before, during, after, total;
        npu_stream_t s;
        npu_context_t context;
        need(npu_init(0));
        need(npu_create_stream(&s));
        need(npu_mem_get_info(&before, &total));
        need(npu_malloc_async(&p, 1 << 20, s));
        need(npu_memset_async(p, 1 << 20, 1, 1 << 20, s));
        say(npu_free_async(p, s));
        say(npu_free_async(p, s));
        say(npu_memset(p, 1, 0, 1));
        need(npu_mem_get_info(&during, &total));
        need(npu_synchronize_stream(s));
        need(npu_mem_get_info(&after, &total));
        printf("%d %d\n", before - during > 1 << 19, before - after < 1 << 19);
        say(npu_malloc_async(NULL, 64, s));
        say(npu_malloc_async(BAD, 64, s));
        say(npu_malloc_async(&q, 0, s));
        say(npu_malloc_async(&q, (size_t)1 << 60, s));
        say(npu_malloc_async(&q, 64, (npu_stream_t)BAD));
        printf("%d\n", q == (void *)5);
        need(npu_malloc(&p, 64, 0));
        say(npu_free_async(NULL, s));
        say(npu_free_async((char *)p + 1, s));
        say(npu_free_async(p, (npu_stream_t)BAD));
        need(npu_create_context(&context, 0));
        say(npu_free_async(p, NULL));
        say(npu_free_async(p, s)); /* of the stream's context */
        need(npu_malloc(&p, 64, 0));
        say(npu_free_sync(NULL));
        say(npu_free_sync((char *)p + 1));
        say(npu_free_sync(p));
        say(npu_free_sync(p));
        say(npu_free_async(p, NULL));
        need(npu_destroy_stream(s));
        say(npu_malloc_async(&q, 64, s));
    }
    """
    assert run(program) == [
        *("SUCCESS", "STALE_HANDLE", "STALE_HANDLE", "1 1"),
        *("NULL_POINTER", "BAD_ADDRESS", "INVALID_SIZE", "OUT_OF_DEVICE_MEMORY", "INVALID_HANDLE", "1"),
        *("NULL_POINTER", "INVALID_VALUE", "INVALID_HANDLE", "WRONG_CONTEXT", "SUCCESS"),
        *("NULL_POINTER", "INVALID_VALUE", "SUCCESS", "STALE_HANDLE", "STALE_HANDLE", "STALE_HANDLE"),
    ]


def test_free_that_waits_reports_the_errors_and_frees_all_the_same(run, blobs):
    program = r"""
    int main(int argc, char **argv)
    {
        npu_blob_t blob;
        npu_kernel_t k;
        void *p;
        need(npu_init(0));
        need(npu_load_blob(&blob, argv[1]));
        need(npu_get_kernel(&k, blob, NULL));
        need(npu_malloc(&p, 128, 0));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER((char *)p + 64)};
        need(npu_launch_kernel_async(k, args, 2, NULL));
        say(npu_free_sync(p));
        say(npu_free_sync(p));
        say(npu_synchronize_device());
    }
    """
    assert run(program, str(blobs / "stuck.blob")) == ["BARRIER_DEADLOCK", "STALE_HANDLE", "SUCCESS"]


def test_initialised_data_and_private_mappings_of_files_can_be_registered(run):
    body = r"""
#include <sys/mman.h>
#include <unistd.h>
static char data[8192] __attribute__((aligned(4096))) = {1};
int main(void)
{
    FILE *file = tmpfile();
    fwrite("abc", 1, 3, file);
    fflush(file);
    need(npu_init(0));
    need(npu_host_register(data, 8192, 0));
    need(npu_memset(data + 1, 4095, 2, 4095));
    need(npu_host_unregister(data));
    printf("%d %d %d %d\n", data[0], data[1], data[4095], data[4096]);
    char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    need(npu_host_register(p, 4096, 0));
    need(npu_memset(p, 1, 'x', 1));
    need(npu_host_unregister(p));
    char content[3];
    if (pread(fileno(file), content, 3, 0) == 3)
        printf("%.3s %.3s\n", p, content);
    munmap(p, 4096);
    p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    if (ftruncate(fileno(file), 0) == 0)
        say(npu_host_register(p, 4096, 0));
    char stack[16384];
    say(npu_host_register((void *)(((uintptr_t)stack + 4095) & ~(uintptr_t)4095), 4096, 0));
}
"""
    assert run(body) == ["1 2 2 0", "xbc abc", "BAD_ADDRESS", "BAD_ADDRESS"]
