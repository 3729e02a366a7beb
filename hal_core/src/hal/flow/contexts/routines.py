"""Routines: callable kernels and command buffers whose buffers are bound."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import hal
from hal.arguments import as_mapping, as_names, as_text, as_three
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError
from hal.flow.buffers import TrackedBuffer
from hal.flow.recordings import Recording
from hal.flow.scheduler import QueueName, check_bytes
from hal.protocols import Signals, Waits

if TYPE_CHECKING:
    from hal.flow.contexts.context import Context
    from hal.flow.contexts.holders import Named

__all__ = ["Routine", "Step", "check_output", "is_buffer", "kernel_of", "listed"]

_KEPT: Final = 8
"""The most recordings that a routine keeps, each with its scalars."""


@dataclass(frozen=True, slots=True)
class Step:
    """One dispatch of a routine; the fields are those of `Context.link`.

    Attributes
    ----------
    kernel
        The kernel, or its name in the program.
    """

    kernel: str | hal.Kernel
    grid: int | Sequence[int] | None = None
    block: int | Sequence[int] | None = None
    buffers: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, object] = field(default_factory=dict)
    shared_memory: int | None = None
    reads: Sequence[str] = ()
    writes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check the fields, and keep copies of values that may change."""
        what = "a step"
        if not isinstance(self.kernel, hal.Kernel):
            as_text(self.kernel, f"{what}: kernel is one, or a name")
        if self.grid is not None and not hasattr(type(self.grid), "subspan"):
            as_three(self.grid, f"{what}: the grid", 0)
        if self.block is not None:
            as_three(self.block, f"{what}: the block", 1)
        if self.shared_memory is not None:
            check_bytes(f"{what}: shared_memory", self.shared_memory, 0)
        buffers = as_mapping(self.buffers, f"{what}: buffers are a mapping of parameters to names")
        checked = {
            "buffers": {name: as_text(each, "a name is a str") for name, each in buffers.items()},
            "scalars": as_mapping(self.scalars, f"{what}: scalars are a mapping to values"),
            "reads": as_names(self.reads, f"{what}: reads"),
            "writes": as_names(self.writes, f"{what}: writes"),
        }
        for field_name, value in checked.items():
            object.__setattr__(self, field_name, value)


class Routine:
    """Code whose buffers are bound to the names of a context; made by `Context.link`.

    Calling it with the open scalars runs it, through the flow: after
    the writers of what it reads, and so on. Any thread may call it.

    Attributes
    ----------
    context
        The child context, which has what was allocated for it.
    scalars
        The names of the parameters that each call gives; those of one name in
        several steps are one. `hal_output`, of kernels that print, takes the
        call's own `hal.Output`, and may be left out.
    buffers
        The names of memory that it uses, and whether it writes them.
    """

    def __init__(
        self,
        context: Context,
        steps: Sequence[Step],
        recording: Recording | None,
        slots: Sequence[str],
        names: Mapping[str, Named],
        buffers: Mapping[str, bool],
        scalars: Sequence[str],
        output: str = "",
    ) -> None:
        self.context: Final = context
        self.scalars: Final = tuple(scalars)
        self.buffers: Final = dict(buffers)
        self._steps = steps
        self._recording = recording
        self._slots = slots
        self._names = names  # whose modes and sizes were checked
        self._output = output  # the scalar that kernels print to; "" for none
        self._kept: dict[tuple[object, ...], Recording] = {}
        self._lock = threading.Lock()

    def __call__(self, **scalars: object) -> hal.Submission:
        """Run it as `run` does, with the scalars by name."""
        return self.run(scalars)

    def run(
        self,
        scalars: Mapping[str, object] | None = None,
        *,
        grid: int | Sequence[int] | None = None,
        queue: QueueName = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Run it once; return at once, with a submission to wait for.

        `grid` is for a single kernel that was linked without. Memory that is
        local to the call is taken now, and given back when the call has ended.
        Several kernels are recorded for each set of scalars, apart from their
        output; the last eight sets are kept. Raises `ArgumentTypeError`
        for missing and surplus scalars, `ClosedError` also if a name means
        other memory than when it was linked, and the errors of `Flow.dispatch` and
        `Flow.execute`.
        """
        rule = "run: scalars are a mapping of names to values"
        values = {} if scalars is None else as_mapping(scalars, rule)
        output = None
        if self._output:
            values.setdefault(self._output, None)
            output = check_output(values[self._output], self.context.name)
        if values.keys() != set(self.scalars):
            message = (
                f"{self.context.name} takes the scalars {listed(self.scalars)}, and got "
                f"{listed(values)}"
            )
            raise ArgumentTypeError(message)
        bound, taken = self._bind()
        try:
            if self._recording is not None:
                commands = self._recording
            elif len(self._steps) == 1:
                return self._dispatch(bound, values, grid, queue, wait, signal)
            else:
                commands = self._recorded(bound, values, has_output=output is not None)
            if grid is not None:
                message = f"{self.context.name}: run(grid=) is for a single kernel"
                raise InvalidArgumentError(message)
            table: list[TrackedBuffer | hal.Output] = [bound[name] for name in self._slots]
            if output is not None:
                table.append(output)
            return self.context.flow.execute(
                commands, bindings=table, queue=queue, wait=wait, signal=signal
            )
        finally:
            for buffer in taken:
                buffer.close()  # freed when the work that uses it has ended

    def __repr__(self) -> str:
        return f"<Routine {self.context.name}({', '.join(self.scalars)})>"

    def _bind(self) -> tuple[dict[str, TrackedBuffer], list[TrackedBuffer]]:
        """Return the buffer of each name, and those that are local to this call."""
        context = self.context
        found: dict[str, TrackedBuffer] = {}
        taken: list[TrackedBuffer] = []
        for name, linked in self._names.items():
            if context.find(name) is not linked:
                message = (
                    f"{context.name}: the {name!r} that it was linked with is closed; link again "
                    "to use what the name means now"
                )
                raise ClosedError(message)
            buffer = linked.buffer
            if buffer is None:
                memory = linked.memory
                buffer = context.flow.allocate(
                    memory.size, dtype=memory.dtype, device=context.device
                )
                taken.append(buffer)
            found[name] = buffer
        return found, taken

    def _dispatch(
        self,
        bound: Mapping[str, TrackedBuffer],
        values: Mapping[str, object],
        grid: int | Sequence[int] | None,
        queue: QueueName,
        wait: Waits,
        signal: Signals,
    ) -> hal.Submission:
        (step,) = self._steps
        where = step.grid if grid is None else grid
        if where is None:
            message = f"{self.context.name} was linked without a grid; give it to run(grid=...)"
            raise InvalidArgumentError(message)
        return self.context.flow.dispatch(
            kernel_of(step),
            grid=where,
            block=step.block,
            args=_arguments(step, bound, values),
            shared_memory=step.shared_memory,
            reads=step.reads,
            writes=step.writes,
            queue=queue,
            wait=wait,
            signal=signal,
        )

    def _recorded(
        self,
        bound: Mapping[str, TrackedBuffer],
        values: Mapping[str, object],
        *,
        has_output: bool,
    ) -> Recording:
        """Return the recording for these scalars, made unless it is kept.

        Each call has its own output, bound to the last slot.
        """
        keys = [_key(has_output if name == self._output else values[name]) for name in self.scalars]
        key = None if None in keys else tuple(keys)
        with self._lock:
            kept = None if key is None else self._kept.get(key)
        if kept is not None:
            return kept
        context = self.context
        made = context.flow.record(device=context.device, slots=len(self._slots) + has_output)
        with made:
            slots = dict(zip(self._slots, made.slots, strict=False))
            if has_output:
                values = {**values, self._output: made.slots[-1]}
            for step in self._steps:
                assert step.grid is not None  # noqa: S101 - looked at when it was linked
                made.dispatch(
                    kernel_of(step),
                    grid=step.grid,
                    block=step.block,
                    args=_arguments(step, {**bound, **slots}, values),
                    shared_memory=step.shared_memory,
                    reads=step.reads,
                    writes=step.writes,
                )
        if key is not None:
            with self._lock:
                if len(self._kept) >= _KEPT:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[key] = made
        return made


def _key(value: object) -> tuple[object, ...] | None:
    """Return a key that distinguishes a scalar from others, or None if it may change by itself.

    1, 1.0 and True are equal, and so are 0.0 and -0.0, so types and bytes count.
    """
    kind = type(value)
    if kind in {int, float, bool, bytes}:
        return kind, repr(value)
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    return None


def is_buffer(parameter: Any, step: Step) -> bool:  # noqa: ANN401 - a parameter of a signature
    """Return whether a parameter takes memory."""
    if parameter.name == kernel_of(step).signature.output:
        return False  # its output, which is a scalar
    return parameter.kind == "ptr" or (parameter.kind == "any" and parameter.name in step.buffers)


def check_output(value: object, user: str) -> hal.Output | None:
    """Return the output of kernels; raise if it is neither an output nor None."""
    if value is None or isinstance(value, hal.Output):
        return value
    message = f"{user}: what kernels print to is a hal.Output or None, not {type(value).__name__}"
    raise ArgumentTypeError(message)


def kernel_of(step: Step) -> hal.Kernel:
    """Return the kernel of a linked step."""
    kernel = step.kernel
    assert isinstance(kernel, hal.Kernel)  # noqa: S101 - `Context.link` has put it there
    return kernel


def _arguments(
    step: Step, bound: Mapping[str, Any], values: Mapping[str, object]
) -> dict[str, object]:
    """Return a kernel's arguments by name."""
    found: dict[str, object] = {}
    for parameter in kernel_of(step).signature.parameters:
        name = parameter.name
        if is_buffer(parameter, step):
            found[name] = bound[step.buffers.get(name, name)]
        else:
            found[name] = step.scalars[name] if name in step.scalars else values[name]
    return found


def listed(names: Iterable[str]) -> str:
    """Return names for an error."""
    return ", ".join(map(repr, names)) or "none"
