"""Devices and virtual time from C."""


def test_properties_are_the_profiles(run, monkeypatch):
    program = r"""
    int main(void)
    {
        npu_device_properties_t p = {.size = sizeof p};
        need(npu_init(0));
        need(npu_get_device_properties(&p, 0));
        printf("%s %u %u %u %u %u %llu\n", p.profile, p.tile_count, p.shaves_per_tile, p.dma_port_count, p.barrier_count,
               p.cmx_bytes_per_tile, (unsigned long long)p.clock_hz);
        say(npu_get_device_properties(&p, 1));
        say(npu_get_device_properties(NULL, 0));
        say(npu_get_device_properties(BAD, 0));
        p.size--;
        say(npu_get_device_properties(&p, 0));
        detail();
        say(npu_get_device_count(NULL));
        say(npu_get_device_count(BAD));
        say(npu_get_device(NULL));
        say(npu_get_device(BAD));
    }
    """
    monkeypatch.setenv("NPU_PROFILE", "npu-37xx")
    assert run(program) == [
        "npu-37xx 2 2 2 64 1982464 1300000000",
        "INVALID_VALUE",
        "NULL_POINTER",
        "BAD_ADDRESS",
        "INVALID_SIZE",
        "npu_get_device_properties: properties->size is 103, not 104",
        "NULL_POINTER",
        "BAD_ADDRESS",
        "NULL_POINTER",
        "BAD_ADDRESS",
    ]


def test_host_delay_moves_the_clock_by_itself(run):
    program = r"""
    int main(void)
    {
        uint64_t first, second, third;
        need(npu_init(0));
        need(npu_get_time_ps(&first));
        need(npu_get_time_ps(&second));
        need(npu_host_delay(1000000));
        need(npu_get_time_ps(&third));
        printf("%d %d\n", second > first, third - second >= 1000000000ull && third - second < 1001000000ull);
        say(npu_get_time_ps(NULL));
        say(npu_get_time_ps(BAD));
        say(npu_host_delay(UINT64_MAX));
    }
    """
    assert run(program) == ["1 1", "NULL_POINTER", "BAD_ADDRESS", "INVALID_VALUE"]


def test_calls_work_where_delays_end(run, blobs):
    program = r"""
    int main(int argc, char **argv)
    {
        npu_blob_t blob;
        npu_kernel_t k;
        void *p;
        char host[64];
        uint64_t now;
        need(npu_init(0));
        need(npu_host_delay(1000000000000000));
        need(npu_host_delay(1000000000000000));
        need(npu_get_time_ps(&now));
        need(npu_host_delay((((uint64_t)1 << 61) - now) / 1000));
        say(npu_host_delay(1));
        need(npu_get_time_ps(&now));
        need(npu_load_blob(&blob, argv[1]));
        need(npu_get_kernel(&k, blob, NULL));
        need(npu_malloc(&p, 128, 0));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER((char *)p + 64)};
        need(npu_memset(p, 64, 7, 64));
        need(npu_launch_kernel_async(k, args, 2, NULL));
        need(npu_synchronize_device());
        need(npu_memcpy(host, 64, (char *)p + 64, 64, NPU_MEMCPY_DEVICE_TO_HOST));
        printf("%d\n", host[63]);
    }
    """
    assert run(program, str(blobs / "copy.blob")) == ["INVALID_VALUE", "7"]


def test_structures_are_written_whole_or_not_at_all(run):
    program = r"""
    #include <sys/mman.h>
    int main(void)
    {
        npu_device_properties_t properties = {.size = sizeof properties};
        npu_error_detail_t detail = {.size = sizeof detail};
        char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *at = pages + 4096 - 8, *late = pages + 4096 - 4;
        uint64_t *last = (uint64_t *)(pages + 4096), first = 5;
        need(npu_init(0));
        mprotect(pages + 4096, 4096, PROT_READ);
        memcpy(at, &properties, 8);
        say(npu_get_device_properties((void *)at, 0));
        printf("%d\n", memcmp(at, &properties, 8));
        memcpy(at, &detail, 8);
        say(npu_get_last_error_detail((void *)at));
        printf("%d\n", memcmp(at, &detail, 8));
        say(npu_mem_get_info(&first, last));
        say(npu_mem_get_info(last, &first));
        printf("%d\n", (int)first);
        mprotect(pages + 4096, 4096, PROT_NONE);
        memset(late, 0, 4); /* a wrong size, behind which nothing can be read */
        say(npu_get_device_properties((void *)late, 0));
        say(npu_get_last_error_detail((void *)late));
    }
    """
    whole = ["BAD_ADDRESS", "0"] * 2 + ["BAD_ADDRESS", "BAD_ADDRESS", "5"]
    assert run(program) == [*whole, "INVALID_SIZE", "INVALID_SIZE"]


def test_last_shutdown_ends_the_threads_choice_and_the_next_init_reads_npu_profile(run):
    program = r"""
    int main(void)
    {
        uint32_t device, count;
        setenv("NPU_PROFILE", "npu-37xx,npu-40xx", 1);
        need(npu_init(0));
        need(npu_set_device(1));
        setenv("NPU_PROFILE", "npu-37xx,npu-37xx,npu-37xx", 1);
        need(npu_init(0));
        need(npu_shutdown());
        need(npu_get_device(&device));
        need(npu_get_device_count(&count));
        printf("%u of %u\n", device, count);
        need(npu_shutdown());
        need(npu_init(0));
        need(npu_get_device(&device));
        need(npu_get_device_count(&count));
        printf("%u of %u\n", device, count);
    }
    """
    assert run(program) == ["1 of 2", "0 of 3"]


def test_devices_have_a_limit(run, monkeypatch):
    monkeypatch.setenv("NPU_PROFILE", ",".join(["unit"] * 129))
    assert run("int main(void) { say(npu_init(0)); detail(); }") == [
        "INVALID_VALUE",
        "npu_init: NPU_PROFILE: 129 devices, above 128",
    ]


def test_two_runs_take_the_same_virtual_time(run):
    program = r"""
    int main(void)
    {
        void *p;
        char data[3000] = {0};
        uint64_t now;
        need(npu_init(0));
        need(npu_malloc(&p, sizeof data, 0));
        need(npu_memcpy(p, sizeof data, data, sizeof data, NPU_MEMCPY_HOST_TO_DEVICE));
        need(npu_get_time_ps(&now));
        printf("%llu\n", (unsigned long long)now);
    }
    """
    assert run(program) == run(program)
