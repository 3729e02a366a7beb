"""Contexts: names of memory, who sees them, and how long they last."""

import gc

import numpy as np
import pytest
from context_harness import BYTES, NUMBERS, declare, step
from core_harness import LIMIT, collect_in_threads

from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError, NotFoundError
from hal.flow import Context, Flow, MemoryMode, TrackedBuffer


def test_a_context_is_a_mapping_of_names_to_tracked_buffers(root):
    declare(root, "local", "scratch")
    assert list(root) == ["x", "y"]
    assert len(root) == 2
    assert "x" in root
    assert "scratch" not in root
    assert root.get("y") is root["y"]
    assert root.get("scratch", 3) == root.get("z", 3) == 3
    x = root["x"]
    assert isinstance(x, TrackedBuffer)
    assert (x.name, x.mode, x.dtype, x.shape) == ("x", MemoryMode.HOSTED, np.int32, (64,))
    assert repr(x).startswith("<TrackedBuffer 'x' int32[64] 256 bytes at 0x")
    assert repr(root) == f"<Context root on {root.device.name}: x, y>"
    assert {name: each.mode.value for name, each in root.items()} == {"x": "hosted", "y": "hosted"}


def test_a_name_can_do_what_a_tracked_buffer_can(root, gate):
    x = root["x"]
    x.write(NUMBERS[:8], offset=32)
    part = x.subspan(0, 16)
    assert (part.name, part.mode) == ("x[0:16]", x.mode)
    part.fill(7)
    x.written.wait(LIMIT)
    assert x.numpy(timeout=LIMIT)[:10].tolist() == [7, 7, 7, 7, 4, 5, 6, 7, 0, 1]
    x.fill(1, wait=gate.at(1))
    assert not x.used.poll()
    gate.signal(1)
    x.used.wait(LIMIT)


@pytest.mark.parametrize("clear", [False, True])
def test_content_is_zero_if_asked_for(root, program, flow, clear):
    dirty = [flow.from_host(np.full(BYTES, 255, np.uint8)) for _ in range(4)]
    for each in dirty:
        each.close()
    flow.wait_idle(LIMIT)
    made = root.allocate("new", BYTES, dtype=np.int32, mode="hosted", clear=clear)
    assert (made.numpy(timeout=LIMIT) == 0).all() or not clear
    assert (flow.allocate(BYTES, clear=clear).numpy(timeout=LIMIT) == 0).all() or not clear
    root.allocate("local", BYTES, dtype=np.int32, mode="local", clear=clear)
    if not clear:
        with pytest.raises(InvalidArgumentError, match="has not been written in the call"):
            root.link(program, step("add", x="local"))
        return
    routine = root.link(program, step("merge", theirs="x", ours="local"), step("add", x="local"))
    for _ in range(4):
        routine(amount=1)
        assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS + 1)


# The types of names


def test_arrays_of_another_type_or_size_are_refused(root, flow):
    x, before = root["x"], NUMBERS
    for wrong, match in (
        (np.ones(64), "'x' has elements of int32, and the array of float64; convert"),
        (np.ones(32), "float64"),
        (np.ones(64, np.uint32), "uint32"),
        (np.float64(1), "float64"),
        (np.ones(32, np.int32), "'x' has 256 bytes, and the array 128; say which part"),
    ):
        for write in (x.write, lambda array: flow.from_host(array, x)):
            with pytest.raises(InvalidArgumentError, match=match):
                write(wrong)
    with pytest.raises(InvalidArgumentError, match="float64"):
        flow.read(x, np.zeros(32))
    with pytest.raises(InvalidArgumentError, match="of int32, and the value of float64"):
        x.fill(np.float64(7))
    root.from_host("floats", np.ones(64, np.float32))
    root.from_host("few", NUMBERS[:32])
    for source, match in (("floats", "the source of float32"), ("few", "and the source 128")):
        with pytest.raises(InvalidArgumentError, match=match):
            flow.copy(root[source], x)
        with pytest.raises(InvalidArgumentError, match=match), flow.record() as commands:
            commands.copy(root[source], x)
    for record, match in (
        (lambda commands: commands.fill(x, np.float64(7)), "the value of float64"),
        (lambda commands: commands.update(x, NUMBERS[:32]), "and the array 128"),
    ):
        with pytest.raises(InvalidArgumentError, match=match), flow.record() as commands:
            record(commands)
    assert np.array_equal(x.numpy(timeout=LIMIT), before)
    # Said, it is done.
    flow.copy(root["floats"].view(np.int32), x)
    assert x.numpy(timeout=LIMIT)[0] == np.ones(1, np.float32).view(np.int32)[0]
    flow.copy(root["few"], x, size=128)
    x.write(bytes(128))
    x.subspan(0, 8).write(NUMBERS[4:6])
    assert x.numpy(timeout=LIMIT)[:3].tolist() == [4, 5, 0]
    x.view(np.float64).write(np.ones(32))


# Who sees what


def test_related_contexts_share_memory(root):
    one, two = root.child("one"), root.child("two")
    assert one.parent is root
    assert one["y"] is two["y"] is root["y"]
    one.from_host("own", NUMBERS)
    assert list(one) == ["x", "y", "own"]
    assert list(one.child()) == ["x", "y", "own"]
    for other in (two, root):
        with pytest.raises(NotFoundError, match=f"{other.name} has no 'own'; it has: x, y"):
            other["own"]
    with pytest.raises(ArgumentTypeError, match="a name of a context's memory is a str, not int"):
        root[3]


def test_unrelated_contexts_may_have_the_same_names(root, flow, program):
    """A cell of a notebook that runs twice, a teacher and a student."""
    other = Context(flow, name="other")
    other.from_host("x", NUMBERS * 2)
    declare(other, "hosted", "y")
    siblings = [declare(root.child(), "device", "state") for _ in range(2)]
    assert siblings[0]["state"] is not siblings[1]["state"]
    for context in (root, other):
        context.link(program, step("add"))(amount=1)
    assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS + 1)
    assert np.array_equal(other["y"].numpy(timeout=LIMIT), NUMBERS * 2 + 1)


def test_a_name_is_declared_once(root, flow):
    child = declare(root.child(), "local", "scratch")
    for name in ("y", "scratch"):
        for use in (
            lambda name: child.allocate(name, BYTES, dtype=np.int32, mode="hosted"),
            lambda name: child.allocate(name, BYTES, mode="local"),
            lambda name: child.from_host(name, NUMBERS),
            lambda name: child.adopt(name, flow.from_host(NUMBERS)),
        ):
            with pytest.raises(InvalidArgumentError, match=f"root/child has '{name}' already"):
                use(name)


def test_other_devices_have_contexts_of_their_own(device, second_device, program):
    with Flow(device, second_device) as flow:
        first, second = (Context(flow, device=each) for each in (device, second_device))
        for index, context in enumerate((first, second)):
            context.from_host("x", NUMBERS * index)
            declare(context, "hosted", "y").link(program, step("add"))(amount=index)
        flow.copy(second["y"], first["y"])
        assert np.array_equal(first["y"].numpy(timeout=LIMIT), NUMBERS + 1)
        with pytest.raises(
            InvalidArgumentError, match=r"is on <Device cpu:0 \(2\).*on <Device cpu:0 '"
        ):
            first.adopt("theirs", second["x"])
        loaded = second_device.load(program)
        with pytest.raises(InvalidArgumentError, match="loaded on"):
            first.link(loaded, step("add"))(amount=1)


def test_threads_may_declare_the_same_name_at_once(flow, device):
    context, before, refused = Context(flow), device.statistics().bytes_now, []

    def declare_it():
        try:
            context.allocate("n", 64, mode="hosted")
        except InvalidArgumentError:
            refused.append(1)

    collect_in_threads([declare_it] * 4)
    assert refused == [1] * 3
    assert device.statistics().bytes_now - before == 64


@pytest.mark.parametrize("other", ["declares", "closes"])
def test_another_thread_may_be_faster(flow, device, other):
    """Memory that was allocated in vain is given back; no lock is held around a call."""
    context, before = Context(flow, name="slow"), device.statistics().bytes_now
    child = context.child()

    def meanwhile(*_):
        flow.trace = None
        deed = context.close if other == "closes" else lambda: child.allocate("n", 64, mode="local")
        collect_in_threads([deed])

    flow.trace = meanwhile
    kind = ClosedError if other == "closes" else InvalidArgumentError
    with pytest.raises(kind):
        child.from_host("n", NUMBERS)
    device.wait_idle(LIMIT)
    gc.collect()
    assert device.statistics().bytes_now == before


# The end


def test_closing_frees_what_was_declared_and_no_more(flow, device, program):
    device.trim()
    before = device.statistics().bytes_now
    lent = flow.from_host(NUMBERS)
    context = Context(flow, name="closing")
    context.from_host("x", NUMBERS)
    declare(context, "device", "y", "z")
    context.adopt("lent", lent)
    steps = [step("add"), step("scale")]
    routine = context.link(program, *steps)
    for _ in range(20):  # with recordings
        routine(amount=1, factor=2)
    other = context.link(program, step("add", x="lent"))
    other(amount=1)
    child = context.child("last")
    context.close()
    context.close()
    flow.wait_idle(LIMIT)
    device.trim()
    assert device.statistics().bytes_now - before == BYTES
    assert np.array_equal(lent.numpy(timeout=LIMIT), NUMBERS)
    for each in (routine, other):
        arguments = dict.fromkeys(each.parameters, 1)
        with pytest.raises(ClosedError, match=r"closing/add.*: the context 'closing' is closed"):
            each(**arguments)
    for use in (lambda: context["x"], lambda: context.allocate("b", 4), context.child):
        with pytest.raises(ClosedError, match="'closing' is closed"):
            use()
    for use in (lambda: child["lent"], lambda: child.link(program, step("add"))):
        with pytest.raises(ClosedError, match="the context 'closing' is closed"):
            use()
    assert (list(context), list(child)) == ([], [])


def test_a_child_that_is_closed_leaves_its_parent_open(root, program):
    child = declare(root.child(), "hosted", "z")
    mine, its = root.link(program, step("add")), child.link(program, step("add", y="z"))
    child.close()
    with pytest.raises(ClosedError, match="the context 'root/child' is closed"):
        its(amount=1)
    mine(amount=2)
    assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS + 2)


def test_a_dropped_context_frees_its_memory_at_once(flow, device, program):
    gc.collect()
    gc.disable()  # nothing has to wait for the collector
    try:
        before = device.statistics().bytes_now
        context = declare(Context(flow, name="dropped"), "device", "x", "y")
        routine = context.link(program, step("add"))
        routine(amount=1).wait(LIMIT)
        del context
        routine(amount=2).wait(LIMIT)  # which keeps what it uses
        del routine
        device.wait_idle(LIMIT)
        assert device.statistics().bytes_now == before
    finally:
        gc.enable()


def test_a_link_that_fails_changes_nothing(root, program):
    for wrong, match in (("add", "has no 'z'; it has: x, y"), ("nothing", "no kernel 'nothing'")):
        with pytest.raises(NotFoundError, match=match):
            root.link(program, step("count"), step(wrong, **({"y": "z"} if wrong == "add" else {})))
    assert list(root) == ["x", "y"]


# Wrong arguments


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"name": "", "size": 4}, InvalidArgumentError, "has a letter or more"),
        ({"name": 3, "size": 4}, ArgumentTypeError, "the name of memory is a str"),
        ({"name": "a", "size": "4"}, ArgumentTypeError, "number of bytes"),
        ({"name": "a", "size": 5, "dtype": np.int32}, InvalidArgumentError, "5 bytes are no"),
        ({"name": "a", "size": -4}, InvalidArgumentError, "-4 bytes"),
        ({"name": "a", "size": 64, "dtype": "S"}, InvalidArgumentError, "64 bytes are no"),
        ({"name": "a", "size": 0, "dtype": "V0"}, InvalidArgumentError, "0 bytes are no"),
        (
            {"name": "a", "size": 64, "dtype": object},
            InvalidArgumentError,
            "no whole number of object",
        ),
        ({"name": "a", "size": 64, "dtype": "O,i4"}, InvalidArgumentError, "no whole number of"),
        ({"name": "a", "size": 64, "dtype": "fast"}, ArgumentTypeError, "'fast' is no numpy dtype"),
        ({"name": "a", "size": 4, "mode": "fast"}, InvalidArgumentError, "a mode is one of 'const"),
        (
            {"name": "a", "size": 4, "mode": "constant"},
            InvalidArgumentError,
            "has its content from",
        ),
        ({"name": "a", "size": 4, "clear": 3}, ArgumentTypeError, "clear"),
    ],
)
@pytest.mark.parametrize("is_local", [False, True])
def test_wrong_declarations(root, arguments, kind, match, is_local):
    with pytest.raises(kind, match=match):
        root.allocate(**({"mode": "local"} if is_local else {}), **arguments) if (
            "mode" not in arguments
        ) else root.allocate(**arguments)
    assert set(root) == {"x", "y"}


def test_a_local_has_no_content_before_a_call(root, flow):
    with pytest.raises(InvalidArgumentError, match="is a local, which has no content"):
        root.from_host("a", NUMBERS, mode="local")
    with pytest.raises(InvalidArgumentError, match="is a local, which has no content"):
        root.adopt("a", flow.from_host(NUMBERS), mode="local")
