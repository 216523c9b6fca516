"""Kernels of the library that ships with the package: what they do with which sizes is known before the launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.kernel import LibraryKernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.runtime.operation import Operation


class BuiltinKernel(LibraryKernel):
    """Made by `Context.kernel`. Sizes that it cannot do are refused, and so is memory that is too small for them."""

    def operation(self, arguments: Sequence[Any], grid: int | None = None) -> Operation:
        """Return the launch; the default grid is by the amount of work (libnpu.kernels.params).

        Raises INVALID_VALUE for sizes and too few blocks, ARG_SIZE for memory that does not hold them, ARG_KIND for memory that is missing.
        """
        from libnpu.kernels.params import KernelArgumentError, Unit, plan

        packed, spans = self.pack(arguments)
        try:
            found = plan(self.name, arguments, Unit.of(self.module.context.profile))
        except KernelArgumentError as error:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, str(error)) from None
        for param, value, need in zip(self.params, arguments, found.buffers, strict=False):
            if value is None and not need.optional:
                raise self.refusal(C.NPU_ERROR_ARG_KIND, param, "is missing, and may not be")
            if value is not None and value.size < need.size_bytes:
                raise self.too_small(param, value, need.size_bytes)
        if grid is None:
            return self.packed_launch(packed, spans, found.grid)
        launch = self.packed_launch(packed, spans, grid)
        excess = found.excess(launch.grid)
        if excess is not None:
            enough = f"{found.least_grid} blocks are enough"
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"grid {launch.grid} for {self.name!r}: {excess}; {enough}")
        return launch
