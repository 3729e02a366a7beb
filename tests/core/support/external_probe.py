"""Watch what a device has to do with other devices, with clocks, and with others' streams."""

from pool_probe import ORDER

__all__ = ["ExternalCalls"]


class ExternalCalls:
    """Forward peers, timers and adopted handles; a part of `native_probe.Probe`."""

    def _forward(self, name, *arguments):
        self._enter(name)
        return getattr(self.inner, name)(*arguments)

    def occupancy(self, function, threads, shared_memory):
        return self._forward("occupancy", function, threads, shared_memory)

    def locate(self, address):
        return self._forward("locate", address)

    # Peers

    def can_access_peer(self, other):
        self._check_peer("can_access_peer", other)
        return self._forward("can_access_peer", other.inner)

    def enable_peer(self, other):
        self._check_peer("enable_peer", other)
        self._forward("enable_peer", other.inner)
        self.enabled = [*getattr(self, "enabled", ()), other]

    def copy_peer(self, stream, target, target_device, source, source_device, size):
        if self not in {target_device, source_device}:
            self._violate("copy_peer between two other devices")
        self.check_hosts("copy_peer", target, source, (target_device, source_device))
        ranges = {target_device: (target, size)}, {source_device: (source, size)}
        mine = [place for each in ranges for device, place in each.items() if device is self]
        inner = (target, target_device.inner, source, source_device.inner, size)
        self._work("copy_peer", stream, mine, *inner)
        for each in ranges:
            for device, (start, length) in each.items():
                if device is not self:
                    device.note_guest(self, stream, start, length)

    def note_guest(self, guest, stream, start, length):
        """Note that another device's stream uses memory of this one."""
        if self.closed:
            self._violate(f"copy_peer at {start:#x} of a closed device")
        inside = (
            address <= start and start + length <= address + size
            for address, size in self._ranges()
        )
        if not any(inside):
            self._violate(f"copy_peer at {start:#x}, which is not allocated")
        event = guest.inner.create_event()
        guest.inner.record_event(event, stream)
        self._uses["guests"].append((event, [(start, length)], ORDER.place(stream)))

    def _check_peer(self, name, other):
        if other.domain is not self.domain:
            self._violate(f"{name} of a device of another domain")

    # Timers

    def create_timer(self):
        self._enter("create_timer")
        return self._born("timer", self.inner.create_timer(), 0)  # the event behind its record

    def destroy_timer(self, timer):
        self._enter("destroy_timer")
        self._check_timer("destroy_timer", timer)
        self._dies("timer", timer)
        self.inner.destroy_timer(timer)

    def record_timer(self, timer, stream):
        self._enter("record_timer", stream)
        try:
            if timer not in self.alive["timer"]:
                self._violate(f"record_timer of timer {timer}, which is not alive")
            self._check_timer("record_timer", timer)
            self.inner.record_timer(timer, stream)
            event = self.inner.create_event()
            self.inner.record_event(event, stream)
            self.alive["timer"][timer] = event
        finally:
            self._leave(stream)

    def elapsed(self, first, second):
        self._enter("elapsed")
        for timer in (first, second):
            if not self.alive["timer"].get(timer):
                self._violate(f"elapsed of timer {timer}, which was never recorded")
            self._check_timer("elapsed", timer)
        return self.inner.elapsed(first, second)

    def _check_timer(self, name, timer):
        event = self.alive["timer"].get(timer)
        if event and not self.inner.query_event(event):
            self._violate(f"{name} of timer {timer}, whose record is not complete")

    # Streams and events of others

    def export_stream(self, stream):
        self._enter("export_stream")
        if stream not in self.alive["stream"] and stream not in self.alive["adopted stream"]:
            self._violate(f"export_stream of {stream}, which is not alive")
        return self.inner.export_stream(stream)

    def adopt_stream(self, handle):
        return self._adopt("stream", handle)

    def release_stream(self, stream):
        self._release("stream", stream)

    def adopt_event(self, handle):
        return self._adopt("event", handle)

    def release_event(self, event):
        self._release("event", event)

    def _adopt(self, kind, handle):
        adopted = self._forward(f"adopt_{kind}", handle)
        with self._lock:
            known = self.alive[f"adopted {kind}"]
            known[adopted] = known.get(adopted, 0) + 1
        return adopted

    def _release(self, kind, adopted):
        self._forward(f"release_{kind}", adopted)
        with self._lock:
            known = self.alive[f"adopted {kind}"]
            if not known.get(adopted):
                self._violate(f"release_{kind} of {adopted}, which was not adopted")
                return
            known[adopted] -= 1
            if not known[adopted]:
                del known[adopted]
