"""The demo from the command line: the run, the check, and every mistake in one line."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("typer", reason="the cli extra is not installed")

import hal
from hal._cli.app import run
from hal.demo import host as host_tiles
from hal.demo import kernels as tile_kernels
from hal.demo import reference
from hal.demo.host import HostTiles
from hal.demo.kernels import TileKernels, gaussian
from hal.demo.observe import STAGES, Observation, OperationTimes
from hal.demo.pipeline import TilePipeline
from hal.demo.run import _OptionalTrace
from hal.demo.tiles import cut


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.png"


def test_the_demo_on_a_crop(crop, crop_file, out, capsys):
    assert run(["demo", str(crop_file), "-o", str(out), "--tile", "64", "--passes", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "passed" in captured.out
    assert "megapixels/s" in captured.out
    assert "12 of 64 pixels, 3 in flight" in captured.out
    with Image.open(out) as image:
        assert image.size == (201, 150)
        edges = np.asarray(image, np.float64)
    # Squared, since the picture shows the root.
    expected = reference.edges(crop, 2.0)
    assert np.corrcoef(edges.ravel() ** 2, expected.ravel())[0, 1] > 0.99
    with Image.open(out.with_name("out-timeline.png")) as image:
        assert image.size[0] == 1800


@pytest.mark.parametrize("slots", ["1", "2", "64"])
def test_any_number_of_slots(crop_file, out, slots):
    timeline = out.with_name("t.png")
    arguments = ["-o", str(out), "--timeline", str(timeline), "--tile", "48", "--slots", slots]
    assert run(["demo", str(crop_file), *arguments]) == 0
    assert timeline.exists()


def test_a_picture_smaller_than_its_halo(tmp_path, out):
    path = tmp_path / "tiny.png"
    Image.new("RGB", (3, 2), (10, 200, 30)).save(path)
    assert run(["demo", str(path), "-o", str(out), "--sigma", "9"]) == 0


@pytest.mark.parametrize("mutant", ["border", "weights", "place"])
def test_the_check_finds_a_wrong_result(crop_file, out, capsys, monkeypatch, mutant):
    if mutant == "border":
        monkeypatch.setattr(host_tiles, "extend", mirrored)
    elif mutant == "weights":
        monkeypatch.setattr(tile_kernels, "gaussian", lambda sigma: gaussian(1.01 * sigma))
    else:
        monkeypatch.setattr(host_tiles, "cut", shifted)
    assert run(["demo", str(crop_file), "-o", str(out), "--tile", "64"]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert out.exists()


def mirrored(picture, halo):
    return np.pad(picture, ((halo, halo), (halo, halo), (0, 0)), mode="reflect")


def shifted(width, height, size):
    """The last tile one pixel too far to the left; the others as they should be."""
    *tiles, last = cut(width, height, size)
    return (*tiles, dataclasses.replace(last, left=last.left - 1))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere.png"], "there is no file 'nowhere.png'"),
        (["{crop}", "--device", "nosuch"], "nosuch"),
        (["{crop}", "--device", "cpu:99"], "cpu:99"),
        (["{crop}", "-o", "{tmp}/no/folder.png"], "there is no folder"),
        (["{crop}", "-o", "{tmp}/out.txt"], "Pillow writes no"),
        (["{crop}", "-o", "{crop}"], "overwrite"),
        (["{crop}", "-o", "{tmp}/a.png", "--timeline", "{tmp}/a.png"], "both pictures"),
        (["{crop}", "--sigma", "100"], "sigma must be"),
        (["{tmp}/text.png"], "not a picture"),
    ],
)
def test_a_mistake_is_one_line(crop_file, tmp_path, capsys, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.png").write_text("no picture")
    before = sorted(tmp_path.iterdir())
    filled = [argument.format(crop=crop_file, tmp=tmp_path) for argument in arguments]
    assert run(["demo", *filled]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hal: ")
    assert captured.err.count("\n") == 1
    assert reason in captured.err
    assert sorted(tmp_path.iterdir()) == before


@contextlib.contextmanager
def open_pipeline(crop, **options):
    with (
        hal.create_device("cpu") as device,
        HostTiles(device, crop, sigma=1.0, tile_size=48) as host,
        TilePipeline(TileKernels(device, 1.0, host.tiles[0]), host, slots=2, **options) as pipeline,
    ):
        yield host, pipeline


def test_one_recording_serves_all_tiles(crop, monkeypatch):
    """Also the smaller ones at the borders: each execution binds what its tile needs."""
    recorded, executed = [], []
    record, execute = hal.Device.record, hal.Queue.execute
    monkeypatch.setattr(
        hal.Device, "record", lambda *a, **k: recorded.append(record(*a, **k)) or recorded[-1]
    )
    monkeypatch.setattr(
        hal.Queue, "execute", lambda *a, **k: executed.append(a[1]) or execute(*a, **k)
    )
    with open_pipeline(crop) as (host, pipeline):
        for _ in range(2):
            pipeline.send()
        pipeline.wait(60)
        found = host.picture()
    assert len({(tile.width, tile.height) for tile in host.tiles}) == 4
    assert len(recorded) == 1
    assert executed == recorded * (2 * len(host.tiles))
    assert np.abs(found - reference.edges(crop, 1.0)).max() <= reference.tolerance(1.0)


def test_an_observed_run_is_causal(crop):
    watch = _OptionalTrace()
    with open_pipeline(crop, trace=watch) as (host, pipeline):
        pipeline.send()
        pipeline.wait(60)
        observation = watch.observe(pipeline)
    count = len(host.tiles)
    assert [(o.number, o.stage) for o in observation.operations] == [
        (number, stage) for number in range(count) for stage in STAGES
    ]
    for operation in observation.operations:
        assert 0 <= operation.issued <= operation.ready <= operation.retired
        assert operation.retired <= observation.seconds
    retired = {(o.number, o.stage): o.retired for o in observation.operations}
    for number in range(count):
        assert retired[number, "upload"] <= retired[number, "compute"]
        assert retired[number, "compute"] <= retired[number, "download"]


def test_overlap_is_the_time_with_two_busy_queues():
    def operation(stage: str, ready: float, retired: float) -> OperationTimes:
        return OperationTimes(0, 0, stage, 0.0, 0.0, ready, retired)

    observation = Observation(
        (
            operation("upload", 0.0, 4.0),
            operation("compute", 3.0, 8.0),
            operation("download", 7.0, 10.0),
        ),
        10.0,
        0.0,
        0.0,
    )
    overlap = observation.overlap()
    assert overlap.busy == pytest.approx({"upload": 0.4, "compute": 0.5, "download": 0.3})
    assert overlap.together == pytest.approx(0.2)
