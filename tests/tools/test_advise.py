"""npu advise: the sweep, and traces of programs."""

import json

import pytest

import libnpu
from libnpu.tools.advise import sync_advice


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Return a function that makes the trace of a program of `launches` kernels and a wait behind every `each` of them."""
    folder = tmp_path_factory.mktemp("trace")

    def make(launches, each, count=64):
        path = str(folder / f"{launches}-{each}-{count}.json")
        with libnpu.open() as device:
            memory, stream, relu = device.alloc(4 * count), device.create_stream(), device.kernel("relu")
            device.profiler.start()
            for number in range(1, launches + 1):
                relu.launch(stream, memory, memory, count)
                if number % each == 0:
                    stream.synchronize()
            device.profiler.stop()
            device.export_trace(path)
        return path

    return make


def test_a_sweep_measures_three_ways_for_each_size(npu):
    found = json.loads(npu("advise", "--sweep", "size", "--size", "64", "--launches", "8", "--json")[1])
    points = found["points"]
    assert [(p["size"], p["way"]) for p in points] == [
        (size, way) for size in (8, 16, 32, 64) for way in ("sync each", "async", "two streams")
    ]
    assert {p["launches"] for p in points} == {8}
    assert [p["syncs"] for p in points[:3]] == [8, 1, 2]
    for each, at_once, two in zip(points[::3], points[1::3], points[2::3], strict=True):
        assert each["time_per_launch_ps"] > at_once["time_per_launch_ps"] > two["time_per_launch_ps"]
        assert 0 < two["overhead"] < at_once["overhead"] < each["overhead"] < 1
    overheads = [p["overhead"] for p in points[::3]]
    assert overheads == sorted(overheads, reverse=True)
    beyond = [p["size"] for p in points[::3] if p["overhead"] < 0.5]
    assert found["crossover_size"] == beyond[0] > 8


def test_the_table_has_a_line_per_size_and_ends_with_the_advice(npu):
    status, out, err = npu("advise", "--sweep", "size", "--size", "64", "--launches", "4")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].rstrip() == "relu on npu-37xx: time per launch"
    assert [(line.split()[0], line.split()[-1]) for line in lines[3:7]] == [
        ("8", "launch"),
        ("16", "launch"),
        ("32", "launch"),
        ("64", "work"),
    ]
    advice = [line for line in lines if line.startswith("- ")]
    assert [line.split(",")[0] for line in advice[:2]] == ["- small", "- large"]
    assert advice[2].startswith("- sync each: 4 synchronisation points for 4 launches")


def test_a_sweep_without_large_sizes_or_without_small_ones_has_no_cross_over_in_it(npu):
    found = json.loads(npu("advise", "--sweep", "size", "--size", "8", "--launches", "2", "--json")[1])
    assert found["crossover_size"] is None
    assert len(found["advice"]) == 2
    found = json.loads(npu("advise", "--sweep", "size", "--size", "8", "--kernel", "softmax", "--json")[1])
    assert [p["size"] for p in found["points"]] == [8, 8, 8]


def test_advice_comes_with_more_waits_than_half_the_launches():
    assert sync_advice(8, 4, "x") == []
    (line,) = sync_advice(8, 5, "x")
    assert line.startswith("x: 5 synchronisation points for 8 launches")


def test_a_program_is_told_of_its_waits(npu, trace):
    found = json.loads(npu("advise", trace(8, 1), "--json")[1])
    assert (found["launches"], found["syncs"]) == (8, 8)
    assert found["advice"][0].startswith("this program: 8 synchronisation points for 8 launches")
    assert found["advice"][1].startswith("no operation runs for ")
    assert 0 < found["running_ps"] < found["span_ps"]
    status, out, _ = npu("advise", trace(8, 1))
    assert status == 0
    assert [line.split()[-1] for line in out.splitlines() if line.startswith(("launches", "synchron"))] == ["8", "8"]


def test_a_program_with_few_waits_and_much_work_is_told_nothing(npu, trace):
    status, out, _ = npu("advise", trace(4, 4, 1 << 16))
    assert status == 0
    assert out.endswith("- nothing to say\n")


def batches(path, *, wait_for_copies, trace=True):
    """Write the trace of four batches: copy in, kernel; the results come out at the end. Returns the times in us in which
    the host waited for a copy before it launched, as its own clock has them.
    """
    waited = 0
    with libnpu.open(trace=trace) as device, device.alloc_host(1 << 18) as host:
        memory, stream, relu = device.alloc(1 << 18), device.create_stream(), device.kernel("relu")
        device.profiler.start()
        for _ in range(4):
            stream.copy(memory, host)
            if wait_for_copies:
                blocked = device.host_times()[1]
                stream.synchronize()
                waited += device.host_times()[1] - blocked
            relu.launch(stream, memory, memory, 1 << 16)
            if wait_for_copies:
                stream.synchronize()
        stream.copy(host, memory)
        stream.synchronize()
        device.profiler.stop()
        device.export_trace(str(path))
    return waited / 10**6


@pytest.mark.parametrize("trace", [True, False], ids=["with the engines' lanes", "without"])
def test_a_host_that_waits_for_each_copy_before_its_launch_is_told_whose_job_that_is(npu, tmp_path, trace):
    """P009."""
    waited_us = batches(tmp_path / "t.json", wait_for_copies=True, trace=trace)
    found = json.loads(npu("advise", tmp_path / "t.json", "--json")[1])
    assert waited_us > 20
    # The device is done before the interrupt has woken the host: 2 us of each wait are behind the end of the copy.
    assert waited_us - 4 * 4 < found["host_blocked_on_copies_us"] < waited_us - 4 * 2
    (line,) = [line for line in found["advice"] if line.startswith("RESPONSIBILITY: ")]
    share = found["host_blocked_on_copies_us"] / found["host_blocked_us"]
    assert 0.1 < share < 0.9
    assert f" {share:.1%} of the time " in line
    _, out, _ = npu("advise", tmp_path / "t.json")
    assert out.count("RESPONSIBILITY") == 1
    assert f"{share:.1%} of that" in out


def test_a_host_that_leaves_the_order_to_the_stream_is_told_nothing_of_that(npu, tmp_path):
    """P009: the wait for the results, behind the last launch, is the host's own."""
    batches(tmp_path / "t.json", wait_for_copies=False)
    found = json.loads(npu("advise", tmp_path / "t.json", "--json")[1])
    assert found["host_blocked_us"] > 20
    assert found["host_blocked_on_copies_us"] == 0
    assert not any("RESPONSIBILITY" in line for line in found["advice"])


def test_waits_for_copies_count_while_nothing_else_is_on_the_device(npu, tmp_path):
    """By hand: blocked 10-60 and 80-95 us; a copy is outstanding 0-50 and 70-100, a kernel 20-30, a SHAVE works 40-45; the last
    launch is called at 90. What counts is 10-20, 30-40, 45-50 and 80-90.
    """
    us = 10**6

    def event(pid, category, name, start, end, **args):
        return {
            "ph": "X",
            "pid": pid,
            "tid": 1,
            "cat": category,
            "name": name,
            "ts": start,
            "dur": end - start,
            "args": args,
        }

    def operation(category, name, enqueue, start, end):
        return event(3, category, name, start, end, enqueue_ps=enqueue * us, enqueued_ps=(enqueue + 1) * us)

    events = [
        event(2, "call", "Stream.synchronize", 9, 61, blocked_ps=50 * us),
        event(2, "blocked", "blocked", 10, 60),
        event(2, "call", "Stream.synchronize", 79, 96, blocked_ps=15 * us),
        event(2, "blocked", "blocked", 80, 95),
        operation("memcpy", "copy host to device", 0, 5, 50),
        operation("memcpy", "copy device to host", 70, 71, 100),
        operation("memcpy", "copy device to device", 96, 97, 99),
        operation("event_wait", "wait", 0, 0, 95),
        operation("kernel", "relu", 20, 22, 30),
        operation("kernel", "relu", 90, 100, 110),
        event(1, "SHAVE", "of another context", 40, 45),
        event(1, "DMA", "the copy", 10, 50),
    ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    found = json.loads(npu("advise", tmp_path / "t.json", "--json")[1])
    assert found["host_blocked_on_copies_us"] == 10 + 10 + 5 + 10
    assert found["host_blocked_us"] == 65


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 1, "expected a trace file or --sweep size"),
        (["{trace}", "--sweep", "size"], 1, "--sweep measures a kernel, and reads no trace file; leave out one of"),
        (["{trace}", "--kernel", "relu"], 1, "--kernel: only with --sweep"),
        (["{trace}", "--profile", "unit"], 1, "--profile: only with --sweep"),
        (["--sweep", "depth"], 2, "argument --sweep: invalid choice: 'depth'"),
        (["--sweep", "size", "--size", "4"], 1, "--size 4: a sweep begins at 8"),
        (["--sweep", "size", "--size", "10000000"], 1, "relu: count is"),
        (["--sweep", "size", "--launches", "0"], 2, "expected a number, 1 or more, found '0'"),
        (["--sweep", "size", "--kernel", "nope"], 1, "there is no built-in kernel 'nope'"),
        (["--sweep", "size", "--profile", "nope"], 1, "no hardware profile named 'nope'"),
        (["{trace}", "--size", "64"], 1, "--size: only with --sweep"),
        (["{trace}", "--launches", "4"], 1, "--launches: only with --sweep"),
        (["/no/such.json"], 1, "/no/such.json: No such file or directory"),
        (["{text}"], 1, "text: not a trace file of Device.export_trace"),
        (["{empty}"], 1, "empty: holds no launch"),
    ],
)
def test_a_mistake_is_one_line_on_stderr(npu, tmp_path, trace, arguments, status, message):
    (tmp_path / "text").write_text('{"traceEvents": [{"ph": "X"}]}')
    (tmp_path / "empty").write_text('{"traceEvents": []}')
    names = {"trace": trace(2, 1), "text": tmp_path / "text", "empty": tmp_path / "empty"}
    found, out, err = npu("advise", *(a.format(**names) for a in arguments))
    assert (found, out) == (status, "")
    assert err.startswith("npu: error: ")
    assert err.count("\n") == 1
    assert message in err
