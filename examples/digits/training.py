"""Train a network on several devices at once, each with a part of every batch.

Each device has a replica of the network. A step computes the gradients of all
parts, merges them pair by pair into the first device's, and updates every replica
by the sum: so all of them stay the same, and learn the same as a single
device with the whole batch, except for rounding. Merge buffers make another device's
gradient readable. The program names no waits, and the host waits
only once per epoch, for the losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self, get_args

import numpy as np

import hal
from digits.network import Floats, Ints, Replica, initial
from hal.demo.observe import Observation, Observer, StageSubmission
from hal.errors import InvalidArgumentError
from hal.flow import Flow, TrackedBuffer, VirtualDevice
from hal.flow.merging import MergeMode

__all__ = ["KINDS", "Digits", "Training", "load_digits"]

KINDS: Final = ("upload", "gradient", "bring", "merge", "descend")
"""The kinds of a step's operations; ``tile`` of an observed operation is an index here."""

_HELD_OUT: Final = 360


@dataclass(frozen=True, slots=True)
class Digits:
    """Pictures of 8 by 8 pixels from 0 to 1, and the digits that they show.

    Attributes
    ----------
    images, labels
        For training.
    test_images, test_labels
        Held out, for the evaluation.
    """

    images: Floats
    labels: Ints
    test_images: Floats
    test_labels: Ints


def load_digits(seed: int = 0) -> Digits:
    """Return the 1797 handwritten digits that scikit-learn ships; 360 random ones are held out."""
    # Imported here, because it takes long to import.
    from sklearn import datasets  # noqa: PLC0415

    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(images))
    images = np.ascontiguousarray(images[order] / 16, np.float32)
    labels = np.ascontiguousarray(labels[order], np.int32)
    held = slice(None, _HELD_OUT)
    rest = slice(_HELD_OUT, None)
    return Digits(images[rest], labels[rest], images[held], labels[held])


class Training:
    """Replicas on devices, and their training; one thread at a time.

    Close it, or use it in a with-statement, before the devices.

    Attributes
    ----------
    flow
        Their flow.
    """

    def __init__(
        self,
        devices: Sequence[hal.Device | VirtualDevice],
        digits: Digits,
        *,
        batch: int = 128,
        rate: float = 0.1,
        momentum: float = 0.9,
        seed: int = 0,
        mode: MergeMode = "streaming",
        peers: bool = True,
    ) -> None:
        """Put a replica on each device.

        `batch` is the rows of a step, for all devices together; `rate` and
        `momentum` are those of the descent; `seed` determines the initial weights
        and the order of the rows, `mode` what merge buffers do, `peers`
        as for `hal.flow.Flow`. Raises `InvalidArgumentError` for a device that
        is given twice, for a batch that is smaller than the number of devices
        or larger than all rows, and for a mode that merge buffers do not have.
        """
        if len(set(devices)) < len(devices):
            message = "each device can have one replica; open it again, or use virtual devices"
            raise InvalidArgumentError(message)
        if mode not in get_args(MergeMode):
            message = f"mode is one of {', '.join(get_args(MergeMode))}, not {mode!r}"
            raise InvalidArgumentError(message)
        if not len(devices) <= batch <= len(digits.images):
            message = (
                f"a batch has from {len(devices)} rows, one for each device, to "
                f"{len(digits.images)}, not {batch}"
            )
            raise InvalidArgumentError(message)
        self._digits = digits
        self._batch, self._rate, self._momentum, self._mode = batch, rate, momentum, mode
        self._steps = len(digits.images) // batch
        self._order = np.random.default_rng(seed)
        self._kind = 0
        self._watch: Callable[[StageSubmission], None] | None = None
        self.flow = Flow(*devices, peers=peers, trace=self._trace)
        opened = self.flow.devices
        names = [device.name for device in devices]
        self._names = {
            getattr(device.queues, name): f"{given} {name}"
            for device, given in zip(opened, _apart(names), strict=True)
            for name in ("upload", "compute", "download")
        }
        # As even as possible; a replica's part has the same size in every step.
        self._parts = np.array_split(np.arange(batch), len(opened))
        images, labels = digits.images, digits.labels
        self._replicas = [
            Replica(self.flow, device, images, labels, len(part), self._steps)
            for device, part in zip(opened, self._parts, strict=True)
        ]
        for replica in self._replicas:
            replica.reset(initial(seed))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flow.close()

    def run(self, epochs: int) -> Floats:
        """Train for some epochs, 1 or more; return the loss of each step, before it. Blocks."""
        if epochs < 1:
            message = f"training takes 1 epoch or more, not {epochs}"
            raise InvalidArgumentError(message)
        curves = []
        for _ in range(epochs):
            order = self._order.permutation(len(self._digits.images)).astype(np.int32)
            for step in range(self._steps):
                self._step(step, order[step * self._batch : (step + 1) * self._batch])
            curves.append(self._replicas[0]["curve"].numpy())
        return np.concatenate(curves)

    def networks(self) -> list[Floats]:
        """Return each replica's parameters: all equal, except for roundings of two backends.

        Blocks.
        """
        return [replica["network"].numpy() for replica in self._replicas]

    def accuracy(self) -> float:
        """Return the share of held-out digits that the first replica recognises, 0 to 1. Blocks."""
        images, labels = self._digits.test_images, self._digits.test_labels
        device = self._replicas[0].device
        with Replica(self.flow, device, images, labels, len(images), 1) as judge:
            judge.reset(self._replicas[0]["network"].numpy())
            return float(np.mean(judge.guess(np.arange(len(images), dtype=np.int32)) == labels))

    def observe(self, steps: int) -> Observation:
        """Train for some more steps, of at most one epoch, and observe. Blocks."""
        observer = Observer(list(self._names.values()))
        order = self._order.permutation(len(self._digits.images)).astype(np.int32)
        self.flow.wait_idle()
        self._watch = observer.submitted
        try:
            for step in range(min(steps, self._steps)):
                self._step(step, order[step * self._batch : (step + 1) * self._batch])
        finally:
            self._watch = None
        observer.drained()
        return observer.observation()

    def _step(self, step: int, rows: Ints) -> None:
        """Train with one batch."""
        self._kind = KINDS.index("upload")
        for replica, part in zip(self._replicas, self._parts, strict=True):
            replica.upload(step, rows[part])
        self._kind = KINDS.index("gradient")
        for replica in self._replicas:
            replica.compute(step)
        stride = 1
        while stride < len(self._replicas):
            for ours, theirs in zip(
                self._replicas[:: 2 * stride], self._replicas[stride :: 2 * stride], strict=False
            ):
                self._bring(theirs, ours)
                self._kind = KINDS.index("merge")
                ours.merge()
            stride *= 2
        first = self._replicas[0]
        for replica in self._replicas:
            total = first["gradient"] if replica is first else self._bring(first, replica)
            self._kind = KINDS.index("descend")
            replica.descend(
                total,
                step,
                share=1 / self._batch,
                rate=self._rate,
                momentum=self._momentum,
            )

    def _bring(self, source: Replica, target: Replica) -> TrackedBuffer:
        """Return the gradient of one replica where another one can read it."""
        self._kind = KINDS.index("bring")
        merge = self.flow.merge_buffer(target.device)
        merge.load(source["gradient"], self._mode)
        return merge.expect("gradient", self._mode)

    def _trace(self, submission: hal.Submission, waits: Sequence[object]) -> None:
        if self._watch is not None:
            stage = self._names[submission.queue]
            self._watch(StageSubmission(self._kind, stage, list(waits), submission))


def _apart(names: Sequence[str]) -> list[str]:
    """Return names, numbered where they would be equal."""
    if len(set(names)) == len(names):
        return [*names]
    return [f"{name}#{index}" for index, name in enumerate(names)]
