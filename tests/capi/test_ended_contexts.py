"""Waits for work that another thread breaks off: it ends the context by force, resets the device, or shuts the library down."""

import pytest

PROGRAM = r"""
#include <pthread.h>
static npu_context_t context;
static npu_event_t event;
static npu_graph_exec_t graph;
static char *memory, *other;
enum { WAITS = 13 };
static npu_result_t wait(int which, npu_stream_t stream)
{
    char byte;
    switch (which) {
    case 0: return npu_synchronize_stream(stream);
    case 1: return npu_synchronize_stream_timeout(stream, 1000000000);
    case 2: return npu_synchronize_context();
    case 3: return npu_synchronize_device();
    case 4: return npu_wait_for_completion();
    case 5: return npu_wait_for_completion_timeout(1000000000);
    case 6: return npu_synchronize_event(event);
    case 7: return npu_memcpy(&byte, 1, memory, 1, NPU_MEMCPY_DEFAULT);
    case 8: return npu_memset(memory, 64, 1, 64);
    case 9: return npu_destroy_stream(stream);
    case 10: return npu_free_sync(other);
    case 11: need(npu_graph_launch(graph, stream)); return npu_synchronize_stream(stream);
    default:
        for (int i = 0; i < 100; i++) { /* more than the queue takes */
            npu_result_t result = npu_memset_async(memory, 64, 1, 64, stream);
            if (result)
                return result;
        }
        return NPU_SUCCESS;
    }
}
static npu_stream_t streams[WAITS];
static void *waiter(void *which)
{
    need(npu_team_enter((uint32_t)(intptr_t)which));
    need(npu_set_current_context(context));
    npu_result_t result = wait((int)(intptr_t)which, streams[(intptr_t)which]);
    npu_team_leave();
    return (void *)(intptr_t)result;
}
static void *ender(void *how)
{
    need(npu_team_enter(WAITS));
    need(npu_host_delay(1000000));
    need((intptr_t)how == 0 ? npu_destroy_context(context, NPU_DESTROY_FORCE) : (intptr_t)how == 1 ? npu_reset_device() : npu_shutdown());
    npu_team_leave();
    return NULL;
}
int main(int argc, char **argv)
{
    for (intptr_t how = 0; how < 3; how++) {
        pthread_t threads[WAITS + 1];
        npu_graph_t captured;
        need(npu_init(0));
        need(npu_create_context(&context, 0));
        need(npu_malloc((void **)&memory, 4096, 0));
        need(npu_create_event(&event, 0));
        need(npu_malloc((void **)&other, 4096, 0));
        for (int i = 0; i < WAITS; i++) {
            npu_notify_t notify;
            need(npu_create_stream(&streams[i]));
            if (i == 11) {
                need(npu_stream_begin_capture(streams[i]));
                need(npu_memset_async(memory, 64, 1, 64, streams[i]));
                need(npu_stream_end_capture(streams[i], &captured));
                need(npu_graph_instantiate(&graph, captured));
            }
            need(npu_create_notify(&notify, 0));
            need(npu_wait_notify(notify, streams[i]));
            need(npu_memset_async(memory, 64, 1, 64, streams[i]));
        }
        need(npu_record_event(event, streams[0]));
        need(npu_stream_wait_event(NULL, event)); /* for what runs on the default stream */
        need(npu_team_begin(WAITS + 1));
        for (intptr_t i = 0; i <= WAITS; i++)
            pthread_create(&threads[i], NULL, i < WAITS ? waiter : ender, (void *)(i < WAITS ? i : how));
        for (int i = 0; i <= WAITS; i++) {
            void *result;
            pthread_join(threads[i], &result);
            if (i < WAITS && (npu_result_t)(intptr_t)result != NPU_ERROR_STALE_HANDLE) {
                printf("end %d, wait %d: ", (int)how, i);
                say((npu_result_t)(intptr_t)result);
            }
        }
        npu_team_end();
        npu_shutdown();
    }
}
"""


@pytest.mark.parametrize("semantics", ["ascend", "cuda"])
def test_who_waits_for_what_another_thread_breaks_off_gets_an_error(run, semantics, monkeypatch):
    monkeypatch.setenv("NPU_PROFILE", "unit")
    monkeypatch.setenv("NPU_SEMANTICS", semantics)
    exempt = [f"end {end}, wait 9: SUCCESS" for end in range(3)]  # cuda: a stream is destroyed at once
    assert run(PROGRAM) == (exempt if semantics == "cuda" else [])
