"""Another library on the same device: with streams, events and memory of its own."""

from core_harness import SEM_WAIT, Latch

__all__ = ["Event", "Library", "Stream"]


class Stream:
    """A stream that the library made; `held` has it wait for a latch first."""

    def __init__(self, native):
        self.native = native
        self.handle = native.create_stream()
        self.asked = 0

    def __cuda_stream__(self):
        self.asked += 1
        return 0, self.handle

    def hold(self):
        """Put a latch on the stream, behind what is there, and return it."""
        latch = Latch()
        self.native.notify(self.handle, SEM_WAIT, latch.argument)
        return latch

    def fill(self, address, byte, size):
        """Put a fill on the stream."""
        self.native.fill(self.handle, address, byte, 1, size)

    def copy(self, target, source, size):
        """Put a copy on the stream."""
        self.native.copy(self.handle, target, source, size)

    def record(self):
        """Return an event behind all that is there."""
        event = Event(self.native)
        self.native.record_event(event.handle, self.handle)
        return event

    def wait(self, event):
        """Wait for an event, on the stream."""
        self.native.wait_event(self.handle, event.handle)

    def synchronize(self):
        """Wait on the host until all is done."""
        self.native.synchronize_stream(self.handle)

    def is_done(self):
        """Return whether all that was put there is done."""
        return self.native.query_event(self.record().handle)


class Event:
    """An event that the library made."""

    def __init__(self, native):
        self.native = native
        self.handle = native.create_event()


class Library:
    """A library that makes the above on the device under a probe, and ends them."""

    def __init__(self, native):
        self.native = native
        self.streams = []
        self.latches = []

    def stream(self):
        """Return a new stream."""
        made = Stream(self.native)
        self.streams.append(made)
        return made

    def held_stream(self):
        """Return a new stream that does nothing before the latch is opened."""
        made = self.stream()
        latch = made.hold()
        self.latches.append(latch)
        return made, latch

    def close(self):
        """End the streams, none of which hal may have ended."""
        for latch in self.latches:
            latch.open(1000)
        for stream in self.streams:
            stream.synchronize()
            self.native.destroy_stream(stream.handle)
