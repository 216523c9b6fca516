"""`npu smi`, `npu dump`, `npu kmd` and `npu trace`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from npu_abi import C

from libnpu.errors import NpuError
from libnpu.ioctl_trace import flag_names, wanted_of

PROGRAM = """
import libnpu
with libnpu.open("unit") as device:
    buffer = device.alloc(5000)
"""


def test_smi_has_the_process_itself(npu):
    status, out, _ = npu("smi", "--profile", "unit", "--json")
    report = json.loads(out)
    (context,) = report["contexts"]
    assert (status, report["profile"], report["device"]["contexts"]) == (0, "unit", 1)
    assert (context["ssid"], context["state"], context["objects"]) == (2, "live", 0)
    assert "utilisation" in npu("smi", "--profile", "unit")[1]
    assert npu("smi", "-l", "0")[0] == 1


def test_dump(npu):
    status, out, _ = npu("dump", "--profile", "unit")
    assert status == 0
    assert "1 contexts, 0 doorbells" in out


def test_kmd(npu):
    status, out, _ = npu("kmd", "reload", "--param", "weight_policy=uncached", "--param", "coherent=0", "--json")
    found = json.loads(out)
    assert (status, found["weight_policy"], found["coherent"], found["evict"]) == (0, "uncached", "0", "lazy")
    status, _, err = npu("kmd", "reload", "--param", "weight_policy=fast")
    assert status == 1
    assert "weight_policy=fast" in err
    assert npu("kmd", "params", "--param", "coherent=0")[0] == 1


def test_fw(npu, tmp_path):
    status, out, _ = npu("fw", "version", "--json")
    installed = json.loads(out)
    assert (status, installed["release"], installed["coherent_dma"]) == (0, "2.2.0", True)
    assert "coherent_dma: True" in npu("fw", "version")[1]
    path = tmp_path / "old.bin"
    assert npu("fw", "set-version", "2.0.9", "-o", path) == (0, f"firmware={path}\n", "")
    made = json.loads(npu("fw", "set-version", "2.0.9", "-o", path, "--json")[1])
    assert (made["release"], made["coherent_dma"], made["digest"]) == ("2.0.9", False, installed["digest"])


def test_r037_fw_qos(npu):
    status, out, _ = npu("fw", "qos", "--client", "npu", "--prio", "7", "--profile", "unit", "--json")
    assert (status, json.loads(out)["priorities"]) == (0, {"npu_dma": 7, "npu_code": 7, "cpu": 0})
    status, out, _ = npu("fw", "qos", "--client", "cpu", "--prio", "3", "--profile", "unit")
    assert (status, out.split()[-2:]) == (0, ["cpu", "3"])
    assert npu("fw", "qos", "--client", "npu", "--prio", "8")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set-version",), "npu fw set-version needs a release X.Y.Z"),
        (("set-version", "2.1"), "release '2.1': X.Y.Z is needed, each at most 255"),
        (("set-version", "2.1.256"), "release '2.1.256': X.Y.Z is needed"),
        (("set-version", "2.1.-1"), "release '2.1.-1': X.Y.Z is needed"),
        (("set-version", "2.0.9", "-o", "/nowhere/old.bin"), "there is no folder /nowhere"),
        (("set-version", "2.0.9", "-o", "an old.bin"), "a module parameter has no spaces"),
        (("version", "2.0.9"), "a release and --output are of npu fw set-version"),
        (("version", "--client", "npu"), "--client, --prio and --profile are of npu fw qos"),
        (("qos", "2.0.9"), "a release and --output are of npu fw set-version"),
        (("qos", "--client", "npu"), "npu fw qos sets a priority with --client NAME and --prio N"),
        (("qos", "--prio", "0"), "npu fw qos sets a priority with --client NAME and --prio N"),
        (("qos", "--client", "gpu", "--prio", "7"), "no client 'gpu' of memory; there are npu, npu_dma, npu_code, cpu"),
    ],
)
def test_fw_names_what_is_wrong(npu, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, _, err = npu("fw", *arguments)
    assert status == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_run_with_faults(npu, blob_path, tmp_path):
    path = tmp_path / "faults.json"
    path.write_text('[{"point": "dpu_task", "kind": "mmu", "seed": 20480}]')
    for _ in range(2):
        status, _, err = npu("run", blob_path, "--faults", path)
        assert status == 1
        assert "address 0x5000, task 'conv" in err
    assert npu("run", blob_path)[0] == 0  # they were that run's
    path.write_text('[{"point": "job_done", "kind": "irq_lost"}]')
    assert npu("run", blob_path, "--faults", path)[0] == 0


@pytest.mark.parametrize(
    ("content", "result", "message"),
    [
        (None, "FILE", "No such file or directory"),
        ("{", "INVALID_VALUE", "faults.json: Expecting property name"),
        ("{}", "INVALID_VALUE", "a list of objects is needed"),
        ('[{"point": "irq"}]', "INVALID_VALUE", "needs point and kind, and may have after, count, seed"),
        ('[{"point": "irq", "kind": "irq_lost", "when": 1}]', "INVALID_VALUE", "needs point and kind"),
        ('[{"point": "irq", "kind": "flood"}]', "INVALID_VALUE", "'flood' is none of no_memory, "),
        (
            '[{"point": "irq", "kind": "irq_lost", "after": 4294967296}]',
            "INVALID_VALUE",
            "after 4294967296; it has 32 bits",
        ),
        ('[{"point": "irq", "kind": "mmu"}]', "INVALID_VALUE", "NPU_FAULT_MMU cannot strike at NPU_POINT_IRQ"),
    ],
)
def test_faults_that_there_cannot_be_are_named(npu, blob_path, tmp_path, content, result, message):
    path = tmp_path / "faults.json"
    if content is not None:
        path.write_text(content)
    status, out, _ = npu("run", blob_path, "--faults", path, "--json")
    error = json.loads(out)["error"]
    assert (status, error["result"]) == (1, f"NPU_ERROR_{result}")
    assert message in error["message"]


def test_trace_of_a_program(npu, tmp_path):
    program, path = tmp_path / "program.py", tmp_path / "trace"
    program.write_text(PROGRAM)
    assert npu("trace", "-o", path, "--", sys.executable, program)[0] == 0
    lines = path.read_text().splitlines()
    assert re.fullmatch(r"0\.000000000 <\+0\.\d{9}> fd 0 NPU_SYS_OPEN\(\) = 3", lines[0])
    made = [line for line in lines if "size=5000" in line]
    assert re.search(
        r"BO_CREATE\(\{size=5000, flags=NPU_BO_SHAREABLE\|NPU_BO_DMA_MEM\|NPU_BO_MAPPABLE\}\) = 0 \{size=8192, handle=\d",
        made[0],
    )
    assert lines[-1].endswith("fd 3 NPU_SYS_CLOSE() = 0")
    assert npu("trace", "-c", "-o", path, "--", sys.executable, program)[0] == 0
    counts = path.read_text().splitlines()
    assert counts[0].split() == ["%", "time", "seconds", "us/call", "calls", "errors", "call"]
    assert {line.split()[-1] for line in counts[1:]} >= {"NPU_SYS_OPEN", "NPU_SYS_CLOSE", "NPU_IOCTL_BO_CREATE"}


def test_registers_that_the_driver_touches(npu, tmp_path):
    program, path = tmp_path / "program.py", tmp_path / "trace"
    program.write_text(PROGRAM)
    assert npu("trace", "-m", "-o", path, "--", sys.executable, program)[0] == 0
    lines = path.read_text().splitlines()
    assert lines[0] == f"0.000000000 mmio read NPU_REG_ID_MAGIC {C.NPU_HW_MAGIC:#x}"
    assert any("mmio write NPU_REG_BOOT_ENTRY_LO" in line for line in lines)
    assert any("NPU_SYS_OPEN" in line for line in lines)


def test_words_of_the_variable():
    assert wanted_of("") == wanted_of("0") == (False, "")
    assert wanted_of("1,ioctl") == (True, "ioctl")
    for text in ("yes", "ioctl,ioctl-counts"):
        with pytest.raises(NpuError) as caught:
            wanted_of(text)
        assert caught.value.result == C.NPU_ERROR_INVALID_VALUE


def test_flags_of_a_mapping_have_the_names_of_both_enums():
    assert flag_names("npu_mmap_flag npu_bo_flag", 0x100001) == "NPU_MMAP_POLICY|NPU_BO_NON_SNOOPED"


def test_the_table_of_counts_of_a_c_program(npu, tmp_path):
    source, program, path = tmp_path / "program.c", tmp_path / "program", tmp_path / "trace"
    source.write_text("#include <npu.h>\nint main(void) { void *x; return npu_init(0) || npu_malloc(&x, 4096, 0); }\n")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    flags = subprocess.run(
        ["npu-config", "--cflags", "--libs"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    subprocess.run(["gcc", str(source), *flags.split(), "-o", str(program)], check=True)
    assert npu("trace", "-c", "-o", path, "--", program)[0] == 0
    assert {line.split()[-1] for line in path.read_text().splitlines()} >= {"call", "NPU_SYS_OPEN", "NPU_SYS_CLOSE"}
    assert npu("perf", "stat", "-e", "irqs,cycles", "-o", path, "--", program)[0] == 0
    assert path.read_text().splitlines()[4].split()[1] == "cycles"
