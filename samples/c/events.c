/* SPDX-License-Identifier: Apache-2.0
 * events - order between streams, and time: a copy in one stream, a kernel in another that needs it.
 *
 * An event is a snapshot of a stream: what was enqueued there so far. Another stream can wait for it, the host can ask and wait, and two
 * events give the device time between them. Without the wait the kernel reads what was there before.
 */
#include "timeline.h"

enum { COUNT = 65536, BYTES = COUNT * sizeof(float) };

static float *host; /* pinned: its copies are DMA jobs */
static void *x, *y;
static npu_kernel_t relu;
static npu_stream_t copies, kernels;
static npu_event_t begun, copied, finished;

/* Copy x in and compute y from it. `ordered`: with the edge between the streams. Returns y's last element. */
static float run(int ordered)
{
    npu_arg_t args[] = {NPU_BUFFER(x), NPU_BUFFER(y), NPU_INT(COUNT)};
    float last;

    CHECK(npu_memset(x, BYTES, 0, BYTES));
    CHECK(npu_profiler_start());
    CHECK(npu_record_event(begun, copies));
    CHECK(npu_memcpy_async(x, BYTES, host, BYTES, NPU_MEMCPY_HOST_TO_DEVICE, copies));
    CHECK(npu_record_event(copied, copies));
    if (ordered)
        CHECK(npu_stream_wait_event(kernels, copied));
    CHECK(npu_launch_kernel_async(relu, args, 3, kernels));
    CHECK(npu_record_event(finished, kernels));
    CLAIM(npu_query_event(finished) == NPU_NOT_READY, "nothing of it has finished when the calls have returned");
    TIMED('.', "wait for finished", npu_synchronize_event(finished));
    CHECK(npu_synchronize_stream(copies));
    CHECK(npu_profiler_stop());
    CHECK(npu_memcpy(&last, sizeof last, (char *)y + BYTES - sizeof last, sizeof last, NPU_MEMCPY_DEVICE_TO_HOST));
    printf("\n%s: the last element of relu(3) is %g\n", ordered ? "with an event between the streams" : "without the wait", last);
    timeline_print();
    return last;
}

int main(void)
{
    void *pinned;
    double copy_ns, all_ns;

    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_malloc_host(&pinned, BYTES, NPU_HOST_CACHED));
    host = pinned;
    for (int i = 0; i < COUNT; i++)
        host[i] = 3.0f;
    CHECK(npu_malloc(&x, BYTES, 0));
    CHECK(npu_malloc(&y, BYTES, 0));
    CHECK(npu_get_builtin_kernel(&relu, "relu"));
    CHECK(npu_create_stream(&copies));
    CHECK(npu_create_stream(&kernels));
    CHECK(npu_create_event(&begun, NPU_EVENT_DEFAULT));
    CHECK(npu_create_event(&copied, NPU_EVENT_DEFAULT));
    CHECK(npu_create_event(&finished, NPU_EVENT_DEFAULT));

    /* Held back until somebody needs it, the copy comes after the kernel: a legal order, because nothing forbids it. */
    CHECK(npu_set_schedule(NPU_SCHED_LAZY, 0));
    CLAIM(run(0) == 0.0f, "without the wait the kernel reads what was there before");
    CLAIM(run(1) == 3.0f, "with the wait every order is right");
    CHECK(npu_set_schedule(NPU_SCHED_TIMED, 0));
    CLAIM(run(1) == 3.0f, "with the wait every order is right");

    CHECK(npu_event_elapsed_time(&copy_ns, begun, copied));
    CHECK(npu_event_elapsed_time(&all_ns, begun, finished));
    printf("\ndevice time from the begin: copied after %.1f ns, finished after %.1f ns\n", copy_ns, all_ns);
    CLAIM(copy_ns > 0 && all_ns > copy_ns, "the copy comes first");
    CHECK(npu_shutdown());
    return 0;
}
