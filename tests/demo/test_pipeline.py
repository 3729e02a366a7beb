"""The demo's pipeline beside the one by hand: the same edges, half the lines; pinned arrays."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import mmap
import threading
import tokenize
from pathlib import Path

import numpy as np
import pytest

import hal
from hal.demo import pipeline, reference
from hal.demo.host import HostTiles
from hal.demo.kernels import TileKernels
from hal.errors import OperationError, OutOfMemoryError, UnimplementedError

BY_HAND = Path(__file__).resolve().parents[2] / "benchmarks" / "pipeline_by_hand.py"
SIGMA = 1.0
LIMIT = 300
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


def load_by_hand():
    spec = importlib.util.spec_from_file_location("pipeline_by_hand", BY_HAND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


by_hand = load_by_hand()


@pytest.fixture
def device():
    with hal.create_device("cpu") as made:
        yield made


@contextlib.contextmanager
def opened(kind, device, picture, slots=2, **options):
    with (
        HostTiles(device, picture, sigma=SIGMA, tile_size=48) as host,
        kind(TileKernels(device, SIGMA, host.tiles[0]), host, slots=slots, **options) as made,
    ):
        host.forget()
        yield host, made


def find_edges(kind, device, picture, slots=2, passes=1):
    with opened(kind, device, picture, slots) as (host, made):
        for _ in range(passes):
            made.send()
        made.wait(LIMIT)
        return host.picture()


@pytest.mark.parametrize(("slots", "passes"), [(1, 1), (2, 3), (3, 1), (40, 2)])
def test_both_find_the_same_edges(device, crop, slots, passes):
    ours = find_edges(pipeline.TilePipeline, device, crop, slots, passes)
    theirs = find_edges(by_hand.TilePipeline, device, crop, slots, passes)
    assert np.array_equal(ours, theirs)
    assert np.abs(ours - reference.edges(crop, SIGMA)).max() <= reference.tolerance(SIGMA)


@pytest.mark.parametrize(
    "kind", [pipeline.TilePipeline, by_hand.TilePipeline], ids=["flow", "by hand"]
)
def test_both_do_the_same_work(device, crop, kind):
    seen = []
    with opened(kind, device, crop, trace=lambda each, _: seen.append(each.kind)) as (host, made):
        seen.clear()
        made.send()
        made.wait(LIMIT)
        assert seen == ["write", "execute", "read"] * len(host.tiles)


def test_the_pipeline_is_half_as_long_as_by_hand():
    ours, theirs = (count_code(Path(each.__file__)) for each in (pipeline, by_hand))
    assert 2 * ours <= theirs, f"{ours} lines of code on tracked buffers, {theirs} by hand"


def count_code(path: Path) -> int:
    """Return how many lines of a module hold code: not empty, no comment, no docstring."""
    text = path.read_text(encoding="utf-8")
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def test_lines_of_code_are_counted(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        '"""Text\n\nof two lines."""\n\n# comment\nx = (\n    1,  # one\n)\n\ny = """a\nb"""\n'
    )
    assert count_code(path) == 5


def test_the_arrays_are_pinned_and_let_go(device, crop, monkeypatch):
    """In pages that nobody else has: a driver pins whole ones, and each but once."""
    pinned, released = [], threading.Semaphore(0)
    imported = hal.Device.import_array

    def import_array(self, array):
        pinned.append(array)
        return imported(self, array, release=released.release)

    monkeypatch.setattr(hal.Device, "import_array", import_array)
    with opened(pipeline.TilePipeline, device, crop) as (host, made):
        made.send()
        made.wait(LIMIT)
        for arrays in (host.regions, host.edges):
            (whole,) = [each for each in pinned if np.may_share_memory(each, arrays[0])]
            assert all(np.may_share_memory(whole, each) for each in arrays)
        assert not released.acquire(blocking=False)
    assert len(pinned) == 2
    for whole in pinned:
        before = whole.ctypes.data - whole.base.ctypes.data
        assert min(before, whole.base.nbytes - before - whole.nbytes) >= mmap.PAGESIZE
    assert all(released.acquire(timeout=LIMIT) for _ in pinned)


@pytest.mark.parametrize("error", [UnimplementedError, OperationError, OutOfMemoryError])
def test_without_pinned_memory_it_works_as_well(device, crop, monkeypatch, error):
    def refuse(self, array):
        message = "no pinned memory"
        raise error(message)

    monkeypatch.setattr(hal.Device, "import_array", refuse)
    found = find_edges(pipeline.TilePipeline, device, crop)
    assert np.abs(found - reference.edges(crop, SIGMA)).max() <= reference.tolerance(SIGMA)


def test_another_mistake_is_not_hidden(device, crop, monkeypatch):
    monkeypatch.setattr(hal.Device, "import_array", lambda self, array: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        HostTiles(device, crop, sigma=SIGMA, tile_size=48)


def test_nobody_can_change_what_is_on_its_way(device, crop):
    with HostTiles(device, crop, sigma=SIGMA, tile_size=48) as host:
        for region in host.regions:
            with pytest.raises(ValueError, match="read-only"):
                region[0] = 1
            with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                region.flags.writeable = True
