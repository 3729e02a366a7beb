"""One of everything that a program has, for calls with odd arguments."""

import contextlib

import numpy as np
from odd_values import OddError

import hal
from hal import collectives, flow
from hal._commands.slots import Slots

__all__ = ["LIMIT", "OBJECTS", "SOURCE", "SUBJECTS", "World"]

LIMIT = 20.0

SOURCE = """
__global__ void HAL_BLOCK(1) odd(unsigned char *x, int n) { x[0] += n; }
__device__ int spare[4];
"""

# What stands for what is internal, though its name is public, has no place in a signature


class World:
    """Have one of everything, made when it is asked for."""

    def __init__(self, spec):
        self.spec = spec
        self.kept = {}

    def __getattr__(self, name):
        made = self.kept.get(name)
        if made is None:
            made = self.kept[name] = getattr(self, f"_{name}")()
        return made

    def fresh(self, name):
        """Return another one of something."""
        return getattr(self, f"_{name}")()

    def _device(self):
        return hal.create_device(self.spec, memory_limit="256M")

    _foreign_device = _device

    def _closed_device(self):
        made = self._device()
        made.close(LIMIT)
        return made

    def _queues(self):
        return self.device.queues

    def _queue(self):
        return self.device.create_queue()

    def _closed_queue(self):
        made = self._queue()
        made.close(LIMIT)
        return made

    def _buffer(self):
        return self.device.upload(np.zeros(64, np.uint8))

    def _target(self):
        return self.device.upload(np.zeros(64, np.uint8))

    def _closed_buffer(self):
        made = self._buffer()
        made.close()
        return made

    def _foreign_buffer(self):
        return self.foreign_device.upload(np.zeros(64, np.uint8))

    def _alloca(self):
        return self.device.queue.alloca(64)

    def _executable(self):
        return self.device.compile(SOURCE)

    def _kernel(self):
        return self.executable["odd"]

    def _foreign_kernel(self):
        return self.foreign_device.compile(SOURCE)["odd"]

    def _program(self):
        return hal.compile(SOURCE, target=self.device)

    def _image(self):
        return self.program.image_for(self.device)

    def _semaphore(self):
        return hal.create_semaphore(5)

    def _timepoint(self):
        return hal.create_semaphore(5).at(3)

    def _unreached(self):
        return hal.create_semaphore().at(1)

    def _failed_timepoint(self):
        semaphore = hal.create_semaphore()
        semaphore.fail(OddError("failed"))
        return semaphore.at(1)

    def _fence(self):
        return hal.Fence([self.timepoint])

    def _submission(self):
        made = self.device.queue.barrier()
        made.wait(LIMIT)
        return made

    def _failed_submission(self):
        made = self.queue.call(lambda: 1 / 0)
        with contextlib.suppress(hal.HalError):
            made.wait(LIMIT)
        return made

    def _shareable(self):
        return hal.create_semaphore(shareable=True)

    def _ticket(self):
        return self.shareable.share()

    def _timestamp(self):
        made = self.device.queue.timestamp()
        made.wait(LIMIT)
        return made

    def _callback(self):
        return self.semaphore.on_reached(100, print)

    def _recording(self):
        return self.device.record(slots=[("u1", 64)])

    def _ended(self):
        with self.device.record(slots=[("u1", 64)]) as made:
            made.fill(made.slots[0], 1)
        return made

    def _slots(self):
        return self.recording.slots

    def _slot(self):
        return self.slots[0]

    def _event(self):
        return self.recording.create_event()

    def _output(self):
        return hal.Output(self.device)

    def _file(self):
        return hal.File("odd.bin")

    def _signature(self):
        return hal.Signature.parse("(ptr x, i32 n)")

    def _flow(self):
        return flow.Flow(self.device)

    def _group(self):
        return collectives.join_all([self.device], timeout=LIMIT)[0]

    def _tracked(self):
        return self.flow.from_host(np.zeros(64, np.uint8))

    def _tracked_target(self):
        return self._tracked()

    def _closed_tracked(self):
        made = self._tracked()
        made.close()
        return made

    def _foreign_tracked(self):
        return flow.Flow(self.foreign_device).allocate(64)

    def _flow_recording(self):
        return self.flow.record(slots=[("u1", 64)])

    def _flow_ended(self):
        with self.flow.record(slots=[("u1", 64)]) as made:
            made.fill(made.slots[0], 1)
        return made

    def _pipeline(self):
        return self.flow.pipeline(self.flow_ended)

    def _context(self):
        made = flow.Context(self.flow, name="odd")
        made.allocate("x", 64, mode="hosted")
        made.allocate("z", 64, mode="hosted")
        return made

    def _routine(self):
        return self.context.link(self.program, flow.Step("odd", grid=1))

    def _usage(self):
        return hal.BufferUsage.TRANSFER_SOURCE

    def _merge(self):
        made = self.flow.merge_buffer()
        made.load(self.tracked)
        return made

    def _download(self):
        return self.flow.to_host(self.tracked)

    def _physical(self):
        return flow.PhysicalDevice(self.spec)

    def _virtual(self):
        return self.physical.virtual_device()

    def check(self):
        """Fail unless the device does its work."""
        assert not self.device.lost
        buffer = self._buffer()
        done = hal.create_semaphore()
        self.device.queue.fill(buffer, 7, signal=done.at(1))
        self.device.queue.dispatch(self.kernel, grid=1, args=(buffer, 1)).wait(LIMIT)
        done.wait(1, LIMIT)
        assert buffer.numpy().tolist() == [8] + [7] * 63
        self.device.wait_idle(LIMIT)

    def close(self):
        """Close what can be closed; fail if something goes on."""
        for name in ("routine", "pipeline", "context", "merge", "flow", "group"):
            if name in self.kept:
                getattr(self.kept[name], "close", lambda: None)()
        for name in ("device", "foreign_device", "virtual"):
            if name in self.kept:
                assert self.kept[name].close(LIMIT) == ()


# Whose methods are called, by class: what of the world it is, and another one to consume
SUBJECTS = {
    hal.Buffer: "buffer",
    hal.CommandBuffer: "recording",
    hal.CommandEvent: "event",
    hal.Device: "device",
    hal.Executable: "executable",
    hal.Fence: "fence",
    hal.File: "file",
    hal.Kernel: "kernel",
    hal.Output: "output",
    hal.Program: "program",
    hal.Queue: "queue",
    hal.Semaphore: "semaphore",
    hal.Signature: "signature",
    hal.Slot: "slot",
    Slots: "slots",
    hal.Submission: "submission",
    hal.Timepoint: "timepoint",
    hal.Timestamp: "timestamp",
    flow.Context: "context",
    flow.Download: "download",
    flow.Flow: "flow",
    flow.MergeBuffer: "merge",
    flow.Pipeline: "pipeline",
    flow.Recording: "flow_recording",
    flow.Routine: "routine",
    flow.TrackedBuffer: "tracked",
    flow.PhysicalDevice: "physical",
    flow.VirtualDevice: "virtual",
    collectives.Group: "group",
}

OBJECTS = {
    "closed device": ("closed_device", {"device"}),
    "another device": ("foreign_device", {"device"}),
    "the device": ("device", {"device", "code"}),
    "virtual device": ("virtual", {"device"}),
    "closed queue": ("closed_queue", {"queue"}),
    "queue": ("queue", {"queue"}),
    "buffer": ("buffer", {"buffer"}),
    "closed buffer": ("closed_buffer", {"buffer"}),
    "foreign buffer": ("foreign_buffer", {"buffer"}),
    "alloca": ("alloca", {"buffer"}),
    "tracked": ("tracked", {"buffer"}),
    "closed tracked": ("closed_tracked", {"buffer"}),
    "foreign tracked": ("foreign_tracked", {"buffer"}),
    "kernel": ("kernel", {"kernel", "code"}),
    "foreign kernel": ("foreign_kernel", {"kernel", "code"}),
    "executable": ("executable", {"code", "mapping"}),
    "program": ("program", {"code"}),
    "image of a program": ("image", {"list"}),
    "semaphore": ("semaphore", {"semaphore"}),
    "timepoint": ("timepoint", {"waits"}),
    "failed timepoint": ("failed_timepoint", {"waits"}),
    "fence": ("fence", {"waits"}),
    "submission": ("submission", {"waits"}),
    "failed submission": ("failed_submission", {"waits"}),
    "recording": ("recording", {"commands"}),
    "ended": ("ended", {"commands"}),
    "slot": ("slot", {"buffer"}),
    "event": ("event", {"event"}),
    "output": ("output", {"buffer"}),
    "file": ("file", set()),
    "signature": ("signature", {"signature"}),
    "flow": ("flow", {"flow"}),
    "flow recording": ("flow_recording", {"commands", "code"}),
    "flow ended": ("flow_ended", {"commands", "code"}),
    "context": ("context", {"context"}),
    "routine": ("routine", {"callable"}),
    "usage": (None, {"usage", "int", "real"}),
}
