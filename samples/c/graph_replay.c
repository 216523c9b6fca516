/* SPDX-License-Identifier: Apache-2.0
 * graph_replay - capture a sequence once, launch it often: the host submits it as a whole.
 *
 * While a stream is captured nothing runs; what is enqueued becomes a node of a graph. A launch of the executable graph does all of it, reads
 * memory as it is then, and costs the host one submit for each branch. Another stream joins the capture by an event and becomes a branch.
 */
#include "timeline.h"

enum { COUNT = 4096, BYTES = COUNT * sizeof(float), PAIRS = 10 };

static npu_kernel_t add;
static float *x; /* pinned: host and device use it in place */
static void *sums[2], *result;

static void launch_add(const void *a, const void *b, void *out, npu_stream_t stream)
{
    npu_arg_t args[] = {NPU_BUFFER(a), NPU_BUFFER(b), NPU_BUFFER(out), NPU_INT(COUNT)};

    CHECK(npu_launch_kernel_async(add, args, 4, stream));
}

/* PAIRS times x in each of two streams, then the sum of both: result = 2 * PAIRS * x. */
static void work(npu_stream_t main_stream, npu_stream_t side, npu_event_t fork, npu_event_t join)
{
    npu_stream_t both[] = {main_stream, side};

    CHECK(npu_record_event(fork, main_stream));
    CHECK(npu_stream_wait_event(side, fork));
    for (int i = 0; i < 2; i++)
        CHECK(npu_memset_async(sums[i], BYTES, 0, BYTES, both[i]));
    for (int n = 0; n < PAIRS; n++)
        for (int i = 0; i < 2; i++)
            launch_add(sums[i], x, sums[i], both[i]);
    CHECK(npu_record_event(join, side));
    CHECK(npu_stream_wait_event(main_stream, join));
    launch_add(sums[0], sums[1], result, main_stream);
}

static void check_result(float expected)
{
    static float values[COUNT];

    CHECK(npu_memcpy(values, BYTES, result, BYTES, NPU_MEMCPY_DEVICE_TO_HOST));
    for (int i = 0; i < COUNT; i++)
        CLAIM(values[i] == expected, "the result is 20 x");
}

static void set_x(float value)
{
    for (int i = 0; i < COUNT; i++)
        x[i] = value;
}

int main(void)
{
    npu_stream_t stream, side;
    npu_event_t fork, join;
    npu_graph_t graph;
    npu_graph_exec_t exec;
    void *pinned;
    size_t nodes;
    double enqueue, launch, one_by_one, replay;

    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_malloc_host(&pinned, BYTES, NPU_HOST_CACHED));
    x = pinned;
    CHECK(npu_malloc(&sums[0], BYTES, 0));
    CHECK(npu_malloc(&sums[1], BYTES, 0));
    CHECK(npu_malloc(&result, BYTES, 0));
    CHECK(npu_get_builtin_kernel(&add, "add"));
    CHECK(npu_create_stream(&stream));
    CHECK(npu_create_stream(&side));
    CHECK(npu_create_event(&fork, NPU_EVENT_DISABLE_TIMING));
    CHECK(npu_create_event(&join, NPU_EVENT_DISABLE_TIMING));

    set_x(1.0f);
    one_by_one = enqueue = -now_us();
    work(stream, side, fork, join);
    enqueue += now_us();
    CHECK(npu_synchronize_stream(stream));
    one_by_one += now_us();
    check_result(20.0f);

    CHECK(npu_stream_begin_capture(stream));
    work(stream, side, fork, join);
    CHECK(npu_stream_end_capture(stream, &graph));
    CHECK(npu_graph_get_node_count(graph, &nodes));
    CHECK(npu_graph_instantiate(&exec, graph));
    CHECK(npu_graph_destroy(graph));

    CHECK(npu_profiler_start());
    for (int n = 1; n <= 3; n++) {
        set_x((float)n); /* each launch reads what is there when it runs */
        replay = launch = -now_us();
        CHECK(npu_graph_launch(exec, stream));
        launch += now_us();
        TIMED('.', "synchronise", npu_synchronize_stream(stream));
        replay += now_us();
        check_result(20.0f * (float)n);
    }
    printf("%zu nodes, one by one: the host enqueues for %.3f us; done after %.3f us\n", nodes, enqueue, one_by_one);
    printf("%zu nodes as a graph:  the host enqueues for %.3f us; done after %.3f us\n", nodes, launch, replay);
    timeline_print();
    CLAIM(launch < enqueue / 5, "one submit for each branch is cheaper than one for each operation");
    CLAIM(replay < one_by_one, "the graph is done earlier");
    CHECK(npu_graph_exec_destroy(exec));
    CHECK(npu_shutdown());
    return 0;
}
