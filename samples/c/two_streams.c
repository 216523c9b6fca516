/* SPDX-License-Identifier: Apache-2.0
 * two_streams - the asynchronous model: two kernels at the same time, while the host prepares the next batch.
 *
 * Operations of one stream run in order; those of two streams do not wait for each other. The host enqueues, works, and waits once: all
 * of it takes as long as the longer of the two, host or device. With a wait after each launch it takes as long as in the synchronous mode,
 * in which each launch returns when its kernel has ended.
 */
#include "timeline.h"

enum { ROWS = 1024, COLUMNS = 64, COUNT = ROWS * COLUMNS, BYTES = COUNT * sizeof(float) };
enum mode { SYNCHRONOUS, WAIT_AFTER_EACH, WAIT_ONCE };

static npu_kernel_t softmax;
static npu_stream_t streams[2];
static void *x, *y[2];

static npu_result_t launch(int which)
{
    npu_arg_t args[] = {NPU_BUFFER(x), NPU_BUFFER(y[which]), NPU_INT(ROWS), NPU_INT(COLUMNS)};

    return npu_launch_kernel_grid_async(softmax, 2, args, 4, streams[which]); /* two of the device's four units */
}

static void begin(const char *launch_blocking)
{
    static float zeros[COUNT];

    setenv("NPU_LAUNCH_BLOCKING", launch_blocking, 1); /* read by npu_init */
    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_get_builtin_kernel(&softmax, "softmax"));
    CHECK(npu_malloc(&x, BYTES, 0));
    CHECK(npu_memcpy(x, BYTES, zeros, BYTES, NPU_MEMCPY_HOST_TO_DEVICE));
    for (int i = 0; i < 2; i++) {
        CHECK(npu_create_stream(&streams[i]));
        CHECK(npu_malloc(&y[i], BYTES, 0));
        CHECK(launch(i)); /* fills the instruction caches */
        CHECK(npu_synchronize_stream(streams[i]));
    }
}

static void end(void)
{
    static float values[COUNT];

    for (int i = 0; i < 2; i++) {
        CHECK(npu_memcpy(values, BYTES, y[i], BYTES, NPU_MEMCPY_DEVICE_TO_HOST));
        for (int at = 0; at < COUNT; at++)
            CLAIM(values[at] > 0.0156f && values[at] < 0.0157f, "softmax of 64 zeros is 1/64 each");
    }
    CHECK(npu_shutdown());
}

/* Run both kernels and let the host prepare the next batch; return how long all of it takes. */
static double run(const char *title, enum mode mode, uint64_t prepare_ns)
{
    uint64_t busy[2], blocked[2];
    double total;

    CHECK(npu_profiler_start());
    CHECK(npu_get_host_times(&busy[0], &blocked[0]));
    total = -now_us();
    for (int i = 0; i < 2; i++) {
        if (mode == SYNCHRONOUS)
            TIMED('.', "launch, blocking", launch(i));
        else
            CHECK(launch(i));
        if (mode == WAIT_AFTER_EACH)
            TIMED('.', "synchronise", npu_synchronize_stream(streams[i]));
    }
    TIMED('#', "prepare_next_batch", npu_host_delay(prepare_ns));
    for (int i = 0; i < 2 && mode == WAIT_ONCE; i++)
        TIMED('.', "synchronise", npu_synchronize_stream(streams[i]));
    total += now_us();
    CHECK(npu_get_host_times(&busy[1], &blocked[1]));
    CHECK(npu_profiler_stop());

    busy[1] -= busy[0];
    blocked[1] -= blocked[0];
    printf("\n%s: %.3f us, CPU utilisation %.0f %%\n", title, total, 100.0 * (double)busy[1] / (double)(busy[1] + blocked[1]));
    timeline_print();
    return total;
}

int main(void)
{
    double one, sync, each, device_longer, host_longer;

    begin("1");
    sync = run("synchronous: each launch returns when its kernel has ended", SYNCHRONOUS, 70000);
    end();

    begin("0");
    one = -now_us();
    CHECK(launch(0));
    CHECK(npu_synchronize_stream(streams[0]));
    one += now_us();
    printf("\none kernel alone, with its wait: %.3f us\n", one);
    each = run("two streams, but a wait after each launch", WAIT_AFTER_EACH, 70000);
    device_longer = run("two streams, one wait at the end", WAIT_ONCE, 70000);
    host_longer = run("the same, and the host has more to do", WAIT_ONCE, 140000);

    CLAIM(each > 0.95 * sync && each < 1.05 * sync, "a wait after each launch is no better than the synchronous mode");
    CLAIM(device_longer < 1.2 * one, "two kernels in two streams take little longer than one");
    CLAIM(host_longer > 140 && host_longer < 140 * 1.05, "when the host has more to do, only that counts");

    end();
    return 0;
}
