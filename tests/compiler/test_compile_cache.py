"""The compile cache: what a key depends on, entries that are damaged, too many or written at once, and what switches it off."""

import os
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from npu_model.profile import FOLDER
from onnx import TensorProto, helper, numpy_helper

from libnpu.compiler import CompileOptions, cache, compile_model
from libnpu.compiler.cache import CompileCache, cache_of, key_of
from libnpu.compiler.options import BadOption
from libnpu.compiler.pipeline import Compiled


def model(scale=2.0, op="Mul"):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (4,)) for name in "xy")
    weights = numpy_helper.from_array(np.full(4, scale, np.float32), "w")
    graph = helper.make_graph([helper.make_node(op, ["x", "w"], ["y"])], "g", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NPU_COMPILE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_was_compiled_before_comes_from_the_cache_as_it_was(folder):
    first, again = compile_model(model()), compile_model(model())
    assert (first.from_cache, again.from_cache) == (False, True)
    assert (again.blob, again.report, again.image) == (first.blob, first.report, first.image)
    assert not compile_model(model(), cache=False).from_cache
    assert len(entries(folder)) == 1


def test_a_model_in_parts_is_kept_as_one(folder):
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"]),
        helper.make_node("Inverse", ["a"], ["y"], domain="com.microsoft"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, 3)) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    parted = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=9)
    with pytest.warns(UserWarning, match="host"):
        first = compile_model(parted)
    with pytest.warns(UserWarning, match="host"):
        again = compile_model(parted)
    assert again.from_cache
    assert (again.blob, again.report, again.parts) == (first.blob, first.report, first.parts)


def test_the_key_depends_on_all_that_a_blob_is_made_of(tmp_path, monkeypatch):
    profile = tmp_path / "own.json"
    profile.write_text((FOLDER / "npu-37xx.json").read_text())
    external = tmp_path / "model.onnx"
    onnx.save(
        model(), external, save_as_external_data=True, location="weights.bin", size_threshold=0, convert_attribute=False
    )
    keys = [
        key_of(model(), CompileOptions()),
        key_of(model(3.0), CompileOptions()),
        key_of(model(), CompileOptions(precision="fp32")),
        key_of(model(), CompileOptions(shapes={"x": (4,)})),
        key_of(model(), CompileOptions(dump=("tiles",))),
        key_of(model(), CompileOptions(profile="npu-40xx")),
        key_of(model(), CompileOptions(profile="npu-37xx+edge-soc")),
        key_of(model(), CompileOptions(profile=str(profile))),
        key_of(external, CompileOptions()),
    ]
    profile.write_text(profile.read_text().replace('"dma_ports": 2', '"dma_ports": 1'))
    (tmp_path / "weights.bin").write_bytes(np.full(4, 5, np.float32).tobytes())
    keys += [key_of(model(), CompileOptions(profile=str(profile))), key_of(external, CompileOptions())]
    assert key_of(model().SerializeToString(deterministic=True), CompileOptions()) == keys[0]
    monkeypatch.setattr(cache, "_source_digest", lambda: b"another compiler")
    keys.append(key_of(model(), CompileOptions()))
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_what_has_no_bytes_has_no_key_and_the_compiler_says_why(folder, tmp_path):
    missing = tmp_path / "missing.onnx"
    assert key_of(missing, CompileOptions()) is None
    with pytest.raises(FileNotFoundError):
        compile_model(missing)
    assert not folder.exists()


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: d[:10], lambda d: b"", lambda d: d[:99] + b"?" + d[100:]]
)
def test_a_damaged_entry_is_compiled_again(folder, damage):
    first = compile_model(model())
    (name,) = entries(folder)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(damage(whole))
    assert not compile_model(model()).from_cache
    assert (folder / name).read_bytes() == whole
    assert compile_model(model()).blob == first.blob


def test_entries_that_were_used_longest_ago_go_first(tmp_path):
    kept = CompileCache(tmp_path / "kept", 3500)
    for number, key in enumerate("abc"):
        kept.put(key, Compiled(bytes(1000), None, {"number": number}))
        os.utime(tmp_path / "kept" / f"{key}.npuc", (number, number))
    os.utime(tmp_path / "kept" / "a.npuc", (9, 9))
    kept.put("d", Compiled(bytes(1000), None, {}))
    assert entries(tmp_path / "kept") == ["a.npuc", "c.npuc", "d.npuc"]
    kept.put("e", Compiled(bytes(3500), None, {}))  # larger than all may be
    assert entries(tmp_path / "kept") == ["a.npuc", "c.npuc", "d.npuc"]


def test_what_a_process_left_half_written_goes_after_a_while(tmp_path):
    kept = CompileCache(tmp_path)
    for name, age in (("old.aside", 10**6), ("new.aside", 0)):
        (tmp_path / name).write_bytes(b"half")
        status = os.stat(tmp_path / name)
        os.utime(tmp_path / name, (status.st_mtime - age, status.st_mtime - age))
    kept.put("a", Compiled(b"", None, {}))
    assert entries(tmp_path) == ["a.npuc", "new.aside"]


def test_a_report_that_json_does_not_bring_back_is_not_kept(tmp_path):
    CompileCache(tmp_path).put("a", Compiled(b"", None, {"pair": (1, 2)}))
    assert entries(tmp_path) == []


def test_writers_and_readers_at_once_see_whole_entries(tmp_path):
    compiled = compile_model(model(), cache=False)
    kept, wrong = CompileCache(tmp_path), []

    def work():
        for _ in range(20):
            kept.put("a", compiled)
            found = kept.get("a")
            if found is None or found.blob != compiled.blob:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert entries(tmp_path) == ["a.npuc"]


def test_a_folder_that_others_may_write_is_no_cache(folder):
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert [compile_model(model()).from_cache for _ in range(2)] == [False, False]
    assert entries(folder) == []


def test_the_environment_moves_limits_and_ends_it(tmp_path):
    assert cache_of({"NPU_COMPILE_CACHE": "0"}) is None
    found = cache_of({"NPU_COMPILE_CACHE": str(tmp_path), "NPU_COMPILE_CACHE_SIZE": "3M"})
    assert (found.folder, found.limit_bytes) == (tmp_path, 3 << 20)
    assert (cache_of({}).folder.name, cache_of({}).limit_bytes) == ("compiled", 2 << 30)
    with pytest.raises(BadOption, match="NPU_COMPILE_CACHE_SIZE='much'; bytes, or as 500M or 2G"):
        cache_of({"NPU_COMPILE_CACHE_SIZE": "much"})


def test_npu_compile_says_on_one_line_that_it_took_what_was_there(npu, folder, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    says = f"npu: {path}: from the compile cache; --no-cache compiles it again\n"
    for options, expected in (((), ""), ((), says), (("--no-cache",), ""), (("-O0",), "")):
        status, _, errors = npu("compile", path, "-o", tmp_path / "m.blob", *options)
        assert (status, errors) == (0, expected)
    assert len(entries(folder)) == 2
    assert Path(tmp_path / "m.blob").exists()
