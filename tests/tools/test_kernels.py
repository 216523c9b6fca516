"""npu kernels and npu launch-profile."""

import json

import numpy as np
import pytest

import libnpu
from libnpu.tools import problems
from libnpu.tools.console import ToolError
from libnpu.tools.launch_profile import crossover

STEPS = ["pack", "submit", "pick", "load", "execute"]


@pytest.fixture
def profile(npu):
    """Return a function that runs npu launch-profile with --json."""

    def run(*arguments):
        status, out, err = npu("launch-profile", *arguments, "--json")
        assert status == 0, err
        return json.loads(out)

    return run


def test_the_list_has_names_and_parameters_with_kinds(npu):
    status, out, err = npu("kernels", "list")
    assert (status, err) == (0, "")
    builtin, _, attention = out.partition("attention, made for each model")
    lines = [line.split(maxsplit=1) for line in builtin.splitlines()[3:] if line and not line.startswith(" ")]
    found = {name: params.strip() for name, params in lines}
    assert len(found) >= 26
    assert found["relu"] == "in f32 input, out f32 output, int count"
    assert found["scale_add.f16"] == "in f16 input, inout f16 output, float scale, int count"
    assert "code bytes" not in out
    made = {line.split()[0]: line.split()[2] for line in attention.splitlines()[3:] if line}
    assert made == {"sdpa": "decompose", "incremental_sdpa": "incremental", "flash_sdpa": "flash"}  # E039


def test_the_list_with_sizes_is_what_a_launch_loads(npu):
    _, out, _ = npu("kernels", "list", "--size")
    assert "code bytes" in out
    sizes = {line.split()[0]: line.split()[-2:] for line in out.splitlines()[3:] if line and not line.startswith(" ")}
    listed = {kernel["name"]: kernel for kernel in json.loads(npu("kernels", "list", "--json")[1])}
    with libnpu.open() as device:
        for name in ("relu", "pool2d", "softmax.f16"):
            problem = problems.make(device, name, 8)
            job = problem.launch(device.default_stream)
            job.wait()
            assert job.blocks[0].loaded_bytes == int(sizes[name][0]) == listed[name]["code_bytes"]
            assert int(sizes[name][0]) == 16 * int(sizes[name][1])
    assert listed["relu"]["params"][0] == {
        "name": "input",
        "kind": "NPU_ARG_BUFFER",
        "direction": "NPU_ARG_IN",
        "dtype": "f32",
    }


@pytest.mark.parametrize("name", sorted(kernel.name for kernel in problems.builtin_kernels()[0]))
def test_every_built_in_kernel_has_a_problem(name):
    with libnpu.open() as device:
        problem = problems.make(device, name, 4)
        problem.launch(device.default_stream).wait()


def test_a_padded_program_computes_what_it_did():
    with libnpu.open() as device:
        x, y = device.alloc(64), device.alloc(64)
        x.write(np.arange(-8, 8, dtype=np.float32))
        padded = device.load(problems.padded_library("relu", 8192))["relu"]
        assert padded.code_bytes == 8192
        padded.launch(None, x, y, 16).wait()
        assert y.read(np.float32).tolist() == [0.0] * 8 + [float(n) for n in range(8)]


def test_a_program_cannot_be_shorter_than_it_is():
    with pytest.raises(ToolError, match="expected a multiple of 16 from"):
        problems.padded_library("relu", 16)


def test_the_five_steps_of_every_run_are_printed_with_their_shares(npu):
    status, out, err = npu("launch-profile", "relu", "--runs", "3")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("relu, ")
    assert lines[0].rstrip().endswith("size 8 on npu-37xx")
    steps = [line for line in lines if line.startswith(("host:", "core:", "SHAVE:"))]
    assert [line[:14] for line in steps] == [
        "host: pack the",
        "host: submit  ",
        "core: pick a S",
        "SHAVE: load in",
        "SHAVE: execute",
    ]
    for column in range(3):
        shares = [float(line.split("%")[column].split()[-1]) for line in steps]
        assert abs(sum(shares) - 100) < 0.3
    assert [line.split()[:2] for line in lines if line.startswith("run ")][1:] == [
        ["run", "1"],
        ["run", "2"],
        ["run", "3"],
    ]


def test_of_many_runs_the_table_has_the_first_and_the_last(npu, profile):
    head = npu("launch-profile", "relu", "--runs", "12")[1].splitlines()[1]
    assert [head.split("run ")[n].split()[0] for n in (1, 2, 3, 4)] == ["1", "2", "3", "12"]
    assert len(profile("relu", "--runs", "12")["runs"]) == 12


def test_a_sweep_says_where_executing_takes_longer_than_loading(npu, profile):
    found = profile("conv2d", "--code", "64K", "--sweep", "--size", "64")
    assert [point["size"] for point in found["sizes"]] == [8, 16, 32, 64]
    assert list(found["sizes"][0]["steps_ps"]) == STEPS
    larger = [point["size"] for point in found["sizes"] if point["steps_ps"]["execute"] > point["steps_ps"]["load"]]
    assert found["crossover_size"] == larger[0] > 8
    assert larger[-1] == 64
    out = npu("launch-profile", "conv2d", "--code", "64K", "--sweep", "--size", "64")[1]
    assert out.endswith(f"from size {larger[0]} on it takes longer to execute the program than to load it\n")
    assert [line.split()[0] for line in out.splitlines()[3:7]] == ["8", "16", "32", "64"]
    out = npu("launch-profile", "relu", "--code", "1M", "--sweep", "--size", "16")[1]
    assert out.endswith("at size 16 it takes longer to load the program than to execute it\n")


def test_a_sweep_names_no_cross_over_that_it_has_not_seen(npu, profile):
    sweep = ("softmax", "--sweep", "--size", "16")
    found = profile(*sweep)
    assert all(point["steps_ps"]["execute"] > point["steps_ps"]["load"] for point in found["sizes"])
    assert found["crossover_size"] is None
    out = npu("launch-profile", *sweep)[1]
    assert out.endswith("at every measured size it takes longer to execute the program than to load it\n")


def test_padding_is_loaded_and_never_executed(npu, profile):
    own, padded = (profile("relu", "--runs", "1", *code)["runs"][0] for code in ((), ("--code", "8K")))
    assert padded["loaded_bytes"] == 8192 > own["loaded_bytes"]
    assert padded["steps_ps"]["load"] > own["steps_ps"]["load"]
    assert abs(padded["steps_ps"]["execute"] - own["steps_ps"]["execute"]) < 700  # less than a cycle
    assert "loaded and never executed" in " ".join(npu("launch-profile", "--help")[1].split())


def test_a_profile_is_the_same_in_every_run(npu):
    assert npu("launch-profile", "add")[1] == npu("launch-profile", "add")[1]


def test_the_cross_over_is_where_all_that_follow_hold():
    assert crossover([False, True, False, True, True]) == 3
    assert crossover([True, True]) == 0
    assert crossover([True, False]) is None


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["kernels"], 2, "the following arguments are required: what"),
        (["kernels", "show"], 2, "invalid choice: 'show'"),
        (["launch-profile"], 2, "the following arguments are required: KERNEL"),
        (["launch-profile", "convolve"], 1, "there is no built-in kernel 'convolve'; there are conv2d, pool2d"),
        (["launch-profile", "relu.f64"], 1, "there is no built-in kernel 'relu.f64'"),
        (["launch-profile", "relu", "--size", "0"], 2, "argument --size: expected a number, 1 or more, found '0'"),
        (["launch-profile", "relu", "--runs", "-1"], 2, "argument --runs: expected a number, 1 or more, found '-1'"),
        (["launch-profile", "relu", "--code", "0"], 2, "argument --code: expected whole bytes above 0"),
        (
            ["launch-profile", "relu", "--code", "1K"],
            1,
            "1024 bytes of code for 'relu'; expected a multiple of 16 from",
        ),
        (["launch-profile", "relu", "--code", "2M"], 1, "to 1048576"),
        (["launch-profile", "relu", "--code", "9999"], 1, "9999 bytes of code for 'relu'"),
        (["launch-profile", "pool2d", "--size", "1"], 1, "pool2d: kernel_h is 2; h with its padding has 1"),
        (["launch-profile", "softmax", "--size", "99999999"], 1, "softmax: cols is 99999999"),
        (["launch-profile", "relu", "--size", "9" * 18], 1, "relu: count is"),
        (["launch-profile", "relu", "--sweep", "--runs", "2"], 1, "--runs: a sweep measures the first launch"),
        (["launch-profile", "matmul", "--sweep", "--size", "1000000"], 1, "matmul: "),
        (["launch-profile", "relu", "--sweep", "--size", "7"], 1, "--size 7: a sweep begins at 8"),
        (["launch-profile", "relu", "--profile", "nope"], 1, "no hardware profile named 'nope'"),
    ],
)
def test_a_mistake_is_one_line_on_stderr(npu, arguments, status, message):
    found, out, err = npu(*arguments)
    assert (found, out) == (status, "")
    assert err.startswith("npu: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_memory_that_the_device_has_not_is_one_line(npu):
    status, out, err = npu("launch-profile", "copy", "--size", "16384", "--profile", "unit", "--json")
    assert status == 1
    assert err.count("\n") == 1
    assert json.loads(out)["error"]["result"] == "NPU_ERROR_OUT_OF_DEVICE_MEMORY"
