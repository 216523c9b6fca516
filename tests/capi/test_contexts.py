"""Contexts from C: use, and each misuse with its result; attributes and reset of devices."""

import pytest


def test_attributes_are_the_devices(run, monkeypatch):
    program = r"""
    int main(void)
    {
        int64_t value = 5;
        need(npu_init(0));
        for (int i = 0; i < NPU_ATTR_COUNT; i++) {
            need(npu_device_get_attribute(&value, (npu_attribute_t)i, 0));
            printf("%lld ", (long long)value);
        }
        puts("");
        say(npu_device_get_attribute(NULL, NPU_ATTR_TILES, 0));
        say(npu_device_get_attribute(BAD, NPU_ATTR_TILES, 0));
        say(npu_device_get_attribute(&value, NPU_ATTR_COUNT, 0));
        say(npu_device_get_attribute(&value, (npu_attribute_t)-1, 0));
        say(npu_device_get_attribute(&value, NPU_ATTR_TILES, 1));
    }
    """
    monkeypatch.setenv("NPU_PROFILE", "npu-37xx")
    tiles, shaves, ports, barriers, cmx = 2, 4, 2, 64, 2 * 1982464
    memory, clock, line, coherent = 4 << 30, 1300000000, 64, 1
    streams, contexts, depth, version = 254, 64, 62, 1 << 16
    expected = (tiles, shaves, ports, barriers, cmx, memory, clock, line, coherent, streams, contexts, depth, version)
    assert run(program) == [
        " ".join(map(str, expected)) + " ",
        "NULL_POINTER",
        "BAD_ADDRESS",
        *["INVALID_VALUE"] * 3,
    ]


def test_created_context_is_current_and_memory_belongs_to_it(run):
    program = r"""
    int main(void)
    {
        npu_context_t first, current = (npu_context_t)BAD;
        void *p, *q;
        char byte = 0;
        need(npu_init(0));
        need(npu_get_current_context(&current));
        printf("%d\n", current == NULL);
        need(npu_malloc(&p, 64, 0));
        need(npu_memset(p, 64, 1, 64));
        need(npu_create_context(&first, 0));
        need(npu_get_current_context(&current));
        printf("%d\n", current == first);
        need(npu_malloc(&q, 64, 0));
        need(npu_memset(q, 64, 2, 64));
        printf("%d\n", p != q);
        say(npu_free(p));
        say(npu_memset(p, 64, 1, 64));
        say(npu_memcpy(q, 64, p, 64, NPU_MEMCPY_DEFAULT));
        need(npu_memcpy_peer(q, 64, p, 1));
        need(npu_memcpy(&byte, 1, q, 1, NPU_MEMCPY_DEFAULT));
        printf("%d\n", byte);
        need(npu_set_current_context(NULL));
        need(npu_get_current_context(&current));
        printf("%d\n", current == NULL);
        say(npu_free(q));
        need(npu_free(p));
        need(npu_set_current_context(first));
        need(npu_free(q));
        say(npu_synchronize_context());
        say(npu_destroy_context(first, 0));
        need(npu_get_current_context(&current));
        printf("%d\n", current == NULL);
        say(npu_set_current_context(first));
        say(npu_destroy_context(first, 0));
        say(npu_free(q));
    }
    """
    assert run(program) == [
        "1",
        "1",
        "1",
        *["WRONG_CONTEXT"] * 3,
        "1",
        "1",
        "WRONG_CONTEXT",
        "SUCCESS",
        "SUCCESS",
        "1",
        *["STALE_HANDLE"] * 3,
    ]


def test_contexts_refuse_bad_arguments(run):
    program = r"""
    int main(void)
    {
        npu_context_t context = (npu_context_t)7, other;
        npu_stream_t stream;
        npu_event_t event;
        need(npu_init(0));
        say(npu_create_context(NULL, 0));
        say(npu_create_context(BAD, 0));
        say(npu_create_context(&context, 1));
        printf("%d\n", context == (npu_context_t)7);
        say(npu_get_current_context(NULL));
        say(npu_get_current_context(BAD));
        say(npu_destroy_context(NULL, 0));
        say(npu_destroy_context((npu_context_t)BAD, 0));
        say(npu_set_current_context((npu_context_t)BAD));
        need(npu_create_context(&context, 0));
        say(npu_destroy_context(context, 2));
        need(npu_create_stream(&stream));
        say(npu_destroy_context(context, 0));
        detail();
        need(npu_create_context(&other, 0));
        need(npu_create_event(&event, 0));
        say(npu_record_event(event, stream));
        say(npu_stream_wait_event(stream, event));
        say(npu_reset_event(event, stream));
        need(npu_destroy_context(context, NPU_DESTROY_FORCE));
        say(npu_synchronize_stream(stream));
        say(npu_record_event(event, stream));
        need(npu_get_current_context(&context));
        printf("%d\n", context == other);
    }
    """
    assert run(program) == [
        "NULL_POINTER",
        "BAD_ADDRESS",
        "INVALID_VALUE",
        "1",
        "NULL_POINTER",
        "BAD_ADDRESS",
        *["INVALID_HANDLE"] * 3,
        "INVALID_VALUE",
        "IN_USE",
        "npu_destroy_context: the context still has 1 streams",
        *["WRONG_CONTEXT"] * 3,
        *["STALE_HANDLE"] * 2,
        "1",
    ]


def test_contexts_come_to_an_end(run):
    program = r"""
    int main(void)
    {
        npu_context_t context, last = NULL;
        npu_result_t result;
        int made = 0;
        need(npu_init(0));
        while ((result = npu_create_context(&context, 0)) == NPU_SUCCESS) {
            last = context;
            made++;
        }
        say(result);
        need(npu_destroy_context(last, 0));
        say(npu_create_context(&context, 0));
        printf("%d\n", made);
    }
    """
    assert run(program) == ["OUT_OF_RESOURCES", "SUCCESS", "63"]  # and the primary one


def test_fault_ends_one_context_and_not_its_neighbour(run, blobs):
    program = r"""
    int main(int argc, char **argv)
    {
        npu_context_t broken, whole;
        npu_blob_t blob;
        npu_kernel_t k;
        void *p, *q;
        need(npu_init(0));
        need(npu_create_context(&whole, 0));
        need(npu_malloc(&q, 128, 0));
        need(npu_create_context(&broken, 0));
        need(npu_load_blob(&blob, argv[1]));
        need(npu_get_kernel(&k, blob, NULL));
        need(npu_malloc(&p, 128, 0));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER((char *)p + 64)};
        need(npu_launch_kernel_async(k, args, 2, NULL));
        say(npu_synchronize_context());
        say(npu_memset(p, 64, 0, 64));
        need(npu_set_current_context(whole));
        say(npu_memset(q, 64, 0, 64));
        say(npu_synchronize_context());
        say(npu_destroy_context(broken, NPU_DESTROY_FORCE));
    }
    """
    assert run(program, str(blobs / "fault.blob")) == [
        "DEVICE_PAGE_FAULT",
        "DEVICE_LOST",
        "SUCCESS",
        "SUCCESS",
        "SUCCESS",
    ]


@pytest.mark.parametrize("semantics", ["cuda", "strict"])
def test_device_error_sticks_until_the_device_is_reset(run, blobs, monkeypatch, semantics):
    program = r"""
    int main(int argc, char **argv)
    {
        npu_blob_t blob;
        npu_kernel_t k;
        void *p, *q;
        npu_stream_t s;
        need(npu_init(0));
        need(npu_load_blob(&blob, argv[1]));
        need(npu_get_kernel(&k, blob, NULL));
        need(npu_malloc(&p, 128, 0));
        need(npu_create_stream(&s));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER((char *)p + 64)};
        need(npu_launch_kernel_async(k, args, 2, s));
        say(npu_synchronize_stream(s));
        say(npu_synchronize_stream(s));
        say(npu_query_stream(NULL));
        say(npu_malloc(&q, 64, 0));
        say(npu_launch_kernel_async(k, args, 2, s));
        puts("clean up");
        say(npu_free(p));
        say(npu_destroy_stream(s));
        say(npu_unload(blob));
        say(npu_synchronize_context());
        say(npu_reset_device());
        say(npu_malloc(&q, 64, 0));
        say(npu_synchronize_device());
    }
    """
    monkeypatch.setenv("NPU_SEMANTICS", semantics)
    assert run(program, str(blobs / "stuck.blob")) == [
        *["BARRIER_DEADLOCK"] * 5,
        "clean up",
        *["SUCCESS"] * 3,
        "BARRIER_DEADLOCK",
        *["SUCCESS"] * 3,
    ]


def test_reset_makes_everything_of_the_device_stale_and_its_clock_goes_on(run, blobs, monkeypatch):
    program = r"""
    int main(int argc, char **argv)
    {
        npu_context_t context;
        npu_blob_t blob;
        npu_kernel_t k;
        npu_stream_t s, other;
        npu_event_t e;
        void *p, *q, *host;
        uint64_t before, after;
        need(npu_init(0));
        need(npu_set_device(1));
        need(npu_create_stream(&other));
        need(npu_malloc(&q, 64, 0));
        need(npu_set_device(0));
        need(npu_load_blob(&blob, argv[1]));
        need(npu_get_kernel(&k, blob, NULL));
        need(npu_create_stream(&s));
        need(npu_create_event(&e, 0));
        need(npu_malloc(&p, 1 << 19, 0));
        need(npu_malloc_host(&host, 64, 0));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER((char *)p + (1 << 18))};
        need(npu_launch_kernel_async(k, args, 2, s));
        need(npu_create_context(&context, 0));
        need(npu_get_time_ps(&before));
        need(npu_reset_device());
        need(npu_get_time_ps(&after));
        printf("%d\n", after > before);
        say(npu_set_current_context(context));
        say(npu_synchronize_stream(s));
        say(npu_query_event(e));
        say(npu_unload(blob));
        say(npu_launch_kernel_async(k, args, 2, NULL));
        say(npu_free(p));
        say(npu_free_host(host));
        say(npu_malloc(&p, 64, 0));
        say(npu_synchronize_device());
        say(npu_synchronize_stream(other));
        need(npu_set_device(1));
        say(npu_free(q));
    }
    """
    monkeypatch.setenv("NPU_PROFILE", "npu-37xx,npu-37xx")
    assert run(program, str(blobs / "long.blob")) == ["1", *["STALE_HANDLE"] * 7, *["SUCCESS"] * 4]


def test_current_context_belongs_to_a_thread(run):
    program = r"""
    #include <pthread.h>
    static npu_context_t made;
    static void *work(void *unused)
    {
        npu_context_t current = (npu_context_t)BAD;
        need(npu_get_current_context(&current));
        printf("%d\n", current == NULL);
        need(npu_set_current_context(made));
        return unused;
    }
    int main(void)
    {
        pthread_t thread;
        npu_context_t current;
        need(npu_init(0));
        need(npu_create_context(&made, 0));
        pthread_create(&thread, NULL, work, NULL);
        pthread_join(thread, NULL);
        need(npu_set_device(0)); /* its primary context */
        need(npu_get_current_context(&current));
        printf("%d\n", current == NULL);
    }
    """
    assert run(program) == ["1", "1"]
