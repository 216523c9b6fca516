"""Exceptions become results: a refusal quietly, a defect loudly."""

import errno
from types import SimpleNamespace

import pytest
from npu_abi import C

from libnpu.capi.entry import _guard
from libnpu.capi.library import Library, OpenDevice
from libnpu.capi.reports import result_of
from libnpu.errors import NpuError, Unimplemented, Unsupported


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (Unsupported("x"), C.NPU_ERROR_NOT_SUPPORTED),
        (Unimplemented("x"), C.NPU_ERROR_UNIMPLEMENTED),
        (NpuError(C.NPU_TIMEOUT, "x"), C.NPU_TIMEOUT),
        (MemoryError(), C.NPU_ERROR_OUT_OF_HOST_MEMORY),
        (OSError(errno.EFBIG, "x"), C.NPU_ERROR_OUT_OF_HOST_MEMORY),
        (OSError(errno.ENOMEM, "x"), C.NPU_ERROR_OUT_OF_HOST_MEMORY),
        (OSError(errno.EMFILE, "x"), C.NPU_ERROR_OUT_OF_RESOURCES),
        (ModuleNotFoundError("x"), C.NPU_ERROR_NOT_INITIALIZED),
    ],
)
def test_exception_has_a_result(error, result):
    assert result_of(error).result == result


def test_last_shutdown_closes_every_device_also_when_one_fails():
    closed = []

    def device(index, error=None):
        def close():
            closed.append(index)
            if error:
                raise error

        return OpenDevice(index, SimpleNamespace(close=close))

    library = Library(door=None, pages=None, call_site=lambda: 0, getenv=lambda name: None)
    library._devices = {0: device(0, NpuError(C.NPU_ERROR_DEVICE_LOST, "x")), 1: device(1)}
    with pytest.raises(NpuError):
        library.close()
    assert closed == [0, 1]
    library.close()
    assert closed == [0, 1]


def test_defect_is_not_swallowed():
    said = []
    lib = SimpleNamespace(npu_set_error=lambda *arguments: said.append(arguments))
    library = Library(door=None, pages=None, call_site=lambda: 0, getenv=lambda name: None)
    library.users = 1

    def npu_broken(library):
        raise KeyError("nobody expects this")

    with pytest.raises(KeyError):
        _guard(library, lib, npu_broken)()
    assert said == [(b"a defect of the library; its traceback is on standard error", 0, 0)]
    assert not library.lock._is_owned()
