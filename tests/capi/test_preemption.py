"""A C program whose realtime stream preempts inferences of two lower ones."""

from libnpu.compiler import CompileOptions, compile_model
from tests.preemption.conftest import X, small_model

BODY = r"""
enum { INPUT = 3 * 24 * 24, OUTPUT = 10, ROUNDS = 40, STEP_NS = 500 };
static npu_stream_t stream(npu_priority_t priority)
{
    npu_stream_t s;
    need(npu_create_stream_with_priority(&s, 0, priority));
    return s;
}
int main(int argc, char **argv)
{
    static float in[INPUT], expected[OUTPUT], out[OUTPUT];
    void *x, *y[3];
    npu_blob_t blob;
    npu_kernel_t k;
    npu_event_t start, end;
    FILE *file = fopen(argv[2], "rb");
    if (argc != 3 || !file || fread(in, sizeof in, 1, file) != 1)
        return 2;
    need(npu_init(0));
    need(npu_load_blob(&blob, argv[1]));
    need(npu_get_kernel(&k, blob, NULL));
    need(npu_malloc(&x, sizeof in, 0));
    need(npu_memcpy(x, sizeof in, in, sizeof in, NPU_MEMCPY_HOST_TO_DEVICE));
    for (int i = 0; i < 3; i++)
        need(npu_malloc(&y[i], sizeof out, 0));
    npu_stream_t s[] = {stream(NPU_PRIORITY_IDLE), stream(NPU_PRIORITY_NORMAL), stream(NPU_PRIORITY_REALTIME)};
    need(npu_create_event(&start, 0));
    need(npu_create_event(&end, 0));
    for (int i = 0; i < 3; i++) {
        npu_arg_t args[] = {NPU_BUFFER(x), NPU_BUFFER(y[i])};
        need(npu_launch_kernel_async(k, args, 2, s[i]));
        need(npu_synchronize_stream(s[i]));
    }
    need(npu_memcpy(expected, sizeof expected, y[0], sizeof out, NPU_MEMCPY_DEVICE_TO_HOST));
    int wrong = 0, preempted = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 3; i++)
            need(npu_memset(y[i], sizeof out, 255, sizeof out));
        need(npu_record_event(start, s[0]));
        for (int i = 0; i < 3; i++) {
            npu_arg_t args[] = {NPU_BUFFER(x), NPU_BUFFER(y[i])};
            if (i == 2)
                need(npu_host_delay(round * STEP_NS));
            need(npu_launch_kernel_async(k, args, 2, s[i]));
            if (i == 0)
                need(npu_record_event(end, s[0]));
        }
        for (int i = 0; i < 3; i++) {
            need(npu_synchronize_stream(s[i]));
            need(npu_memcpy(out, sizeof out, y[i], sizeof out, NPU_MEMCPY_DEVICE_TO_HOST));
            wrong += memcmp(out, expected, sizeof out) != 0;
        }
        double took_ns;
        need(npu_event_elapsed_time(&took_ns, start, end));
        preempted += took_ns > 100000; /* 20 us, and CMX out and in: 160 us */
    }
    printf("%d %d\n", wrong, preempted >= 10);
    return 0;
}
"""


def test_inferences_that_a_realtime_stream_preempts_give_the_same_bytes(run, tmp_path):
    blob, x = tmp_path / "small.blob", tmp_path / "x.raw"
    blob.write_bytes(compile_model(small_model(), CompileOptions(tiles=1)).blob)
    x.write_bytes(X.tobytes())
    assert run(BODY, str(blob), str(x)) == ["0 1"]
