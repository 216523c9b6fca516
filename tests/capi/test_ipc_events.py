"""Events of several processes in C: time-outs and ends cost and leave what those of other events do."""

import pytest

POLLS = r"""
/* How long the longest of 300 polls takes, in ps. */
static uint64_t longest(npu_event_t event)
{
    uint64_t start_ps, end_ps, longest_ps = 0;
    for (int polls = 0; polls < 300; polls++) {
        need(npu_get_time_ps(&start_ps));
        if (npu_synchronize_event_timeout(event, 1) != NPU_TIMEOUT)
            exit(4);
        need(npu_get_time_ps(&end_ps));
        if (end_ps - start_ps > longest_ps)
            longest_ps = end_ps - start_ps;
    }
    return longest_ps;
}
int main(void)
{
    npu_event_t event, other, plain;
    npu_ipc_event_handle_t handle;
    npu_context_t mine;
    npu_stream_t stream, third;
    npu_notify_t token;
    uint64_t before, after, total, start_ps, end_ps;
    need(npu_init(0));
    need(npu_create_context(&mine, 0));
    need(npu_create_stream(&third));
    need(npu_destroy_stream(third));
    need(npu_mem_get_info(&before, &total));
    need(npu_create_stream(&third));
    need(npu_create_stream(&stream));
    need(npu_create_notify(&token, 0));
    need(npu_create_event(&event, NPU_EVENT_INTERPROCESS | NPU_EVENT_DISABLE_TIMING));
    need(npu_ipc_get_event_handle(&handle, event));
    need(npu_ipc_open_event_handle(&other, &handle));
    need(npu_wait_notify(token, stream));
    need(npu_record_event(event, stream));
    need(npu_create_event(&plain, NPU_EVENT_DISABLE_TIMING));
    need(npu_record_event(plain, stream));
    say(npu_synchronize_event_timeout(event, 1));
    printf("%d\n", longest(event) == longest(plain));
    need(npu_destroy_event(plain));
    say(npu_synchronize_event_timeout(other, 1));
    need(npu_get_time_ps(&start_ps));
    say(npu_destroy_event(event));
    need(npu_get_time_ps(&end_ps));
    printf("%d\n", end_ps - start_ps < 20000000);
    say(npu_destroy_event(event));
    say(npu_query_stream(stream));
    need(npu_record_notify(token, third));
    say(npu_synchronize_event(other));
    say(npu_synchronize_context());
    say(npu_destroy_event(other));
    need(npu_destroy_stream(stream));
    need(npu_destroy_notify(token));
    need(npu_destroy_stream(third));
    need(npu_mem_get_info(&after, &total));
    printf("%lld\n", (long long)(before - after));
    say(npu_destroy_context(mine, 0));
    need(npu_shutdown());
    return 0;
}
"""


@pytest.mark.parametrize("semantics", ["ascend", "cuda", "strict"])
def test_time_outs_and_the_end_of_an_event_that_work_uses(run, semantics, monkeypatch):
    monkeypatch.setenv("NPU_SEMANTICS", semantics)
    assert run(POLLS) == [
        "TIMEOUT", "1", "TIMEOUT", "SUCCESS", "1", "STALE_HANDLE", "NOT_READY", "SUCCESS", "SUCCESS", "SUCCESS", "0", "SUCCESS",
    ]  # fmt: skip
