"""What `read` says about damaged files: each kind of damage is named with its place, what was found, what was expected."""

import struct

import pytest

from libnpu.blob import BlobError, read, write


def headers(data):
    shoff = struct.unpack_from("<Q", data, 40)[0]
    count = struct.unpack_from("<H", data, 60)[0]
    return shoff, [list(struct.unpack_from("<IIQQQQIIQQ", data, shoff + 64 * i)) for i in range(count)]


def names(data):
    _, table = headers(data)
    strings = data[table[-1][4] : table[-1][4] + table[-1][5]]
    return [strings[h[0] : strings.index(b"\0", h[0])].decode() for h in table]


def find(data, name):
    """Return the index and the header of section `name`."""
    index = names(data).index(name)
    return index, headers(data)[1][index]


def patch(data, offset, fmt, value):
    data = bytearray(data)
    struct.pack_into(fmt, data, offset, value)
    return bytes(data)


@pytest.fixture
def data(image):
    return write(image)


@pytest.mark.parametrize("size", [0, 1, 63])
def test_a_file_shorter_than_its_header(data, size):
    with pytest.raises(BlobError, match=rf"file: {size} bytes; expected 64 to"):
        read(data[:size])


def test_a_truncated_file(data):
    with pytest.raises(BlobError, match=r"ELF header: 29 section headers at 0x.*; expected to end with the file"):
        read(data[:-1])


@pytest.mark.parametrize(
    ("offset", "fmt", "value", "message"),
    [
        (0, "<B", 0, "e_ident is 00454c46"),
        (4, "<B", 1, "e_ident"),
        (16, "<H", 2, "e_type is 2; expected 65025"),
        (18, "<H", 62, "e_machine is 62; expected 20048"),
        (20, "<I", 2, "e_version is 2; expected 1"),
        (40, "<Q", 1 << 63, "section headers at 0x8000000000000000"),
        (56, "<H", 1, "e_phnum is 1; expected 0"),
        (58, "<H", 40, "e_shentsize is 40; expected 64"),
        (60, "<H", 0xFFFF, "e_shnum 65535"),
        (62, "<H", 0, "e_shstrndx 0"),
    ],
)
def test_a_wrong_elf_header_field(data, offset, fmt, value, message):
    with pytest.raises(BlobError, match=message):
        read(patch(data, offset, fmt, value))


def test_a_flipped_bit_in_the_weights_breaks_the_digest(data):
    _, header = find(data, ".data.weights")
    with pytest.raises(BlobError, match=r"\.npu\.digest\+0x0: .*the file was changed or damaged"):
        read(patch(data, header[4] + 50, "<B", 0))


@pytest.mark.parametrize(
    ("section", "at", "fmt", "value", "message"),
    [
        (".npu.tasks.dma0", 128 + 52, "<B", 1, r"\.npu\.tasks\.dma0\+0x80: entry 1 has a reserved byte"),
        (".npu.mapped_inference", 0, "<I", 2, r"\.npu\.mapped_inference\+0x0: word 0x2; the other sections imply 0x10000"),
        (".npu.mapped_inference", 24, "<Q", 3, r"\.npu\.mapped_inference\+0x18: word 0x3; the other sections imply 0x2"),
        (".note.npu.abi", 16, "<I", 2, r"\.note\.npu\.abi\+0x10: blob ABI 2\.0; this library reads 1\.0 to 1\.0"),
        (".note.npu.abi", 12, "<B", 65, r"expected one note of owner NPU"),
        (".npu.platform", 63, "<B", 65, r"\.npu\.platform\+0: name .* then NULs to the field's end"),
        (".npu.platform", 76, "<I", 1, r"\.npu\.platform\+76: reserved field is 1"),
        (".npu.netdesc", 128, "<I", 5000, r"input_count is 5000; expected at most 4096"),
        (".npu.netdesc", 128, "<I", 2, r"\.npu\.netdesc: 824 bytes; expected 1040"),
        (".npu.netdesc", 144, "<Q", 99, r"\.data\.weights: 100 bytes; \.npu\.netdesc implies 99"),
        (".npu.netdesc", 176 + 132, "<I", 9, r"tensor 'x' has rank 9"),
        (".npu.netdesc", 176 + 136, "<Q", 1 << 63, r"tensor 'x': dimension 9223372036854775808"),
        (".npu.netdesc", 176 + 208, "<Q", 64, r"tensor 'x' is at offset 64; expected 0"),
        (".rela.npu.tasks.dma0", 0, "<Q", 1 << 63, r"\.rela\.npu\.tasks\.dma0\+0x0: patches 8 bytes at 0x8000000000000000"),
        (".rela.npu.tasks.dma0", 8, "<I", 3, r"\.rela\.npu\.tasks\.dma0\+0x0: type 3; expected NPU_R_64 or NPU_R_32"),
        (".rela.npu.tasks.dma0", 12, "<I", 1000, r"symbol 1000; expected a section's or a tensor's"),
        (".rela.npu.mapped_inference", 16, "<q", 8, r"\.rela\.npu\.mapped_inference: not the addresses"),
        (".npu.debug", 0, "<B", 91, r"\.npu\.debug: not JSON"),
        (".symtab", 24, "<B", 1, r"\.symtab: not the symbols"),
        (".strtab", 1, "<B", 1, r"\.strtab: not the symbols"),
    ],
)  # fmt: skip
def test_wrong_content_behind_a_valid_digest(data, seal, section, at, fmt, value, message):
    _, header = find(data, section)
    with pytest.raises(BlobError, match=message):
        read(seal(patch(data, header[4] + at, fmt, value)))


@pytest.mark.parametrize(
    ("section", "at", "fmt", "value", "message"),
    [
        (".data.weights", 24, "<Q", 0, r"section \d+: 100 bytes at 0x0; expected within"),
        (".data.weights", 32, "<Q", 1 << 63, r"section \d+: 9223372036854775808 bytes at"),
        (".data.weights", 4, "<I", 11, r"section \d+: type 0xb; expected one of"),
        (".data.weights", 0, "<I", 1 << 31, r"section \d+: name at 0x80000000"),
        (".data.weights", 8, "<Q", 1, r"\.data\.weights: flags is 0x1; expected 0x2"),
        (".symtab", 44, "<I", 1, r"\.symtab: info is 0x1; expected 0xc"),
        (".symtab", 56, "<Q", 0, r"\.symtab: entry size is 0x0; expected 0x18"),
        (".rela.npu.tasks.dma0", 44, "<I", 1, r"\.rela\.npu\.tasks\.dma0: info is 0x1; expected 0x5"),
    ],
)
def test_a_wrong_section_header(data, section, at, fmt, value, message):
    index, _ = find(data, section)
    damaged = patch(data, headers(data)[0] + 64 * index + at, fmt, value)
    with pytest.raises(BlobError, match=message):
        read(damaged)


def test_deeply_nested_debug_json_is_an_error_not_a_crash(image, seal):
    image.debug = {"a": "x" * 200_000}
    data = write(image)
    _, header = find(data, ".npu.debug")
    damaged = bytearray(data)
    damaged[header[4] : header[4] + 100_000] = b"[" * 100_000
    with pytest.raises(BlobError, match=r"\.npu\.debug: not JSON"):
        read(seal(damaged))
