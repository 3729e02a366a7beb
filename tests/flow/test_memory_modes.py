"""Who may do what with a context's memory, by its mode; locals and what is volatile."""

from __future__ import annotations

import numpy as np
import pytest
from context_harness import BYTES, NUMBERS, memory
from core_harness import LIMIT

from hal.errors import InvalidArgumentError
from hal.flow import Context, MemoryMode, Step, TrackedBuffer


@pytest.fixture
def modes(root, flow):
    """Contexts with a name for each mode."""
    root.from_host("constant", NUMBERS, mode=MemoryMode.CONSTANT)
    root.from_host("volatile", NUMBERS, mode="volatile")
    root.allocate("device", BYTES, dtype=np.int32, mode="device")
    root.allocate("local", BYTES, dtype=np.int32, mode="local")
    return root


MODES = ["constant", "volatile", "device", "local", "y"]


@pytest.mark.parametrize("name", MODES)
def test_who_may_do_what(modes, program, name):
    allowed = {
        "constant": {"read", "kernel reads"},
        "volatile": {"read", "write", "fill", "kernel reads"},
        "device": {"fill", "kernel reads", "kernel writes"},
        "local": {"kernel writes"},
        "y": {"read", "write", "fill", "kernel reads", "kernel writes"},
    }[name]
    deeds = {
        "read": lambda: modes.numpy(name, timeout=LIMIT),
        "write": lambda: modes.write(name, NUMBERS).wait(LIMIT),
        "fill": lambda: modes.fill(name, 1).wait(LIMIT),
        "kernel reads": lambda: modes.link(
            program,
            "add",
            grid=1,
            buffers={"x": name, "y": "out"},
            allocate={"out": memory("device")},
        )(amount=1).wait(LIMIT),
        "kernel writes": lambda: modes.link(program, "add", grid=1, buffers={"y": name})(
            amount=1
        ).wait(LIMIT),
    }
    found = set()
    for deed, do in deeds.items():
        try:
            do()
        except InvalidArgumentError:
            continue
        found.add(deed)
    assert found == allowed


def test_writing_a_constant_raises(modes, program, flow, device):
    before = modes.numpy("constant", timeout=LIMIT)
    other = modes.child()
    with pytest.raises(InvalidArgumentError, match="cannot write 'constant', which is constant"):
        other.write("constant", NUMBERS)
    with pytest.raises(InvalidArgumentError, match="cannot fill 'constant', which is constant"):
        modes.fill("constant", 0)
    with pytest.raises(InvalidArgumentError, match="cannot copy to 'constant'"):
        modes.copy("x", "constant")
    with pytest.raises(InvalidArgumentError, match=r"'count': parameter 'y' writes 'constant'"):
        modes.link(program, "count", grid=1, buffers={"y": "constant"})
    with flow.record(slots=[(np.int32, BYTES)]) as commands:
        commands.fill(commands.slots[0], 0)
    with pytest.raises(InvalidArgumentError, match=r"slot 0 writes 'constant', which is constant"):
        modes.link(commands, buffers=["constant"])
    assert np.array_equal(modes.numpy("constant", timeout=LIMIT), before)
    # Who knows that a kernel only reads may say so.
    modes.link(program, "count", grid=1, buffers={"y": "constant"}, reads=["y"])
    with pytest.raises(InvalidArgumentError, match="writes 'constant'"):
        modes.link(program, "add", grid=1, buffers={"x": "constant"}, writes=["x"])


def test_reading_a_local_after_its_call_raises(modes, program, flow, device):
    routine = modes.link(program, "add", grid=1, buffers={"y": "local"})
    routine(amount=1).wait(LIMIT)
    for context in (modes, routine.context):
        with pytest.raises(InvalidArgumentError, match="cannot read 'local', which is local to a"):
            context.read("local")
        with pytest.raises(InvalidArgumentError, match="cannot copy from 'local'"):
            context.copy("local", "y")
        with pytest.raises(InvalidArgumentError, match=r"'scale'.*reads 'local', which is local"):
            context.link(
                program,
                "scale",
                grid=1,
                buffers={"y": "local", "z": "out"},
                allocate={"out": memory("hosted")},
            )
    steps = [
        Step("scale", grid=1, buffers={"y": "local", "z": "y"}),
        Step("add", grid=1, buffers={"y": "local"}),
    ]
    with pytest.raises(InvalidArgumentError, match="has not been written in it"):
        modes.link(program, steps)
    modes.link(program, steps[::-1])
    with flow.record(slots=[(np.int32, BYTES)] * 2) as commands:
        commands.copy(commands.slots[0], commands.slots[1])
    with pytest.raises(InvalidArgumentError, match="slot 0 reads 'local'"):
        modes.link(commands, buffers=["local", "y"])


@pytest.mark.parametrize("way", ["copy", "dispatch", "one dispatch", "grid"])
def test_a_recording_writes_a_local_before_it_reads_it(modes, program, flow, device, way):
    kernels = device.load(program)

    def read(commands, slot, target):
        if way == "copy":
            commands.copy(slot, target)
        elif way == "dispatch":
            commands.dispatch(kernels["scale"], grid=1, args=(slot, target, 1))
        elif way == "one dispatch":  # which writes it, too, and what it reads was there before
            args = {"y": slot, "x": slot, "amount": 1}
            commands.dispatch(kernels["add"], grid=1, args=args)
        else:
            commands.dispatch(kernels["count"], grid=slot, args=(target,))

    for is_written_first in (False, True):
        with flow.record(slots=[(np.int32, BYTES)] * 2) as commands:
            slot, target = commands.slots
            if is_written_first:
                commands.fill(slot, 1)
            read(commands, slot, target)
            commands.fill(slot, 2)
        if is_written_first:
            modes.link(commands, buffers=["local", "y"])().wait(LIMIT)
        else:
            with pytest.raises(InvalidArgumentError, match="slot 0 reads 'local', which is local"):
                modes.link(commands, buffers=["local", "y"])
            modes.link(commands, buffers=["device", "y"])


def test_each_call_has_local_memory_of_its_own(root, program, device, gate):
    routine = root.link(
        program,
        [
            Step("add", grid=1, buffers={"y": "between"}),
            Step("scale", grid=1, buffers={"y": "between", "z": "y"}, scalars={"factor": 1}),
        ],
        allocate={"between": memory("local")},
    )
    before = device.statistics().bytes_now
    held = [routine.run({"amount": amount}, wait=gate.at(1)) for amount in (1, 2)]
    assert device.statistics().bytes_now - before == 2 * BYTES
    gate.signal(1)
    for each in held:
        each.wait(LIMIT)
    assert np.array_equal(root.numpy("y", timeout=LIMIT), NUMBERS + 2)
    assert device.statistics().bytes_now == before


def test_unrelated_contexts_may_have_locals_of_one_name(flow):
    for name in ("one", "two"):
        context = Context(flow, name=name)
        context.allocate("scratch", BYTES, mode="local")
        assert list(context.names) == ["scratch"]


def test_downloading_what_is_not_hosted_raises(modes):
    with pytest.raises(InvalidArgumentError, match="cannot read 'device', which is not hosted"):
        modes.read("device")
    with pytest.raises(InvalidArgumentError, match="cannot write 'device', which is not hosted"):
        modes.write("device", NUMBERS)


def test_what_is_volatile_changes_between_calls_and_is_only_read_by_kernels(modes, program, flow):
    routine = modes.link(program, "add", grid=1, buffers={"x": "volatile"})
    for times in (1, 2):
        modes.write("volatile", NUMBERS * times)
        routine(amount=0)
        assert np.array_equal(modes.numpy("y", timeout=LIMIT), NUMBERS * times)
    with pytest.raises(InvalidArgumentError, match="writes 'volatile', which is volatile"):
        modes.link(program, "count", grid=1, buffers={"y": "volatile"})
    # Or by whoever shares it
    shared = flow.from_host(NUMBERS)
    modes.adopt("shared", shared, mode="volatile")
    routine = modes.link(program, "add", grid=1, buffers={"x": "shared"})
    flow.fill(shared, 5)
    routine(amount=1)
    assert (modes.numpy("y", timeout=LIMIT) == 6).all()


@pytest.mark.parametrize("first", ["constant", "volatile", "device", "hosted"])
@pytest.mark.parametrize("second", ["constant", "volatile", "device", "hosted"])
@pytest.mark.parametrize("where", ["same", "child", "unrelated"])
def test_what_kernels_only_read_has_names_of_one_mode(flow, first, second, where):
    buffer = flow.from_host(NUMBERS)
    context = Context(flow, name="one")
    context.adopt("a", buffer.subspan(0, 128), mode=first)
    other = {"same": context, "child": context.child(), "unrelated": Context(flow)}[where]
    other.adopt("apart", buffer.subspan(128, 128), mode=second)
    if first != second and {first, second} & {"constant", "volatile"}:
        with pytest.raises(
            InvalidArgumentError, match=r"adopt 'b': .* 'a' in 'one', .* another mode"
        ):
            other.adopt("b", buffer.subspan(124, 8), mode=second)
        assert "b" not in other.names
        context.close()
    other = Context(flow)
    other.adopt("b", buffer.subspan(64, 64), mode=second)
    other.adopt("nothing", buffer.subspan(96, 0), mode=first)


def test_adopted_memory_stays_the_callers(flow):
    buffer = flow.from_host(NUMBERS)
    with Context(flow) as context:
        context.adopt("a", buffer)
        context.fill("a", 3)
    assert isinstance(buffer, TrackedBuffer)
    assert (buffer.numpy(timeout=LIMIT) == 3).all()
