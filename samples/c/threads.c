/* SPDX-License-Identifier: Apache-2.0
 * threads - several host threads: each has its own position on the device's clock and its own streams.
 *
 * The machine starts threads when it likes. A team takes part from one moment on and is ordered by virtual time, so the calls, the times
 * and this page are the same in every run. Who only waits for other threads says so, and nobody waits for it.
 */
#include "timeline.h"
#include <pthread.h>

enum { THREADS = 3, ROWS = 256, COLUMNS = 64, COUNT = ROWS * COLUMNS, BYTES = COUNT * sizeof(float) };

struct work {
    pthread_t thread;
    npu_stream_t stream;
    uint32_t rank;
    void *input, *output;
    uint64_t launched_ps, finished_ps, busy_ps, blocked_ps;
};

static npu_kernel_t softmax;

static void *member(void *argument)
{
    struct work *work = argument;
    npu_arg_t args[] = {NPU_BUFFER(work->input), NPU_BUFFER(work->output), NPU_INT(ROWS), NPU_INT(COLUMNS)};

    CHECK(npu_team_enter(work->rank));
    CHECK(npu_host_delay(1000 * (work->rank + 1))); /* each prepares something first */
    CHECK(npu_launch_kernel_grid_async(softmax, 1, args, 4, work->stream));
    CHECK(npu_get_time_ps(&work->launched_ps));
    CHECK(npu_synchronize_stream(work->stream));
    CHECK(npu_get_time_ps(&work->finished_ps));
    CHECK(npu_get_host_times(&work->busy_ps, &work->blocked_ps));
    CHECK(npu_team_leave());
    return NULL;
}

int main(void)
{
    static float values[COUNT];
    static struct work works[THREADS];
    uint32_t reproducible;
    double begin, end, sum = 0;

    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_get_builtin_kernel(&softmax, "softmax"));
    for (uint32_t i = 0; i < THREADS; i++) {
        works[i].rank = i;
        CHECK(npu_create_stream(&works[i].stream));
        CHECK(npu_malloc(&works[i].input, BYTES, 0));
        CHECK(npu_malloc(&works[i].output, BYTES, 0));
        CHECK(npu_memset(works[i].input, BYTES, 0, BYTES));
    }
    CHECK(npu_profiler_start());
    begin = now_us();
    CHECK(npu_team_begin(THREADS)); /* this thread is suspended until the end of the team */
    for (int i = 0; i < THREADS; i++)
        CLAIM(pthread_create(&works[i].thread, NULL, member, &works[i]) == 0, "a thread can be made");
    for (int i = 0; i < THREADS; i++)
        CLAIM(pthread_join(works[i].thread, NULL) == 0, "a thread can be joined");
    CHECK(npu_team_end()); /* this thread goes on where the last one came to */
    end = now_us();

    for (int i = 0; i < THREADS; i++) {
        double launched = (double)works[i].launched_ps * 1e-6 - begin, finished = (double)works[i].finished_ps * 1e-6 - begin;
        printf("thread %d: launched after %.3f us, finished after %.3f us, worked %.3f us, was blocked %.3f us\n", i, launched, finished,
               (double)works[i].busy_ps * 1e-6, (double)works[i].blocked_ps * 1e-6);
        sum += finished - launched;
        CHECK(npu_memcpy(values, BYTES, works[i].output, BYTES, NPU_MEMCPY_DEVICE_TO_HOST));
        for (int at = 0; at < COUNT; at++)
            CLAIM(values[at] > 0.0156f && values[at] < 0.0157f, "softmax of 64 zeros is 1/64 each");
    }
    timeline_print();
    printf("all of it: %.3f us; one after the other: %.3f us\n", end - begin, sum);
    CLAIM(end - begin < 0.6 * sum, "the threads' kernels overlap");
    CHECK(npu_is_reproducible(&reproducible));
    CLAIM(reproducible == 1, "the run depends on the program alone");
    CHECK(npu_shutdown());
    return 0;
}
