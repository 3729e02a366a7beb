"""Cases of the shortcuts for `hal.flow`, on any device."""

import random
import sys
import threading

import numpy as np
import pytest
from core_harness import LIMIT, Contended, Running, Stall
from shortcut_harness import SOURCE, Calls, Interrupt, main, warm

import hal
from hal.flow import Context, Flow, Step
from hal_conformance.calls import Holds

ZEROS = np.zeros(4, np.int32)


class Setting:
    """A flow with four buffers, a kernel, recordings of it and routines with it."""

    def __init__(self, device, **options):
        warm(device)
        self.flow = flow = Flow(device, **options)
        self.code = device.compile(SOURCE)
        self.kernel = self.code["add"]
        self.buffers = [flow.from_host(ZEROS) for _ in range(4)]
        with flow.record(slots=["i4", "i4", "scalar"]) as self.commands:
            x, y, number = self.commands.slots
            self.commands.dispatch(self.kernel, grid=1, args=(x, y, number, 0.0))
        with flow.record() as self.direct:
            self.direct.dispatch(self.kernel, grid=1, args=(*self.buffers[:2], 1, 0.0))
        self.context = Context(flow, name="named")
        self.named = [self.context.from_host(name, ZEROS) for name in "pq"]
        step = Step("add", grid=1, scalars={"scale": 0.0}, buffers={"x": None, "y": "q"})
        other = Step("add", grid=1, scalars={"scale": 0.0}, buffers={"x": "p", "y": "q"})
        self.routine = self.context.link(self.code, step)
        self.several = self.context.link(self.code, step, other)
        for _ in range(3):  # what the first calls prepare is there then
            self.dispatch(0, 1, 0)
            self.execute(0, 1, 0)
            flow.execute(self.direct)
            self.several(x=self.buffers[2], n=0)
        device.wait_idle()
        for each in self.buffers:
            flow.fill(each, 0)
        for each in self.named:
            flow.fill(each, 0)
        device.wait_idle()

    def fill(self, index, value):
        return self.flow.fill(self.buffers[index], value)

    def dispatch(self, source, target, number):
        buffers = self.buffers
        arguments = (buffers[source], buffers[target], number, 0.0)
        return self.flow.dispatch(self.kernel, grid=1, args=arguments)

    def execute(self, source, target, number):
        bindings = (self.buffers[source], self.buffers[target], number)
        return self.flow.execute(self.commands, bindings=bindings)


def case_plain_calls_take_no_python(device):
    one = Setting(device)
    with Calls() as calls:
        one.fill(0, 3)
        one.dispatch(0, 1, 1)
        one.execute(1, 2, 1)
        one.flow.fill(one.named[0], 2)
        one.routine(x=one.buffers[2], n=1)
        one.several(x=one.buffers[2], n=1)
        one.flow.execute(one.direct)
        last = one.flow.dispatch(one.kernel, grid=1, args=[one.buffers[0], one.buffers[3], 0, 0.0])
    assert calls.names.keys() <= {"Setting.fill", "Setting.dispatch", "Setting.execute"}, (
        calls.names
    )
    assert type(last) is hal.Submission
    assert [each.numpy()[0] for each in one.buffers] == [3, 8, 5, 3]
    assert one.named[1].numpy()[0] == (5 + 1) + (5 + 1) + (2 + 1)


class Pipes:
    """A pipeline whose recording adds what goes in to what a tracked buffer has."""

    def __init__(self, device, **options):
        self.one = one = Setting(device, **options)
        one.flow.trace = None
        with one.flow.record(slots=[("i4", 16), ("i4", 16)]) as commands:
            x, y = commands.slots
            commands.dispatch(one.kernel, grid=1, args=(x, y, 1, 0.0))
            commands.dispatch(one.kernel, grid=1, args=(x, one.buffers[3], 0, 0.0))
            commands.dispatch(one.kernel, grid=1, args=(one.buffers[3], y, 0, 0.0))
        self.pipeline = one.flow.pipeline(commands, depth=2)
        self.data = np.arange(4, dtype=np.int32)
        self.found = [np.zeros(4, np.int32) for _ in range(6)]
        for _ in range(6):
            self.run(0)
        self.pipeline.wait(30)
        one.flow.trace = options.get("trace")

    def run(self, index):
        return self.pipeline.run({0: self.data, 1: ZEROS}, {1: self.found[index]})


def case_a_pipeline_takes_no_python(device):
    one = Pipes(device)
    with Calls() as calls:
        ends = [one.run(index) for index in range(6)]
        (last,) = one.pipeline.run({0: one.data, 1: ZEROS}, {})
    if device._pageable:
        assert calls.names.keys() <= {"Pipes.run"}, calls.names
    assert not {"Pipeline.run", "Flow.run"} & calls.names.keys(), calls.names
    assert [end.kind for (end,) in ends] == ["read"] * 6
    assert last.kind == "execute"
    one.pipeline.wait(30)
    for number, found in enumerate(one.found, 7):
        assert found.tolist() == [each + 1 + number * each for each in range(4)]


def history_of(submission):
    """Return what an operation is, and the same of all that it comes after."""
    return submission.kind, sorted(map(history_of, submission._dependencies or ()))


def case_a_run_waits_for_what_it_waits_for_in_python(device):
    """With a trace Python makes each run."""
    if not device._pageable:  # reads are host operations, which nobody can hold
        return
    found = []
    for options in ({}, {"trace": lambda *_: None}):
        one, ends = Pipes(device, **options), []
        with Holds(device._native) as holds, Calls() as calls:
            for queue in (device.queues.upload, device.queues.compute, device.queues.download):
                holds.hold(queue._stream)
            for index in range(6):
                ends += one.run(index) if index != 2 else one.pipeline.run({0: one.data}, {})
            found.append([history_of(end) for end in ends])
        assert calls.names["Pipeline._submit"] == (6 if options else 0), calls.names
        one.pipeline.wait(30)
    assert found[0] == found[1], found


def case_a_run_that_cannot_be_made_is_refused(device):
    one = Pipes(device)
    constant, gate = np.zeros(4, np.int32), hal.create_semaphore()
    constant.flags.writeable = False
    one.one.flow.fill(one.one.buffers[3], 0, wait=gate.at(1))
    one.run(0)
    strange = np.zeros(5, np.int32)
    for inputs, outputs in (
        ({0: one.found[0], 1: ZEROS}, {1: one.found[1]}),  # which is still being filled
        ({0: one.found[0][1:3], 1: ZEROS}, {1: one.found[1]}),
        ({0: strange, 1: ZEROS}, {1: one.found[1]}),
        ({0: one.data, 1: ZEROS}, {1: constant}),
        ({0: one.data, 1: ZEROS}, {1: strange}),
        ({0: one.data, 2: ZEROS}, {1: one.found[1]}),
        ({0: one.data, 1: ZEROS}, {-1: one.found[1]}),
    ):
        with pytest.raises(hal.errors.InvalidArgumentError):
            one.pipeline.run(inputs, outputs)
    gate.signal(1)
    one.run(2)
    one.pipeline.wait(30)
    read, other = bytearray(16), np.arange(4, dtype=np.int32)
    (end,) = one.pipeline.run({0: other, 1: ZEROS.tobytes()}, {1: read})  # which Python takes
    end.wait(30)
    assert np.frombuffer(read, np.int32)[0] >= 1
    one.pipeline.close()
    with pytest.raises(hal.errors.ClosedError):
        one.run(0)


def case_an_interrupted_run_leaves_its_set_doubtful(device):
    one = Pipes(device)
    for name in ("ReadsInFlight.add", "Pipeline._download"):
        with Interrupt(name):
            one.pipeline.run({0: one.data, 1: ZEROS}, {1: bytearray(16)})
        assert [each.is_doubtful for each in one.pipeline._sets].count(True) == 1
        one.run(0)
        one.run(1)
        one.pipeline.wait(30)
        assert not any(each.is_doubtful for each in one.pipeline._sets)


def unusual(one, device):
    """Return calls that are not plain, and what they raise if anything."""
    flow, buffers = one.flow, one.buffers
    other = Flow(device)
    strange, raw = other.from_host(ZEROS), device.upload(ZEROS)
    lane = device.create_queue(name="another")
    args = (buffers[0], buffers[1], 1, 0.0)
    closed = flow.from_host(ZEROS)
    closed.close()
    constant = one.context.from_host("constant", ZEROS, mode="constant")
    volatile = one.context.from_host("volatile", ZEROS, mode="volatile")

    def launch(*arguments, **options):
        return lambda: flow.dispatch(one.kernel, grid=1, args=(*arguments, 1, 0.0), **options)

    return [
        (lambda: flow.fill(buffers[0].subspan(4, 4), 1), None),
        (lambda: flow.fill(buffers[0], 1, offset=4), None),
        (lambda: flow.fill(buffers[0], 1, queue="upload"), None),
        (lambda: flow.fill(buffers[0], 1, queue=lane), None),
        (lambda: flow.fill(volatile, 1), None),
        (lambda: flow.dispatch(one.kernel, grid=1, args=args, reads=["y"]), None),
        (lambda: flow.dispatch(one.kernel, grid=1, args=args, writes=["x"]), None),
        (launch(buffers[0], buffers[0]), None),
        (lambda: flow.execute(one.commands, bindings=[*buffers[:2], 1], reads=[1]), None),
        (lambda: flow.execute(one.commands, bindings=dict(enumerate([*buffers[:2], 1]))), None),
        (lambda: flow.execute(one.commands.commands, bindings=[*buffers[:2], 1]), None),
        (lambda: one.several(x=one.named[1], n=1), None),  # read and written
        (lambda: flow.fill(strange, 1), hal.errors.InvalidArgumentError),
        (lambda: flow.fill(closed, 1), hal.errors.ClosedError),
        (lambda: flow.fill(constant, 1), hal.errors.InvalidArgumentError),
        (launch(buffers[0], raw), hal.errors.ArgumentTypeError),
        (launch(buffers[0], strange), hal.errors.InvalidArgumentError),
        (launch(buffers[0], closed), hal.errors.ClosedError),
        (launch(buffers[0], constant), hal.errors.InvalidArgumentError),
        (launch(buffers[0], volatile), hal.errors.InvalidArgumentError),
        (lambda: one.routine(x=raw, n=1), hal.errors.ArgumentTypeError),
        (lambda: one.routine(x=closed, n=1), hal.errors.ClosedError),
        (lambda: one.routine(x=buffers[0]), hal.errors.ArgumentTypeError),
        (lambda: one.routine(x=buffers[0], n=1, m=2), hal.errors.ArgumentTypeError),
        (
            lambda: flow.execute(one.commands, bindings=[raw, buffers[0], 1]),
            hal.errors.ArgumentTypeError,
        ),
        (
            lambda: flow.execute(one.commands, bindings=[buffers[0], closed, 1]),
            hal.errors.ClosedError,
        ),
    ]


def case_what_is_unusual_is_left_to_python(device):
    one = Setting(device)
    methods = {"Transfers.fill", "Flow.dispatch", "Flow.execute", "Routine.__call__"}
    for number, (call, error) in enumerate(unusual(one, device)):
        raised = None
        with Calls() as calls:
            try:
                call()
            except hal.HalError as caught:
                raised = type(caught)
        assert raised is error, (number, raised)
        assert calls.names.keys() & methods, number
    traced = []
    one.flow.trace = lambda submission, waits: traced.append((submission, list(waits)))
    last = one.fill(3, 5)
    after = one.dispatch(3, 1, 0)
    assert [submission for submission, _ in traced] == [last, after]
    assert last in traced[1][1]
    one.flow.trace = None


def case_a_failure_stays_with_the_bytes_s5(device):
    one, gate = Setting(device), hal.create_semaphore()
    one.flow.fill(one.buffers[0], 1, wait=gate.at(1))
    gate.fail(ValueError("planted"))
    for call in (
        lambda: one.dispatch(0, 1, 1),
        lambda: one.execute(1, 2, 1),
        lambda: one.fill(2, 1),
    ):
        assert type(call().error) is hal.errors.SemaphoreFailedError
    for each in one.buffers[:3]:
        each.recover()
        one.flow.fill(each, 4)
    one.dispatch(0, 1, 1).wait(30)
    assert one.buffers[1].numpy()[0] == 4 + 4 + 1


def case_another_thread_has_the_flow(device):
    """The thread that has the flow's lock is about to use the memory."""
    one = Setting(device)
    inside, found = Stall(), threading.Event()
    one.flow._lock = Contended(one.flow._lock, found.set)

    def slow(lane, waits):
        inside()
        return lane.fill(one.buffers[0].raw, 1, wait=waits)

    first = Running(lambda: one.flow.submit(slow, writes=[one.buffers[0]]))
    assert inside.entered.wait(LIMIT)
    second = Running(one.fill, 0, 2)
    assert found.wait(LIMIT)
    assert second.is_alive()
    inside.leave.set()
    first.result()
    second.result()
    assert one.buffers[0].numpy()[0] == 2


def sequence(one, lane, seed):
    """Run random work; return which of the work before each waits for."""
    pick, made = random.Random(seed), []
    for _ in range(12):
        source, target = pick.sample(range(4), 2)
        buffers = (one.buffers[source], one.buffers[target])
        made.append(
            pick.choice(
                [
                    lambda target=target: one.fill(target, 1),
                    lambda source=source, target=target: one.dispatch(source, target, 1),
                    lambda source=source, target=target: one.execute(source, target, 1),
                    lambda buffers=buffers: one.flow.fill(buffers[1], 1, queue=lane),
                    lambda buffers=buffers: one.flow.dispatch(
                        one.kernel, grid=1, args=(*buffers, 1, 0.0), queue=lane
                    ),
                ]
            )()
        )
    return [sorted(map(made.index, each._dependencies or ())) for each in made]


def case_the_waits_are_those_of_python(device):
    """While nothing ends, work comes after the same work as with a trace, which Python calls."""
    lane = device.create_queue(name="second")
    for seed in range(20):
        found, calls = [], []
        for options in ({}, {"trace": lambda *_: None}):
            one = Setting(device, **options)
            lane.fill(one.buffers[0].raw, 0).wait(30)
            with Holds(device._native) as holds, Calls() as counted:
                holds.hold(device.queue._stream)
                holds.hold(lane._stream)
                found.append(sequence(one, lane, seed))
            calls.append(counted.names["collect"])
            device.wait_idle(30)
        assert found[0] == found[1], (seed, found)
        assert calls[0] < calls[1] == 12, (seed, calls)


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
