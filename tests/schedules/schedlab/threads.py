"""Logical threads, their ends, and the numbers of what they share."""

_serial = 0


def next_serial():
    """Return a number for a shared thing, the same in every run with the same beginning."""
    global _serial  # noqa: PLW0603 - counted from 0 in every run
    _serial += 1
    return _serial


def restart_serials(number):
    """Count the shared things on from `number`."""
    global _serial  # noqa: PLW0603 - counted from 0 in every run
    _serial = number


class End:
    """The end of a thread, which others wait for."""

    __slots__ = ("free", "r", "serial", "w")

    def __init__(self):
        self.free = False
        self.r = self.w = 0
        self.serial = next_serial()


class All:
    """Open once all these threads have ended."""

    __slots__ = ("gates",)

    def __init__(self, threads):
        self.gates = [thread.finished for thread in threads]

    @property
    def free(self):
        return all(gate.free for gate in self.gates)


class Thread:
    """One logical thread."""

    __slots__ = (
        "daemon", "deadline", "error", "expired", "finished", "greenlet", "hash", "held", "name",
        "net", "number", "parked", "polled", "seen_switches", "spins", "starved", "waits", "where",
    )  # fmt: skip

    def __init__(self, number, name, daemon):
        self.number = number
        self.name = name
        self.daemon = daemon
        self.greenlet = None
        self.waits = None  # what must be .free before it can go on
        self.deadline = None
        self.net = False
        self.expired = False
        self.finished = End()
        self.parked = False
        self.spins = 0
        self.starved = 0
        self.polled = 0.0
        self.seen_switches = -1
        self.held = []
        self.hash = number + 1
        self.where = "start"
        self.error = None


class Cell:
    """Keep who wrote and read one shared thing last, for fingerprints."""

    __slots__ = ("r", "serial", "w")

    def __init__(self):
        self.w = 0
        self.r = 0
        self.serial = next_serial()
