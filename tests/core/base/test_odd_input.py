"""The whole public interface with odd arguments: it works, or raises an error of hal's.

The calls are found by looking at the public classes (`odd_calls`), a child
process for each of them, since a call may hang or end the process. Afterwards
the device does its work, and nothing has leaked.
"""

import inspect
import json

import pytest
from child_processes import run_python
from odd_arguments import GOOD, good_of
from odd_calls import KEYWORDS, MADE, batches, parameters_of, targets_of
from odd_world import SUBJECTS, World

BATCHES = batches()
LIMIT = 300.0


@pytest.mark.parametrize("batch", BATCHES)
def test_odd_arguments_are_taken_or_refused_with_an_error_of_ours(tmp_path, monkeypatch, batch):
    monkeypatch.chdir(tmp_path)  # whatever is taken for a path
    result = run_python(tmp_path, f"import odd_calls; odd_calls.main({batch!r})", timeout=LIMIT)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert found[:-1] == []
    assert found[-1]["calls"] == 0 or found[-1]["calls"] > len(SUBJECTS)


def test_a_call_that_takes_anything_is_found(tmp_path):
    """And one that raises what it should not: the test can fail."""
    result = run_python(
        tmp_path,
        """
        import functools
        import hal, odd_calls

        @functools.wraps(hal.Semaphore.poll)
        def poll(self, value):
            return bool(value)

        @functools.wraps(hal.Semaphore.at)
        def at(self, value):
            return hal.Timepoint(self, value + 0)

        hal.Semaphore.poll, hal.Semaphore.at = poll, at
        odd_calls.main("hal.Semaphore")
        """,
        timeout=LIMIT,
    )
    found = [json.loads(line) for line in result.stdout.splitlines()][:-1]
    assert {each["call"].partition("(")[0] for each in found} == {"Semaphore.poll", "Semaphore.at"}
    whats = {each["call"]: each["what"] for each in found}
    assert whats["Semaphore.poll(value=text)"] == "taken, and returned bool"
    assert whats["Semaphore.at(value=text)"].startswith("raw TypeError")


def test_every_public_class_and_parameter_is_known():
    """A new one needs an entry here that makes a good value; a method needs nothing."""
    missing = []
    for owner in BATCHES.values():
        if inspect.isclass(owner) and owner not in SUBJECTS and owner not in MADE:
            missing.append(f"SUBJECTS: {owner.__name__}")
        for title, function in targets_of(owner):
            for each in parameters_of(function):
                if each.kind is each.VAR_KEYWORD and title not in KEYWORDS:
                    missing.append(f"KEYWORDS: {title}")
                if each.default is each.empty and good_of(title, each.name) is None:
                    missing.append(f"GOOD: {title}.{each.name}")
    assert missing == []
    assert len(GOOD) < 200, "a method of its own needs none of them"


def test_every_repr_is_short_and_names_no_address():
    """This looks at one object of each public class, and at the objects that it hands out."""
    world = World("cpu")
    texts = {name: repr(getattr(world, name)) for name in [*SUBJECTS.values(), "queues", "image"]}
    world.close()
    assert [text for text in texts.values() if " object at 0x" in text or len(text) > 400] == []
