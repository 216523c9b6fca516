"""Streams, events, notifies and host functions from C: use, and each misuse with its result."""

import pytest

# A device with memory p of SIZE bytes; filling it takes the device about 50 us. slow(s) enqueues that.
SETUP = r"""
enum { SIZE = 1 << 20 };
static char *p;
static void slow(npu_stream_t s) { need(npu_memset_async(p, SIZE, 1, SIZE, s)); }
static npu_stream_t stream(void)
{
    npu_stream_t s;
    need(npu_create_stream(&s));
    return s;
}
static npu_event_t event(uint32_t flags)
{
    npu_event_t e;
    need(npu_create_event(&e, flags));
    return e;
}
static void begin(void)
{
    need(npu_init(0));
    need(npu_malloc((void **)&p, SIZE, 0));
}
"""


@pytest.fixture
def program(run):
    """program(body) -> lines: runs `body` as main behind SETUP, with a device."""

    def program(body: str, *arguments: str, before: str = "") -> list[str]:
        return run(f"{SETUP}{before}int main(int argc, char **argv)\n{{\nbegin();\n{body}}}\n", *arguments)

    return program


def test_streams_have_flags_priorities_and_numbers(program):
    body = r"""
    npu_stream_t s, t;
    uint64_t a, b, c;
    need(npu_create_stream_with_priority(&s, NPU_STREAM_NON_BLOCKING, NPU_PRIORITY_REALTIME));
    need(npu_create_stream_with_priority(&t, 0, NPU_PRIORITY_IDLE));
    need(npu_get_stream_id(s, &a));
    need(npu_get_stream_id(t, &b));
    need(npu_get_stream_id(NULL, &c));
    printf("%d\n", a != b && a != c && b != c);
    say(npu_create_stream_with_priority(NULL, 0, NPU_PRIORITY_IDLE));
    say(npu_create_stream_with_priority(BAD, 0, NPU_PRIORITY_IDLE));
    say(npu_create_stream_with_priority(&s, 2, NPU_PRIORITY_IDLE));
    say(npu_create_stream_with_priority(&s, 0, (npu_priority_t)0));
    say(npu_create_stream_with_priority(&s, 0, (npu_priority_t)5));
    say(npu_get_stream_id(s, NULL));
    say(npu_get_stream_id(s, BAD));
    say(npu_get_stream_id((npu_stream_t)BAD, &a));
    need(npu_destroy_stream(s));
    say(npu_get_stream_id(s, &a));
    """
    assert program(body) == [
        "1",
        *("NULL_POINTER", "BAD_ADDRESS", "INVALID_VALUE", "INVALID_VALUE", "INVALID_VALUE"),
        *("NULL_POINTER", "BAD_ADDRESS", "INVALID_HANDLE", "STALE_HANDLE"),
    ]


def test_priorities_are_clamped_under_cuda(program, monkeypatch):
    monkeypatch.setenv("NPU_SEMANTICS", "cuda")
    body = r"""
    npu_stream_t s;
    say(npu_create_stream_with_priority(&s, 0, (npu_priority_t)-7));
    say(npu_create_stream_with_priority(&s, 0, (npu_priority_t)5));
    """
    assert program(body) == ["SUCCESS", "SUCCESS"]


@pytest.mark.parametrize(
    ("semantics", "expected"),
    [
        ("ascend", ["SUCCESS", "1", "STALE_HANDLE"]),
        ("cuda", ["SUCCESS", "0", "STALE_HANDLE"]),
        ("strict", ["IN_USE", "0", "SUCCESS"]),
    ],
)
def test_destruction_with_work_in_flight_follows_the_semantics(program, monkeypatch, semantics, expected):
    monkeypatch.setenv("NPU_SEMANTICS", semantics)
    body = r"""
    npu_stream_t s = stream();
    uint64_t before, after;
    slow(s);
    need(npu_get_time_ps(&before));
    say(npu_destroy_stream(s));
    need(npu_get_time_ps(&after));
    printf("%d\n", after - before > 20000000);
    say(npu_synchronize_stream(s));
    """
    assert program(body) == expected


def test_destroyed_stream_reports_its_errors_and_is_gone(program, blobs):
    body = r"""
    npu_blob_t blob;
    npu_kernel_t k;
    npu_stream_t s = stream();
    need(npu_load_blob(&blob, argv[1]));
    need(npu_get_kernel(&k, blob, NULL));
    npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER(p + 64)};
    need(npu_launch_kernel_async(k, args, 2, s));
    say(npu_destroy_stream(s));
    say(npu_destroy_stream(s));
    """
    assert program(body, str(blobs / "stuck.blob")) == ["BARRIER_DEADLOCK", "STALE_HANDLE"]


def test_failure_mode_stops_the_context(program, blobs):
    body = r"""
    npu_blob_t blob;
    npu_kernel_t k;
    npu_stream_t s = stream(), t = stream();
    need(npu_load_blob(&blob, argv[1]));
    need(npu_get_kernel(&k, blob, NULL));
    npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER(p + 64)};
    say(npu_stream_set_failure_mode((npu_stream_t)BAD, NPU_STOP_ON_FAILURE));
    say(npu_stream_set_failure_mode(s, (npu_failure_mode_t)2));
    slow(s);
    say(npu_stream_set_failure_mode(s, NPU_STOP_ON_FAILURE));
    need(npu_synchronize_stream(s));
    say(npu_stream_set_failure_mode(s, NPU_CONTINUE_ON_FAILURE));
    say(npu_stream_set_failure_mode(s, NPU_STOP_ON_FAILURE));
    say(npu_stream_set_failure_mode(s, NPU_STOP_ON_FAILURE));
    say(npu_stream_set_failure_mode(s, NPU_CONTINUE_ON_FAILURE));
    need(npu_launch_kernel_async(k, args, 2, s));
    slow(s);
    say(npu_synchronize_stream(s));
    say(npu_synchronize_stream(s));
    slow(t);
    say(npu_synchronize_stream(t));
    need(npu_destroy_stream(s));
    say(npu_stream_set_failure_mode(s, NPU_STOP_ON_FAILURE));
    """
    assert program(body, str(blobs / "stuck.blob")) == [
        *("INVALID_HANDLE", "INVALID_VALUE", "IN_USE", "SUCCESS", "SUCCESS", "SUCCESS", "BAD_STATE"),
        *("BARRIER_DEADLOCK", "ABORTED_BY_PRIOR_ERROR", "ABORTED_BY_PRIOR_ERROR", "STALE_HANDLE"),
    ]


def test_aborted_work_ends_and_lets_others_go_on(program):
    body = r"""
    npu_stream_t s = stream(), t = stream();
    npu_event_t e = event(0);
    char byte;
    need(npu_memset(p, SIZE, 9, SIZE));
    slow(s);
    slow(s);
    need(npu_record_event(e, s));
    need(npu_stream_wait_event(t, e));
    need(npu_memset_async(p, 1, 3, 1, t));
    need(npu_stream_abort(s));
    need(npu_synchronize_stream(t));
    need(npu_memcpy(&byte, 1, p, 1, NPU_MEMCPY_DEFAULT));
    printf("%d\n", byte);
    need(npu_memcpy(&byte, 1, p + SIZE - 1, 1, NPU_MEMCPY_DEFAULT));
    printf("%d\n", byte); /* neither fill came that far */
    int errors = 0;
    npu_result_t r;
    while ((r = npu_query_stream(s)) != NPU_SUCCESS)
        errors += r == NPU_ERROR_ABORTED_BY_PRIOR_ERROR;
    printf("%d\n", errors);
    slow(s);
    say(npu_synchronize_stream(s));
    say(npu_stream_abort(s)); /* nothing to do */
    say(npu_stream_abort((npu_stream_t)BAD));
    need(npu_destroy_stream(s));
    say(npu_stream_abort(s));
    say(npu_stream_abort(NULL));
    """
    assert program(body) == ["3", "9", "3", "SUCCESS", "SUCCESS", "INVALID_HANDLE", "STALE_HANDLE", "SUCCESS"]


def test_events_order_streams_and_keep_times(program):
    body = r"""
    npu_stream_t s = stream(), t = stream();
    npu_event_t start = event(0), end = event(0), other = event(NPU_EVENT_DISABLE_TIMING);
    double ns = 0;
    uint64_t a, b;
    char *host;
    need(npu_malloc_host((void **)&host, 1, 0));
    need(npu_record_event(start, s));
    slow(s);
    need(npu_record_event(end, s));
    need(npu_stream_wait_event(t, end));
    need(npu_memcpy_async(host, 1, p + SIZE - 1, 1, NPU_MEMCPY_DEFAULT, t));
    say(npu_query_event(end));
    say(npu_event_elapsed_time(&ns, start, end));
    say(npu_event_get_timestamp(&a, end));
    say(npu_synchronize_event_timeout(end, 1000));
    need(npu_synchronize_stream(t));
    printf("%d\n", *host);
    say(npu_synchronize_event(end));
    say(npu_query_event(end));
    need(npu_event_elapsed_time(&ns, start, end));
    need(npu_event_get_timestamp(&a, start));
    need(npu_event_get_timestamp(&b, end));
    printf("%d %d\n", ns > 20000 && ns < 200000, ns == (double)(b - a) / 1000);
    need(npu_event_elapsed_time(&ns, end, start));
    printf("%d\n", ns < 0);
    need(npu_record_event(other, s));
    need(npu_synchronize_event_timeout(other, UINT64_MAX));
    say(npu_event_get_timestamp(&a, other));
    say(npu_event_elapsed_time(&ns, start, other));
    need(npu_reset_event(end, s));
    say(npu_event_get_timestamp(&a, end));
    say(npu_event_elapsed_time(&ns, start, end));
    say(npu_query_event(end));
    say(npu_synchronize_event(end));
    say(npu_stream_wait_event(t, end));
    """
    assert program(body) == [
        *("NOT_READY", "NOT_READY", "NOT_READY", "TIMEOUT", "1", "SUCCESS", "SUCCESS", "1 1", "1"),
        *("NO_TIMING", "NO_TIMING", "NOT_RECORDED", "NOT_RECORDED", "SUCCESS", "SUCCESS", "SUCCESS"),
    ]


def test_events_refuse_bad_arguments(program):
    body = r"""
    npu_stream_t s = stream(), t;
    npu_event_t e = event(0), gone = event(0), foreign;
    npu_context_t context;
    double ns;
    uint64_t a;
    need(npu_destroy_event(gone));
    npu_event_t bad[] = {(npu_event_t)BAD, gone};
    for (int i = 0; i < 2; i++) {
        say(npu_destroy_event(bad[i]));
        say(npu_record_event(bad[i], s));
        say(npu_stream_wait_event(s, bad[i]));
        say(npu_reset_event(bad[i], s));
        say(npu_synchronize_event(bad[i]));
        say(npu_synchronize_event_timeout(bad[i], 1));
        say(npu_query_event(bad[i]));
        say(npu_event_elapsed_time(&ns, bad[i], e));
        say(npu_event_elapsed_time(&ns, e, bad[i]));
        say(npu_event_get_timestamp(&a, bad[i]));
    }
    puts("streams");
    need(npu_create_stream(&t));
    need(npu_destroy_stream(t));
    say(npu_record_event(e, t));
    say(npu_stream_wait_event(t, e));
    say(npu_reset_event(e, t));
    say(npu_record_event(e, (npu_stream_t)BAD));
    say(npu_stream_wait_event((npu_stream_t)BAD, e));
    say(npu_reset_event(e, (npu_stream_t)BAD));
    puts("outputs");
    say(npu_create_event(NULL, 0));
    say(npu_create_event(BAD, 0));
    say(npu_create_event(&gone, 2));
    say(npu_event_elapsed_time(NULL, e, e));
    say(npu_event_elapsed_time(BAD, e, e));
    say(npu_event_get_timestamp(NULL, e));
    say(npu_event_get_timestamp(BAD, e));
    puts("contexts");
    need(npu_create_context(&context, 0));
    foreign = event(0);
    say(npu_event_elapsed_time(&ns, e, foreign));
    say(npu_record_event(e, NULL));
    say(npu_stream_wait_event(s, foreign));
    """
    assert program(body) == [
        *["INVALID_HANDLE"] * 10,
        *["STALE_HANDLE"] * 10,
        *("streams", *["STALE_HANDLE"] * 3, *["INVALID_HANDLE"] * 3),
        *("outputs", "NULL_POINTER", "BAD_ADDRESS", "INVALID_VALUE"),
        *("NULL_POINTER", "BAD_ADDRESS", "NULL_POINTER", "BAD_ADDRESS"),
        *("contexts", *["WRONG_CONTEXT"] * 3),
    ]


def test_events_that_were_never_recorded_are_errors_under_strict(program, monkeypatch):
    monkeypatch.setenv("NPU_SEMANTICS", "strict")
    body = r"""
    npu_event_t e = event(0);
    say(npu_query_event(e));
    say(npu_synchronize_event(e));
    say(npu_synchronize_event_timeout(e, 1));
    say(npu_stream_wait_event(NULL, e));
    """
    assert program(body) == ["NOT_RECORDED"] * 4


def test_event_reports_the_errors_of_its_streams_work_and_may_go_before_its_waiter(program, blobs):
    body = r"""
    npu_blob_t blob;
    npu_kernel_t k;
    npu_stream_t s = stream(), t = stream();
    npu_event_t e = event(0);
    need(npu_load_blob(&blob, argv[1]));
    need(npu_get_kernel(&k, blob, NULL));
    npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER(p + 64)};
    need(npu_launch_kernel_async(k, args, 2, s));
    need(npu_record_event(e, s));
    say(npu_synchronize_event(e));
    say(npu_synchronize_event(e));
    slow(s);
    need(npu_record_event(e, s));
    need(npu_stream_wait_event(t, e));
    need(npu_destroy_event(e));
    need(npu_synchronize_stream(t));
    say(npu_query_stream(s));
    """
    assert program(body, str(blobs / "stuck.blob")) == ["BARRIER_DEADLOCK", "SUCCESS", "SUCCESS"]


def test_notify_lets_one_wait_pass_for_each_record(program):
    body = r"""
    npu_stream_t s = stream(), t = stream();
    npu_notify_t n;
    need(npu_create_notify(&n, 0));
    need(npu_wait_notify(n, s)); /* before its record */
    slow(s);
    say(npu_synchronize_stream_timeout(s, 1000));
    say(npu_destroy_notify(n));
    need(npu_record_notify(n, t));
    say(npu_synchronize_stream(s));
    need(npu_record_notify(n, t));
    need(npu_wait_notify(n, s));
    say(npu_synchronize_stream(s));
    need(npu_wait_notify(n, s)); /* nobody will record it */
    say(npu_synchronize_stream(s));
    detail();
    need(npu_stream_abort(s));
    say(npu_synchronize_stream(s));
    need(npu_synchronize_stream(t));
    say(npu_destroy_notify(n));
    say(npu_destroy_notify(n));
    say(npu_record_notify(n, s));
    say(npu_wait_notify(n, s));
    say(npu_destroy_notify((npu_notify_t)BAD));
    say(npu_record_notify((npu_notify_t)BAD, s));
    say(npu_wait_notify((npu_notify_t)BAD, s));
    say(npu_create_notify(NULL, 0));
    say(npu_create_notify(BAD, 0));
    say(npu_create_notify(&n, 1));
    need(npu_create_notify(&n, 0));
    say(npu_record_notify(n, (npu_stream_t)BAD));
    say(npu_wait_notify(n, (npu_stream_t)BAD));
    npu_context_t context;
    need(npu_create_context(&context, 0));
    say(npu_record_notify(n, NULL));
    say(npu_wait_notify(n, NULL));
    """
    *lines, message, a, b, c, d, e, f, g, h, i, j, k, m, n, o, q = program(body)
    assert lines == ["TIMEOUT", "IN_USE", "SUCCESS", "SUCCESS", "BARRIER_DEADLOCK"]
    assert "a notify" in message
    assert (a, b, c, d, e) == ("ABORTED_BY_PRIOR_ERROR", "SUCCESS", "STALE_HANDLE", "STALE_HANDLE", "STALE_HANDLE")
    assert (f, g, h) == ("INVALID_HANDLE",) * 3
    assert (i, j, k) == ("NULL_POINTER", "BAD_ADDRESS", "INVALID_VALUE")
    assert (m, n) == ("INVALID_HANDLE",) * 2
    assert (o, q) == ("WRONG_CONTEXT",) * 2


HOST_FUNCTIONS = r"""
#include <pthread.h>
static pthread_t main_thread;
static void note(void *text)
{
    uint32_t count;
    printf("%s %d ", (char *)text, !pthread_equal(pthread_self(), main_thread));
    say(npu_get_device_count(&count));
}
"""


def test_host_functions_run_in_stream_order_on_another_thread_and_may_not_call(program):
    body = r"""
    npu_stream_t s = stream(), t = stream();
    char *host;
    main_thread = pthread_self();
    need(npu_malloc_host((void **)&host, 1, 0));
    need(npu_memset_async(p + 8, 1, 1, 1, t));
    slow(s);
    need(npu_stream_add_host_function(s, note, "first"));
    need(npu_memcpy_async(host, 1, p, 1, NPU_MEMCPY_DEFAULT, s));
    need(npu_stream_add_host_function(s, note, "second"));
    need(npu_synchronize_stream(t));
    say(npu_query_stream(s)); /* only its stream waits */
    need(npu_synchronize_stream(s));
    printf("%d\n", *host);
    say(npu_stream_add_host_function(s, NULL, NULL));
    say(npu_stream_add_host_function((npu_stream_t)BAD, note, NULL));
    need(npu_destroy_stream(s));
    say(npu_stream_add_host_function(s, note, NULL));
    """
    assert program(body, before=HOST_FUNCTIONS) == [
        *("NOT_READY", "first 1 NOT_PERMITTED", "second 1 NOT_PERMITTED", "1"),
        *("NULL_POINTER", "INVALID_HANDLE", "STALE_HANDLE"),
    ]


def test_host_function_of_an_aborted_stream_is_not_called(program):
    body = r"""
    npu_stream_t s = stream();
    slow(s);
    need(npu_stream_add_host_function(s, note, "called"));
    need(npu_stream_abort(s));
    npu_result_t r;
    while ((r = npu_synchronize_stream(s)) != NPU_SUCCESS)
        say(r);
    need(npu_stream_add_host_function(s, note, "works again"));
    need(npu_synchronize_stream(s));
    """
    *aborted, last = program(body, before=HOST_FUNCTIONS)
    assert set(aborted) == {"ABORTED_BY_PRIOR_ERROR"}
    assert last == "works again 1 NOT_PERMITTED"


def test_host_function_may_wait_for_what_the_main_thread_does_later(program):
    before = r"""
    #include <semaphore.h>
    static sem_t later;
    static npu_result_t refused;
    static void wait_for_it(void *unused) {
        uint32_t count;
        refused = npu_get_device_count(&count); /* has ended: it is silent from here on */
        sem_wait(&later);
        (void)unused;
    }
    """
    body = r"""
    npu_stream_t s = stream();
    sem_init(&later, 0, 0);
    need(npu_stream_add_host_function(s, wait_for_it, NULL));
    say(npu_query_stream(s));
    need(npu_host_delay(1000000));
    sem_post(&later);
    say(npu_synchronize_stream(s));
    say(refused);
    """
    assert program(body, before=before) == ["NOT_READY", "SUCCESS", "NOT_PERMITTED"]


@pytest.mark.parametrize("semantics", ["cuda", "strict"])
def test_what_leaves_the_context_whole_does_not_stick(program, semantics, monkeypatch):
    monkeypatch.setenv("NPU_SEMANTICS", semantics)
    body = r"""
    npu_stream_t s = stream(), other = stream();
    npu_notify_t n;
    npu_event_t e = event(0);
    need(npu_record_event(e, other));
    need(npu_stream_add_host_function(s, leave, NULL));
    say(npu_synchronize_stream(s));
    works(other, e);
    need(npu_create_notify(&n, 0));
    need(npu_wait_notify(n, s));
    say(npu_synchronize_stream(s));
    works(other, e);
    need(npu_stream_abort(s));
    say(npu_synchronize_stream(s));
    works(other, e);
    say(npu_synchronize_stream(s));
    """
    before = r"""
#include <pthread.h>
static void leave(void *data) { pthread_exit(NULL); }
static void works(npu_stream_t s, npu_event_t e)
{
    void *memory;
    need(npu_malloc(&memory, 64, 0));
    need(npu_memset_async(memory, 64, 1, 64, s));
    need(npu_synchronize_stream(s));
    need(npu_query_event(e));
    need(npu_free(memory));
    need(npu_destroy_stream(stream()));
}
"""
    errors = ["HOST_FUNCTION", "BARRIER_DEADLOCK", "ABORTED_BY_PRIOR_ERROR", "SUCCESS"]
    assert program(body, before=before) == errors


def test_abort_on_a_context_that_was_just_lost_is_whole(program, blobs):
    body = r"""
    npu_stream_t s = stream(), waiter = stream(), faulting = stream();
    npu_notify_t n;
    npu_event_t e = event(0);
    npu_blob_t blob;
    npu_kernel_t fault;
    npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER(p)};
    need(npu_load_blob(&blob, argv[1]));
    need(npu_get_kernel(&fault, blob, NULL));
    need(npu_create_notify(&n, 0));
    need(npu_wait_notify(n, s));
    need(npu_record_event(e, s));
    need(npu_stream_wait_event(waiter, e));
    need(npu_launch_kernel_async(fault, args, 2, faulting));
    need(npu_host_delay(1000000));
    for (int i = 0; i < 2; i++)
        say(npu_stream_abort(s));
    say(npu_synchronize_stream(s));
    say(npu_destroy_stream(s));
    say(npu_destroy_stream(s));
    """
    aborted = "ABORTED_BY_PRIOR_ERROR"
    assert program(body, str(blobs / "fault.blob")) == ["DEVICE_LOST", "DEVICE_LOST", aborted, aborted, "STALE_HANDLE"]


def test_abort_and_failure_mode_need_no_queue_more_than_the_stream_s_own(program):
    body = r"""
    npu_stream_t s, last = NULL;
    npu_result_t result;
    while ((result = npu_create_stream(&s)) == NPU_SUCCESS)
        last = s;
    say(result);
    say(npu_stream_abort(last));
    say(npu_stream_set_failure_mode(last, NPU_STOP_ON_FAILURE));
    """
    assert program(body) == ["OUT_OF_RESOURCES", "SUCCESS", "SUCCESS"]
