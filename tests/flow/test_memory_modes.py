"""Memory modes: which reads and writes each allows; locals, volatile and merged memory."""

import numpy as np
import pytest
from context_harness import BYTES, NUMBERS, declare, step
from core_harness import LIMIT

from hal.errors import InvalidArgumentError
from hal.flow import Context, MemoryMode, Step


@pytest.fixture
def modes(root):
    """Contexts with a name for each mode."""
    root.from_host("constant", NUMBERS, mode=MemoryMode.CONSTANT)
    root.from_host("volatile", NUMBERS, mode="volatile")
    declare(root, "device", "device", "out")
    return declare(root, "local", "local")


MODES = ["constant", "volatile", "device", "local", "y"]


@pytest.mark.parametrize("name", MODES)
def test_who_may_do_what(modes, program, flow, device, name):
    allowed = {
        "constant": {"read", "kernel reads", "copy from"},
        "volatile": {"read", "write", "fill", "kernel reads", "copy from", "copy to"},
        "device": {"fill", "kernel reads", "kernel writes", "copy from", "copy to"},
        "local": {"kernel writes"},
    }
    everything = allowed["volatile"] | allowed["device"]
    kernels = device.load(program)

    def record(add):
        with flow.record() as commands:
            add(commands)
        flow.execute(commands).wait(LIMIT)

    def dispatch(x, y):
        return flow.dispatch(kernels["add"], grid=1, args=(modes[x], modes[y], 1))

    def both(linked, dispatched):
        linked()(amount=1).wait(LIMIT)
        if name != "local":
            dispatched().wait(LIMIT)

    deeds = {
        "read": lambda: modes[name].numpy(timeout=LIMIT),
        "write": lambda: modes[name].write(NUMBERS).wait(LIMIT),
        "fill": lambda: modes[name].subspan(0, 8).fill(1).wait(LIMIT),
        "copy from": lambda: flow.copy(modes[name], modes["out"]).wait(LIMIT),
        "copy to": lambda: flow.copy(modes["x"], modes[name]).wait(LIMIT),
        "kernel reads": lambda: both(
            lambda: modes.link(program, step("add", x=name, y="out")), lambda: dispatch(name, "out")
        ),
        "kernel writes": lambda: both(
            lambda: modes.link(program, step("add", y=name)), lambda: dispatch("x", name)
        ),
    }
    found = set()
    for deed, do in deeds.items():
        try:
            do()
        except InvalidArgumentError:
            continue
        found.add(deed)
    assert found == allowed.get(name, everything)
    # However a kernel gets there
    if "kernel writes" not in found:
        args = (modes["x"], modes[name], 1)
        with flow.record(slots=[(np.int32, BYTES)]) as slotted:
            slotted.fill(slotted.slots[0], 0)
        for use in (
            lambda: record(lambda commands: commands.dispatch(kernels["add"], grid=1, args=args)),
            lambda: record(lambda commands: commands.fill(modes[name], 0)),
            lambda: flow.execute(slotted, bindings=[modes[name]]),
            lambda: flow.call(print, writes=[modes[name]]),
            lambda: flow.dispatch(kernels["count"], grid=1, args=[modes[name].view(np.int32)]),
        ):
            match = f"cannot (let kernels write|fill) '{name}"
            with pytest.raises(InvalidArgumentError, match=match):
                use()


def test_writing_a_constant_raises(modes, program):
    constant, message = modes["constant"], "'constant', which is constant: nobody writes it"
    for deed, use in (
        ("write", lambda: constant.write(NUMBERS)),
        ("fill", lambda: constant.fill(0)),
        ("copy to", lambda: modes.flow.copy(modes["x"], constant)),
        ("write", lambda: modes.flow.from_host(NUMBERS, constant)),
    ):
        with pytest.raises(InvalidArgumentError, match=f"cannot {deed} {message}"):
            use()
    with pytest.raises(
        InvalidArgumentError, match="write 'constant' through 'y' of kernel 'count', which is const"
    ):
        modes.link(program, step("count", y="constant"))
    assert np.array_equal(constant.numpy(timeout=LIMIT), NUMBERS)


def test_who_knows_that_a_kernel_only_reads_may_say_so(modes, program):
    modes.link(program, Step("count", 1, buffers={"y": "constant"}, reads=["y"]))
    with pytest.raises(InvalidArgumentError, match="cannot let kernels write 'constant'"):
        modes.link(program, Step("add", 1, buffers={"x": "constant"}, writes=["x"]))


def test_a_local_is_read_only_in_its_call_and_behind_a_write(modes, program):
    routine = modes.link(program, step("add", y="local"))
    routine(amount=1).wait(LIMIT)
    with pytest.raises(InvalidArgumentError, match="'local' is local to a call: its bytes are"):
        modes["local"]
    steps = [step("scale", y="local", z="y"), step("add", y="local")]
    for wrong in (steps[:1], steps, [step("add", x="local", y="local")]):
        with pytest.raises(InvalidArgumentError, match="has not been written in the call"):
            modes.link(program, *wrong)
    modes.link(program, *steps[::-1])
    modes.link(program, step("count", y="local"))  # it may read it, too, and says that it writes


def test_what_is_volatile_changes_between_calls_and_is_only_read_by_kernels(modes, program, flow):
    routine = modes.link(program, step("add", x="volatile"))
    for times in (1, 2):
        modes["volatile"].write(NUMBERS * times)
        routine(amount=0)
        assert np.array_equal(modes["y"].numpy(timeout=LIMIT), NUMBERS * times)
    # Or by others who share it.
    shared = flow.from_host(NUMBERS)
    modes.adopt("shared", shared, mode="volatile")
    routine = modes.link(program, step("add", x="shared"))
    flow.fill(shared, 5)
    routine(amount=1)
    assert (modes["y"].numpy(timeout=LIMIT) == 6).all()


@pytest.mark.parametrize("first", ["constant", "volatile", "device", "hosted"])
@pytest.mark.parametrize("second", ["constant", "volatile", "device", "hosted"])
@pytest.mark.parametrize("where", ["same", "child", "unrelated", "own"])
def test_what_kernels_only_read_has_names_of_one_mode(flow, first, second, where):
    context = Context(flow, name="one")
    if where == "own":
        buffer = context.from_host("a", NUMBERS, mode=first)
    else:
        buffer = flow.from_host(NUMBERS)
        context.adopt("a", buffer.subspan(0, 128), mode=first)
    other = {"same": context, "child": context.child()}.get(where, Context(flow))
    if where != "own":
        other.adopt("apart", buffer.subspan(128, 128), mode=second)
    if first != second and {first, second} & {"constant", "volatile"}:
        with pytest.raises(
            InvalidArgumentError, match=rf"'b' as {second}: .*'a.*which is {first}.* another mode"
        ):
            other.adopt("b", buffer.subspan(124, 8), mode=second)
        assert "b" not in other
        if where != "own":
            context.close()
            Context(flow).adopt("b", buffer.subspan(64, 64), mode=second)
    else:
        other.adopt("b", buffer.subspan(124, 8), mode=second)
    Context(flow).adopt("nothing", buffer.subspan(96, 0), mode=second) if where != "own" else None


def test_adopted_memory_stays_the_callers(flow):
    buffer = flow.from_host(NUMBERS)
    with Context(flow) as context:
        context.adopt("a", buffer, mode="constant")
        flow.fill(buffer, 3)  # the caller's own is exempt
        assert context["a"].numpy(timeout=LIMIT)[0] == 3
    assert (buffer.numpy(timeout=LIMIT) == 3).all()
    assert buffer.size == BYTES
