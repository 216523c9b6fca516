"""Several threads, under every schedule: a thread may wait for work that another one has enqueued, or has waited for already."""

import os

import pytest

PROGRAM = r"""
#include <pthread.h>
enum { THREADS = 4, STREAMS = 4, ROUNDS = 50 };
static npu_stream_t streams[STREAMS];
static char *memory;
static void *work(void *argument)
{
    uintptr_t me = (uintptr_t)argument;
    for (uintptr_t i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < STREAMS; k++)
            need(npu_memset_async(memory + 4096 * k, 4096, 7, 4096, streams[k]));
        need((me + i) % 2 ? npu_synchronize_device() : npu_synchronize_stream(streams[(me + i) % STREAMS]));
    }
    need(npu_suspend_host_thread());
    return NULL;
}
int main(void)
{
    pthread_t threads[THREADS];
    char end;
    need(npu_init(0));
    need(npu_malloc((void **)&memory, 65536, 0));
    for (int k = 0; k < STREAMS; k++)
        need(npu_create_stream(&streams[k]));
    need(npu_suspend_host_thread());
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    need(npu_synchronize_device());
    need(npu_memcpy(&end, 1, memory + 4096 * STREAMS - 1, 1, NPU_MEMCPY_DEFAULT));
    printf("%d\n", end);
}
"""


@pytest.mark.parametrize(
    "schedule",
    ["timed", "newest-first", "seed:3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("eager", "lazy"))],
)
def test_threads_enqueue_to_and_wait_for_the_same_streams(run, schedule):
    assert run(PROGRAM, env={**os.environ, "NPU_SCHEDULE": schedule}) == ["7"]
