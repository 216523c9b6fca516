"""Device memory from C: use, and each misuse with its result."""


def test_round_trip_and_poison(run):
    program = r"""
    int main(void)
    {
        void *p;
        char out[5000], in[5000];
        memset(in, 0x5a, sizeof in);
        need(npu_init(0));
        need(npu_malloc(&p, sizeof in, 0));
        need(npu_memcpy(out, sizeof out, p, sizeof out, NPU_MEMCPY_DEVICE_TO_HOST));
        printf("fresh %02x %02x\n", out[0] & 255, out[4999] & 255);
        need(npu_memcpy(p, sizeof in, in, sizeof in, NPU_MEMCPY_HOST_TO_DEVICE));
        need(npu_memset((char *)p + 1, 4999, 0x107, 2));
        need(npu_memcpy(out, sizeof out, p, 5000, NPU_MEMCPY_DEVICE_TO_HOST));
        printf("written %02x %02x %02x %02x %02x\n", out[0], out[1], out[2], out[3], out[4999]);
        need(npu_memcpy((char *)p + 100, 3, p, 3, NPU_MEMCPY_DEVICE_TO_DEVICE));
        need(npu_memcpy(out, 4, (char *)p + 100, 4, NPU_MEMCPY_DEVICE_TO_HOST));
        printf("copied %02x %02x %02x %02x\n", out[0], out[1], out[2], out[3]);
        need(npu_free(p));
        say(npu_free(NULL));
    }
    """
    assert run(program) == ["fresh ff ff", "written 5a 07 07 5a 5a", "copied 5a 07 07 5a", "NULL_POINTER"]


def test_malloc_refuses_bad_arguments_and_keeps_nothing(run):
    program = r"""
    int main(void)
    {
        void *p = BAD;
        uint64_t before, after, total;
        need(npu_init(0));
        need(npu_mem_get_info(&before, &total));
        say(npu_malloc(NULL, 4, 0));
        say(npu_malloc(&p, 0, 0));
        say(npu_malloc(&p, 4, 1));
        say(npu_malloc(&p, (size_t)1 << 60, 0));
        say(npu_malloc(&p, total + 1, 0));
        say(npu_malloc(BAD, 4, 0));
        need(npu_mem_get_info(&after, &total));
        printf("%d %d\n", p == BAD, before == after);
        say(npu_mem_get_info(NULL, &total));
        say(npu_mem_get_info(&total, BAD));
    }
    """
    assert run(program) == [
        "NULL_POINTER",
        "INVALID_SIZE",
        "INVALID_VALUE",
        "OUT_OF_DEVICE_MEMORY",
        "OUT_OF_DEVICE_MEMORY",
        "BAD_ADDRESS",
        "1 1",
        "NULL_POINTER",
        "BAD_ADDRESS",
    ]


def test_free_refuses_what_is_not_the_start_of_live_memory(run):
    program = r"""
    int main(void)
    {
        void *p;
        int local;
        need(npu_init(0));
        need(npu_malloc(&p, 100, 0));
        say(npu_free((char *)p + 4));
        say(npu_free(&local));
        need(npu_free(p));
        say(npu_free(p));
        say(npu_memset(p, 4, 0, 4));
        detail();
    }
    """
    *results, message = run(program)
    assert results == ["INVALID_VALUE", "INVALID_VALUE", "STALE_HANDLE", "STALE_HANDLE"]
    assert message.endswith("that was freed")


def test_a_second_free_does_not_free_the_next_owner_s_memory(run):
    program = r"""
    int main(void)
    {
        void *old, *next[64];
        char seen = 0;
        uint64_t before, after, total;
        need(npu_init(0));
        need(npu_malloc(&old, 4096, 0));
        need(npu_memset(old, 4096, 1, 4096));
        need(npu_memcpy(&seen, 1, old, 1, NPU_MEMCPY_DEVICE_TO_HOST));
        need(npu_free(old));
        need(npu_mem_get_info(&before, &total));
        for (int i = 0; i < 64; i++) {
            need(npu_malloc(&next[i], 4096, 0));
            need(npu_memset(next[i], 4096, i, 4096));
        }
        say(npu_free(old));
        say(npu_free_sync(old));
        say(npu_free_async(old, NULL));
        say(npu_memset((char *)old + 100, 4, 0, 4));
        say(npu_memcpy(&seen, 1, old, 1, NPU_MEMCPY_DEVICE_TO_HOST));
        for (int i = 0; i < 64; i++) {
            need(npu_memcpy(&seen, 1, next[i], 1, NPU_MEMCPY_DEVICE_TO_HOST));
            if (seen != i) printf("%d: %d\n", i, seen);
            need(npu_free(next[i]));
        }
        need(npu_mem_get_info(&after, &total));
        printf("%d\n", before == after);
        say(npu_malloc_async(&next[0], 4096, NULL));
        need(npu_free_async(next[0], NULL));
        need(npu_malloc_async(&next[1], 4096, NULL));
        say(npu_free_async(next[0], NULL));
        say(npu_free(next[1]));
    }
    """
    assert run(program) == [*["STALE_HANDLE"] * 5, "1", "SUCCESS", "STALE_HANDLE", "SUCCESS"]


def test_copies_refuse_bad_arguments(run):
    program = r"""
    int main(void)
    {
        char *p, host[64];
        need(npu_init(0));
        need(npu_malloc((void **)&p, 64, 0));
        say(npu_memcpy(p, 64, host, 64, (npu_memcpy_kind_t)0));
        say(npu_memcpy(NULL, 64, host, 64, NPU_MEMCPY_HOST_TO_DEVICE));
        say(npu_memcpy(p, 64, NULL, 64, NPU_MEMCPY_HOST_TO_DEVICE));
        say(npu_memcpy(p, 63, host, 64, NPU_MEMCPY_HOST_TO_DEVICE));
        detail();
        say(npu_memcpy(p + 1, 64, host, 64, NPU_MEMCPY_HOST_TO_DEVICE));
        say(npu_memcpy(host, 64, p, 64, NPU_MEMCPY_HOST_TO_DEVICE));
        say(npu_memcpy(p, 64, BAD, 64, NPU_MEMCPY_HOST_TO_DEVICE));
        say(npu_memcpy(BAD, 64, p, 64, NPU_MEMCPY_DEVICE_TO_HOST));
        say(npu_memcpy(p + 8, 64, p, 16, NPU_MEMCPY_DEVICE_TO_DEVICE));
        say(npu_memcpy(p, 64, BAD, 0, NPU_MEMCPY_HOST_TO_DEVICE));
        say(npu_memset(p, 63, 0, 64));
        say(npu_memset(p, 65, 0, 65));
        say(npu_memset(NULL, 1, 0, 1));
        say(npu_memcpy_async(p, 64, host, 64, NPU_MEMCPY_HOST_TO_DEVICE, (npu_stream_t)BAD));
        say(npu_memset_async(p, 64, 0, 64, (npu_stream_t)BAD));
    }
    """
    assert run(program) == [
        "INVALID_VALUE",
        "NULL_POINTER",
        "NULL_POINTER",
        "OUT_OF_RANGE",
        "npu_memcpy: size is 64, above dst_max 63",
        "OUT_OF_RANGE",
        "INVALID_VALUE",
        "BAD_ADDRESS",
        "BAD_ADDRESS",
        "OVERLAP",
        "SUCCESS",
        "OUT_OF_RANGE",
        "OUT_OF_RANGE",
        "NULL_POINTER",
        "INVALID_HANDLE",
        "INVALID_HANDLE",
    ]


def test_memory_belongs_to_its_device(run, blobs, monkeypatch):
    program = r"""
    int main(int argc, char **argv)
    {
        void *p, *q;
        char host = 0;
        uint32_t device;
        npu_blob_t blob;
        npu_kernel_t k;
        need(npu_init(0));
        need(npu_malloc(&p, 64, 0));
        need(npu_memset(p, 64, 1, 64));
        need(npu_set_device(1));
        need(npu_get_device(&device));
        need(npu_malloc(&q, 64, 0)); /* the first memory of each device */
        need(npu_memset(q, 64, 2, 64));
        printf("%u %d\n", device, p != q);
        say(npu_memset((char *)p + 8, 1, 0, 1));
        say(npu_memcpy(&host, 1, p, 1, NPU_MEMCPY_DEVICE_TO_HOST));
        say(npu_memcpy(q, 1, p, 1, NPU_MEMCPY_DEVICE_TO_DEVICE));
        need(npu_load_blob(&blob, argv[1]));
        need(npu_get_kernel(&k, blob, NULL));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER(q)};
        say(npu_launch_kernel_async(k, args, 2, NULL));
        say(npu_free(p));
        say(npu_set_device(2));
        need(npu_set_device(0));
        say(npu_launch_kernel_async(k, args, 2, NULL));
        say(npu_free(p));
        say(npu_free(p));
        need(npu_set_device(1));
        say(npu_free(p));
        args[0].value = args[1].value;
        say(npu_launch_kernel_async(k, args, 2, NULL));
        need(npu_memcpy(&host, 1, q, 1, NPU_MEMCPY_DEVICE_TO_HOST));
        printf("%d\n", host);
    }
    """
    monkeypatch.setenv("NPU_PROFILE", "npu-37xx,npu-37xx")
    assert run(program, str(blobs / "copy.blob")) == [
        "1 1",
        *["WRONG_CONTEXT"] * 5,
        "INVALID_VALUE",
        "WRONG_CONTEXT",
        "SUCCESS",
        "STALE_HANDLE",
        "STALE_HANDLE",
        "SUCCESS",
        "2",
    ]


def test_copy_to_host_memory_that_is_partly_read_only_writes_nothing(run):
    program = r"""
    #include <sys/mman.h>
    int main(void)
    {
        char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void *p;
        mprotect(pages + 2 * 4096, 4096, PROT_READ);
        need(npu_init(0));
        need(npu_malloc(&p, 3 * 4096, 0));
        say(npu_memcpy(pages, 3 * 4096, p, 2 * 4096 + 1, NPU_MEMCPY_DEVICE_TO_HOST));
        printf("%d %d\n", pages[0], pages[2 * 4096 - 1]);
        say(npu_memcpy(pages, 3 * 4096, p, 2 * 4096, NPU_MEMCPY_DEVICE_TO_HOST));
        printf("%d %d %d\n", pages[0], pages[2 * 4096 - 1], pages[2 * 4096]);
    }
    """
    assert run(program) == ["BAD_ADDRESS", "0 0", "SUCCESS", "-1 -1 0"]


def test_shutdown_frees_everything(run):
    program = r"""
    int main(void)
    {
        void *p, *q;
        uint64_t before, after, total;
        need(npu_init(0));
        need(npu_mem_get_info(&before, &total));
        need(npu_malloc(&p, 1 << 20, 0));
        need(npu_shutdown());
        need(npu_init(0));
        say(npu_free(p));
        need(npu_mem_get_info(&after, &total));
        printf("%d\n", before == after);
    }
    """
    assert run(program) == ["STALE_HANDLE", "1"]


def test_memory_that_the_host_lacks_is_told_from_memory_that_the_device_lacks(run, blobs):
    program = r"""
    #include <sys/resource.h>
    int main(int argc, char **argv)
    {
        struct rlimit limit = {(rlim_t)2 << 30, (rlim_t)2 << 30}; /* address space of this process */
        uint64_t before, after, total;
        npu_blob_t blob;
        void *p;
        need(npu_init(0));
        need(npu_set_device(0));
        setrlimit(RLIMIT_AS, &limit);
        need(npu_mem_get_info(&before, &total));
        say(npu_malloc(&p, (size_t)3 << 30, 0));
        say(npu_malloc(&p, total + 1, 0));
        need(npu_mem_get_info(&after, &total));
        printf("%d\n", before == after);
        say(npu_malloc(&p, 4096, 0));
        say(npu_load_blob(&blob, argv[1])); /* asks for no more than there is in it */
    }
    """
    assert run(program, str(blobs / "copy.blob")) == [
        "OUT_OF_HOST_MEMORY",
        "OUT_OF_DEVICE_MEMORY",
        "1",
        "SUCCESS",
        "SUCCESS",
    ]
