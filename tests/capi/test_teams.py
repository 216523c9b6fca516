"""Threads of a C program as a team: the same order of calls in every run, whatever the machine does."""

PROGRAM = r"""
#include <pthread.h>
#include <unistd.h>
enum { THREADS = 3, CALLS = 20 };
static char *memory;
static npu_kernel_t copy;
static npu_stream_t stream;
static void *work(void *argument)
{
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    usleep((THREADS - rank) * 2000); /* they arrive in the wrong order */
    need(npu_team_enter(rank));
    npu_arg_t args[] = {NPU_BUFFER(memory + 64 * rank), NPU_BUFFER(memory + 4096 + 64 * rank)};
    for (int i = 0; i < CALLS; i++) {
        need(npu_launch_kernel_async(copy, args, 2, stream));
        need(npu_host_delay(500 * (rank + 1)));
        if (i % 5 == 4)
            need(npu_synchronize_stream(stream));
    }
    need(npu_team_leave());
    return NULL;
}
int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    npu_blob_t blob;
    npu_op_record_t records[THREADS * CALLS];
    size_t count;
    uint64_t hash = 14695981039346656037u, now;
    uint32_t reproducible;
    need(npu_init(0));
    need(npu_load_blob(&blob, argv[1]));
    need(npu_get_kernel(&copy, blob, NULL));
    need(npu_create_stream(&stream));
    need(npu_malloc((void **)&memory, 8192, 0));
    need(npu_profiler_start());
    need(npu_team_begin(THREADS));
    for (uintptr_t rank = 0; rank < THREADS; rank++)
        pthread_create(&threads[rank], NULL, work, (void *)rank);
    for (int rank = 0; rank < THREADS; rank++)
        pthread_join(threads[rank], NULL);
    need(npu_team_end());
    need(npu_get_op_records(records, THREADS * CALLS, &count));
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ records[i].start_ps ^ records[i].enqueue_ps << 7) * 1099511628211u;
    need(npu_get_time_ps(&now));
    need(npu_is_reproducible(&reproducible));
    printf("%zu %016llx %llu %u\n", count, (unsigned long long)hash, (unsigned long long)now, reproducible);
}
"""


def test_team_makes_the_same_calls_at_the_same_times(run, blobs):
    first = run(PROGRAM, str(blobs / "copy.blob"))
    assert first[0].startswith("60 ")
    assert first[0].endswith(" 1")
    assert run(PROGRAM, str(blobs / "copy.blob")) == first


def test_shutdown_by_a_member_ends_the_team(run):
    body = r"""
#include <pthread.h>
static void *member(void *unused)
{
    need(npu_team_enter(0));
    need(npu_shutdown());
    say(npu_team_leave());
    return unused;
}
static void *other(void *unused)
{
    uint64_t now;
    need(npu_init(0));
    say(npu_get_time_ps(&now));
    say(npu_team_begin(1));
    say(npu_team_end());
    return unused;
}
int main(void)
{
    pthread_t thread;
    uint64_t now;
    need(npu_init(0));
    need(npu_team_begin(2)); /* one member never comes */
    say(npu_shutdown()); /* the owner may not */
    pthread_create(&thread, NULL, member, NULL);
    pthread_join(thread, NULL);
    say(npu_team_end());
    say(npu_init(0));
    pthread_create(&thread, NULL, other, NULL);
    pthread_join(thread, NULL);
    say(npu_team_end());
    say(npu_get_time_ps(&now));
    say(npu_team_begin(1));
    say(npu_team_end());
}
"""
    assert run(body) == [
        "NOT_PERMITTED",
        "NOT_INITIALIZED",
        "NOT_INITIALIZED",
        "SUCCESS",
        "SUCCESS",
        "SUCCESS",
        "SUCCESS",
        "BAD_STATE",
        "SUCCESS",
        "SUCCESS",
        "SUCCESS",
    ]
