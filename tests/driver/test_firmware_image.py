"""What the driver refuses to start: every rule of the image header, with ENODEV and the reason."""

from __future__ import annotations

import errno
import struct
import zlib

import pytest
from npu_driver.boot import check_image
from npu_driver.error import KernelError


def image(**changes):
    """A valid image with `changes` to its first words; the checksum is made right again unless it is given."""
    fields = {"magic": 0x5746504E, "version": 1, "size": 4096, "boot": (1, 0), "jsm": (1, 0)} | changes
    head = struct.pack(
        "<IIII4H", fields["magic"], fields["version"], fields["size"], 0, *fields["boot"], *fields["jsm"]
    )
    data = bytearray(head.ljust(4096, b"\0"))
    struct.pack_into("<I", data, 12, fields.get("crc", zlib.crc32(data)))
    return bytes(data)


def test_a_valid_image_is_accepted():
    assert check_image(image()).header_version == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "less than its header"),
        (image()[:4095], "less than its header"),
        (image(magic=0), "magic is 0x0"),
        (image(version=2), "header version is 2"),
        (image(size=8192), "image_size is 8192"),
        (image(crc=1), "crc32 is 0x1"),
        (image(boot=(2, 0)), "API 0 is 2.0"),
        (image(jsm=(0, 9)), "API 1 is 0.9"),
    ],
)
def test_a_bad_image_is_enodev_and_says_why(data, reason):
    with pytest.raises(KernelError, match=reason) as caught:
        check_image(data)
    assert caught.value.code == errno.ENODEV


def test_every_flipped_byte_of_the_header_is_noticed():
    good = image()
    for position in range(0, 4096, 7):
        bad = bytearray(good)
        bad[position] ^= 0x10
        with pytest.raises(KernelError):
            check_image(bytes(bad))
