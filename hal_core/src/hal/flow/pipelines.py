"""Define pipelines: a recording that runs over many inputs, several of which are on their way."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import hal
from hal.errors import ArgumentTypeError, ClosedError, HalError, InvalidArgumentError
from hal.flow.buffers import TrackedBuffer
from hal.flow.recordings import Recording

if TYPE_CHECKING:
    from hal.flow.flow import Flow

__all__ = ["Pipeline"]

_Set = tuple[TrackedBuffer | None, ...]


class Pipeline:
    """Run a recording over many inputs, while others are uploaded and results come back.

    Made by `Flow.pipeline`. It has some sets of buffers, of which each `run`
    takes the next: so the upload queue fills one while the kernels use another
    and a third is downloaded. A set is used again as soon as its bytes are
    free, which the flow knows. One thread at a time.

    Attributes
    ----------
    recording
        What it runs.
    depth
        How many sets there are.
    """

    __slots__ = ("_flow", "_sets", "_turns", "depth", "recording")

    def __init__(self, flow: Flow, recording: Recording, depth: int) -> None:
        if not isinstance(recording, Recording):
            message = f"pipeline takes a recording (flow.record()), not {type(recording).__name__}"
            raise ArgumentTypeError(message)
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            message = f"depth is how many inputs are on their way, 1 or more, not {depth!r}"
            raise InvalidArgumentError(message)
        self._flow = flow
        self.recording: Final = recording
        self.depth: Final = depth
        device = recording.commands.device
        self._sets: list[_Set] = [
            tuple(
                None
                if slot.size is None
                else flow.allocate(slot.size, dtype=slot.dtype, device=device)
                for slot in recording.slots
            )
            for _ in range(depth)
        ]
        self._turns: Iterator[_Set] = itertools.cycle(self._sets)

    def run(
        self,
        inputs: Mapping[int, object],
        outputs: Mapping[int, object],
    ) -> list[hal.Submission]:
        """Upload inputs, run the recording, download outputs; return at once.

        Both by slot. An input is an array, which `Flow.write` copies into the
        buffer of the slot, or a tracked buffer (for what kernels print a
        `hal.Output`), which is bound in its place; a slot without a size needs
        one of those. An output is what `Flow.read` takes. Returns the
        downloads, in order, or if there are none the execution. Raises as
        those methods do, and `ClosedError` after `close`; what was submitted
        before an error goes on.
        """
        if not self._sets:
            message = "the pipeline is closed; make another with flow.pipeline(recording)"
            raise ClosedError(message)
        table: list[TrackedBuffer | hal.Output | None] = [*next(self._turns)]
        slots = range(len(table))
        named = (*inputs, *outputs)
        for slot in named:
            if slot not in slots:
                raise _not_bound(table, named)
        for slot, value in inputs.items():
            if isinstance(value, (TrackedBuffer, hal.Output)):
                table[slot] = value
        if None in table:
            raise _not_bound(table, named)
        bound = cast("list[TrackedBuffer]", table)
        flow = self._flow
        for slot, value in inputs.items():
            if value is not bound[slot]:
                flow.write(bound[slot], value)
        execution = flow.execute(self.recording, bindings=bound)
        return [flow.read(bound[slot], array) for slot, array in outputs.items()] or [execution]

    def close(self) -> None:
        """Let its buffers go, once all that uses them has ended. May be called twice."""
        sets, self._sets = self._sets, []
        for buffer in itertools.chain(*sets):
            if buffer is not None:
                buffer.close()


def _not_bound(table: Sequence[object], named: Iterable[object]) -> HalError:
    """Return which slots there are not, or have no buffer."""
    unknown = [slot for slot in named if slot not in range(len(table))]
    if unknown:
        return InvalidArgumentError(
            f"pipeline: the recording has {len(table)} slots, and {unknown} are none of them"
        )
    unbound = [slot for slot, buffer in enumerate(table) if buffer is None]
    return InvalidArgumentError(
        f"pipeline: slots {unbound} have no size; give each a tracked buffer, or a size where they "
        "are recorded: slots=[(dtype, bytes)]"
    )
