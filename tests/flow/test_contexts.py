"""Contexts and routines: who shares what, and what is bound and open."""

from __future__ import annotations

import contextlib
import ctypes
import gc

import numpy as np
import pytest
from context_harness import BYTES, NUMBERS, memory
from core_harness import LIMIT, collect_in_threads

import hal
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError, NotFoundError
from hal.flow import Context, Flow, Memory, Step


def test_buffers_are_bound_by_name_and_scalars_are_open(root, program):
    routine = root.link(program, "add", grid=1)
    assert routine.scalars == ("amount",)
    assert routine.buffers == {"x": False, "y": True}
    routine(amount=3)
    assert np.array_equal(root.numpy("y", timeout=LIMIT), NUMBERS + 3)
    # In the order of the bytes, without a wait
    root.write("x", NUMBERS * 2)
    last = routine(amount=5)
    assert isinstance(last, hal.Submission)
    assert np.array_equal(root.numpy("y", timeout=LIMIT), NUMBERS * 2 + 5)
    assert repr(routine) == "<Routine root/add(amount)>"


def test_names_and_scalars_can_be_given_when_linking(root, program):
    root.from_host("input", NUMBERS * 10)
    routine = root.link(program, "add", grid=1, buffers={"x": "input"}, scalars={"amount": 1})
    assert routine.scalars == ()
    routine().wait(LIMIT)
    assert np.array_equal(root.numpy("y"), NUMBERS * 10 + 1)


def test_a_grid_may_be_left_open(root, program):
    routine = root.link(program, "add")
    routine.run({"amount": 2}, grid=1)
    assert np.array_equal(root.numpy("y", timeout=LIMIT), NUMBERS + 2)
    with pytest.raises(
        InvalidArgumentError, match=r"without a grid; give it to run\(grid=\.\.\.\)"
    ):
        routine(amount=2)


@pytest.mark.parametrize("scalars", [{}, {"amount": 1, "more": 2}, {"other": 1}])
def test_missing_and_surplus_scalars(root, program, scalars):
    routine = root.link(program, "add", grid=1)
    with pytest.raises(ArgumentTypeError, match="root/add takes the scalars 'amount', and got"):
        routine(**scalars)


def test_a_kernel_and_an_executable_link_as_a_program_does(root, program, device):
    executable = device.load(program)
    for code, entry in ((executable, "add"), (executable["add"], None)):
        root.fill("y", 0)
        root.link(code, entry, grid=1)(amount=4)
        assert np.array_equal(root.numpy("y", timeout=LIMIT), NUMBERS + 4)


def test_a_program_is_loaded_once_for_all_contexts(open_probe, program):
    device, probe = open_probe()
    with Flow(device) as flow:
        one, other = Context(flow, name="one"), Context(flow, name="other")
        for index, context in enumerate((one, one, other)):
            wanted = {name: memory("hosted") for name in (f"x{index}", f"y{index}")}
            names = {"x": f"x{index}", "y": f"y{index}"}
            context.link(program, "add", grid=1, buffers=names, allocate=wanted)
        assert probe.calls["load_module"] == 1


def test_steps_run_as_one_command_buffer(root, program):
    submissions = []
    root.flow.trace = lambda submission, _: submissions.append(submission.kind)
    routine = root.link(
        program,
        [
            Step("add", grid=1, buffers={"y": "between"}),
            Step("count", grid=1, buffers={"y": "between"}),
            Step("scale", grid=1, buffers={"y": "between", "z": "y"}, scalars={"factor": 10}),
        ],
        allocate={"between": memory("local")},
    )
    assert routine.scalars == ("amount",)
    assert routine.buffers == {"x": False, "between": True, "y": True}
    for amount in (1, 2, 1, *range(20)):
        routine(amount=amount)
        assert np.array_equal(root.numpy("y", timeout=LIMIT), (NUMBERS + amount + 1) * 10)
    assert set(submissions) == {"execute", "read"}
    with pytest.raises(InvalidArgumentError, match="for a single kernel"):
        routine.run({"amount": 1}, grid=3)


def test_scalars_that_look_alike_are_not_mixed_up(flow):
    source = """
    struct Many { float values[2000]; };
    __global__ void HAL_BLOCK(1) set(float *x, float value) { x[0] = value; }
    __global__ void HAL_BLOCK(1) pick(float *y, Many many) { y[0] = many.values[1000]; }
    """
    context = Context(flow)
    wanted = {name: Memory(4, np.float32, "hosted") for name in "xy"}
    steps = [Step("set", grid=1), Step("pick", grid=1)]
    routine = context.link(hal.compile(source, target="cpu"), steps, allocate=wanted)
    many = np.zeros(2000, np.float32)
    for index, value in enumerate((0.0, -0.0, 1, np.float32(1.5), 1.0, np.float64(-0.0))):
        many[1000] = index  # its text leaves out the middle
        routine(value=value, many=many)
        assert str(routine.context.numpy("x", timeout=LIMIT)[0]) == str(np.float32(value))
        assert routine.context.numpy("y") == [index]


class Pair(ctypes.Structure):
    _fields_ = (("left", ctypes.c_int32), ("right", ctypes.c_int32))


def changing(kind):
    """Return a structure of 1 and 2, and what changes its first number."""
    if kind == "structure":
        pair = Pair(1, 2)
        return pair, lambda: setattr(pair, "left", 7)
    if kind == "record":
        records = np.array([(1, 2)], "i4, i4")
        return records[0], lambda: records.fill(7)
    if kind in {"bytearray", "view"}:
        raw = bytearray(bytes(Pair(1, 2)))
        return memoryview(raw) if kind == "view" else raw, lambda: raw.__setitem__(0, 7)
    array = np.array([1, 2], np.int32)
    return array, lambda: array.fill(7)


@pytest.mark.parametrize("kind", ["array", "structure", "record", "bytearray", "view"])
def test_what_is_given_when_linking_may_change_then(root, kind):
    value, change = changing(kind)
    code = root.device.compile(
        """
        struct Pair { int left, right; };
        __global__ void HAL_BLOCK(1) set(int *y, Pair v) { y[0] = v.left; y[1] = v.right; }
        __global__ void HAL_BLOCK(1) nothing() {}
        """
    )
    buffers, scalars = {"y": "y"}, {"v": value}
    step = Step("set", 1, buffers=buffers, scalars=scalars)
    routines = [
        root.link(code, "set", grid=1, buffers=buffers, scalars=scalars),
        root.link(code, [step]),
        root.link(code, [step, Step("nothing", 1)]),
    ]
    change()
    buffers["y"] = "x"
    scalars.clear()
    for routine in routines:
        root.fill("y", 0)
        routine()
        assert root.numpy("y", timeout=LIMIT)[:2].tolist() == [1, 2]


def test_a_recording_is_linked_by_slot(root, program, device, flow):
    kernels = device.load(program)
    with flow.record(slots=2) as commands:
        source, target = commands.slots
        commands.dispatch(kernels["add"], grid=1, args=(source, target, 7))
    routine = root.link(commands, buffers=["x", "y"])
    assert (routine.scalars, routine.buffers) == ((), {"x": False, "y": True})
    routine()
    assert np.array_equal(root.numpy("y", timeout=LIMIT), NUMBERS + 7)
    with pytest.raises(InvalidArgumentError, match="has 2 slots, and buffers has 1 names"):
        root.link(commands, buffers=["x"])
    with pytest.raises(ArgumentTypeError, match="a name for each slot"):
        root.link(commands, buffers=5)
    for others in ({"grid": 1}, {"scalars": {"amount": 1}}, {"reads": ["x"]}, {"entry": "add"}):
        with pytest.raises(ArgumentTypeError, match="and nothing else"):
            root.link(commands, buffers=["x", "y"], **others)
    with pytest.raises(InvalidArgumentError, match="'x' again"):
        root.link(commands, buffers=["x", "x"])
    own = flow.from_host(NUMBERS)
    with flow.record(slots=1) as direct:
        direct.copy(own, direct.slots[0])
    with pytest.raises(InvalidArgumentError, match="uses buffers directly"):
        root.link(direct, buffers=["y"])


# Who shares what


def test_a_child_context_has_what_was_allocated(root, program):
    routine = root.link(
        program, "add", grid=1, buffers={"y": "z"}, allocate={"z": memory("hosted")}
    )
    child = routine.context
    assert child.parent is root
    assert set(root.names) == {"x", "y"}
    assert child.names == {**root.names, "z": memory("hosted")}
    routine(amount=1)
    assert np.array_equal(child.numpy("z", timeout=LIMIT), NUMBERS + 1)
    # And the next one that comes from there
    last = child.link(program, "scale", grid=1, buffers={"y": "z", "z": "y"})
    last(factor=3)
    assert np.array_equal(root.numpy("y", timeout=LIMIT), (NUMBERS + 1) * 3)


def test_related_contexts_share_memory(root):
    one, two = root.child("one"), root.child("two")
    one.write("y", NUMBERS)
    assert np.array_equal(two.numpy("y", timeout=LIMIT), NUMBERS)
    # The same declaration again is the same memory.
    two.allocate("y", BYTES, dtype=np.int32, mode="hosted")
    assert np.array_equal(two.numpy("y", timeout=LIMIT), NUMBERS)


@pytest.mark.parametrize(
    "other", [Memory(512, np.int32, "hosted"), Memory(BYTES, np.uint32, "hosted"), memory("device")]
)
def test_declarations_that_do_not_agree(root, program, other):
    child = root.child()
    with pytest.raises(
        InvalidArgumentError, match=r"'y' is declared as 256 bytes of int32, hosted"
    ):
        child.allocate("y", other.size, dtype=other.dtype, mode=other.mode)
    with pytest.raises(InvalidArgumentError, match=r"use one declaration, or another name"):
        root.link(program, "add", grid=1, allocate={"y": other})
    with pytest.raises(InvalidArgumentError, match="has its content already, in 'root'"):
        child.from_host("x", NUMBERS)


def test_a_name_of_two_unrelated_contexts_is_found(flow, root, program):
    other = Context(flow, name="other")
    for use in (
        lambda: other.allocate("y", BYTES, dtype=np.int32, mode="hosted"),
        lambda: other.from_host("y", NUMBERS),
        lambda: other.adopt("y", flow.from_host(NUMBERS)),
        lambda: other.read("y"),
        lambda: other.write("y", NUMBERS),
        lambda: other.link(program, "count", grid=1),
        lambda: other.link(program, "count", grid=1, allocate={"y": memory("hosted")}),
    ):
        with pytest.raises(InvalidArgumentError, match=r"'y' belongs to the context 'root'"):
            use()
    assert other.names == {}


def test_siblings_are_unrelated(root):
    one, two = root.child("one"), root.child("two")
    one.allocate("own", BYTES, mode="hosted")
    with pytest.raises(
        InvalidArgumentError, match=r"belongs to the context 'root/one', from which"
    ):
        two.allocate("own", BYTES, mode="hosted")
    with pytest.raises(
        InvalidArgumentError, match=r"belongs to the context 'root/one', from which"
    ):
        root.read("own")
    one.child().read("own")


def test_a_name_is_free_when_its_context_is_gone(flow):
    first = Context(flow, name="first")
    first.allocate("a", BYTES)
    first.close()
    first.close()
    second = Context(flow, name="second")
    second.allocate("a", BYTES)
    del second
    gc.collect()
    Context(flow, name="third").allocate("a", BYTES)
    with pytest.raises(ClosedError, match="'first' is closed"):
        first.allocate("b", BYTES)


@pytest.mark.parametrize("use", ["declare", "link", "fail"])
def test_a_name_is_free_at_once_when_its_context_is_dropped(flow, device, program, use):
    gc.collect()
    gc.disable()  # nothing has to wait for the collector
    try:
        before = device.statistics().bytes_now
        context = Context(flow, name="dropped")
        context.allocate("y", BYTES, dtype=np.int32)
        if use == "link":
            names = {"x": "y", "y": "z"}
            context.link(program, "add", grid=1, buffers=names, allocate={"z": memory("hosted")})(
                amount=1
            ).wait(LIMIT)
        elif use == "fail":
            with contextlib.suppress(InvalidArgumentError):
                context.allocate("y", 4)
        del context
        device.wait_idle(LIMIT)
        assert device.statistics().bytes_now == before
        Context(flow, name="next").allocate("y", 4)
    finally:
        gc.enable()


class During:
    """Have something happen while a context allocates, once."""

    def __init__(self, monkeypatch, flow, deed):
        allocate = flow.allocate
        self.made = []

        def allocate_late(*args, **options):
            monkeypatch.undo()
            self.made.append(allocate(*args, **options))
            collect_in_threads([deed])
            return self.made[0]

        monkeypatch.setattr(flow, "allocate", allocate_late)


def test_threads_may_declare_the_same_name_at_once(flow, monkeypatch):
    context = Context(flow, name="race")
    late = During(monkeypatch, flow, lambda: context.allocate("n", 64, mode="hosted"))
    context.allocate("n", 64, mode="hosted")
    context.write("n", np.ones(64, np.uint8))
    assert (context.numpy("n", timeout=LIMIT) == 1).all()
    assert late.made[0].closed  # the other thread's is the one
    late = During(monkeypatch, flow, lambda: context.from_host("m", NUMBERS))
    with pytest.raises(InvalidArgumentError, match="'m' is declared as 256 bytes of int32, hosted"):
        context.allocate("m", 64, mode="hosted")
    assert late.made[0].closed
    assert np.array_equal(context.numpy("m", timeout=LIMIT), NUMBERS)
    # In two related contexts; only the one of both that comes from the other has it then.
    child = context.child()
    During(monkeypatch, flow, lambda: context.allocate("o", 64, mode="hosted"))
    child.allocate("o", 64, mode="hosted")
    child.write("o", np.full(64, 7, np.uint8))
    assert (context.numpy("o", timeout=LIMIT) == 7).all()
    During(monkeypatch, flow, lambda: child.allocate("p", 64, mode="hosted"))
    with pytest.raises(InvalidArgumentError, match="'p' belongs to the context 'race/child'"):
        context.allocate("p", 64, mode="hosted")


def test_a_context_that_is_closed_during_a_declaration_keeps_nothing(flow, monkeypatch):
    context = Context(flow, name="closing")
    late = During(monkeypatch, flow, context.close)
    with pytest.raises(ClosedError, match="'closing' is closed"):
        context.allocate("n", 64)
    assert late.made[0].closed
    assert context.names == {}
    Context(flow).allocate("n", 64)


def test_a_link_that_fails_changes_nothing(root, program):
    with pytest.raises(NotFoundError, match=r"root/scale has no 'z'; it has: x, y, new"):
        root.link(program, "scale", grid=1, allocate={"new": memory("hosted")})
    root.allocate("new", 4)
    with pytest.raises(NotFoundError, match="there is no kernel 'nothing'"):
        root.link(program, "nothing", grid=1, allocate={"z": memory("hosted")})
    root.allocate("z", 4)


def test_what_hangs_on_a_closed_context_says_so(root, program):
    child = root.link(program, "add", grid=1, buffers={"y": "z"}, allocate={"z": memory("device")})
    middle = child.context
    last = middle.child("last")
    middle.close()
    with pytest.raises(ClosedError, match="root/add"):
        child(amount=1)
    with pytest.raises(ClosedError, match=r"'z' is not here, and root/add is closed"):
        last.fill("z", 0)
    assert np.array_equal(last.numpy("x", timeout=LIMIT), NUMBERS)


@pytest.mark.parametrize(
    "redeclare",
    [
        lambda context: context.from_host("n", NUMBERS, mode="constant"),
        lambda context: context.allocate("n", 4, dtype=np.int32),
        lambda context: context.allocate("n", BYTES, dtype=np.int32),  # no other way either
    ],
    ids=["constant", "smaller", "equal"],
)
@pytest.mark.parametrize("mode", ["device", "local"])
@pytest.mark.parametrize("is_called_before", [True, False])
def test_a_routine_uses_the_memory_that_it_was_linked_with(
    root, program, redeclare, mode, is_called_before
):
    parent = root.child("parent")
    parent.allocate("n", BYTES, dtype=np.int32, mode=mode)
    step = Step("add", grid=1, buffers={"y": "n"})
    routines = [
        parent.link(program, "add", grid=1, buffers={"y": "n"}),
        parent.link(program, [step, Step("count", grid=1)]),
    ]
    if is_called_before:
        for routine in routines:
            routine(amount=1).wait(LIMIT)
    parent.close()
    redeclare(root)
    for routine in routines:
        with pytest.raises(ClosedError, match=r"parent/\w+: the 'n' .* is closed; link again"):
            routine(amount=1)


def test_other_devices_and_flows_have_names_of_their_own(device, second_device, program):
    with Flow(device, second_device) as flow, Flow(device) as other:
        replicas = [
            Context(each, device=where, name=f"replica{index}")
            for index, (each, where) in enumerate(
                [(flow, device), (flow, second_device), (other, device)]
            )
        ]
        for index, context in enumerate(replicas):
            context.from_host("x", NUMBERS * index)
            context.link(program, "add", grid=1, allocate={"y": memory("hosted")}, name="sum")(
                amount=index
            )
        # From device to device
        replicas[0].copy("x", "x", to=replicas[1])
        assert np.array_equal(replicas[1].numpy("x", timeout=LIMIT), NUMBERS * 0)
        loaded = second_device.load(program)
        with pytest.raises(InvalidArgumentError, match="was opened another time"):
            replicas[0].link(loaded, "count", grid=1, buffers={"y": "x"})


# What kernels print


@pytest.fixture
def talk(root):
    """A loaded source in which one kernel prints, and one does not, with a function that does."""
    return root.device.compile(
        r"""
        __device__ void say(int x) { printf("%d\n", x); }
        __global__ void HAL_BLOCK(1) tell(const int *x, int plus) { say(x[5] + plus); }
        __global__ void HAL_BLOCK(1) add(const int *x, int *y) { y[5] += x[5]; }
        """
    )


def printed(output, run):
    return str(output.read(wait=run, timeout=LIMIT))


def test_each_call_prints_into_an_output_of_its_own(root, talk, device, capfd):
    routine = root.link(talk, "tell", grid=1)
    assert routine.scalars == ("plus", "hal_output")
    assert routine.buffers == {"x": False}
    outputs = [hal.Output(device) for _ in range(2)]
    runs = [routine(plus=index, hal_output=output) for index, output in enumerate(outputs)]
    assert [printed(*each) for each in zip(outputs, runs, strict=True)] == ["5\n", "6\n"]
    root.link(talk, "add", grid=1)()  # prints nothing, and takes none
    with pytest.raises(ArgumentTypeError, match="takes the scalars 'plus', 'hal_output', and got"):
        routine(hal_output=outputs[0])
    assert capfd.readouterr().out == ""
    # As in a dispatch without it, the driver's own printf prints.
    routine(plus=3).wait(LIMIT)
    routine(plus=4, hal_output=None).wait(LIMIT)
    assert capfd.readouterr().out == "8\n9\n"


def test_an_output_can_be_given_when_linking(root, talk, device):
    output = hal.Output(device)
    bound = {"plus": 1, "hal_output": output}
    routine = root.link(talk, "tell", grid=1, scalars=bound)
    assert routine.scalars == ()
    assert printed(output, routine()) == "6\n"
    steps = [Step("tell", grid=1, scalars=bound), Step("tell", grid=1, scalars={"plus": 2})]
    other = hal.Output(device)
    routine = root.link(talk, steps)
    assert routine.scalars == ("hal_output",)
    run = routine(hal_output=other)
    assert (printed(output, run), printed(other, run)) == ("6\n6\n", "7\n")


def test_steps_print_into_the_output_of_the_call(root, talk, device, capfd):
    routine = root.link(
        talk,
        [
            Step("tell", grid=1),
            Step("add", grid=1, buffers={"y": "x"}),
            Step("tell", grid=1),
        ],
    )
    assert routine.scalars == ("plus", "hal_output")
    for first in (5, 10):
        output = hal.Output(device)
        run = routine(plus=1, hal_output=output)
        assert printed(output, run) == f"{first + 1}\n{2 * first + 1}\n"
    assert capfd.readouterr().out == ""
    routine(plus=1).wait(LIMIT)
    assert capfd.readouterr().out == "21\n41\n"


def test_what_is_no_output(root, talk, flow, device):
    routine = root.link(talk, "tell", grid=1)
    for wrong in (3, flow.from_host(NUMBERS), device.allocate(1000)):
        with pytest.raises(ArgumentTypeError, match=r"root/tell: .* is a hal.Output or None, not"):
            routine(plus=1, hal_output=wrong)
        with pytest.raises(ArgumentTypeError, match=r"'tell': .* is a hal.Output or None, not"):
            root.link(talk, "tell", scalars={"hal_output": wrong})
    with pytest.raises(InvalidArgumentError, match="no buffers 'hal_output'"):
        root.link(talk, "tell", buffers={"hal_output": "y"})


# Wrong arguments


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"name": "", "size": 4}, InvalidArgumentError, "has at least one letter"),
        ({"name": 3, "size": 4}, ArgumentTypeError, "the name of memory is a str"),
        ({"name": "a", "size": "4"}, ArgumentTypeError, "number of bytes"),
        ({"name": "a", "size": 5, "dtype": np.int32}, InvalidArgumentError, "5 bytes are no"),
        ({"name": "a", "size": -4}, InvalidArgumentError, "-4 bytes"),
        ({"name": "a", "size": 64, "dtype": "S"}, InvalidArgumentError, "64 bytes are no"),
        ({"name": "a", "size": 0, "dtype": "V0"}, InvalidArgumentError, "0 bytes are no"),
        ({"name": "a", "size": 64, "dtype": object}, ArgumentTypeError, "holds Python objects"),
        ({"name": "a", "size": 64, "dtype": "fast"}, ArgumentTypeError, "'fast' is no numpy dtype"),
        (
            {"name": "a", "size": 4, "mode": "fast"},
            InvalidArgumentError,
            "a mode is one of 'constant', 'hosted",
        ),
        ({"name": "a", "size": 4, "mode": "constant"}, InvalidArgumentError, "needs its content"),
    ],
)
def test_wrong_declarations(root, arguments, kind, match):
    with pytest.raises(kind, match=match):
        root.allocate(**arguments)
    assert set(root.names) == {"x", "y"}


def test_memory_that_no_device_has():
    for dtype in (object, "O,i4"):
        with pytest.raises(ArgumentTypeError, match="holds Python objects"):
            Memory(64, dtype)


def test_a_local_has_no_content_before_a_call(root, flow):
    with pytest.raises(InvalidArgumentError, match="is local: it has no content"):
        root.from_host("a", NUMBERS, mode="local")
    with pytest.raises(InvalidArgumentError, match="is local: it has no content"):
        root.adopt("a", flow.from_host(NUMBERS), mode="local")


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"entry": "add", "buffers": {"amount": "x"}}, InvalidArgumentError, "no buffers 'amount'"),
        ({"entry": "add", "scalars": {"x": 1}}, InvalidArgumentError, "no scalars 'x'; it has 'am"),
        ({"entry": "add", "buffers": ["x", "y"]}, ArgumentTypeError, "a mapping of parameters"),
        ({"entry": None}, ArgumentTypeError, "the name of a kernel"),
        ({"entry": []}, InvalidArgumentError, "no step"),
        ({"entry": [Step("count", grid=1)], "grid": 1}, ArgumentTypeError, "each step says"),
        ({"entry": [Step("count"), Step("count", 1)]}, InvalidArgumentError, "has no grid"),
        ({"entry": "add", "allocate": {"z": 4}}, ArgumentTypeError, "'z' is a hal.flow.Memory"),
        ({"entry": "add", "allocate": ["z"]}, ArgumentTypeError, "allocate is a mapping of"),
        ({"entry": "add", "scalars": ["amount"]}, ArgumentTypeError, "scalars are a mapping"),
        ({"entry": "add", "buffers": "x"}, ArgumentTypeError, "buffers are a mapping of"),
        ({"entry": "add", "reads": "y"}, ArgumentTypeError, "reads: a list of names .*, not str"),
        ({"entry": "add", "writes": 5}, ArgumentTypeError, "writes: a list of names .*, not int"),
        ({"entry": 5}, ArgumentTypeError, "a list of hal.flow.Step, not int"),
        ({"entry": ["add"]}, ArgumentTypeError, r"a list of hal.flow.Step, not \['add'\]"),
        ({"entry": "add", "reads": ["amount"]}, InvalidArgumentError, "are none"),
    ],
)
def test_wrong_links(root, program, arguments, kind, match):
    with pytest.raises(kind, match=match):
        root.link(program, **arguments)


def test_wrong_steps():
    for given, match in (
        ({"reads": "y"}, "reads: a list of names"),
        ({"scalars": 5}, "scalars are a mapping"),
        ({"buffers": ["x"]}, "buffers are a mapping"),
        ({"buffers": {"x": 1}}, "a name is a str, not int"),
        ({"grid": "4"}, "the grid is one to three ints, not str"),
        ({"block": 1.5}, "the block is one to three ints, not float"),
        ({"shared_memory": True}, "shared_memory is a number of bytes, not bool"),
    ):
        with pytest.raises(ArgumentTypeError, match=match):
            Step("add", **given)
