"""What the README tells a reader to type works, in the order in which it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def block(title, language):
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.M | re.S)[1]
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", section, re.M | re.S)
    return text


@pytest.mark.models
@pytest.mark.timeout(400)  # a dozen processes, which wait for each other on a busy machine
def test_the_examples_work_one_after_the_other(tmp_path):
    for name in ("scripts", "samples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "out").mkdir()  # make demo does
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def type_in(text, *command):
        done = subprocess.run(command, input=text, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    activate, commands = block("Command line", "sh").split("\n", 1)
    assert activate == ". .venv/bin/activate"  # the environment of this test is active already
    printed = type_in(commands, "bash", "-eu", "-s")
    for words in (": passed", "MappedInference", "engines busy", "level limit", "hardware profiles"):
        assert words in printed
    assert {"model.onnx", "trace.json", "model.blob"} <= {path.name for path in (tmp_path / "out").iterdir()}

    printed = type_in(block("Python", "python"), sys.executable, "-")
    first, second = (float(number) for number in re.search(r"array\(\[\[(.+), (.+)\]\]", printed).groups())
    assert first + second == pytest.approx(1, abs=1e-3)  # softmax

    printed, shown = type_in(block("C", "sh"), "bash", "-eu", "-s"), block("C", "text")
    numbers = re.compile(r" *\d+\.\d+")

    def words(text):
        return numbers.sub("", re.sub(r"\|.*\|", "", text))  # the bars of the timeline follow from its numbers

    assert words(printed) == words(shown)
    found, expected = ([float(number) for number in numbers.findall(text)] for text in (printed, shown))
    assert found[0] == pytest.approx(expected[0], rel=0.2)  # the compiler's schedules change
    assert found[-2:] == pytest.approx(expected[-2:], abs=2e-3)
    assert found[-2:] == pytest.approx([first, second], abs=1e-6)  # the same values from C and from Python


def test_the_host_programs_work(tmp_path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    printed = run(sys.executable, "-c", block("Host programs", "python"))
    assert printed.startswith("[0. 0. 0. 0. 0. 1. 2. 3.]\n")
    assert re.search(r"^stream 1 +relu +\|.*=", printed, re.M)

    (tmp_path / "host.c").write_text(block("Host programs", "c"))
    run("bash", "-eu", "-c", "gcc -Wall -Wextra -Werror host.c $(npu-config --cflags --libs) -o host")
    assert run("./host") == "0 2 0 4: success\n"
    folder = run("npu-config", "--pkg-config").strip()
    assert Path(folder, "libnpu.pc").exists()


def test_two_commands_lead_from_the_clone_to_the_demo_and_the_tests():
    start = re.search(r"^## Start\n(.*?)^## ", README, re.M | re.S)[1]
    assert re.findall(r"^make (\w+)", start, re.M) == ["demo", "test"]
