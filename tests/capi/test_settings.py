"""What the environment and npu_init say: rules, schedules, traces, versions."""

import json
import os

import pytest

# Prints the first byte of the copy's destination, read in another stream, without and with waiting for the launch.
UNSYNCHRONISED = r"""
int main(int argc, char **argv)
{
    npu_blob_t blob;
    npu_kernel_t k;
    npu_stream_t s;
    char *p;
    unsigned char out[64];
    need(npu_init(NPU_INIT_CHECK));
    if (argc > 2)
        need(npu_set_schedule((npu_schedule_kind_t)atoi(argv[2]), 0));
    need(npu_load_blob(&blob, argv[1]));
    need(npu_get_kernel(&k, blob, NULL));
    need(npu_create_stream(&s));
    need(npu_malloc((void **)&p, 128, 0));
    need(npu_memset(p, 128, 0x21, 64));
    npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER(p + 64)};
    need(npu_launch_kernel_async(k, args, 2, s));
    need(npu_memcpy(out, 64, p + 64, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    printf("%02x", out[0]);
    need(npu_synchronize_stream(s));
    need(npu_memcpy(out, 64, p + 64, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    printf(" %02x\n", out[0]);
}
"""


@pytest.mark.parametrize(
    ("schedule", "kind", "bytes"),
    [("timed", "0", "ff 21"), ("eager", "1", "21 21"), ("lazy", "2", "ff 21"), ("newest-first", "3", "ff 21")],
)
def test_schedule_comes_from_the_environment_or_a_call(run, blobs, schedule, kind, bytes):
    path = str(blobs / "copy.blob")
    assert run(UNSYNCHRONISED, path, env={**os.environ, "NPU_SCHEDULE": schedule}) == [bytes]
    assert run(UNSYNCHRONISED, path, kind) == [bytes]


def test_calls_that_enqueue_wait_when_the_environment_says_so(run, blobs):
    path = str(blobs / "copy.blob")
    assert run(UNSYNCHRONISED, path, env={**os.environ, "NPU_LAUNCH_BLOCKING": "1"}) == ["21 21"]
    assert run(UNSYNCHRONISED, path, env={**os.environ, "NPU_LAUNCH_BLOCKING": "0"}) == ["ff 21"]
    program = r"""
    int main(int argc, char **argv)
    {
        npu_blob_t blob;
        npu_kernel_t k;
        char *p;
        need(npu_init(0));
        need(npu_load_blob(&blob, argv[1]));
        need(npu_get_kernel(&k, blob, NULL));
        need(npu_malloc((void **)&p, 128, 0));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER(p + 64)};
        say(npu_launch_kernel_async(k, args, 2, 0));
        say(npu_synchronize_device());
    }
    """
    bad = str(blobs / "stuck.blob")
    assert run(program, bad) == ["SUCCESS", "BARRIER_DEADLOCK"]
    assert run(program, bad, env={**os.environ, "NPU_LAUNCH_BLOCKING": "1"}) == ["BARRIER_DEADLOCK", "SUCCESS"]


def test_semantics_come_from_the_environment(run):
    program = r"""
    int main(void)
    {
        void *p = BAD;
        say(npu_init(0));
        say(npu_malloc(&p, 0, 0));
        printf("%d\n", p == NULL);
        say(npu_free(NULL));
    }
    """
    assert run(program) == ["SUCCESS", "INVALID_SIZE", "0", "NULL_POINTER"]
    assert run(program, env={**os.environ, "NPU_SEMANTICS": "cuda"}) == ["SUCCESS", "SUCCESS", "1", "SUCCESS"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NPU_SEMANTICS", "opencl", "semantics 'opencl'; there are 'ascend', 'cuda', 'strict'"),
        ("NPU_SCHEDULE", "seed:x", "schedule 'seed:x'; there are 'timed'"),
        ("NPU_SCHEDULE", "seed:\u0663", "schedule 'seed:\u0663'; there are 'timed'"),
        ("NPU_TRACE", "yes", "is 'yes'; 0 and 1 are allowed"),
        ("NPU_LAUNCH_BLOCKING", "true", "is 'true'; 0 and 1 are allowed"),
    ],
)
def test_environment_that_says_what_does_not_exist_is_named(run, name, value, message):
    program = "int main(void) { say(npu_init(0)); detail(); }"
    result, detail = run(program, env={**os.environ, name: value})
    assert result == "INVALID_VALUE"
    assert detail.startswith(f"npu_init: {name}")
    assert message in detail


def test_a_fault_of_the_environment_strikes_once_in_the_process(run, tmp_path):
    program = r"""
    int main(void)
    {
        void *p;
        say(npu_init(0));
        say(npu_malloc(&p, 64, 0));
        detail();
        say(npu_malloc(&p, 64, 0));
        say(npu_shutdown());
        say(npu_init(0));
        say(npu_malloc(&p, 64, 0));
    }
    """
    path = tmp_path / "faults.json"
    path.write_text('[{"point": "boot_image", "kind": "no_memory"}]')
    said = run(program, env={**os.environ, "NPU_FAULTS": str(path)})
    assert "injected at NPU_POINT_BOOT_IMAGE" in said.pop(2)
    assert said == ["SUCCESS", "OUT_OF_DEVICE_MEMORY", "SUCCESS", "SUCCESS", "SUCCESS", "SUCCESS"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        ('[{"point": "moon", "kind": "unplug"}]', "'moon' is none of boot_image, "),
        ('[{"point": "irq", "kind": "no_memory"}]', "NPU_FAULT_NO_MEMORY cannot strike at NPU_POINT_IRQ"),
    ],
)
def test_faults_that_there_cannot_be_are_named(run, tmp_path, content, message):
    path = tmp_path / "faults.json"
    if content is not None:
        path.write_text(content)
    result, detail = run("int main(void) { say(npu_init(0)); detail(); }", env={**os.environ, "NPU_FAULTS": str(path)})
    assert result == "INVALID_VALUE"
    assert detail.startswith("npu_init: NPU_FAULTS: ")
    assert message in detail


def test_version_that_does_not_fit_is_named(run):
    program = "int main(void) { say(npu_init((uint32_t)200 << 24)); detail(); say(npu_init(NPU_INIT_CHECK)); }"
    assert run(program) == [
        "VERSION_MISMATCH",
        "npu_init: the program was compiled with npu.h 200.0, and the library is 0.2",
        "SUCCESS",
    ]


def test_trace_has_lanes_of_the_device_only_when_it_was_kept(run, blobs, tmp_path):
    program = r"""
    int main(int argc, char **argv)
    {
        npu_blob_t blob;
        npu_kernel_t k;
        char *p;
        need(npu_init(0));
        need(npu_load_blob(&blob, argv[1]));
        need(npu_get_kernel(&k, blob, NULL));
        need(npu_malloc((void **)&p, 128, 0));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER(p + 64)};
        need(npu_profiler_start());
        need(npu_launch_kernel_async(k, args, 2, NULL));
        need(npu_wait_for_completion());
        need(npu_profiler_stop());
        need(npu_export_trace("trace.json"));
    }
    """

    def names(**environment):
        assert run(program, str(blobs / "copy.blob"), cwd=tmp_path, env={**os.environ, **environment}) == []
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        return {event["args"]["name"] for event in events if event["ph"] == "M"}, len(events)

    plain, traced = names(), names(NPU_TRACE="1")
    assert traced[1] > plain[1]
    assert any("DMA" in name for name in traced[0] - plain[0])
