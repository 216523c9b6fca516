"""What it saves that values stay in CMX from one operation to the next: each would go to DDR and come back."""

from __future__ import annotations

import numpy as np
import pytest

import libnpu
from libnpu.compiler import CompileOptions, compile_model

CMX = 96 << 10


def weights(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 8


def run(model, feeds, **options):
    """Return (outputs, bytes that DMA read and wrote in DDR by kind and name of the tensor)."""
    compiled = compile_model(
        model, CompileOptions(precision="fp32", cmx_bytes=CMX, tiles=1, dump=("bytes-per-tensor",), **options)
    )
    with libnpu.open("npu-37xx") as device, device.load(compiled.blob) as module:
        found = module.run(feeds)
    moved = {}
    for line in compiled.report["dumps"]["bytes-per-tensor"].splitlines():
        name, text = line.split(": ")
        read, _, _, written, _ = text.split()
        moved[name] = (int(read), int(written))
    return found, moved


@pytest.mark.parametrize(("size", "fits"), [(12, True), (96, False)])
def test_e048_fusion_saves_twice_the_bytes_of_what_lies_between(make_model, size, fits):
    """Two pointwise convolutions: what lies between them lives in CMX, or passes through it tile by tile when it does not fit."""
    between = 32 * size * size * 4
    assert (between < CMX) == fits
    nodes = [("Conv", ["x", "a"], ["m"], {}), ("Conv", ["m", "b"], ["y"], {})]
    constants = {"a": weights(1, 32, 8, 1, 1), "b": weights(2, 8, 32, 1, 1)}
    feeds = {"x": weights(3, 1, 8, size, size)}
    model = make_model(nodes, feeds, ["y"], constants)
    (fused, with_fusion), (apart, without) = run(model, feeds), run(model, feeds, cmx_residency=False)
    np.testing.assert_array_equal(fused["y"], apart["y"])
    assert without["scratch m"] == (between, between)
    intermediates = {name: moved for name, moved in without.items() if name.startswith("scratch")}
    assert all(read == written for read, written in intermediates.values())
    saved = sum(map(sum, without.values())) - sum(map(sum, with_fusion.values()))
    kept = sum(sum(moved) for name, moved in with_fusion.items() if name.startswith("scratch"))
    assert saved == 2 * sum(written for _, written in intermediates.values()) - kept
    assert "scratch m" not in with_fusion


@pytest.mark.parametrize("stride", [1, 2])
def test_windows_keep_the_rows_that_the_next_band_sees_too(make_model, stride):
    """Convolutions and a pooling, of images that do not fit: what lies between never goes to DDR, and no row of it is computed twice."""
    nodes = [
        ("Conv", ["x", "a"], ["m"], {"pads": [1] * 4}),
        ("Conv", ["m", "b"], ["n"], {"pads": [1] * 4, "strides": [stride] * 2}),
        ("MaxPool", ["n"], ["y"], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
    ]
    constants = {"a": weights(1, 16, 8, 3, 3), "b": weights(2, 16, 16, 3, 3)}
    feeds = {"x": weights(3, 2, 8, 93, 21)}
    model = make_model(nodes, feeds, ["y"], constants)
    (fused, with_fusion), (apart, without) = run(model, feeds), run(model, feeds, cmx_residency=False)
    np.testing.assert_array_equal(fused["y"], apart["y"])
    assert {"scratch m", "scratch n"} & {*with_fusion} == set()
    assert {"scratch m", "scratch n"} <= {*without}
    macs = [
        compile_model(model, CompileOptions(cmx_bytes=CMX, cmx_residency=kept)).report["macs"] for kept in (True, False)
    ]
    assert macs[0] == macs[1]


def test_without_fusion_what_does_not_fit_goes_to_ddr_between_layers(make_model):
    nodes = [("Conv", ["x", "a"], ["m"], {}), ("Conv", ["m", "b"], ["y"], {})]
    constants = {"a": weights(1, 32, 8, 1, 1), "b": weights(2, 8, 32, 1, 1)}
    feeds = {"x": weights(3, 1, 8, 96, 96)}
    model = make_model(nodes, feeds, ["y"], constants)
    (fused, with_fusion), (apart, without) = run(model, feeds), run(model, feeds, vertical_fusion=False)
    np.testing.assert_array_equal(fused["y"], apart["y"])
    assert "scratch m" in without and "scratch m" not in with_fusion


def test_without_residency_every_value_is_in_ddr(make_model):
    nodes = [("Relu", ["x"], ["a"], {}), ("Softmax", ["a"], ["b"], {"axis": -1}), ("Add", ["b", "x"], ["y"], {})]
    feeds = {"x": weights(4, 3, 16)}
    _, moved = run(make_model(nodes, feeds, ["y"]), feeds, cmx_residency=False)
    assert {name for name in moved if name.startswith("scratch")} == {"scratch a", "scratch b"}


@pytest.mark.parametrize(("hidden", "steps", "times"), [(68, 10, 1), (68, 5, 4), (72, 10, 1), (80, 10, 9)])
def test_weights_of_a_recurrence_are_brought_once(make_model, oracle, hidden, steps, times):
    """As far as they are less than RECURRENT of CMX and there are MANY steps; else they come for each but the first, whose state is 0."""
    x = weights(4, steps, 1, 8)
    constants = {"w": weights(5, 1, 4 * hidden, 8), "r": weights(6, 1, 4 * hidden, hidden)}
    model = make_model([("LSTM", ["x", "w", "r"], ["", "y"], {"hidden_size": hidden})], {"x": x}, ["y"], constants)
    found, moved = run(model, {"x": x})
    size = constants["r"].nbytes
    assert size > 0.25 * CMX
    assert (steps >= 8 and size < 0.95 * CMX) == (times == 1)
    products = sum(read for name, (read, _) in moved.items() if ".weights[" in name)
    assert products - constants["w"].nbytes == times * size, moved
    np.testing.assert_allclose(found["y"], oracle(model, {"x": x})["y"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("rows", "depth", "strips_are_long"), [(200, 256, False), (800, 96, True)])
def test_a_right_matrix_that_comes_in_short_runs_is_transposed_once(make_model, rows, depth, strips_are_long):
    """Strips of 96 KiB / 11 have 34 bytes of a row of the deep matrix, less than an access of 64; the rows take it several times."""
    feeds = {"a": weights(7, rows, depth), "b": weights(8, depth, 640)}
    assert feeds["a"].nbytes > CMX // 2
    assert feeds["b"].nbytes > CMX
    model = make_model([("MatMul", ["a", "b"], ["y"], {})], feeds, ["y"])
    found, moved = run(model, feeds)
    np.testing.assert_allclose(found["y"], feeds["a"] @ feeds["b"], rtol=0, atol=1e-5)
    assert (moved["input b"][0] > feeds["b"].nbytes) == strips_are_long
