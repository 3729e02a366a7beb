"""Run the demo from picture to report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import hal
from hal.demo import picture, reference
from hal.demo.host import HostTiles
from hal.demo.kernels import TileKernels
from hal.demo.observe import Observation, Observer, Overlap
from hal.demo.pipeline import TilePipeline
from hal.demo.tiles import choose_size
from hal.demo.timeline import RunTimeline
from hal.errors import InvalidArgumentError

_SMALLEST_SIGMA = 0.3  # leaves a blur with a radius of one pixel
_LARGEST_SIGMA = 32.0
_LARGEST_PICTURE = 1 << 26
_OBSERVED_RUNS = 5
"""A busy machine takes the processor from the host for milliseconds, in which it sees nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run."""

    source: Path | None  # None for the photograph that scikit-image ships
    device: str  # as for `hal.create_device`
    output: Path
    timeline_output: Path
    sigma: float = 2.0  # the blur's standard deviation in pixels, 0.3 to 32
    tile_size: int | None = None  # pixels along a side, at least 16, or None to choose
    slots: int = 3  # tiles in flight
    passes: int = 1  # how often the picture goes through in the timed run


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run."""

    name: str  # of the picture
    width: int
    height: int
    device: str
    tiles: int
    tile_size: int
    slots: int
    passes: int
    seconds: float  # of the timed run, all passes
    error: float  # the greatest difference from the reference, in units of the edge magnitude
    tolerance: float
    overlap: Overlap  # in the run of the timeline
    output: Path
    timeline_output: Path

    @property
    def passed(self) -> bool:
        """Whether every pixel of every run is within the tolerance."""
        return self.error <= self.tolerance

    @property
    def megapixels_per_second(self) -> float:
        """Millions of pixels from the host, through the device and back, in a second."""
        return 1e-6 * self.width * self.height * self.passes / self.seconds


def run(settings: Settings) -> Report:
    """Run the demo; write both pictures; return the report, whether or not the check passed.

    Runs one pipeline several times: once to warm up, once timed, and some observed,
    which slows them down. The one that the host saw best makes the timeline. All but
    the first are checked; the host's edges are overwritten in between. Every error is a `HalError`.
    """
    _check(settings)
    if settings.source is None:
        name, pixels = picture.load_shipped()
    else:
        name, pixels = settings.source.name, picture.load(settings.source)
    height, width, _ = pixels.shape
    if width * height > _LARGEST_PICTURE:
        message = f"the picture has {width} x {height} pixels; the demo takes 64 million at most"
        raise InvalidArgumentError(message)
    tile_size = settings.tile_size or choose_size(width, height)
    with (
        hal.create_device(settings.device) as device,
        HostTiles(device, pixels, sigma=settings.sigma, tile_size=tile_size) as host,
    ):
        device_name = device.info.name
        tiles = host.tiles
        slots = min(settings.slots, len(tiles))
        kernels = TileKernels(device, settings.sigma, tiles[0])
        expected = reference.edges(pixels, settings.sigma)
        watch = _OptionalTrace()
        with TilePipeline(kernels, host, slots=slots, trace=watch) as pipeline:
            _time(pipeline, 1)
            host.forget()
            seconds = _time(pipeline, settings.passes)
            edges = host.picture()
            error = _difference(edges, expected)
            observations = []
            for _ in range(_OBSERVED_RUNS):
                host.forget()
                observations.append(watch.observe(pipeline))
                error = max(error, _difference(host.picture(), expected))
        observation = min(observations, key=lambda seen: seen.worst_resolution)
    overlap = observation.overlap()
    picture.save_edges(edges, settings.output)
    drawing = RunTimeline(observation, tiles).draw(
        pixels,
        f"{name}: blur and edges, {len(tiles)} tiles, {slots} in flight",
        f"{width} by {height} pixels in tiles of {tile_size}, on {device_name}; "
        "ordered by the bytes that they use",
    )
    picture.save_image(drawing, settings.timeline_output)
    return Report(
        name=name,
        width=width,
        height=height,
        device=device_name,
        tiles=len(tiles),
        tile_size=tile_size,
        slots=slots,
        passes=settings.passes,
        seconds=seconds,
        error=error,
        tolerance=reference.tolerance(settings.sigma),
        overlap=overlap,
        output=settings.output,
        timeline_output=settings.timeline_output,
    )


class _OptionalTrace:
    """A pipeline's trace that is observed only in some runs."""

    def __init__(self) -> None:
        self._observer: Observer | None = None

    def __call__(self, submission: hal.Submission, waits: Sequence[object]) -> None:
        if self._observer is not None:
            self._observer.traced(submission, waits)

    def observe(self, pipeline: TilePipeline) -> Observation:
        """Send every tile through, and observe."""
        self._observer = observer = Observer()
        pipeline.send()
        self._observer = None
        observer.drained()
        pipeline.wait()
        return observer.observation()


def _time(pipeline: TilePipeline, passes: int) -> float:
    """Send every tile through some times; return the seconds until the last one is back."""
    start = time.perf_counter()
    for _ in range(passes):
        pipeline.send()
    pipeline.wait()
    return time.perf_counter() - start


def _check(settings: Settings) -> None:
    if not _SMALLEST_SIGMA <= settings.sigma <= _LARGEST_SIGMA:
        raise InvalidArgumentError(
            f"sigma must be from {_SMALLEST_SIGMA:g} to {_LARGEST_SIGMA:g} pixels, "
            f"not {settings.sigma:g}"
        )
    outputs = {settings.output.resolve(), settings.timeline_output.resolve()}
    if len(outputs) == 1:
        raise InvalidArgumentError(f"both pictures would be written to {str(settings.output)!r}")
    if settings.source is not None and settings.source.resolve() in outputs:
        message = f"the result would overwrite the picture {str(settings.source)!r}"
        raise InvalidArgumentError(message)
    picture.check_output(settings.output)
    picture.check_output(settings.timeline_output)


def _difference(edges: npt.NDArray[np.float32], expected: npt.NDArray[np.float64]) -> float:
    """Return the greatest difference, infinity for NaN."""
    difference = np.abs(edges - expected)
    return float(np.where(np.isnan(difference), np.inf, difference).max())
