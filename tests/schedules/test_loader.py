"""Test the loader on a toy package: isolation, patches, reset, and points in the code."""

import sys

import pytest
from schedlab.choices import ScheduleError
from schedlab.explore import explore, search
from schedlab.loader import Patch, PatchError, load_core

SYNC = """
import threading
Lock = threading.Lock
CONSTANT = 3
"""

BOX = """
import itertools
from toyhal._base import sync

lock = sync.Lock()
numbers = itertools.count(1)
things = []

class Box:
    __slots__ = ("_left", "log")
    kept = {}

    def __init__(self, left):
        self._left = left
        self.log = []

    def down(self):
        self._left -= 1
        if not self._left:
            self.log.append("zero")

    def safe_down(self):
        with lock:
            self._left -= 1
            if not self._left:
                self.log.append("zero")

class Plain:
    def __init__(self):
        self._count = 0

    def up(self):
        self._count += 1

box = Box(7)

def lazy():
    from toyhal import _late
    return _late.WHICH

def poke():
    things.append(next(numbers))
    Box.kept["x"] = 1
    box._left = 0
"""


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "toyhal"
    (folder / "_base").mkdir(parents=True)
    (folder / "__init__.py").write_text("from toyhal import _box\n")
    (folder / "_base" / "__init__.py").write_text("")
    (folder / "_base" / "sync.py").write_text(SYNC)
    (folder / "_box.py").write_text(BOX)
    (folder / "_late.py").write_text("WHICH = 'right'\n")
    return tmp_path


class Case:
    name = "box"

    def __init__(self, core, method, check):
        self.core = core
        self.method = method
        self.check = check

    def run(self, scheduler):
        core = self.core
        core.reset()
        core.tracking = bool(core.tracked)
        scheduler.timeline_lock = core._box.lock
        box = core._box.Box(2) if self.method != "up" else core._box.Plain()
        scheduler.join(*[scheduler.spawn(getattr(box, self.method)) for _ in range(2)])
        core.tracking = False
        self.check(box)


def counted(box):
    assert box._left == 0
    assert box.log == ["zero"]


def test_isolated(root):
    core = load_core(package="toyhal", root=root)
    assert "toyhal" not in sys.modules
    assert core._box.lazy() == "right"
    assert "toyhal" not in sys.modules
    assert core.sync.Lock is not __import__("threading").Lock
    assert core.sync.CONSTANT == 3
    assert load_core(package="toyhal", root=root) is core
    assert load_core(package="toyhal", root=root, track=True) is not core


def test_patches(root):
    patch = Patch("_late", "'right'", "'wrong'")
    core = load_core((patch,), package="toyhal", root=root, extra=("_late",))
    assert core._box.lazy() == "wrong"
    for bad in (Patch("_late", "'left'", ""), Patch("_box", "self", ""), Patch("_gone", "a", "b")):
        with pytest.raises(PatchError):
            load_core((bad,), package="toyhal", root=root, extra=("_late",))


@pytest.mark.parametrize("track", [False, True])
def test_reset(root, track):
    core = load_core(package="toyhal", root=root, track=track)
    for _ in range(3):
        core.reset()
        core._box.poke()
        core._box.poke()
        assert core._box.things == [1, 2]
    core.reset()
    assert core._box.things == []
    assert core._box.Box.kept == {}
    assert core._box.box._left == 7


def test_a_countdown_outside_the_lock_is_seen_only_with_points_in_the_code(root):
    plain = load_core(package="toyhal", root=root)
    report = explore(Case(plain, "down", counted))
    assert report.failure is None
    lines = load_core(package="toyhal", root=root, lines=True)
    assert isinstance(search(Case(lines, "down", counted), range(300)).failure, ScheduleError)
    assert search(Case(lines, "safe_down", counted), range(300)).failure is None
    assert explore(Case(lines, "down", counted), prune=False).failure is not None


@pytest.mark.parametrize(("method", "label"), [("down", "Box._left"), ("up", "Plain._count")])
def test_races_are_learnt_and_explored(root, method, label):
    core = load_core(package="toyhal", root=root, track=True)
    core.set_races(())
    core.learning = {}
    case = Case(core, method, lambda _: None)
    assert explore(case).failure is None
    races = core.learnt_races()
    assert label in races
    core.learning = None
    core.set_races(races)
    check = counted if method == "down" else lambda box: box._count == 2 or pytest.fail("lost")
    assert explore(Case(core, method, check)).failure is not None
    if method == "down":
        report = explore(Case(core, "safe_down", counted))
        assert report.failure is None
        assert report.complete
