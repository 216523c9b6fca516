"""What dumps of the back end say of a graph."""

import pytest

WANTED = {
    "dense": {"conv0": ["bias"], "matmul2": ["scale 0.5", "bias", "relu"], "matmul3": []},
    "attention": {"matmul12": ["scale 0.25"], "matmul16": []},
    "integers": {"convinteger0": [], "matmulinteger2": [], "matmulinteger3": ["offset", "scale", "clip", "zero 3"]},
}


@pytest.mark.parametrize("name", WANTED)
def test_what_the_ppe_does_has_lines_of_its_own(name, compiled):
    """Values of an attention are no bias, and the ending of a product of integers is the PPE's."""
    text = compiled(name, dump=("engines",), optimisation=1, attention="flash").report["dumps"]["engines"]
    found, node = {}, ""
    for line in text.splitlines():
        tag, what = line.removeprefix("[").split("] ", 1)
        if tag == "DPU PPE":
            found[node].append(what.strip())
        else:
            node = what.split(":")[0]
            found[node] = []
    assert {node: found[node] for node in WANTED[name]} == WANTED[name]
