"""npu burst: what the accesses of a tile move beside what was asked for."""

import json

import pytest
from npu_model.memory import load_memory

from libnpu.tools.burst import load, with_burst

ROW = ("--shape", "32x32", "--tile", "4x4", "--dtype", "int8")


def loads(npu, *arguments):
    status, out, err = npu("burst", *arguments, "--json")
    assert (status, err) == (0, "")
    return {(one["burst_bytes"], one["dtype"]): one for one in json.loads(out)["loads"]}


@pytest.mark.parametrize(("offset", "burst", "bursts", "waste"), [
    ("0", 32, 4, 0.875),
    ("0", 128, 1, 0.875),
    ("4,8", 128, 1, 0.875),
    ("2", 32, 4, 0.875),
    ("2", 128, 2, 0.9375),  # across two granules of 128 bytes
])  # fmt: skip
def test_b22_r027_a_tile_of_4_x_4_bytes_uses_16_of_128_bytes(npu, offset, burst, bursts, waste):
    tile = loads(npu, *ROW, "--offset", offset)[burst, "int8"]["tile"]
    assert (tile["asked_bytes"], tile["bursts"], tile["moved_bytes"]) == (16, bursts, bursts * burst)
    assert tile["waste"] == waste


def test_b22_all_tiles_of_the_array_move_8192_bytes_for_1024(npu):
    for found in loads(npu, *ROW).values():
        assert (found["array"]["asked_bytes"], found["array"]["moved_bytes"]) == (1024, 8192)


def test_b11_narrower_elements_take_as_many_bursts_where_rows_are_apart(npu):
    found = loads(npu, "--shape", "8x1024", "--dtype", "int4,int8,fp16", "--burst", "32")
    assert [one["tile"]["bursts"] for one in found.values()] == [4, 4, 4]
    assert [one["tile"]["asked_bytes"] for one in found.values()] == [8, 16, 32]


def test_tiles_at_the_edges_are_smaller(npu):
    found = loads(npu, "--shape", "10x10", "--tile", "4x4", "--burst", "32")
    assert found[32, "int8"]["array"]["asked_bytes"] == 100


def test_a_whole_row_wastes_nothing():
    system = with_burst(load_memory("edge-soc"), 64)
    assert load(system, [[(1 << 32, 4096)]]).waste == 0


def test_the_table_is_for_people(npu):
    status, out, _ = npu("burst", *ROW, "--offset", "2")
    assert status == 0
    assert "a tile of 4x4 at 2,0" in out
    assert "93.75%" in out and "87.50%" in out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--burst", "48"], 1, "--burst 48: the shortest burst of edge-soc is 32 bytes; a multiple is needed"),
        (["--burst", "1048576"], 1, "--burst 1048576: dram.chained_bursts is 32768; 1 to 64 are allowed"),
        (["--offset", "30"], 1, "--tile 4x4 at 30,0: ends outside of an array of 32x32"),
        (["--shape", "32x31", "--dtype", "int4"], 1, "--shape: 31 columns of int4 are 124 bits"),
        (["--shape", "9000x9000"], 1, "--shape 9000x9000: 81000000 bytes; at most 67108864"),
        (["--shape", "8000x8000", "--tile", "1x1"], 1, "--tile 1x1: the array has 64000000 of them; at most 65536"),
        (["--tile", "4"], 2, "expected ROWSxCOLUMNS, such as 32x32, found '4'"),
        (["--offset", "1,2,3"], 2, "expected ROW[,COLUMN], such as 2,0, found '1,2,3'"),
        (["--dtype", "int9"], 2, "no type 'int9'; there are int4, int8, int16, fp16, fp32"),
    ],
)
def test_wrong_arguments_are_named(npu, arguments, status, message):
    found, out, err = npu("burst", *arguments)
    assert (found, out) == (status, "")
    assert message in err


def test_the_memory_of_any_profile_is_loaded_from(npu):
    assert loads(npu, *ROW, "--profile", "npu-40xx")
