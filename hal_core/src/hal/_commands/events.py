"""The events of a recording: barriers in two halves (rule C1)."""

from __future__ import annotations

from hal._commands.lowering import Join


class CommandEvent:
    """A barrier in two halves: orders all before its signal with all after a wait for it.

    Made by `CommandBuffer.create_event`, and known to that recording only. Commands
    recorded between the two halves may run beside either. It is resolved
    while recording: an event has no state on the device, and keeps none
    from one execution to the next.
    """

    __slots__ = ("_commands", "_join", "_name", "_signalled")

    def __init__(self, commands: object, name: str) -> None:
        self._commands = commands  # the recording that knows it
        self._name = name
        self._signalled = False
        self._join: Join | None = None  # None: nothing was recorded before its signal

    @property
    def name(self) -> str:
        """The name that errors use."""
        return self._name

    @property
    def signalled(self) -> bool:
        """Whether a signal of it was recorded, and no reset since."""
        return self._signalled

    def __repr__(self) -> str:
        state = "signalled" if self._signalled else "not signalled"
        return f"<CommandEvent {self._name!r} {state}>"
