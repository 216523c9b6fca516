"""Programs find the daemon by NPU_DEVICE: C as well as Python; who may not do something is told so."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from npu_abi import INCLUDE_DIR, C, ffi, ioctl_request

from libnpu.capi.build import library_folder, run_path
from libnpu.daemon import wire
from tests.daemon.conftest import Daemon, frame

NOBODY = 65534
PROGRAM = r"""
#include <npu.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
    void *memory = NULL;
    unsigned char bytes[4096] = {0};
    npu_ipc_mem_handle_t handle;
    npu_result_t result = npu_init(NPU_INIT_CHECK);
    if (!result) result = npu_malloc(&memory, sizeof bytes, 0);
    if (!result) result = npu_memset(memory, sizeof bytes, 0x5a, sizeof bytes);
    if (!result) result = npu_memcpy(bytes, sizeof bytes, memory, sizeof bytes, NPU_MEMCPY_DEVICE_TO_HOST);
    if (!result) result = npu_ipc_get_mem_handle(&handle, memory);
    if (result) {
        npu_error_detail_t detail = {.size = sizeof detail};
        npu_get_last_error_detail(&detail);
        printf("%s\n", detail.message);
        return 1;
    }
    printf("%02x %02x\n", bytes[0], bytes[4095]);
    for (unsigned i = 0; i < sizeof handle; i++)
        printf("%02x", handle.opaque[i]);
    printf("\n");
    fflush(stdout);
    getchar();
    return npu_shutdown();
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("c")
    (folder / "program.c").write_text(PROGRAM)
    library = library_folder()
    paths = [f"-I{INCLUDE_DIR}", f"-L{library}", *run_path(library)]
    subprocess.run(["gcc", folder / "program.c", *paths, "-lnpu", "-o", folder / "program"], check=True)
    return folder / "program"


def environment(where):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NPU_")}
    root = Path(__file__).parent.parent.parent
    sources = ":".join(str(root / part) for part in (".", "include", "driver", "firmware", "device"))
    return kept | {"NPU_DEVICE": where, "PYTHONPATH": sources}


def test_a_program_in_c_shares_memory_with_one_in_python(daemon, program):
    import libnpu

    running = subprocess.Popen(
        [program], env=environment(daemon.where), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout.readline() == "5a 5a\n"
    handle = bytes.fromhex(running.stdout.readline())
    with libnpu.open("unit", where=daemon.where) as npu, npu.open_ipc_memory(handle) as memory:
        assert set(bytes(memory.read())) == {0x5A}
        running.communicate("\n", timeout=30)
        assert running.returncode == 0
        assert set(bytes(memory.read())) == {0x5A}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("unix:/nowhere/npud.sock", "no device at unix:/nowhere/npud.sock: No such file or directory\n"),
        ("tcp:host", "NPU_DEVICE=tcp:host: unix:PATH is needed\n"),
    ],
)
def test_c_is_told_what_is_wrong(program, where, message):
    done = subprocess.run([program], env=environment(where), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, message)


def test_the_npu_tool_uses_it(daemon):
    code = "import libnpu; d = libnpu.open(); print(d.info().profile)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(daemon.where), capture_output=True, text=True, check=True
    )
    assert done.stdout == "unit\n"


def as_nobody(path):
    """In a child that is another user: results of OPEN, RECOVER and EMU_INJECT, or the errno of connecting."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            raw = socket.socket(socket.AF_UNIX)
            code = raw.connect_ex(path)
            results = [code]
            if not code:
                raw.sendall(wire.HELLO.pack(wire.MAGIC, wire.VERSION, 0))
                size = wire.WELCOME.unpack(raw.recv(wire.WELCOME.size))[2]
                while size:
                    size -= len(raw.recv(size))
                fd = 0
                for number, struct, fields in (
                    (C.NPU_SYS_OPEN, None, {}),
                    (C.NPU_IOCTL_RECOVER, "npu_recover", {}),
                    (C.NPU_IOCTL_EMU_INJECT, "npu_emu_inject", {"action": C.NPU_INJECT_DISARM}),
                    (C.NPU_IOCTL_BO_CREATE, "npu_bo_create", {"size": 4096}),
                ):
                    arg = bytes(ffi.buffer(ffi.new(f"struct {struct} *", fields))) if struct else b""
                    raw.sendall(frame(fd << 32 | ioctl_request(number, struct), arg))
                    result = wire.REPLY.unpack_from(raw.recv(65536))[2]
                    fd = fd or result
                    results.append(result)
            os.write(write, " ".join(map(str, results)).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return [int(word) for word in answer.read().split()]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_may_use_the_device_but_not_reset_it():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        open_to_all = Daemon(Path(name), "--mode", "0666")
        connected, fd, *results = as_nobody(open_to_all.path)
        assert (connected, fd >= 3) == (0, True)
        assert results == [-errno.EPERM, -errno.EPERM, 0]
        assert open_to_all.stop() == 0
        open_to_all.process.stdout.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_who_may_not_reach_the_socket_is_refused():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        closed = Daemon(Path(name))
        assert as_nobody(closed.path) == [errno.EACCES]
        assert closed.stop() == 0
        closed.process.stdout.close()
