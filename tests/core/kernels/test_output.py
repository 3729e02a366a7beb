"""What kernels print and trace comes back with the run, and is bounded (C5)."""

import ctypes
import itertools

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal._kernels.output import _format
from hal._programs.printing import UNTRACED, Printing, with_output
from hal._programs.scanner import scan
from hal.errors import ArgumentTypeError, CompilationError, InvalidArgumentError, OperationError
from hal.flow import Flow

SOURCE = """
#define LOG(...) printf(__VA_ARGS__)
__global__ void HAL_BLOCK(4) tell(int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) printf("thread %d of %s\\n", i, "block");
}
__global__ void HAL_BLOCK(1) count(int first, int n) {
  for (int i = first; i < first + n; ++i) printf("%d\\n", i);
}
__global__ void HAL_BLOCK(1) quiet(int *x) { x[0] = 1; }
"""


@pytest.fixture
def program(device):
    return device.compile(SOURCE.replace("#define LOG(...) printf(__VA_ARGS__)\n", ""))


def run(device, kernel, *args, grid=1, output=None, **options):
    output = output or hal.Output(device)
    done = device.queue.dispatch(kernel, grid=grid, args=(*args, output), **options)
    return output.read(wait=done, timeout=LIMIT)


def test_only_kernels_that_print_have_the_parameter_c5(device, program):
    assert str(program["tell"].signature) == "(i32 n, ptr hal_output)"
    assert str(program["quiet"].signature) == "(i32* x)"


@pytest.mark.parametrize("text", ["LOG", "helper"])
def test_functions_and_macros_print_too_c5(device, text):
    source = {
        "LOG": '#define LOG(...) printf("%d\\n", __VA_ARGS__)\n',
        "helper": '__device__ void helper(int i) { printf("%d\\n", i); }\n',
    }[text]
    program = device.compile(f"{source}__global__ void HAL_BLOCK(1) k(int i) {{ {text}(i + 1); }}")
    assert str(run(device, program["k"], 41)) == "42\n"


@pytest.mark.parametrize("size", range(64, 200, 8))
def test_nothing_is_written_beyond_its_end_c5(device, program, size):
    output = hal.Output(device, size)
    printed = run(device, program["count"], 0, 3, output=output)
    assert len(printed.lines) == min(3, size // 64)
    assert output.size == 24 + size


def test_without_an_output_the_drivers_own_prints_c5(device, program, capfd):
    for args in ((5, 1), (5, 1, None), {"first": 5, "n": 1}):
        device.queue.dispatch(program["count"], grid=1, args=args).wait(LIMIT)
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == "5\n5\n5\n"


def test_an_output_by_name_in_a_slot_and_in_a_flow_c5(device, program):
    output = hal.Output(device)
    args = {"hal_output": output, "n": 1, "first": 7}
    done = device.queue.dispatch(program["count"], grid=1, args=args)
    assert str(output.read(wait=done, timeout=LIMIT)) == "7\n"

    with device.record(slots=1) as commands:
        commands.dispatch(program["count"], grid=1, args=(8, 1, commands.slots[0]))
    outputs = [hal.Output(device) for _ in range(2)]
    for each in outputs:
        done = device.queue.execute(commands, bindings=[each])
    assert [str(each.read(wait=done, timeout=LIMIT)) for each in outputs] == ["8\n", "8\n"]

    with Flow(device) as flow:
        for is_named in (False, True):
            output = hal.Output(device)
            args = {"first": 9, "n": 1, "hal_output": output} if is_named else (9, 1, output)
            done = flow.dispatch(program["count"], grid=1, args=args)
            assert str(output.read(wait=done, timeout=LIMIT)) == "9\n"


def test_a_barrier_between_prints_c5(device):
    program = device.compile("""
    __global__ void HAL_BLOCK(8) k(void) {
      __shared__ int x[8];
      printf("before %u\\n", threadIdx.x);
      x[threadIdx.x] = threadIdx.x;
      __syncthreads();
      printf("after %d\\n", x[7 - threadIdx.x]);
    }
    """)
    lines = str(run(device, program["k"], grid=3)).splitlines()
    assert sorted(lines) == sorted(
        f"{when} {i}" for when, i, _ in itertools.product(("before", "after"), range(8), range(3))
    )


def test_traces_of_every_kind_of_value_c5(device):
    program = device.compile(
        """
        enum class Color { red = 2 };
        __global__ void HAL_BLOCK(1) k(unsigned long long u, float f, bool b, signed char c) {
          HAL_TRACE(u); HAL_TRACE(f); HAL_TRACE(b); HAL_TRACE(c); HAL_TRACE(Color::red);
          HAL_TRACE("text");
        }
        """,
        trace=True,
    )
    printed = run(device, program["k"], 2**64 - 1, 0.5, np.True_, -3)
    assert str(printed).splitlines() == [
        f"u = {2**64 - 1}", "f = 0.5", "b = 1", "c = -3", "Color::red = 2", '"text" = text',
    ]  # fmt: skip


NESTED = """
__global__ void HAL_BLOCK(2) nested(int n) {
  HAL_TRACE(n);
  for (int i = 0; i < n; ++i) {
    HAL_TRACE(i);
    if (i) HAL_TRACE(i * 0.5f);
  }
  printf("of %d", n);
}
"""
TRACED = ["n = 2", "  i = 0", "  i = 1", "    i * 0.5f = 0.5"]


def traced_by_the_second(printed):
    """Return the traces of the second thread, which has printed something behind them."""
    lines = [line.text.rstrip("\n") for line in printed.lines if line.thread[0] == 1]
    assert lines.pop() == "of 2"
    return lines


def test_a_variable_switches_the_traces_of_a_program_on_c5(device, capfd, monkeypatch):
    """The driver prints those of a run without an output, whatever becomes of the other text."""
    monkeypatch.setenv("HAL_TRACE_KERNELS", "threadIdx.x == 1")
    kernel = device.compile(NESTED, omitted_output="discard")["nested"]
    device.queue.dispatch(kernel, grid=1, args=(2,)).wait(LIMIT)
    place = "block (0, 0, 0) thread (1, 0, 0): "
    assert capfd.readouterr().out.splitlines() == [place + line for line in TRACED]
    assert traced_by_the_second(run(device, kernel, 2)) == TRACED
    kinds = """
    __global__ void HAL_BLOCK(2) kinds(int *x, unsigned char b, long long l) {
      HAL_TRACE(b); HAL_TRACE(l); HAL_TRACE("text"); HAL_TRACE(x == nullptr); HAL_TRACE((int *)16);
    }
    """
    given = device.upload(np.zeros(1, np.int32))
    kernel = device.compile(kinds)["kinds"]
    device.queue.dispatch(kernel, grid=1, args=(given, 200, -(2**40))).wait(LIMIT)
    lines = [line.removeprefix(place) for line in capfd.readouterr().out.splitlines()]
    assert lines == [
        "b = 200", f"l = {-(2**40)}", '"text" = text', "x == nullptr = 0", "(int *)16 = 0x10",
    ]  # fmt: skip
    monkeypatch.setenv("HAL_TRACE_KERNELS", "1")
    kernel = device.compile(NESTED)["nested"]
    assert len(run(device, kernel, 1).lines) == 2 * 3


@pytest.mark.parametrize("value", ["", "0", None])
def test_the_variable_traces_nothing_unless_it_says_so_c5(device, monkeypatch, value):
    monkeypatch.setenv("HAL_TRACE_KERNELS", "1")
    quiet = device.compile("__global__ void HAL_BLOCK(1) quiet(int *x) { x[0] = 1; }")["quiet"]
    assert str(quiet.signature) == "(i32* x)"  # no trace in it
    traced = device.compile(NESTED.replace("printf", "// "))["nested"]
    assert str(traced.signature) == "(i32 n, ptr hal_output)"
    off = device.compile(NESTED.replace("printf", "// "), trace=False)["nested"]
    assert str(off.signature) == "(i32 n)"
    if value is None:
        monkeypatch.delenv("HAL_TRACE_KERNELS")
    else:
        monkeypatch.setenv("HAL_TRACE_KERNELS", value)
    assert str(device.compile(NESTED.replace("printf", "// "))["nested"].signature) == "(i32 n)"


def test_a_long_double_is_printed_as_a_double_c5(device):
    program = device.compile(
        '__global__ void HAL_BLOCK(1) k(double d) { printf("%Lf %d", 2.75L + d, 7); }'
    )
    assert str(run(device, program["k"], 1.0)) == "3.750000 7"


def test_lines_of_errors_stay_where_they_are_c5(device):
    source = '__global__ void k(int n) {\n  printf("%d", n);\n  missing();\n}\n'
    with pytest.raises(CompilationError, match=r"x\.cpp:3:3: error: .*missing"):
        device.compile(source, filename="x.cpp")


def test_bad_input_is_refused_c5(device, program):
    for size in (0, 63):
        with pytest.raises(InvalidArgumentError, match="64 or more"):
            hal.Output(device, size)
    for size in (True, "64"):
        with pytest.raises(ArgumentTypeError, match="size of an output"):
            hal.Output(device, size)
    with pytest.raises(ArgumentTypeError, match="trace is True, False, None or a condition"):
        device.compile(SOURCE, trace=1)
    with pytest.raises(InvalidArgumentError, match="omitted_output"):
        device.compile(NESTED, omitted_output="drop")
    with pytest.raises(InvalidArgumentError, match="line break"):
        device.compile(SOURCE, trace="a\nb")
    for args in ((1,), (1, 2, None, None)):
        with pytest.raises(TypeError, match="arguments"):
            device.queue.dispatch(program["count"], grid=1, args=args)


def rewritten(source):
    return with_output(source, scan(source, filename="x"), {}, Printing())


@pytest.mark.parametrize(
    "source",
    [
        '__global__ void k() { const char *t = "printf"; } // printf',
        "#include <printf.h>\n__global__ void k() { }",
        "__global__ void k() { ::printf(0); std::printf(0); a.printf(); a->printf(); }",
        "__global__ void k() { my_printf(); }",
    ],
)
def test_what_is_no_call_of_ours_is_left_alone_c5(source):
    assert rewritten(source) == (UNTRACED, source, {})


@pytest.mark.parametrize("parameters", ["", "void", " /* none */ "])
def test_the_parameter_of_a_kernel_without_any_c5(parameters):
    _, source, _ = rewritten(f"__global__ void k({parameters}) {{ printf(0); }}")
    assert source == (
        "__global__ void k(hal_printed *hal_output) { hal_output_here() = hal_output; hal_pf(0); }"
    )


def c_printf(form, *values):
    """Format with C's own."""
    text = ctypes.create_string_buffer(400)
    given = [
        ctypes.c_double(v) if isinstance(v, float)
        else ctypes.c_char_p(v.encode()) if isinstance(v, str)
        else ctypes.c_longlong(v)
        for v in values
    ]  # fmt: skip
    ctypes.CDLL(None).snprintf(text, 400, form.encode(), *given)
    return text.value.decode()


INTEGERS = (0, 1, -1, 77, -(2**31), 2**31 - 1, 2**40 + 5, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -2.5, 1e-7, 123456789.0, 1e300, float("inf"), float("nan"))


@pytest.mark.parametrize("flags", ["", "-", "+", " ", "0", "#", "+0", "- "])
@pytest.mark.parametrize("size", ["", "8", ".3", "12.5", "2.0", "."])
def test_formats_are_cs_c5(flags, size):
    for letters, values in (
        (["d", "i", "lld", "hd", "hhd", "u", "x", "X", "llx", "o", "zu"], INTEGERS),
        (["f", "e", "G", "g", "E"], FLOATS),
        (["s"], ("", "abc", "abcdefghijklmn")),
    ):
        for letter, value in itertools.product(letters, values):
            form = f"<%{flags}{size}{letter}>"
            kind = 2 if isinstance(value, float) else 4 if isinstance(value, str) else 1
            assert _format(form, [(kind, value)]) == c_printf(form, value), (form, value)


def test_formats_of_other_things_c5():
    assert _format("%d%% %c|%p|%5s|", [(1, 5), (1, 65), (3, 255), (3, 16)]) == "5% A|0xff| 0x10|"
    assert _format("%*d|%-*d|%.*f", [(1, 4), (1, 7), (1, 4), (1, 7), (1, 1), (2, 0.25)]) == (
        "   7|7   |0.2"
    )
    assert _format("%d and %d", [(1, 1)]) == "1 and %d"  # C leaves undefined what C does here
    assert _format("%d %s", [(2, 0.5), (1, 3)]) == "0.5 3"
    assert np.isclose(float.fromhex(_format("%a", [(2, 0.1)])), 0.1)


def test_no_width_and_no_precision_asks_for_gigabytes_c5():
    most = 4096
    assert len(_format("%*d", [(1, 2 * 10**9), (1, 7)])) == most
    assert len(_format("%*d", [(1, -2 * 10**9), (1, 7)])) == most
    assert len(_format("%.*d", [(1, 2 * 10**9), (1, 7)])) == most
    assert len(_format("%0999999999d", [(1, 7)])) == most
    assert len(_format("%.*f", [(1, 2 * 10**9), (2, 1.5)])) == most + 2
    assert len(_format("%.*a", [(1, 2 * 10**9), (2, 1.5)])) == most + len("0x1.p+0")
    assert len(_format(f"%{'9' * 5000}.{'9' * 5000}d", [(1, 7)])) == most
    # A precision cuts a text, and adds nothing to it.
    assert len(_format("%.*s", [(1, 9000), (4, "x" * 8000)])) == 8000
    assert len(_format(f"%.{'9' * 5000}s", [(4, "x" * 8000)])) == 8000
    assert _format("%*d", [(2, float("inf")), (1, 7)]) == "%*d"


def test_an_output_that_was_overwritten_says_so_c5(device):
    output = hal.Output(device)
    words = np.zeros(5, np.uint64)
    words[:4] = [1 << 16, 1 << 16, 0, 16]  # a record of 16 bytes is shorter than its own head
    device.queue.update(output.subspan(0, words.nbytes), words).wait(LIMIT)
    with pytest.raises(OperationError, match="something else has written to its byte 24"):
        output.read(timeout=LIMIT)


TEXTS = """
__global__ void HAL_BLOCK(1) pointer(unsigned long long p) {
  printf("%p %p %*d%% %p", (char *)p, nullptr, 3, 7, (const char *)p);
}
__global__ void HAL_BLOCK(1) start(char *text, int n) {
  printf("%.3s|%.*s|%-6.2s|%.*s|%y %s", text, n, text, text, -1, text, "end");
}
__global__ void HAL_BLOCK(1) kinds(char *text) {
  printf("%s|%s|%s|%s", (unsigned char *)text, (volatile char *)text, (const signed char *)text,
         (void *)text);
}
__global__ void HAL_BLOCK(1) growing(unsigned long long p) { printf("<%s>", (const char *)p); }
__global__ void HAL_BLOCK(1) missing(char *text) { printf("%.*s %*s %s %d", 2, text); }
"""


def test_a_pointer_is_read_for_a_text_only_c5(device):
    printed = run(device, device.compile(TEXTS)["pointer"], 0x10)
    assert str(printed) == "0x10 0x0   7% 0x10"


def test_no_more_of_a_text_is_read_than_asked_for_c5(device):
    text = device.upload(np.array([*b"x" * 8000, 0], np.uint8))
    output = hal.Output(device, 20000)
    printed = run(device, device.compile(TEXTS)["start"], text, 5, output=output)
    assert (str(printed), printed.cut) == (f"xxx|xxxxx|xx    |{'x' * 8000}|%y end", 0)


def test_texts_of_every_kind_of_pointer_c5(device):
    text = device.upload(np.array([*b"text", 0], np.uint8))
    assert str(run(device, device.compile(TEXTS)["kinds"], text)) == "text|text|text|text"


def test_a_text_that_grows_meanwhile_stays_in_its_record_c5(device):
    """It is where the record itself is written to."""
    output = hal.Output(device, 256)
    printed = run(device, device.compile(TEXTS)["growing"], output.address + 24, output=output)
    assert str(printed) == "<>"
    (size,) = output.numpy(np.uint64)[3:4]
    assert not output.numpy(np.uint8)[24 + int(size) :].any()


def test_a_format_with_too_few_values_c5(device):
    text = device.upload(np.array([*b"text", 0], np.uint8))
    assert str(run(device, device.compile(TEXTS)["missing"], text)) == "te %*s %s %d"


@pytest.mark.parametrize("how", ["in order", "by name", "recorded", "flow", "flow recorded"])
def test_no_other_buffer_is_printed_to_c5(device, program, how):
    plain = device.upload(np.full(64, 7, np.uint64))
    flow = Flow(device)
    target = {
        "in order": device.queue,
        "by name": device.queue,
        "recorded": device.record(),
        "flow": flow,
        "flow recorded": flow.record(),
    }[how]
    with flow:
        for wrong in (plain, hal.Output(device).subspan(0, 88), 5, np.zeros(64)):
            is_tracked = "flow" in how and isinstance(wrong, hal.Buffer)
            given = flow.adopt(wrong) if is_tracked else wrong
            args = {"first": 1, "n": 1, "hal_output": given} if "name" in how else (1, 1, given)
            with pytest.raises(
                ArgumentTypeError, match=r"prints to, takes a hal\.Output\(device\)"
            ):
                target.dispatch(program["count"], grid=1, args=args)
    assert (plain.numpy() == 7).all()
    assert str(run(device, program["count"], 3, 1)) == "3\n"


def test_a_slot_to_print_to_takes_an_output_c5(device, program):
    with device.record(slots=2) as commands:
        plain, printed = commands.slots
        commands.dispatch(program["quiet"], grid=1, args=(plain,))
        commands.dispatch(program["count"], grid=1, args=(8, 1, printed))
        part = plain.subspan(8)
        with pytest.raises(InvalidArgumentError, match="'hal_output' takes a slot as a whole"):
            commands.dispatch(program["count"], grid=1, args=(8, 1, part))
    x, output = device.upload(np.full(64, 7, np.uint8)), hal.Output(device)
    with pytest.raises(ArgumentTypeError, match=r"slot 1, which takes .*Output\(device\), not Buf"):
        device.queue.execute(commands, bindings=[x, x])
    assert (x.numpy() == 7).all()
    done = device.queue.execute(commands, bindings=[x, output])
    assert str(output.read(wait=done, timeout=LIMIT)) == "8\n"


def test_an_output_that_a_flow_tracks_is_one_c5(device, program):
    with Flow(device) as flow:
        output = hal.Output(device)
        done = flow.dispatch(program["count"], grid=1, args=(9, 1, flow.adopt(output)))
        assert str(output.read(wait=done, timeout=LIMIT)) == "9\n"


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("how", ["header", "defines", "both"])
def test_a_trace_is_there_wherever_it_is_written_c5(device, tmp_path, trace, how):
    header = "__device__ void seen(int i) { HAL_TRACE(i); }\n"
    (tmp_path / "seen.h").write_text(header)
    source = {
        "header": '#include "seen.h"\n__global__ void HAL_BLOCK(1) k(int i) { seen(i); }',
        "defines": "__global__ void HAL_BLOCK(1) k(int i) { T(i); }",
        "both": '#include "seen.h"\n__global__ void HAL_BLOCK(1) other(int i) { HAL_TRACE(i); }\n'
        "__global__ void HAL_BLOCK(1) k(int i) { seen(i); }",
    }[how]
    program = device.compile(
        source, trace=trace, include_directories=[tmp_path], defines={"T": "HAL_TRACE"}
    )
    if trace:
        assert str(run(device, program["k"], 5)) == "i = 5\n"
    else:
        assert str(program["k"].signature) == "(i32 i)"
        device.queue.dispatch(program["k"], grid=1, args=(5,)).wait(LIMIT)


def test_a_macro_that_is_given_prints_too_c5(device):
    source = 'inline __device__ void f(int i) { LOG("%d|", i); }\n'
    source += "__global__ void HAL_BLOCK(1) k(int i) { f(i); SAY; }"
    defines = {"LOG": "printf", "SAY": 'LOG("%s", "printf")'}
    assert str(run(device, device.compile(source, defines=defines)["k"], 7)) == "7|printf"
    program = hal.compile(source, target="cpu", defines=defines)
    assert program.metadata["defines"] == 'LOG=printf\nSAY=LOG("%s", "printf")'


def test_several_sources_do_not_trace_c5(device):
    parts = {f"{name}.cpp": f"__global__ void {name}() {{ HAL_TRACE(1); }}" for name in "ab"}
    for trace in (True, "threadIdx.x == 0"):
        with pytest.raises(InvalidArgumentError, match="only one by itself can trace, or discard"):
            device.compile(parts, trace=trace)
    assert str(device.compile(parts)["a"].signature) == "()"


@pytest.mark.parametrize("flags", ["", "-", "+", " ", "0", "#", "+0"])
@pytest.mark.parametrize("size", ["", "30", ".0", ".", ".3", ".13", ".20", "30.2", "12.1"])
def test_hexadecimal_floats_are_cs_c5(flags, size):
    values = [*FLOATS, 0.1, 1.5, 1.96875, 1.03125, 1.09375, 5e-324, 2.5e-310, -np.inf]
    for letter, value in itertools.product("aA", map(float, values)):
        form = f"<%{flags}{size}{letter}>"
        assert _format(form, [(2, value)]) == c_printf(form, value), (form, value)


def test_a_declaration_of_printf_is_left_alone_c5(device):
    source = 'extern "C" int printf(const char *, ...);\n'
    source += '__global__ void HAL_BLOCK(1) k(int i) { if (i) return; else printf("none"); }'
    assert str(run(device, device.compile(source)["k"], 0)) == "none"


def test_an_error_in_a_trace_is_named_so_c5(device):
    source = "__global__ void k(int i) { HAL_TRACE(i); }"
    with pytest.raises(CompilationError, match=r"\n(trace|kernel\.cpp):1:\d+: error: .*missing"):
        device.compile(source, trace="missing == 0")
