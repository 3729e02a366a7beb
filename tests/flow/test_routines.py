"""Routines: what is bound, what each call gives, and how steps run."""

import ctypes
import threading

import numpy as np
import pytest
from context_harness import BYTES, NUMBERS, declare, step
from core_harness import LIMIT

import hal
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.flow import Context, Flow, Merge, Step


def recordings(routine):
    return list(routine._kept.values())


def test_buffers_are_bound_by_name_and_scalars_are_open(root, program):
    routine = root.link(program, step("add"))
    assert routine.parameters == ("amount",)
    routine(amount=3)
    assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS + 3)
    # In the order of the bytes, without a wait
    root["x"].write(NUMBERS * 2)
    assert isinstance(routine(amount=5), hal.Submission)
    assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS * 2 + 5)
    assert repr(routine) == "<Routine root/add(amount)>"
    root.from_host("input", NUMBERS * 10)
    bound = root.link(program, step("add", {"amount": 1}, x="input"))
    assert bound.parameters == ()
    bound().wait(LIMIT)
    assert np.array_equal(root["y"].numpy(), NUMBERS * 10 + 1)


def test_a_pointer_can_be_given_with_each_call(root, program, flow):
    routine = root.link(program, step("add", x=None))
    assert routine.parameters == ("x", "amount")
    several = root.link(program, step("add", y=None), step("count", y=None))
    for times in range(1, 12):  # dispatched, and recorded
        routine(x=flow.from_host(NUMBERS * times), amount=1)
        assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS * times + 1)
        target = flow.allocate(BYTES, dtype=np.int32)
        several(y=target, amount=1)
        assert np.array_equal(target.numpy(timeout=LIMIT), NUMBERS + 2)
    assert recordings(several)
    for wrong in (3, np.zeros(64, np.int32), target.raw, "x"):
        for each in (routine, several):
            with pytest.raises(ArgumentTypeError, match="tracked buffer"):
                each(**{**dict.fromkeys(each.parameters, 1), each.parameters[0]: wrong})
    root.from_host("constant", NUMBERS, mode="constant")
    writing = root.link(program, step("count", y=None))
    with pytest.raises(InvalidArgumentError, match="cannot let kernels write 'constant'"):
        writing(y=root["constant"])


def test_recordings_that_another_thread_forgets_are_made_again(root, program):
    """As it does when it has many, or closes a context: in the middle of a call of this one."""

    class Forgotten(dict):
        def __contains__(self, key):
            found = super().__contains__(key)
            self.clear()
            return found

    routine = root.link(program, step("add"), step("count"))
    routine(amount=1)
    routine._kept = Forgotten(routine._kept)
    routine(amount=2)
    assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS + 3)
    assert len(recordings(routine)) == 1


def test_one_buffer_for_two_open_pointers_is_ordered(root, program, flow):
    routine = root.link(program, step("add", x=None), step("count", y=None))
    buffer = flow.from_host(NUMBERS)
    for times in range(12):
        routine(x=buffer, y=buffer, amount=1)
        assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS + times + 1)


def test_a_parameter_may_have_any_name(root, device):
    code = device.compile(
        "__global__ void HAL_BLOCK(1) set(int *y, int self, int arguments, int grid, int queue) "
        "{ y[0] = self + arguments + grid + queue; }"
    )
    root.link(code, step("set"))(self=1, arguments=2, grid=3, queue=4)
    assert root["y"].numpy(timeout=LIMIT)[0] == 10


def test_a_grid_may_be_left_open(root, program):
    routine = root.link(program, Step("add"))
    routine.run({"amount": 2}, grid=1)
    assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS + 2)
    with pytest.raises(InvalidArgumentError, match=r"root/add has no grid; give one, as in run"):
        routine(amount=2)
    several = root.link(program, step("count"), step("count"))
    with pytest.raises(InvalidArgumentError, match="has a grid already"):
        several.run(grid=3)


@pytest.mark.parametrize("scalars", [{}, {"amount": 1, "more": 2}, {"other": 1}])
def test_missing_and_surplus_arguments(root, program, scalars):
    routine = root.link(program, step("add"))
    with pytest.raises(ArgumentTypeError, match=r"root/add takes \['amount'\], and got"):
        routine(**scalars)


def test_a_kernel_and_an_executable_link_as_a_program_does(root, program, device):
    executable = device.load(program)
    for code, entry in (
        (executable, "add"),
        (executable, executable["add"]),
        (None, executable["add"]),
    ):
        root["y"].fill(0)
        root.link(code, step(entry))(amount=4)
        assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS + 4)


def test_a_program_is_loaded_once_for_all_contexts(open_probe, program):
    device, probe = open_probe()
    with Flow(device) as flow:
        for _ in range(3):
            declare(Context(flow), "hosted", "x", "y").link(program, step("add"))
        assert probe.calls["load_module"] == 1


def test_waits_and_signals_are_of_the_whole_call(root, program, gate, device):
    done = hal.create_semaphore()
    routine = root.link(program, step("add"), step("count"))
    last = routine.run({"amount": 1}, wait=gate.at(1), signal=done.at(1))
    assert (last.state, done.query()) == ("pending", 0)
    gate.signal(1)
    done.wait(1, LIMIT)
    assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS + 2)
    queue = device.create_queue()
    assert routine.run({"amount": 2}, queue=queue).queue is queue
    assert np.array_equal(root["y"].numpy(timeout=LIMIT), NUMBERS + 3)


# Several steps


def chain(root, program):
    declare(root, "local", "between")
    return root.link(
        program,
        step("add", y="between"),
        step("count", y="between"),
        step("scale", {"factor": 10}, y="between", z="y"),
    )


def test_steps_are_recorded_once_whatever_their_numbers_are(root, program):
    kinds = []
    root.flow.trace = lambda submission, _: kinds.append(submission.kind)
    routine = chain(root, program)
    assert routine.parameters == ("amount",)
    for amount in range(30):
        routine(amount=amount)
        assert np.array_equal(root["y"].numpy(timeout=LIMIT), (NUMBERS + amount + 1) * 10)
    assert kinds.count("execute") == 29
    assert kinds.count("dispatch") == 3
    assert len(recordings(routine)) == 1
    # What the recording does not take is told as a dispatch tells it.
    for wrong, words in (("many", "'amount'.*str"), (2**40, "'amount'.*1099511627776")):
        with pytest.raises(hal.HalError, match=words) as caught:
            routine(amount=wrong)
        assert "slot" not in str(caught.value)
    routine(amount=1)
    assert np.array_equal(root["y"].numpy(timeout=LIMIT), (NUMBERS + 2) * 10)


def test_scalars_that_look_alike_are_not_mixed_up(flow):
    source = """
    struct Many { float values[2000]; };
    __global__ void HAL_BLOCK(1) set(float *x, float value) { x[0] = value; }
    __global__ void HAL_BLOCK(1) pick(float *y, Many many) { y[0] = many.values[1000]; }
    """
    context = Context(flow)
    for name in "xy":
        context.allocate(name, 4, dtype=np.float32, mode="hosted")
    routine = context.link(hal.compile(source, target="cpu"), step("set"), step("pick"))
    only = context.link(hal.compile(source, target="cpu"), step("set"), step("set"))
    many = np.zeros(2000, np.float32)
    values = (0.0, -0.0, 1, np.float32(1.5), 1.0, np.float64(-0.0))
    for index, value in enumerate((*values, *values[:2])):
        for _ in range(4):
            many[1000] += 1  # its text leaves out the middle
            routine(value=value, many=many)
            assert context["y"].numpy(timeout=LIMIT) == many[1000]
        for each in (routine, *[only] * 2 ** (index + 1)):
            each(**({"many": many} if each is routine else {}), value=value)
        assert str(context["x"].numpy(timeout=LIMIT)[0]) == str(np.float32(value))
    assert len(recordings(only)) == len(recordings(routine)) == 1


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
        """
    )
    buffers, scalars = {"y": "y"}, {"v": value}
    set_ = Step("set", 1, buffers=buffers, scalars=scalars)
    routines = [root.link(code, set_), root.link(code, set_, set_)]
    change()
    buffers["y"] = "x"
    scalars.clear()
    for routine in routines * 3:
        root["y"].fill(0)
        routine()
        assert root["y"].numpy(timeout=LIMIT)[:2].tolist() == [1, 2]


# Locals


def test_each_call_has_local_memory_of_its_own_in_the_order_of_the_queue(
    root, program, device, gate
):
    routine, other = chain(root, program), device.create_queue()
    before = device.statistics().bytes_now
    held = [routine.run({"amount": 1}, wait=gate.at(1), queue=queue) for queue in (None, other)]
    assert [each.state for each in held] == ["pending"] * 2
    assert device.statistics().bytes_now - before <= 2 * BYTES
    gate.signal(1)
    for each in held:
        each.wait(LIMIT)
    assert np.array_equal(root["y"].numpy(timeout=LIMIT), (NUMBERS + 2) * 10)
    device.wait_idle(LIMIT)
    assert device.statistics().bytes_now == before
    with pytest.raises(ArgumentTypeError):
        routine(amount="many")
    device.wait_idle(LIMIT)
    assert device.statistics().bytes_now == before


@pytest.mark.parametrize("is_recorded", [False, True])
def test_many_calls_in_flight_use_the_memory_one_after_the_other(program, gate, is_recorded):
    size = 1 << 20
    with hal.create_device("cpu", memory_limit=4 << 20) as device, Flow(device) as flow:
        context = declare(Context(flow), "hosted", "x", "y")
        context["x"].write(NUMBERS)
        context.allocate("between", size, dtype=np.int32, mode="local")
        steps = [step("add", y="between"), step("scale", {"factor": 2}, y="between", z="y")]
        routine = context.link(program, *steps)
        flow.fill(context["y"], 0, wait=gate.at(1))
        for amount in range(40):
            last = routine(amount=0 if is_recorded else amount)
        assert last.state == "pending"
        gate.signal(1)
        wanted = NUMBERS * 2 if is_recorded else (NUMBERS + 39) * 2
        assert np.array_equal(context["y"].numpy(timeout=LIMIT), wanted)


# What other devices have


@pytest.mark.parametrize("mode", ["copy", "streaming"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_routine_merges_what_it_expects(pair, program, mode, count):
    first, second = (Context(pair, device=each) for each in pair.devices)
    for context in (first, second):
        context.from_host("grad", NUMBERS)
        context.from_host("other", NUMBERS)
    merge = pair.merge_buffer(first.device)
    steps = [step("merge", theirs=Merge("grad"), ours="grad")] * count
    routine = first.link(program, *steps)
    strict = first.link(program, step("merge", theirs=Merge("grad", "copy"), ours="grad"))
    with pytest.raises(InvalidArgumentError, match="expected to hold 'grad', and holds nothing"):
        routine()
    total = 1
    for _ in range(6):
        merge.load(second["grad"], mode)
        routine()
        total += count
        assert np.array_equal(first["grad"].numpy(timeout=LIMIT), NUMBERS * total)
    if mode == "copy":
        strict()
        total += 1
    else:
        with pytest.raises(InvalidArgumentError, match=r"'grad' as 'copy', and .* as 'streaming'"):
            strict()
    for wrong in (second["other"], second["grad"].subspan(0, 128)):
        merge.load(wrong, mode)
        with pytest.raises(InvalidArgumentError, match="expected to hold 'grad', and holds"):
            routine()
    assert np.array_equal(first["grad"].numpy(timeout=LIMIT), NUMBERS * total)
    with pytest.raises(
        InvalidArgumentError, match="cannot let kernels write what is merged through"
    ):
        first.link(program, step("count", y=Merge("grad")))


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
    routine = root.link(talk, step("tell"))
    assert routine.parameters == ("plus", "hal_output")
    outputs = [hal.Output(device) for _ in range(2)]
    runs = [routine(plus=index, hal_output=output) for index, output in enumerate(outputs)]
    assert [printed(*each) for each in zip(outputs, runs, strict=True)] == ["5\n", "6\n"]
    root.link(talk, step("add"))()  # prints nothing, and takes none
    with pytest.raises(ArgumentTypeError, match=r"takes \['plus', 'hal_output'\], and got"):
        routine(hal_output=outputs[0])
    assert capfd.readouterr().out == ""
    # As in a dispatch without it, the driver's own printf prints.
    routine(plus=3).wait(LIMIT)
    routine(plus=4, hal_output=None).wait(LIMIT)
    assert capfd.readouterr().out == "8\n9\n"


def test_an_output_can_be_given_when_linking(root, talk, device):
    output, other = hal.Output(device), hal.Output(device)
    bound = {"plus": 1, "hal_output": output}
    routine = root.link(talk, step("tell", bound))
    assert routine.parameters == ()
    assert printed(output, routine()) == "6\n"
    routine = root.link(talk, step("tell", bound), step("tell", {"plus": 2}))
    assert routine.parameters == ("hal_output",)
    run = routine(hal_output=other)
    assert (printed(output, run), printed(other, run)) == ("6\n6\n", "7\n")


def test_steps_print_into_the_output_of_the_call(root, talk, device, capfd):
    routine = root.link(talk, step("tell"), step("add", y="x"), step("tell"))
    assert routine.parameters == ("plus", "hal_output")
    first = 5
    for _ in range(6):
        output = hal.Output(device)
        run = routine(plus=1, hal_output=output)
        assert printed(output, run) == f"{first + 1}\n{2 * first + 1}\n"
        first *= 2
    assert capfd.readouterr().out == ""
    assert recordings(routine)
    routine(plus=1).wait(LIMIT)
    assert capfd.readouterr().out == f"{first + 1}\n{2 * first + 1}\n"


def test_what_is_no_output(root, talk, flow, device):
    routine = root.link(talk, step("tell"))
    for wrong in (3, flow.from_host(NUMBERS), device.allocate(1000)):
        with pytest.raises(ArgumentTypeError, match="Output"):
            routine(plus=1, hal_output=wrong)
        with pytest.raises(ArgumentTypeError, match="Output"):
            root.link(talk, step("tell", {"hal_output": wrong}))(plus=1)
    with pytest.raises(InvalidArgumentError, match=r"no such buffers and scalars: \['hal_output'"):
        root.link(talk, step("tell", hal_output="y"))


# Wrong arguments


@pytest.mark.parametrize(
    ("steps", "kind", "match"),
    [
        ([step("add", amount="x")], InvalidArgumentError, r"no such .*: \['amount'\]"),
        ([step("add", {"x": 1})], InvalidArgumentError, r"no such .*: \['x'\]"),
        ([Step("add", 1, buffers=["x", "y"])], ArgumentTypeError, "a mapping of parameters"),
        ([Step("add", 1, buffers="x")], ArgumentTypeError, "buffers are a mapping of"),
        ([Step("add", 1, scalars=["amount"])], ArgumentTypeError, "scalars are a mapping"),
        ([step("add", x=1)], ArgumentTypeError, "takes a name as a str, a Merge or None, not int"),
        ([step("add", x=[])], ArgumentTypeError, "takes a name as a str, a Merge or None"),
        ([], InvalidArgumentError, "takes a step, or several"),
        ([Step("count"), step("count")], InvalidArgumentError, "that each have a grid"),
        ([Step("add", 1, reads="y")], ArgumentTypeError, "a list of names .*, not str"),
        ([Step("add", 1, writes=5)], ArgumentTypeError, "a list of names .*, not int"),
        ([Step("add", 1, reads=["amount"])], InvalidArgumentError, "are none"),
        ([5], ArgumentTypeError, "not Executable with 5"),
        (["add"], ArgumentTypeError, "not Executable with 'add'"),
        ([Step(5)], ArgumentTypeError, "not Executable with Step"),
    ],
)
def test_wrong_links(root, program, steps, kind, match):
    with pytest.raises(kind, match=match):
        root.link(program, *steps)


def test_code_that_is_none(root):
    for wrong in (None, 3, "add", b""):
        with pytest.raises(ArgumentTypeError, match="link takes a program, or what was loaded"):
            root.link(wrong, step("add"))


def test_wrong_steps_are_refused_by_the_call(root, program):
    for given in ({"grid": "4"}, {"grid": 1, "block": 1.5}, {"grid": 1, "shared_memory": True}):
        with pytest.raises(ArgumentTypeError):
            root.link(program, Step("add", **given))(amount=1)


def test_an_error_of_a_trace_does_not_run_a_routine_twice(root, program):
    """Whatever it is: the recording was submitted before the trace was called."""
    routine = root.link(program, step("count"), step("count"))
    root["y"].fill(0)
    routine().wait(LIMIT)

    def trace(*_):
        raise InvalidArgumentError("the trace's")

    root.flow.trace = trace
    with pytest.raises(InvalidArgumentError, match="the trace's"):
        routine()
    root.flow.trace = None
    assert root["y"].numpy(timeout=LIMIT).tolist() == [4] * 64


def test_a_scalar_that_cannot_be_copied_is_refused(root, program):
    with pytest.raises(
        ArgumentTypeError, match="a scalar of kernel 'add' is a value that can be c"
    ):
        root.link(program, step("add", {"amount": threading.Lock()}))
