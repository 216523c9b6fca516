"""What a SHAVE program does with its argument block."""

import pytest
from npu_model.shave_isa import assemble
from npu_model.shave_pointers import argument_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("halt", 0),
        ("ld.i64 r2, r1, 8\nhalt", 16),
        ("ld.i8 r2, r1, 8\nfld.f32 f0, r1, 4\nhalt", 9),
        ("ldm r8, r1, 8, 3\nhalt", 32),
        ("ld.i64 r2, r1, 0\nli r3, 4\nsetvl r3, r3\nvld.f32 v0, r2, r3, r3, 0\nst.i64 r3, r2, 0\nhalt", 8),
        ("ld.i64 r2, r1, 0\nld.i64 r3, r2, 0\nhalt", None),  # a scalar from elsewhere
        ("ld.i64 r2, r1, -8\nhalt", None),
        ("mov r2, r1\nhalt", None),
        ("addi r1, r1, 8\nld.i64 r2, r1, 0\nhalt", None),
        ("ldm r0, r1, 0, 2\nhalt", None),
        ("beq r1, r0, end\nend:\nhalt", None),
        ("st.i64 r0, r1, 0\nhalt", None),
        ("li r3, 4\nsetvl r3, r3\nvld.f32 v0, r1, r3, r3, 0\nhalt", None),
    ],
)
def test_what_a_program_can_load_of_its_arguments(text, size):
    assert argument_bytes(assemble(text + "\n")) == size
