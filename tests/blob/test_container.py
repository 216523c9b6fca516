"""The ELF container: exact round trip, deterministic bytes, silent readelf, and one message per kind of damage."""

import hashlib
import io
import struct
import subprocess

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from npu_abi import C

from libnpu.blob import BlobError, BlobImage, IoTensor, Relocation, read, write


def test_read_of_write_gives_the_same_image(image):
    found = read(write(image))
    assert found == image
    assert found.inputs == image.inputs and found.debug == image.debug
    assert found.relocations == image.relocations


def test_write_of_read_gives_the_same_bytes(image):
    data = write(image)
    assert write(read(data)) == data


def test_writing_twice_gives_the_same_bytes(make):
    assert write(make()) == write(make())


def test_the_order_of_relocations_does_not_count(image):
    data = write(image)
    image.relocations.reverse()
    assert write(image) == data


def test_empty_sections_are_absent_and_come_back_empty():
    image = BlobImage("n", "unit", 1, 0, 0, [], [], {})
    data = write(image)
    assert [s.name for s in ELFFile(io.BytesIO(data)).iter_sections()] == [
        "", ".note.npu.abi", ".npu.platform", ".npu.netdesc", ".npu.mapped_inference", ".npu.digest", ".symtab", ".strtab",
        ".shstrtab",
    ]  # fmt: skip
    assert read(data) == image


def test_reserved_bytes_of_task_arrays_are_written_as_zero(image):
    clean = write(image)
    array = image.tasks[".npu.tasks.dma0"]
    array.view(np.uint8).reshape(2, 128)[:, 52:56] = 0xAA  # transaction.reserved
    assert write(image) == clean


def test_an_independent_elf_reader_sees_the_documented_sections(image):
    elf = ELFFile(io.BytesIO(write(image)))
    assert (elf["e_type"], elf["e_machine"]) == (0xFE01, 0x4E50)
    assert [s.name for s in elf.iter_sections()][1:] == [
        ".note.npu.abi", ".npu.platform", ".npu.netdesc", ".npu.mapped_inference", ".npu.tasks.dma0", ".npu.tasks.dma1",
        ".npu.tasks.dpu_invariant", ".npu.tasks.dpu_variant", ".npu.tasks.shave_range", ".npu.tasks.shave_invocation",
        ".npu.barriers", ".text.shave", ".data.shave_args", ".data.weights", ".bss.scratch", ".npu.io.input", ".npu.io.output",
        ".rela.npu.mapped_inference", ".rela.npu.tasks.dma0", ".rela.npu.tasks.dma1", ".rela.npu.tasks.shave_range",
        ".rela.npu.tasks.shave_invocation", ".rela.data.shave_args", ".npu.debug", ".npu.digest", ".symtab", ".strtab", ".shstrtab",
    ]  # fmt: skip
    assert elf.get_section_by_name(".data.weights").data() == bytes(range(100))
    assert elf.get_section_by_name(".bss.scratch")["sh_size"] == 4096
    assert elf.get_section_by_name(".data.weights")["sh_offset"] % 64 == 0
    note = next(elf.get_section_by_name(".note.npu.abi").iter_notes())
    assert (note["n_name"], note["n_descdata"]) == ("NPU", struct.pack("<II", 1, 0))


def test_an_independent_elf_reader_sees_the_symbols(image):
    elf = ELFFile(io.BytesIO(write(image)))
    symbols = {s.name: s for s in elf.get_section_by_name(".symtab").iter_symbols() if s.name}
    assert sorted(symbols) == ["MappedInference", "in:x", "out:empty", "out:y:0"]
    entry = symbols["MappedInference"]
    assert (entry["st_info"]["type"], entry["st_info"]["bind"], entry["st_size"]) == ("STT_OBJECT", "STB_GLOBAL", 256)
    assert elf.get_section(entry["st_shndx"]).name == ".npu.mapped_inference"
    assert (symbols["out:empty"]["st_value"], symbols["out:empty"]["st_size"]) == (64, 0)


def test_mapped_inference_holds_the_counts_and_its_relocations_the_addresses(image):
    elf = ELFFile(io.BytesIO(write(image)))
    words = struct.unpack("<IIII14Q16Q", elf.get_section_by_name(".npu.mapped_inference").data())
    assert words[:4] == (0x10000, 1, 2, 0)
    assert words[4:18] == (0, 2, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 4)
    symtab = elf.get_section_by_name(".symtab")
    patched = {
        r["r_offset"]: elf.get_section(symtab.get_symbol(r["r_info_sym"])["st_shndx"]).name
        for r in elf.get_section_by_name(".rela.npu.mapped_inference").iter_relocations()
    }
    assert patched == {
        16: ".npu.tasks.dma0", 32: ".npu.tasks.dma1", 48: ".npu.tasks.dpu_invariant", 64: ".npu.tasks.dpu_variant",
        80: ".npu.tasks.shave_range", 96: ".npu.tasks.shave_invocation", 112: ".npu.barriers",
    }  # fmt: skip


def test_the_digest_covers_name_type_size_and_content_in_index_order(image):
    elf = ELFFile(io.BytesIO(data := write(image)))
    state = hashlib.sha256()
    for index in range(1, elf.num_sections()):
        header = struct.unpack_from("<IIQQQQIIQQ", data, elf["e_shoff"] + 64 * index)
        section = elf.get_section(index)
        if section.name != ".npu.digest":
            state.update(section.name.encode() + b"\0" + struct.pack("<IQ", header[1], header[5]))
            state.update(b"" if header[1] == 8 else data[header[4] : header[4] + header[5]])
    assert elf.get_section_by_name(".npu.digest").data() == state.digest()


def test_readelf_prints_no_warning(image, tmp_path):
    path = tmp_path / "tiny.blob"
    for blob in (image, BlobImage("n", "unit", 1, 0, 0, [], [], {})):
        path.write_bytes(write(blob))
        run = subprocess.run(["readelf", "-a", "-W", path], capture_output=True, text=True, check=True)
        assert run.stderr == ""
        assert "arning" not in run.stdout and "rror" not in run.stdout
    assert "MappedInference" in run.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "n" * 128}, r"\.npu\.netdesc: network name .* 128 bytes; expected 1 to 127"),
        ({"profile": "p" * 64}, r"\.npu\.platform: profile name .* 64 bytes; expected 1 to 63"),
        ({"name": "a\0b"}, r"without NUL"),
        ({"tile_count": -1}, r"\.npu\.platform: tile_count is -1"),
        ({"inputs": [IoTensor("x", C.NPU_DT_F16, (3,), 7)]}, r"tensor 'x': size_bytes 7; expected 6"),
        ({"inputs": [IoTensor("x", 13, (3,), 7)]}, r"tensor 'x': dtype 13; expected an enum npu_dtype below 13"),
        ({"inputs": [IoTensor("x", C.NPU_DT_U8, (1,) * 9, 1)]}, r"tensor 'x': rank 9; expected at most 8"),
        ({"inputs": [IoTensor("x", C.NPU_DT_U8, (1,), 1)] * 2}, r"two tensors .* named 'x'"),
        ({"scratch_bytes": 1 << 60}, r"\.bss\.scratch: 1152921504606846976 bytes; expected 1 to"),
        ({"relocations": [Relocation(".npu.tasks.dma1", 121, "in:x", 0)]}, r"\.rela\.npu\.tasks\.dma1\+0x0: patches 8 bytes at 0x79"),
        ({"relocations": [Relocation(".npu.tasks.dma1", 0, "in:z", 0)]}, r"no symbol 'in:z'"),
        ({"relocations": [Relocation(".text.shave", 0, "in:x", 0)]}, r"\.text\.shave at 0x0: no such section to patch"),
        ({"relocations": [Relocation(".npu.tasks.dma1", 0, "in:x", 0)] * 2}, r"\+0x18: offset 0x0 overlaps"),
        ({"relocations": [Relocation(".npu.tasks.dma1", 0, "in:x", 0, 2)]}, r"expected width 4 or 8"),
        ({"debug": {"a": object()}}, r"\.npu\.debug: not JSON"),
        ({"tasks": {".npu.tasks.dma0": np.zeros(1, np.uint8)}}, r"expected a list of struct npu_dma_task"),
        ({"tasks": {".npu.foo": np.zeros(1, np.uint8)}}, r"\.npu\.foo: no such task section"),
    ],
)  # fmt: skip
def test_write_refuses(image, change, message):
    for field, value in change.items():
        setattr(image, field, value)
    with pytest.raises(BlobError, match=message):
        write(image)
