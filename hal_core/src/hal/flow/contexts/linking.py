"""Link code against a context: check its use of the names, once."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import hal
from hal.arguments import as_items, as_text, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.flow.contexts.routines import Routine, Step, check_output, is_buffer, kernel_of, listed
from hal.flow.modes import MemoryMode
from hal.flow.recordings import Recording, constants_of

if TYPE_CHECKING:
    from hal.flow.contexts.context import Context
    from hal.flow.contexts.holders import Named

__all__ = ["link_kernels", "link_recording"]

Given = tuple[Any, Any, Any, Any, Any, Any, Any]
"""The arguments of `Context.link` for a single kernel: the fields of `Step` behind the kernel."""


def link_kernels(
    context: Context, code: object, entry: str | Sequence[Step] | None, given: Given
) -> Routine:
    """Check the use of a context's names by kernels; return the routine."""
    steps = _steps(code, entry, given)
    if not steps:
        message = "link: there is no step"
        raise InvalidArgumentError(message)
    names: dict[str, Named] = {}
    buffers: dict[str, bool] = {}
    scalars: dict[str, None] = {}
    locals_: dict[str, None] = {}
    output = ""
    for step in steps:
        kernel = kernel_of(step)
        if kernel.device is not context.device:
            message = (
                f"link: kernel {kernel.name!r} was loaded on {kernel.device.name}, and the context "
                f"is on {context.device.name}, or that was opened another time"
            )
            raise InvalidArgumentError(message)
        if step.grid is None and len(steps) > 1:
            message = f"link: the step {kernel.name!r} has no grid"
            raise InvalidArgumentError(message)
        _check_names(step)
        printing = kernel.signature.output or ""
        if printing in step.scalars:
            check_output(step.scalars[printing], f"kernel {kernel.name!r}")
        else:
            output = printing or output
        constants = constants_of(kernel, step.reads, step.writes)
        written: list[str] = []
        for parameter in kernel.signature.parameters:
            if not is_buffer(parameter, step):
                if parameter.name not in step.scalars:
                    scalars[parameter.name] = None
                continue
            name = step.buffers.get(parameter.name, parameter.name)
            is_written = parameter.name not in constants
            user = f"kernel {kernel.name!r}: parameter {parameter.name!r}"
            found = context.check_use(name, user, is_written=is_written)
            names.setdefault(name, found)
            if found.memory.mode is MemoryMode.LOCAL:
                locals_[name] = None
                if not is_written and not buffers.get(name):
                    raise _read_before(name, user)
            if is_written:
                written.append(name)
            buffers.setdefault(name, False)
        # The next kernel finds what the kernel before it writes.
        buffers.update(dict.fromkeys(written, True))
    return Routine(context, steps, None, tuple(locals_), names, buffers, tuple(scalars), output)


def _steps(code: object, entry: object, given: Given) -> list[Step]:
    """Return the steps with their kernels."""
    if entry is None or isinstance(entry, str):
        kernel = _kernel(code, entry)
        return [_taken(Step(kernel, *given), kernel)]
    steps = as_items(entry, "link: entry is the name of a kernel or a list of hal.flow.Step")
    if not all(isinstance(step, Step) for step in steps):
        message = (
            f"link: entry is the name of a kernel or a list of hal.flow.Step, not {shown(entry)}"
        )
        raise ArgumentTypeError(message)
    if any(each is not None and each not in ((), {}) for each in given):
        message = "link: with a list of steps, each step says what it takes"
        raise ArgumentTypeError(message)
    return [_taken(step, _kernel(code, step.kernel)) for step in steps]


def _taken(step: Step, kernel: hal.Kernel) -> Step:
    """Return a step with its kernel, checked, and with copies of what may change."""
    scalars = {name: _value(value) for name, value in step.scalars.items()}
    return dataclasses.replace(step, kernel=kernel, scalars=scalars)


def _value(scalar: object) -> object:
    """Return a scalar, or a copy of one whose bytes may change."""
    if isinstance(scalar, (np.ndarray, np.void)):
        return scalar.copy()
    if isinstance(scalar, (bytearray, memoryview, ctypes.Structure, ctypes.Union)):
        return bytes(scalar)
    return scalar


def link_recording(
    context: Context,
    recording: Recording,
    buffers: Any,  # noqa: ANN401 - checked here
    others: Sequence[object],
) -> Routine:
    """Check the use of a context's names by a recording; return the routine."""
    if any(each is not None and each != () for each in others) or isinstance(buffers, Mapping):
        message = (
            "link: a recording takes buffers=[...], a name for each slot, and nothing else that "
            "kernels take: it has that already"
        )
        raise ArgumentTypeError(message)
    slots = [
        as_text(each, "link: a name is a str")
        for each in as_items(buffers, "link: buffers=[...] has a name for each slot", ordered=True)
    ]
    uses = recording.uses
    if recording.commands.device is not context.device:
        message = "link: the recording is another device's than the context"
        raise InvalidArgumentError(message)
    if len(slots) != len(uses):
        message = f"link: the recording has {len(uses)} slots, and buffers has {len(slots)} names"
        raise InvalidArgumentError(message)
    if recording.direct:
        message = (
            "link: the recording uses buffers directly, which no context knows of; record with "
            "slots, and name what they stand for"
        )
        raise InvalidArgumentError(message)
    names: dict[str, Named] = {}
    used: dict[str, bool] = {}
    for index, (name, use) in enumerate(zip(slots, uses, strict=True)):
        user, is_written = f"the recording: slot {index}", use > 1
        found = context.check_use(name, user, is_written=is_written)
        names.setdefault(name, found)
        if found.memory.mode is MemoryMode.LOCAL and index in recording.read_first:
            raise _read_before(name, user)
        if name in used and (is_written or used[name]):
            message = (
                f"{user} is {name!r} again, and one of both is written: the recording has not "
                "ordered them; use one slot for one name"
            )
            raise InvalidArgumentError(message)
        used[name] = used.get(name, False) or is_written
    return Routine(context, (), recording, tuple(slots), names, used, ())


def _check_names(step: Step) -> None:
    """Raise for buffers and scalars that the kernel does not have."""
    kernel = kernel_of(step)
    pointers = {each.name for each in kernel.signature.parameters if is_buffer(each, step)}
    others = {each.name for each in kernel.signature.parameters} - pointers
    for what, given, known in (
        ("buffers", step.buffers, pointers),
        ("scalars", step.scalars, others),
    ):
        unknown = sorted(map(str, set(given) - known))
        if unknown:
            message = (
                f"link: kernel {kernel.name!r}{kernel.signature} has no {what} {listed(unknown)}; "
                f"it has {listed(sorted(known))}"
            )
            raise InvalidArgumentError(message)


def _read_before(name: str, user: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{user} reads {name!r}, which is local to a call and has not been written in it; write it "
        "first, or declare it 'device' to keep its bytes from call to call"
    )


def _kernel(code: object, entry: str | hal.Kernel | None) -> hal.Kernel:
    """Return a step's kernel."""
    if isinstance(entry, hal.Kernel):
        return entry
    if isinstance(code, hal.Kernel) and entry is None:
        return code
    if isinstance(code, hal.Executable) and isinstance(entry, str):
        return code[entry]
    message = (
        "link takes a program or what was loaded and the name of a kernel, a kernel alone, or a "
        f"recording; not {type(code).__name__} with {shown(entry)}"
    )
    raise ArgumentTypeError(message)
