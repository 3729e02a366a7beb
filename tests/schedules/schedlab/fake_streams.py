"""The streams and events of a fake device."""

from schedlab import sync
from schedlab.native_objects import Event, Item, Record, Stream

PATIENCE = 2
"""How often one thread may be told "not yet" about one record."""


class StreamCalls:
    """Make streams and events, record, wait, ask and notify; a part of a fake device."""

    def create_stream(self):
        v = self.vendor
        v.enter(self, "create_stream")
        handle = v.handle()
        v.streams[handle] = Stream(self, handle, f"{self.label}/s{len(v.streams)}")
        return handle

    def stream(self, handle, primitive):
        stream = self.vendor.streams.get(handle)
        if stream is None:
            self.vendor.broken("handle", f"{primitive} on stream {handle}, which does not exist")
        if stream.device is not self:
            self.vendor.broken("handle", f"{primitive} on {stream.label} of another device")
        return stream

    def event(self, handle, primitive):
        event = self.vendor.events.get(handle)
        if event is None:
            self.vendor.broken("handle", f"{primitive} on event {handle}, which does not exist")
        return event

    def destroy_stream(self, stream):
        v = self.vendor
        target = self.stream(stream, "destroy_stream")
        interrupt = v.enter(self, "destroy_stream", target)
        if target.head < len(target.items):
            v.broken("I4", f"{target.label} is destroyed with work on it")
        del v.streams[stream]
        if interrupt:
            raise interrupt

    def synchronize_stream(self, stream):
        v = self.vendor
        target = self.stream(stream, "synchronize_stream")
        v.enter(self, "synchronize_stream")
        if target.items:
            last = target.items[-1]
            if not v.possible(Record(target, last)):
                v.scheduler.wait_for(_Possible(v, target, last))
            v.scheduler.note_read(target.done)
            if not self.lost:
                v.complete(target, last.number)
            if self.lost:
                raise self.vendor.errors.DeviceLostError("lost while synchronising")

    def create_event(self):
        v = self.vendor
        v.enter(self, "create_event")
        handle = v.handle()
        v.events[handle] = Event(self, handle)
        return handle

    def destroy_event(self, event):
        v = self.vendor
        interrupt = v.enter(self, "destroy_event")
        target = self.event(event, "destroy_event")
        v.look_at_all()
        for stream in v.streams.values():
            for item in stream.items[stream.head :]:
                if (
                    item.needs is not None
                    and item.needs is target.record
                    and not (target.record.item.done)
                ):
                    v.broken("I4", f"event {event} is destroyed and {stream.label} waits for it")
        del v.events[event]
        if interrupt:
            raise interrupt

    def record_event(self, event, stream):
        v = self.vendor
        target = self.stream(stream, "record_event")
        v.enter(self, "record_event", target)
        record = self.event(event, "record_event")
        item = Item(target, "record", f"record e{event} on {target.label}", run=record)
        target.items.append(item)
        record.record = Record(target, item)
        record.records += 1
        v.scheduler.note_write(record.cell)

    def wait_event(self, stream, event):
        v = self.vendor
        target = self.stream(stream, "wait_event")
        v.enter(self, "wait_event", target)
        waited = self.event(event, "wait_event")
        v.scheduler.note_read(waited.cell)
        if waited.record is None:
            v.broken("I1", f"{target.label} waits for event {event}, which was never recorded")
        if v.pool_of is not None and v.pool_of(event):
            v.broken("I1", f"{target.label} waits for event {event}, which is back in the pool")
        target.items.append(
            Item(target, "wait", f"wait e{event} on {target.label}", needs=waited.record)
        )

    def query_event(self, event):
        v = self.vendor
        v.enter(self, "query_event")
        target = self.event(event, "query_event")
        s = v.scheduler
        s.note_read(target.cell)
        record = target.record
        if record is None:
            return True
        s.note_read(record.stream.done)
        if not record.item.done:
            s.note_read(v.cell)
            if not v.possible(record):
                return False
            told = record.answers.get(s.current.number, 0)
            if told < PATIENCE and s.choose(2, f"whether e{event} is still running"):
                record.answers[s.current.number] = told + 1
                return False
            v.complete(record.stream, record.item.number)
            if record.stream.device.lost:
                v.raise_lost()
        return True

    def notify(self, stream, function, argument):
        v = self.vendor
        target = self.stream(stream, "notify")
        v.enter(self, "notify", target)
        if function != 0xD00B:
            v.broken("I6", "notify with a function that is no doorbell's")
        bell = sync.doorbell_of(argument)
        target.items.append(Item(target, "notify", f"notify on {target.label}", run=bell))


class _Possible:
    """Open once a stream can complete, or its device is lost."""

    def __init__(self, vendor, stream, last):
        self.vendor, self.place, self.device = vendor, Record(stream, last), stream.device

    @property
    def free(self):
        return self.device.lost or self.vendor.possible(self.place)
