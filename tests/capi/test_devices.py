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
        for (int i = 0; i < 4; i++)
            need(npu_host_delay(1000000000000000));
        say(npu_host_delay(1000000000000000));
        void *p;
        say(npu_malloc(&p, 64, 0));
    }
    """
    assert run(program) == ["1 1", "NULL_POINTER", "BAD_ADDRESS", "INVALID_VALUE", "INVALID_VALUE", "SUCCESS"]


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
