"""The probe answers on gpusim as it did on a real device, but for what differences.md lists."""

import json
import sys
from pathlib import Path

import compare
import gpusim
import pytest
from child_processes import output_of

HERE = Path(__file__).resolve().parent
REAL = HERE / "h200.json"
PATIENT = ("--seconds", "120")
"""Nothing hangs on gpusim: a question that takes long is asked of a busy machine."""
pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings")


def ask(folder, *options):
    """Have gpusim answer questions. It is told not to abort where programs are wrong."""
    output = folder / "answers.json"
    command = [sys.executable, HERE / "probe.py", "--output", output, *PATIENT, *options]
    environment = gpusim.environment(strict=False, quiet=True, devices=2)
    output_of(command, env=environment, timeout=None)
    return json.loads(output.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What gpusim answers to every question.

    Whether a call waits or returns, and whether a stream goes on, a probe can only tell by a
    clock: on a busy machine a thread that stands still is taken for one that waits. So what
    is answered otherwise than by a real device is asked once more, alone.
    """
    folder = tmp_path_factory.mktemp("probe")
    found = ask(folder, "--jobs", "4")
    if REAL.exists():
        real = json.loads(REAL.read_text(encoding="utf-8"))
        patterns = compare.read_documented(HERE / "differences.md")
        odd = {
            each.question.partition(": ")[0]
            for each in compare.compare(real, found)
            if compare.is_documented(each.question, patterns) is None
        }
        if odd:
            found["answers"] |= ask(folder, "--only", *sorted(odd))["answers"]
    return found


def test_every_question_has_an_answer(answers):
    assert len(answers["answers"]) > 900
    bad = {
        name: answer
        for name, answer in answers["answers"].items()
        if isinstance(answer, str) and answer.startswith(("raises ", "hangs", "dies", "setup:"))
        if compare.is_documented(name, compare.read_documented(HERE / "differences.md")) is None
    }
    assert bad == {}


@pytest.mark.skipif(not REAL.exists(), reason="no real device has answered yet")
def test_the_answers_are_a_real_devices(answers):
    real = json.loads(REAL.read_text(encoding="utf-8"))
    patterns = compare.read_documented(HERE / "differences.md")
    found = compare.compare(real, answers)
    new = [each for each in found if compare.is_documented(each.question, patterns) is None]
    assert new == []
    needed = {compare.is_documented(each.question, patterns) for each in found}
    assert set(patterns) - needed == set(), "differences.md lists what is none"


def test_a_difference_is_found_and_can_be_documented(tmp_path):
    one = {"answers": {"a: x": 1, "a: y": "SUCCESS", "b": True, "peers": "setup: one device only"}}
    other = {"answers": {"a: x": 2, "a: y": "SUCCESS", "c": 3, "peers: can": 1}}
    found = compare.compare(one, other)
    assert [each.question for each in found] == ["a: x", "b", "c"]
    assert found[1] == ("b", True, "(not asked)")
    page = tmp_path / "differences.md"
    page.write_text("| question | why |\n|---|---|\n| `a: *` | reasons |\n| `c` | more |\n")
    patterns = compare.read_documented(page)
    assert patterns == ["a: *", "c"]
    assert [compare.is_documented(each.question, patterns) for each in found] == ["a: *", None, "c"]
