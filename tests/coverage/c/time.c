/* time.c - virtual time, schedules, and several host threads. */
#include "expect.h"
#include <pthread.h>

static void clocks(void)
{
    uint64_t time_ps = 0, later_ps = 0, busy_ps = 0, blocked_ps = 0;

    OK(npu_get_time_ps(&time_ps));
    expect(NPU_ERROR_NULL_POINTER, npu_get_time_ps(NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_time_ps(BAD));
    OK(npu_host_delay(1000));
    OK(npu_get_time_ps(&later_ps));
    claim(later_ps >= time_ps + 1000000);
    expect(NPU_ERROR_INVALID_VALUE, npu_host_delay(1000000000000001));
    OK(npu_get_host_times(&busy_ps, &blocked_ps));
    claim(busy_ps >= 1000000);
    expect(NPU_ERROR_NULL_POINTER, npu_get_host_times(NULL, &blocked_ps));
    expect(NPU_ERROR_NULL_POINTER, npu_get_host_times(&busy_ps, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_host_times(BAD, &blocked_ps));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_host_times(&busy_ps, BAD));
}

/* A wait is time in which the thread is blocked. */
static void blocked_time(void)
{
    npu_blob_t blob = load("library");
    npu_kernel_t spin = NULL;
    uint64_t busy_ps = 0, before_ps = 0, after_ps = 0;

    OK(npu_get_kernel(&spin, blob, "spin"));
    OK(npu_launch_kernel_async(spin, NULL, 0, NULL));
    OK(npu_get_host_times(&busy_ps, &before_ps));
    OK(npu_synchronize_stream(NULL));
    OK(npu_get_host_times(&busy_ps, &after_ps));
    claim(after_ps > before_ps);
    OK(npu_unload(blob));
}

static void schedules(void)
{
    OK(npu_set_schedule(NPU_SCHED_EAGER, 0));
    OK(npu_set_schedule(NPU_SCHED_LAZY, 0));
    OK(npu_set_schedule(NPU_SCHED_NEWEST_FIRST, 0));
    OK(npu_set_schedule(NPU_SCHED_SEED, 42));
    OK(npu_set_schedule(NPU_SCHED_TIMED, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_set_schedule((npu_schedule_kind_t)5, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_set_schedule(NPU_SCHED_EAGER, 1));
}

/* A member of the team; the owner meanwhile may do nothing. */
static pthread_barrier_t inside, done;

static void *member(void *argument)
{
    uint32_t rank = *(uint32_t *)argument;

    expect(NPU_ERROR_BAD_STATE, npu_team_leave());
    expect(NPU_ERROR_BAD_STATE, npu_team_end());
    expect(NPU_ERROR_INVALID_VALUE, npu_team_enter(2));
    OK(npu_team_enter(rank));
    expect(NPU_ERROR_BAD_STATE, npu_team_enter(1 - rank));
    expect(NPU_ERROR_BAD_STATE, npu_team_begin(1));
    pthread_barrier_wait(&inside);
    pthread_barrier_wait(&done);
    OK(npu_host_delay(1000 * (rank + 1)));
    OK(npu_team_leave());
    return NULL;
}

static void *late(void *unused)
{
    (void)unused;
    expect(NPU_ERROR_INVALID_VALUE, npu_team_enter(0)); /* taken */
    expect(NPU_ERROR_BAD_STATE, npu_team_begin(1));
    return NULL;
}

static void teams(void)
{
    pthread_t threads[2], other;
    uint32_t ranks[2] = {0, 1}, reproducible = 0;
    uint64_t before_ps = 0, after_ps = 0;

    pthread_barrier_init(&inside, NULL, 3);
    pthread_barrier_init(&done, NULL, 3);
    expect(NPU_ERROR_INVALID_VALUE, npu_team_begin(0));
    expect(NPU_ERROR_INVALID_VALUE, npu_team_begin(1025));
    expect(NPU_ERROR_BAD_STATE, npu_team_enter(0));
    expect(NPU_ERROR_BAD_STATE, npu_team_leave());
    expect(NPU_ERROR_BAD_STATE, npu_team_end());
    OK(npu_get_time_ps(&before_ps));
    OK(npu_team_begin(2));
    for (int i = 0; i < 2; i++)
        claim(pthread_create(&threads[i], NULL, member, &ranks[i]) == 0);
    pthread_barrier_wait(&inside);
    expect(NPU_ERROR_BAD_STATE, npu_team_end());
    expect(NPU_ERROR_NOT_PERMITTED, npu_get_time_ps(&after_ps));
    expect(NPU_ERROR_BAD_STATE, npu_team_begin(2));
    expect(NPU_ERROR_BAD_STATE, npu_team_enter(0));
    claim(pthread_create(&other, NULL, late, NULL) == 0);
    pthread_join(other, NULL);
    pthread_barrier_wait(&done);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    OK(npu_team_end());
    OK(npu_get_time_ps(&after_ps));
    claim(after_ps >= before_ps + 2000000);
    OK(npu_is_reproducible(&reproducible));
    claim(reproducible <= 1);
    expect(NPU_ERROR_NULL_POINTER, npu_is_reproducible(NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_is_reproducible(BAD));
    OK(npu_suspend_host_thread());
    OK(npu_host_delay(1));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    clocks();
    blocked_time();
    schedules();
    teams();
    return finish();
}
