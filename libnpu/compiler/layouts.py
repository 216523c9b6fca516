"""Layouts of images at the ends of a model: how a host lays out what it hands over, other than in ONNX's order.

A blocked layout of [N, C, H, W] is [N, C / block, H, W', block]: the channels of a block lie side by side, absent ones are
zeros, and W' is W with as many columns of zeros that each row begins at a multiple of `row_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from npu_model.profile import Profile
    from numpy.typing import NDArray

    Shape = tuple[int, ...]

LAYOUTS = ("nchw", "nchw4", "nc1hwc0")
_ROW_BYTES = 128  # of nchw4: a burst of all channels of LPDDR5X of 64 bit (docs/memory.md)


@dataclass(slots=True, frozen=True)
class Blocked:
    """Channels in blocks, rows at multiples of so many bytes."""

    block: int
    row_bytes: int = 1

    def shape(self, image: Shape, dtype: np.dtype[Any]) -> Shape:
        """Return the shape of [N, C, H, W] in this layout."""
        n, c, h, w = image
        columns = -(-self.row_bytes // (self.block * dtype.itemsize))  # of the least row, which begins where it should
        return n, -(-c // self.block), h, -(-w // columns) * columns, self.block

    def pack(self, image: NDArray[Any]) -> NDArray[Any]:
        """Return an array [N, C, H, W] in this layout."""
        n, blocks, h, columns, block = self.shape(image.shape, image.dtype)
        whole = np.zeros((n, blocks * block, h, columns), image.dtype)
        whole[:, : image.shape[1], :, : image.shape[3]] = image
        return np.ascontiguousarray(whole.reshape(n, blocks, block, h, columns).transpose(0, 1, 3, 4, 2))

    def unpack(self, array: NDArray[Any], channels: int, width: int) -> NDArray[Any]:
        """Return [N, C, H, W] of an array in this layout."""
        n, blocks, h, columns, block = array.shape
        whole = array.transpose(0, 1, 4, 2, 3).reshape(n, blocks * block, h, columns)
        return np.ascontiguousarray(whole[:, :channels, :, :width])


def layout_of(name: str, profile: Profile) -> Blocked | None:
    """Return the layout of a name in LAYOUTS, None for ONNX's own. C0 of nc1hwc0 is the profile's unit of channels."""
    return {"nchw4": Blocked(4, _ROW_BYTES), "nc1hwc0": Blocked(profile.channel_alignment)}.get(name)
