"""Routines: kernels that are linked with the names of a context, and can be called."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np

import hal
from hal.arguments import as_mapping, ask, shown
from hal.errors import ArgumentTypeError, ClosedError, HalError, InvalidArgumentError
from hal.flow.buffers import TrackedBuffer
from hal.flow.flow import Flow
from hal.flow.merging import Merge
from hal.flow.modes import MemoryMode, check_mode
from hal.flow.recordings import constants_of
from hal.flow.scheduler import QueueName
from hal.flow.tracking import NOTHING, TrackedAccess
from hal.handlers import dropped, own
from hal.protocols import Signals, Waits

_KEPT: Final = 8  # the most recordings of a routine, each for other pointers that are null


class Local(NamedTuple):
    """A name of which each call of a routine has memory of its own."""

    name: str
    size: int
    dtype: np.dtype[Any]
    clear: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One dispatch of a routine; `Context.link` checks it, and copies what may change.

    `kernel` is a kernel, or its name in the program. `buffers` is what each pointer takes: a name
    of the context, the parameter's own unless given; a `Merge`, for what the device's merge
    buffer brings; or None, for a tracked buffer that each call gives. `scalars` are the
    values of other parameters; each call gives those that are not here. The rest is as for
    `Flow.dispatch`; without a grid `Routine.run` takes it.
    """

    kernel: str | hal.Kernel
    grid: int | Sequence[int] | None = None
    block: int | Sequence[int] | None = None
    buffers: Mapping[str, str | Merge | None] = field(default_factory=dict)
    scalars: Mapping[str, object] = field(default_factory=dict)
    shared_memory: int | None = None
    reads: Sequence[str] = ()
    writes: Sequence[str] = ()


CallArgument: TypeAlias = str | Local | Merge  # a str names a parameter that the call gives
Find: TypeAlias = Callable[[str], TrackedBuffer | Local]


class Bound(NamedTuple):
    """A step whose names are known.

    `args` are its arguments with raw buffers, `accesses` those to their bytes. `late` are the
    indices of other arguments, what each takes, and whether that is memory which is written (True)
    or read (False), or none (None). `output` is what kernels print to, if calls give that.
    """

    step: Step
    kernel: hal.Kernel
    args: Sequence[Any]
    late: Sequence[tuple[int, CallArgument, bool | None]]
    accesses: Sequence[TrackedAccess]
    output: str | None


def bind(code: object, steps: Sequence[Step], find: Find) -> list[Bound]:
    """Return steps with what `find` gives for their names; raise for a use that is not allowed."""
    bound: list[Bound] = []
    written: set[CallArgument] = set()
    for step in steps:
        kernel = step.kernel if isinstance(step, Step) else None
        if isinstance(kernel, str) and isinstance(code, hal.Executable):
            kernel = code[kernel]
        if not isinstance(kernel, hal.Kernel):
            what = "link takes a program, or what was loaded, and hal.flow.Step('kernel', ...)"
            raise ArgumentTypeError(f"{what}; not {type(code).__name__} with {shown(step)}")
        bound.append(_bind(kernel, step, find, written))
    if not bound or (len(bound) > 1 and any(step.grid is None for step in steps)):
        raise InvalidArgumentError("link takes a step, or several that each have a grid")
    return bound


def _bind(kernel: hal.Kernel, step: Step, find: Find, written: set[CallArgument]) -> Bound:
    """Return a bound step; `written` are the locals that the steps so far have written."""
    signature = kernel.signature
    buffers = as_mapping(step.buffers, "a step: buffers are a mapping of parameters")
    scalars = as_mapping(step.scalars, "a step: scalars are a mapping of parameters")
    names = [sys.intern(each.name) for each in signature.parameters]  # the C extension compares so
    pointers = {
        each.name
        for each in signature.parameters
        if (each.kind == "ptr" or (each.kind == "any" and each.name in buffers))
        and each.name != signature.output
    }
    unknown = [*(buffers.keys() - pointers), *(scalars.keys() - (set(names) - pointers))]
    if unknown:
        has = f"kernel {kernel.name!r}{signature} has no such buffers and scalars"
        raise InvalidArgumentError(f"link: {has}: {shown(unknown)}")
    constants = constants_of(kernel, step.reads, step.writes)
    rule = f"link: a scalar of kernel {kernel.name!r} is a value that can be copied"
    # Of an output there is one.
    args = [
        each if name == signature.output else ask(_copied, each, rule)
        for name, each in zip(names, map(scalars.get, names), strict=True)
    ]
    late: list[tuple[int, CallArgument, bool | None]] = []
    accesses: list[TrackedAccess] = []
    for index, name in enumerate(names):
        if name in pointers:
            wanted = buffers.get(name, name)
            found = find(wanted) if isinstance(wanted, str) else name if wanted is None else wanted
            is_written = name not in constants
            _check_use(found, f"{name!r} of kernel {kernel.name!r}", written, is_written=is_written)
            if isinstance(found, TrackedBuffer):
                args[index] = found.raw
                accesses.append(found.writing if is_written else found.reading)
            else:
                late.append((index, found, is_written))
        elif name not in scalars:
            late.append((index, name, None))
    written.update(each for _, each, is_written in late if is_written)  # for the next kernel
    output = None if signature.output in scalars else signature.output
    return Bound(step, kernel, args, late, accesses, output)


def _copied(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview) else copy.copy(value)


def _check_use(found: object, user: str, written: set[CallArgument], *, is_written: bool) -> None:
    """Raise if a kernel may not use something in this way."""
    if not isinstance(found, (str, Local, Merge, TrackedBuffer)):
        kind = type(found).__name__
        raise ArgumentTypeError(f"{user} takes a name as a str, a Merge or None, not {kind}")
    if is_written and isinstance(found, TrackedBuffer):
        check_mode(f"{found.name!r} through {user}", found.mode)
    elif is_written and isinstance(found, Merge):
        check_mode(f"what is merged through {user}", MemoryMode.CONSTANT)
    elif isinstance(found, Local) and not (is_written or found.clear or found in written):
        message = f"{user} reads {found.name!r}, a local that has not been written in the call"
        raise InvalidArgumentError(f"{message}; write it first, clear it, or declare it 'device'")


class _RefusedError(HalError):
    """A recording was not submitted. Other errors may come after that, from the flow's trace."""


def _execute(
    lane: hal.Queue,
    commands: hal.CommandBuffer,
    bindings: list[Any],
    signal: Signals,
    waits: list[Any],
) -> hal.Submission:
    try:
        return lane.execute(commands, bindings=bindings, wait=waits, signal=signal)
    except own(ArgumentTypeError, InvalidArgumentError) as error:
        raise _RefusedError from error


class Routine:
    """Kernels whose buffers are bound to the names of a context; made by `Context.link`.

    `parameters` are the names of what each call gives: numbers, and tracked buffers for pointers;
    those of one name in several steps are one. `hal_output`, of kernels that print, takes the
    call's own `hal.Output`, and may be left out. Any thread may call it.
    """

    __slots__ = ("__dict__", "__weakref__", "_flow", "_lanes", "_plain")

    def __init__(self, flow: Flow, device: hal.Device, name: str, steps: Sequence[Bound]) -> None:
        late = dict.fromkeys(what for step in steps for _, what, _ in step.late)
        self.name: Final = name
        self.parameters: Final = tuple(each for each in late if isinstance(each, str))
        self._flow = flow
        self._lanes = flow.lanes_of(device)
        self._steps = steps
        self._outputs = list({step.output: None for step in steps if step.output})
        self._locals = [each for each in late if isinstance(each, Local)]
        self._merges = [each for each in late if isinstance(each, Merge)]
        # The memory that only a call knows, and whether some step writes it: True comes last
        uses = [(use, what) for step in steps for _, what, use in step.late if use is not None]
        self._memory = {what: use for use, what in sorted(uses, key=itemgetter(0))}
        self._scalars = [*{*self.parameters}.difference(self._memory, self._outputs)]
        known = sorted((each for step in steps for each in step.accesses), key=itemgetter(2))
        self._accesses = list({access[:2]: access for access in known}.values())
        self._ended = ""
        self._kept: dict[object, hal.CommandBuffer | None] = {}  # None: called once so far
        self._plain: tuple[Any, ...] | None = None  # a call that the C extension makes
        if len(steps) == 1:
            step, kernel, args, open_ones, *_ = steps[0]
            self._prepare((kernel, step.grid, step.block, step.shared_memory), args, open_ones)

    def __call__(self, /, **arguments: object) -> hal.Submission:
        """Run it as `run` does, with the open parameters by name."""
        return self.run(arguments)

    def run(  # noqa: PLR0912 - calls cost
        self,
        arguments: Mapping[str, object] | None = None,
        *,
        grid: int | Sequence[int] | None = None,
        queue: QueueName = None,
        wait: Waits = NOTHING,
        signal: Signals = NOTHING,
    ) -> hal.Submission:
        """Run it once, after the work that the bytes require; return the last step's submission.

        `grid` is for a single kernel that was linked without. Locals are taken in the order of the
        queue, and given back behind the last step. Steps are dispatched one by one, and from the
        second call on recorded and run together. A step's failure stays with the bytes that it
        writes. Raises `ArgumentTypeError` for missing and surplus arguments, `InvalidArgumentError`
        for what a merge buffer does not hold, `ClosedError` for a context or an ancestor that is
        closed, and the errors of `Flow.dispatch`; steps before the one that raises go on.
        """
        flow, steps, lanes = self._flow, self._steps, self._lanes
        given: Any = {} if arguments is None else arguments
        if given.__class__ is not dict:
            given = as_mapping(given, "run: arguments are a mapping")
        values: dict[Any, Any] = {**given}
        for output in self._outputs:
            values.setdefault(output, None)
        if values.keys() != {*self.parameters}:
            message = f"{self.name} takes {list(self.parameters)}, and got {shown(list(values))}"
            raise ArgumentTypeError(message)
        if self._ended:
            raise ClosedError(f"{self.name}: the context {self._ended!r} is closed")
        if (steps[0].step.grid is None) is (grid is None):
            message = "no grid; give one, as in run(grid=4)" if grid is None else "a grid already"
            raise InvalidArgumentError(f"{self.name} has {message}")
        for merge in self._merges:
            values[merge] = flow.merge_buffer(lanes.device).expect(merge.name, merge.mode)
        lane = lanes.compute if queue is None else flow.queue_of(queue, lanes)
        taken: list[TrackedBuffer] = []
        try:
            for local in self._locals:
                raw = lane.alloca(local.size, dtype=local.dtype)
                values[local] = buffer = TrackedBuffer(flow, lanes.track(raw), raw)
                taken.append(buffer)
                if local.clear:
                    flow.fill(buffer.view(np.uint8), 0, queue=lane)
            recorded = self._recorded(steps, values) if len(steps) > 1 else None
            if recorded is not None:
                commands, bindings, accesses = recorded
                # If the recording refuses it, so does a step below, in the user's words.
                with dropped(_RefusedError):
                    run = partial(_execute, lane, commands, bindings, signal)
                    return flow.run(accesses, run, wait)
            for each in steps:
                step, args, uses = each.step, [*each.args], each.accesses
                for index, what, use in each.late:
                    value = args[index] = values[what]
                    if use is not None and value is not None:
                        flow.check(value, self.name)
                        args[index] = value.raw
                        uses = [*uses, value.writing if use else value.reading]
                where = step.grid if grid is None else grid
                last = flow.launch(
                    each.kernel, where, step.block, (*args,), step.shared_memory, uses, lane, wait,
                    signal if each is steps[-1] else NOTHING,
                )  # fmt: skip
            return last
        finally:
            for buffer in taken:
                buffer.history.end()
                lane.dealloca(buffer.raw)

    def end(self, context: str) -> None:
        """Refuse further calls, if a context was closed, and forget what they run. For contexts."""
        self._ended = self._ended or context
        self._plain = None
        self._kept.clear()

    def __repr__(self) -> str:
        return f"<Routine {self.name}({', '.join(self.parameters)})>"

    def _prepare(self, run: tuple[Any, ...], args: Sequence[Any], late: Sequence[Any]) -> None:
        """Keep what a call runs that only takes numbers and buffers."""
        if not (self._locals or self._merges or self._outputs):
            self._plain = (*run, (*args,), (*late,), (*self._accesses,))

    def _recorded(
        self, steps: Sequence[Bound], values: Mapping[Any, Any]
    ) -> tuple[hal.CommandBuffer, list[Any], list[TrackedAccess]] | None:
        """Return a recording with its bindings and accesses, from the second call on."""
        slots = [each for each in (*self._memory, *self._outputs) if values[each] is not None]
        table, accesses = [], [*self._accesses]
        histories = {access[0] for access in accesses}
        for each in slots:
            value = values[each]
            if each in self._memory:
                self._flow.check(value, self.name)
                if value.history in histories:  # two uses of one memory, which it would not order
                    return None
                histories.add(value.history)
                accesses.append(value.writing if self._memory[each] else value.reading)
                value = value.raw
            table.append(value)
        key = tuple(slots)
        if key not in self._kept:  # it costs as much as many dispatches
            self._kept[key] = None
            return None
        known = self._kept.get(key)  # None, too, if another thread has just forgotten them all
        if known is None:
            kinds: list[Any] = [np.uint8] * len(slots) + ["scalar"] * len(self._scalars)
            known = self._lanes.device.record(slots=kinds, hazards="auto")
            names = [*slots, *self._scalars]
            with known:
                filled = {**values, **dict(zip(names, known.slots, strict=True))}
                for bound in steps:
                    step, args = bound.step, [*bound.args]
                    for index, what, _ in bound.late:
                        args[index] = filled[what]
                    known.dispatch(
                        bound.kernel, grid=cast("int", step.grid), block=step.block, args=args,
                        shared_memory=step.shared_memory, reads=step.reads, writes=step.writes,
                    )  # fmt: skip
            self._kept[key] = known
            if len(slots) == len(self._memory):
                late = [(i, what, self._memory.get(what)) for i, what in enumerate(names)]
                self._prepare((known, None, None, None), [None] * len(names), late)
            if len(self._kept) > _KEPT or self._ended:  # by another thread meanwhile
                self.end(self._ended)
        return known, [*table, *map(values.__getitem__, self._scalars)], accesses
