"""The programs of the schedules: a few threads of actions on queues, semaphores and buffers."""

from __future__ import annotations

from dataclasses import dataclass, field

SCRATCH = 0x55
"""What a recording writes first; no operation of a program writes that."""


@dataclass(frozen=True)
class Op:
    """One operation: ``wait`` and ``signal`` are pairs of names and values.

    A wait may also be the name of an operation. It writes `value` into
    `target`, or copies the buffer `source` there. `defer` is like ``wait``.
    """

    name: str
    queue: str
    wait: tuple = ()
    signal: tuple = ()
    target: str | None = None
    value: int = 0
    source: str | None = None
    refused: bool = False  # its native call raises
    host: bool = False  # a host call
    defer: tuple = ()  # what a host call returns to be waited for
    recorded: bool = False  # the copy is a recording's, bound to a table


@dataclass(frozen=True)
class QueueSpec:
    """One queue."""

    device: int = 0
    domain: int = 0
    ordered: bool = True
    limit: int = 512


@dataclass(frozen=True)
class Program:
    """One case.

    Actions are ``("submit", Op)``, ``("signal", s, v)``, ``("fail", s, label)``,
    ``("wait", s, v)``, ``("wait_op", name)``, ``("any", pairs)``, ``("all", pairs)``,
    ``("poll", s, v)``, ``("query", s)``, ``("done", name)``, ``("close", queue)``,
    ``("callback", name, s, v)``, ``("cancel", name)``, ``("recall", operation)``,
    ``("flush", queue)``, ``("drop", buffer)``.
    `before` is done by the main thread, before the threads start.
    """

    name: str
    threads: tuple
    before: tuple = ()
    queues: dict = field(default_factory=lambda: {"q": QueueSpec()})
    semaphores: tuple = ("s", "t")
    buffers: tuple = ("x", "y")
    features: frozenset = frozenset()  # of its devices
    lowering: str = "stream"  # of its recording
    settings: tuple = ()  # of its devices' memory, as pairs
    constants: tuple = ()  # of the core, for this program: (module, name, value)

    def __hash__(self):
        return hash(self.name)

    def operations(self):
        found = {}
        for actions in (self.before, *self.threads):
            for action in actions:
                if action[0] == "submit":
                    found[action[1].name] = action[1]
        return found
