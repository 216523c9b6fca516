"""Build C programs as a user does, once per session, and run them in chosen environments."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import npu_abi
import numpy as np
import pytest
from npu_abi import C

from libnpu.blob import BlobImage, IoTensor, Relocation, write

CONFIG = [sys.executable, "-m", "libnpu.capi.config"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache folder of this session's own, as XDG_CACHE_HOME."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def flags(cache):
    """What npu-config says, as one list of words."""
    run = subprocess.run(
        [*CONFIG, "--cflags", "--libs"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    assert run.stderr == ""
    return run.stdout.split()


@pytest.fixture(scope="session")
def build(flags, tmp_path_factory):
    """build(body) -> program: compiles `body` as C, with helpers in front of it. The same text is compiled once."""
    folder = tmp_path_factory.mktemp("programs")

    def build(body: str, name: str | None = None) -> Path:
        program = folder / (name or hashlib.sha256(body.encode()).hexdigest()[:16])
        if not program.exists():
            source = program.with_suffix(".c")
            source.write_text(PREAMBLE + body)
            command = [
                "gcc",
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused",
                str(source),
                *flags,
                "-lm",
                "-o",
                str(program),
            ]
            subprocess.run(command, check=True)
        return program

    return build


@pytest.fixture
def run(build):
    """run(body, *arguments) -> lines that the program prints; it must end with status 0 and a silent standard error."""

    def run(body: str, *arguments: str, **options) -> list[str]:
        done = subprocess.run(
            [build(body), *arguments], capture_output=True, text=True, timeout=60, check=False, **options
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


# say(call) prints the name of the result without its prefix; detail() prints the last error's message.
PREAMBLE = r"""
#define _GNU_SOURCE
#include <npu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static inline void say_result(npu_result_t result)
{
    const char *name = npu_get_error_name(result);
    puts(strncmp(name, "NPU_ERROR_", 10) == 0 ? name + 10 : name + 4);
}
#define say(call) say_result(call)
static inline void detail(void)
{
    npu_error_detail_t found = {.size = sizeof found};
    npu_result_t result = npu_get_last_error_detail(&found);
    if (result != NPU_SUCCESS)
        say_result(result);
    else
        printf("%s: %s\n", found.function, found.message);
}
static inline void need(npu_result_t result)
{
    if (result == NPU_SUCCESS)
        return;
    say_result(result);
    detail();
    exit(3);
}
#define BAD ((void *)16) /* an address that no process has */
"""


def _copy_tasks(count: int, length: int) -> np.ndarray:
    task = np.zeros(count, npu_abi.dtype("npu_dma_task"))
    task["transaction_length"] = task["transaction_src_width"] = task["transaction_dst_width"] = length
    task["transaction_num_planes"] = 1
    task["sched_start_after"] = C.NPU_BARRIER_NONE
    return task


def copy_image(name: str, count: int, waits: bool = False) -> BlobImage:
    """A model that copies `count` floats from input "x" to output "y" with one DMA task. `waits`: for the task behind it in the list."""
    size = 4 * count
    tasks = {".npu.tasks.dma0": _copy_tasks(1 + waits, size)}
    if waits:
        tasks[".npu.tasks.dma0"]["barriers_wait_mask"] = 1, 0
        tasks[".npu.tasks.dma0"]["barriers_post_mask"] = 0, 1
        barrier = np.zeros(1, npu_abi.dtype("npu_barrier_config"))
        barrier["next_same_id"], barrier["producer_count"], barrier["consumer_count"] = C.NPU_BARRIER_NONE, 1, 1
        tasks[".npu.barriers"] = barrier
    stride = npu_abi.sizeof("npu_dma_task")
    at = {field: npu_abi.offsetof("npu_dma_descriptor", field) for field in ("src", "dst")}
    return BlobImage(
        name=name,
        profile="npu-37xx",
        tile_count=1,
        cmx_bytes=0,
        barrier_count=int(waits),
        inputs=[IoTensor("x", C.NPU_DT_F32, (1, count), size)],
        outputs=[IoTensor("y", C.NPU_DT_F32, (1, count), size)],
        tasks=tasks,
        relocations=[
            Relocation(".npu.tasks.dma0", i * stride + at[field], symbol, 0)
            for i in range(len(tasks[".npu.tasks.dma0"]))
            for field, symbol in (("src", "in:x"), ("dst", "out:y"))
        ],
        debug={"tasks": [{"name": "copy", "op": "DMA"}]},
    )


def fault_image() -> BlobImage:
    """A model whose copy reads where nothing is."""
    image = copy_image("fault", 16)
    image.relocations[:] = [r for r in image.relocations if r.symbol != "in:x"]
    task = image.tasks[".npu.tasks.dma0"].view(np.uint8)
    at = npu_abi.offsetof("npu_dma_descriptor", "src")
    task[at : at + 8] = np.frombuffer((0x1_7000_0000).to_bytes(8, "little"), np.uint8)
    return image


@pytest.fixture(scope="session")
def blobs(tmp_path_factory):
    """A folder with copy.blob (16 floats), long.blob (65536 floats), stuck.blob (never ends) and fault.blob (page fault)."""
    folder = tmp_path_factory.mktemp("blobs")
    images = (copy_image("copy", 16), copy_image("long", 65536), copy_image("stuck", 16, waits=True), fault_image())
    for image in images:
        (folder / f"{image.name}.blob").write_bytes(write(image))
    return folder
