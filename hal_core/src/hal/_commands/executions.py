"""Check executions of recordings, and submit those of several parts (rule C1)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from hal._buffers.alloca import housing, run_housed, transients
from hal._commands.collectives import Gathering
from hal._commands.command_buffer import CommandBuffer
from hal._engine import timelines
from hal._engine.backlog import CheckedWaits
from hal._engine.ending import recall
from hal._engine.fence import Waits
from hal._engine.operation import STARVED
from hal._engine.payload import NOTHING, Checked
from hal._engine.steps import CallStep
from hal._engine.stream import StreamQueue
from hal._engine.submission import Submission
from hal._engine.submitting import submit_together
from hal._engine.wait_lists import Signals, check_lists
from hal._memory import peers
from hal._memory.core import DeviceCore
from hal._memory.replay import Housed
from hal._transfers.collectives import GroupLaunch
from hal.arguments import as_instance
from hal.errors import ClosedError, HalError, InvalidArgumentError
from hal.handlers import own
from hal.native_collectives import Participant

_T = TypeVar("_T")


def check_execution(device: DeviceCore, commands: object, bindings: object) -> Checked:
    """Check an execution; see `Queue.execute`."""
    commands = as_instance(
        commands, CommandBuffer, "execute takes a command buffer (device.record())"
    )
    _check_whose(device, commands)
    playback = commands._playback
    if playback is None:
        message = "execute: the recording has not ended; call end(), or leave its with block"
        raise InvalidArgumentError(message)
    sizes = playback.temporaries()
    blocks = transients(device, sizes) if sizes else ()
    payload, is_host = playback.payload(bindings, blocks)
    if device._access or playback.owners:
        payload = peers.guard(device, payload)
    if not blocks:
        return payload, is_host
    function, arguments, resources = payload
    assert function is not None  # noqa: S101 - it has commands
    if is_host:
        return (run_housed, (blocks, function, arguments), resources), True
    return (Housed(blocks, function, arguments), (), resources), False


def _check_whose(device: DeviceCore, commands: CommandBuffer) -> None:
    if commands._failed:
        message = "execute: the recording was left by an error; record another"
        raise InvalidArgumentError(message)
    if commands._device is not device:
        commands._device._live()  # a later device may have its name
        raise InvalidArgumentError(
            f"execute: the commands were recorded for {commands.device._name}, and this queue "
            f"belongs to {device._name}"
        )


def once(commands: CommandBuffer, submit: Callable[[], _T]) -> _T:
    """Submit an execution of a one-shot recording; raise if there was one before."""
    runs = commands._runs
    assert runs is not None  # noqa: S101 - the callers have looked
    try:
        runs.pop()  # one bytecode: two threads cannot get the same token
    except own(IndexError):
        raise ClosedError(
            "execute: the recording is one-shot and has been executed; record another, or record "
            "it with one_shot=False"
        ) from None
    try:
        return submit()
    except own(HalError):  # after an interrupt it may run, so that it counts as its only run
        runs.append(None)  # it was refused: nothing has changed
        raise


class Execution(Submission):
    """An execution of several parts: the operation behind all of them.

    `_first` is the one before them, which takes the waits.
    """

    __slots__ = ("_first",)

    _first: Submission

    def _cancel(self, step: CallStep, *_: None) -> None:
        """Cancel all of it, unless parts may be issued: all of those wait for the first one."""
        with timelines.lock:
            if self._first._state <= STARVED:
                # Both are noted before one is recalled: an interrupted call is repeated for both.
                for each in (self, self._first):
                    step.work.append((timelines.CHANGE, (recall, each, None)))
                for each in (self, self._first):
                    recall(each, None, step.work)


def execute_parts(
    queue: StreamQueue,
    device: DeviceCore,
    commands: CommandBuffer,
    bindings: object,
    wait: Waits,
    signal: Signals,
) -> Submission:
    """Check and submit an execution of a recording of several parts; see `CommandBuffer.on`.

    It begins with an operation of the executing queue that has all the waits, and ends with
    one that has all the signals. The latter is what the user sees.
    """
    _check_whose(device, commands)
    device._live()
    stages = commands._stages
    assert stages is not None  # noqa: S101 - the caller has looked
    waits, signals = check_lists(wait, signal)
    sizes = stages.rules.temporaries()
    blocks = transients(device, sizes) if sizes else ()
    table, storages = stages.rules.check(() if bindings is None else bindings, blocks)
    take, give = housing(blocks) if blocks else (NOTHING, NOTHING)
    first = Submission(queue, "execute", take, (), False)  # noqa: FBT003
    last = Execution(queue, "execute", give, signals, False)  # noqa: FBT003
    last._first = first
    parts: list[Submission] = []
    lists: list[CheckedWaits] = [waits]
    lined_up: list[tuple[Participant, GroupLaunch]] = []
    with ExitStack() as locks:
        # In one order in all recordings: no two executions each hold what the other wants.
        for group in stages.groups:
            locks.enter_context(group.hold())
        try:
            for where, work, after in stages.stages:
                before: tuple[Submission, ...] = tuple([parts[each] for each in after]) or (first,)
                if isinstance(work, Gathering):
                    launch = work.launch(where or queue, table, storages)
                    work.group.make(launch)
                    also = work.group.line_up(launch)
                    lined_up.append((work.group, launch))
                    parts.append(launch.seal())
                    before = tuple(dict.fromkeys((*before, *also)))
                else:
                    payload, is_host = work.of_part(table, storages)
                    payload = peers.guard(work.device, payload)
                    parts.append(Submission(where or queue, "execute", payload, (), is_host))
                lists.append(before)
            lists.append(tuple([parts[each] for each in stages.last]))
            operations = (first, *parts, last)
            if commands._runs is None:
                submit_together(operations, tuple(lists))
            else:
                once(commands, lambda: submit_together(operations, tuple(lists)))
            for group, launch in lined_up:
                launch.drop()
                group.settle(launch)
        except BaseException as error:
            # The last first: a group's turn goes back to that of the launch which it takes back.
            for group, launch in reversed(lined_up):
                group.withdraw(launch, error)
            raise
    return last
