"""Turns of threads that use several devices: whoever waits on one is not waited for on another."""

import libnpu


def test_silence_on_two_devices_does_not_wait_for_a_host_function_that_waits_for_it():
    with libnpu.open() as first, libnpu.open() as second:
        called = []
        notify, stream = second.create_notify(), second.create_stream()
        notify.wait(stream)
        stream.add_host_function(
            called.append, "late"
        )  # so that the thread of host functions stays on the second device
        second.default_stream.add_host_function(called.append, "second")
        second.default_stream.synchronize()
        second.host_delay(1000)  # it is behind there
        memory = first.alloc(4096)
        for delay_ns in range(0, 6000, 40):  # after one of these times a function ends just ahead of the main thread
            first.default_stream.fill(memory, 1)
            first.default_stream.add_host_function(called.append, delay_ns)
            first.host_delay(delay_ns)
            with first.suspend_host_thread():
                pass
        first.synchronize()
        notify.record()
        second.synchronize()
        assert called == ["second", *range(0, 6000, 40), "late"]
