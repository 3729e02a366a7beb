"""Kernels with barriers as loops over a block's threads do what threads side by side do."""

from unittest import mock

import numpy as np
import pytest
from random_kernels import Kernels, check_both_ways

from hal._programs.scanner import scan
from hal.native import CompileRequest
from hal_cpu import _build, _compile, _dialect, _options, _toolchain
from hal_cpu._making import Making

WAYS = ("hal_by_itself", "hal_side_by_side", "hal_each")


def request_of(source):
    return CompileRequest(source, "user.cpp", scan(source, filename="user.cpp"), "")


def rewritten(source):
    """Return what the compiler gets of a source."""
    return _dialect.rewrite(request_of(source), "", "")


def way_of(body, *, more="", parameters="int *p, int n"):
    text = rewritten(f"{more}\n__global__ void kernel({parameters}) {{ {body} }}")
    return next(way for way in WAYS if f"HAL_KERNEL(kernel, {way}," in text)


SPLIT = {
    "plain": "p[threadIdx.x] = 1; __syncthreads(); p[0] = n;",
    "a loop": "for (int i = 0; i < n; i++) { p[i] = 1; __syncthreads(); }",
    "two loops with one counter": "for (int i = n; i > 0; i /= 2) { __syncthreads(); p[i] = 1; }"
    "for (int i = 0; i < n; i++) { __syncthreads(); } for (int i = p[0]; i < n; i++) p[i] = 2;",
    "a condition": "if (n > 3) { p[0] = 1; __syncthreads(); } else { p[1] = 1; } p[2] = 3;",
    "a condition of two": "if (n > 3 && n < 9) { p[0] = 1; __syncthreads(); }",
    "short names of types": "uint a = p[0]; __syncthreads(); p[0] = a;",
    "a return": "if (threadIdx.x >= n) return; __syncthreads(); p[0] = n;",
    "a loop that may have no end": "while (n) { if (p[0]) return; __syncthreads(); }",
    "no step": "for (int i = 0; i < n;) { if (p[0]) return; __syncthreads(); }",
    "no bound": "for (int i = 0; true; i++) { if (p[0]) return; __syncthreads(); }",
    "a division": "if (n == 0) return; int m = 8 / n;"
    "for (int i = 0; i < m; i++) { __syncthreads(); }",
    "while": "int k = n / 2; while (k > 0) { p[k] = 1; __syncthreads(); k /= 2; }",
    "a counter declared before": "unsigned k; int j = 0; for (; j < n; j++) { __syncthreads(); }"
    "int m = 0; for (m = n / 2; m > 0; m >>= 1) { __syncthreads(); } k = 3; p[0] = k;",
    "auto": "auto i = blockIdx.x; const auto t = threadIdx.x; __syncthreads(); p[t] = i;",
    "do": "int k = n / 2; do { p[k] = 1; __syncthreads(); k /= 2; } while (k > 0);",
    "a break": "for (int i = 0; i < n; i++) { p[i] = 1; __syncthreads(); if (i > 3) break; }",
    "a round less": "for (int i = 0; i < n; i++) { if (i == n) { continue; } __syncthreads(); }",
    "a break behind a barrier": "while (true) { if (n > 3) { __syncthreads(); break; } p[0]++; }",
    "a condition in shared memory": "__shared__ int s[2][8], done; s[0][threadIdx.x] = n;"
    "do { __syncthreads(); if (s[0][n - 1]) break; done = 1; __syncthreads(); } while (!done);",
    "a value from shared memory": "__shared__ int s[8]; s[threadIdx.x] = n; __syncthreads();"
    "const int most = s[0]; for (int i = 0; i < most; i++) { __syncthreads(); }",
    "references to elements": "__shared__ int s[2][8]; const int t = threadIdx.x;"
    "int &a = s[0][t]; const auto &b = p[t + 1]; a = b; __syncthreads(); p[t] = a;",
    "a reference to an own element": "int own[2] = {1, 2}; int &a = own[n]; a++; __syncthreads();",
    "auto in step": "for (int k = 0; k < n; k++) { auto a = p[k + threadIdx.x]; p[threadIdx.x]++;"
    "for (int i = 0; i < n; i++) p[threadIdx.x] += i; p[threadIdx.x] += a; } __syncthreads();",
    "auto of its own": "auto a = p[threadIdx.x]; __syncthreads(); p[0] = a;",
    "x of its own": "int x = p[threadIdx.x]; const int y = x + 1; __syncthreads(); p[x] = y;",
    "the kernel's name": "int kernel = p[0]; __syncthreads(); p[0] = kernel;",
    "two variables": "int a = p[0], *b = p + n, own[2] = {a, n}, c; c = a; __syncthreads();"
    "b[a] = c + own[1];",
    "an array": "int own[4] = {1, 2, 3, 4}; __syncthreads(); p[threadIdx.x] = own[n];",
}
IN_STEP = {
    "a sum": "int s = 0; for (int k = 0; k < n; k++) s += p[k * n + threadIdx.x]; p[0] = s;",
    "own parts": "int s = 0; int t = threadIdx.x;"
    "for (int i = t; i < n; i += blockDim.x) { s += p[i]; } p[t] = s;",
    "a variable": "int x = threadIdx.x + blockIdx.x * 64;"
    "for (int k = 0; k < n; k++) { p[x] += k; }",
}
NOT_IN_STEP = {
    "a row for each": "int x = threadIdx.x * n; for (int k = 0; k < n; k++) p[x + k] = 1;",
    "a column for each": "for (int k = 0; k < n; k++) p[threadIdx.x * n] = k;",
    "nothing of the thread's": "for (int k = 0; k < n; k++) p[k] = k;",
    "few rounds": "for (int k = 0; k < 8; k++) p[threadIdx.x] += k;",
    "a lock": "for (int k = 0; k < n; k++) { while (atomicCAS(p, 0, 1)) ; p[threadIdx.x]++; }",
    "a break": "for (int k = 0; k < n; k++) { if (p[threadIdx.x]) break; }",
    "ends of their own": "for (int k = 0; k < p[threadIdx.x]; k++) { p[threadIdx.x] += k; }",
    "an own array": "int a[4]; for (int k = 0; k < n; k++) a[k & 3] += p[threadIdx.x];",
}
REFUSED = {
    "a bound from memory": "for (int i = 0; i < p[0]; i++) { __syncthreads(); }",
    "a bound of the thread": "for (int i = threadIdx.x; i < n; i++) { __syncthreads(); }",
    "a counter that changes": "for (int i = 0; i < n; i++) { i += p[0]; __syncthreads(); }",
    "a counter that an inner loop changes": "for (int i = 0; i < n; i++) { __syncthreads(); "
    "for (i = p[0]; i < n; i++) p[i] = 2; }",
    "a parameter that changes": "n += p[0]; for (int i = 0; i < n; i++) { __syncthreads(); }",
    "a divergent condition": "if (threadIdx.x < n) { __syncthreads(); }",
    "no braces": "if (p[0]) __syncthreads();",
    "an x of the thread": "int x = p[threadIdx.x]; if (x) { __syncthreads(); }",
    "a step from memory": "int k = n; while (k > 0) { __syncthreads(); k -= p[0]; }",
    "a step of some": "int k = n; while (k) { __syncthreads(); if (p[k]) k--; }",
    "a step in a loop": "int k = n; while (k) { __syncthreads(); for (; k > 3; k--) ; }",
    "a step of a bound": "int j = threadIdx.x, k = n;"
    "while (k) { __syncthreads(); k /= 2; j += k; k -= j; }",
    "a step in a condition": "int k = n; while (k -= 1) { __syncthreads(); }",
    "a step in an argument": "int k = n; while (k) { __syncthreads(); atomicAdd(&k, -1); }",
    "a break": "for (int i = 0; i < n; i++) { if (p[i]) break; __syncthreads(); }",
    "a break of some": "do { if (threadIdx.x < n) { break; } __syncthreads(); } while (n);",
    "a do of some": "int k = p[0]; do { __syncthreads(); } while (k > 0);",
    "a bound that changes meanwhile": "__shared__ int s[8]; int k = s[0]; while (k) {"
    "__syncthreads(); k = s[threadIdx.x]; }",
    "an own reference, kept": "int own[2] = {1, 2}; int &a = own[n]; __syncthreads(); a = 2;",
    "a pointer to an own variable": "int a = p[0], *b = &a; __syncthreads(); *b = 2; p[0] = a;",
    "a pointer to an own array": "int a[2] = {n, n}, *b = a; __syncthreads(); *b = 2; p[0] = a[0];",
    "a pointer that is set": "int a = p[0], *b; b = n ? p : (int *)&a; __syncthreads(); *b = a;",
    "a structure with a pointer": "S a, b = {&a.x}; __syncthreads(); *b.p = 2; p[0] = a.x;",
    "goto": "again: p[0] = 1; __syncthreads(); if (n) goto again;",
    "a barrier in a switch": "switch (n) { case 1: __syncthreads(); } __syncthreads();",
    "a switch that goes on": "for (int k = 0; k < n; k++)"
    " { switch (n) { case 1: continue; } __syncthreads(); }",
    "a loop that a switch is in": "for (int k = 0; k < n; k++)"
    " { switch (n) { case 1: p[0] = 3; } if (p[0]) break; __syncthreads(); }",
    "a lambda": "auto f = [&](int i) { p[i] = 1; }; f(0); __syncthreads();",
    "a reference": "int a = p[0]; int &b = a; __syncthreads(); b = 2; p[0] = a;",
    "a reference to what others refer to": "auto &a = p[p[0]]; __syncthreads(); p[0] = a;",
    "an unknown type": "T a = {1}; __syncthreads(); p[0] = a.x;",
    "a directive": "\n#if 1\n__syncthreads();\n#endif\n",
    "a barrier in a value": "p[0] = (__syncthreads(), 1);",
}


@pytest.mark.parametrize("body", SPLIT.values(), ids=SPLIT)
def test_what_is_split(body):
    assert way_of(body) == "hal_by_itself"


def test_what_is_split_compiles():
    """Where it does not, the source is compiled again, for threads side by side: nobody notices."""
    source = "".join(
        f"__global__ void kernel{number}(int *p, int n) {{ {body} }}\n"
        for number, body in enumerate({**SPLIT, **IN_STEP}.values())
    )
    with (
        mock.patch.object(Making, "_run", autospec=True, side_effect=Making._run) as run,
        mock.patch.object(type(_build.CACHE), "load", return_value=None),
    ):
        found = _toolchain.find_compiler()
        assert _compile.compile_image(request_of(source), _options.NATIVE, "", found)
    assert run.call_count == 1


@pytest.mark.parametrize("body", IN_STEP.values(), ids=IN_STEP)
def test_loops_that_threads_run_in_step(body):
    assert way_of(body) == "hal_by_itself"


@pytest.mark.parametrize("body", NOT_IN_STEP.values(), ids=NOT_IN_STEP)
def test_loops_that_each_thread_runs_alone(body):
    assert way_of(body) == "hal_each"


def text_of(body, parameters="int *p, int n"):
    return rewritten(f"__global__ void kernel({parameters}) {{ {body} }}")


@pytest.mark.parametrize("condition", ["t < n", "threadIdx.x < n / 2", "t < n && p[t]", "t == 0"])
def test_a_condition_on_the_index_narrows_the_loop(condition):
    text = text_of(f"const int t = threadIdx.x; __syncthreads(); if ({condition}) p[t] = 1;")
    assert "hal_here" not in text
    assert ("hal_at<" if "==" in condition else "hal_below<") in text


@pytest.mark.parametrize(
    "condition",
    ["t < n || n", "t < n == 1", "t == n & 1", "t < n ? 1 : 0", "t + 1 < n", "t < p[t]", "c < n"],
)
def test_other_conditions_narrow_nothing(condition):
    text = text_of(
        "const int t = threadIdx.x; const char c = threadIdx.x;"
        f"__syncthreads(); if ({condition}) p[t] = 1;"
    )
    assert "hal_by_itself" in text
    assert "hal_at<" not in text
    assert "hal_below<" not in text


def test_threads_are_counted_in_the_grid_where_a_kernel_asks_for_that():
    def counts_in_grid(body):
        text = text_of(f"const int t = threadIdx.x; {body}")
        counts = "HAL_BLOCK_BEGIN(0, 1, 1)" in text
        assert f"HAL_KERNEL(kernel, hal_by_itself, {int(counts)}," in text
        return counts

    assert not counts_in_grid("p[blockIdx.x * n + t] = blockDim.x; __syncthreads();")
    assert counts_in_grid("const int i = blockIdx.x * 8 + t; p[i] = n; __syncthreads();")
    assert counts_in_grid("p[blockDim.x * blockIdx.x + t] = n; __syncthreads();")


def test_a_lock_stays_in_one_loop_with_what_it_guards():
    lock = "while (atomicCAS(p, 0, 1)) ; if (threadIdx.x < n) p[1]++; p[0] = 0;"
    assert "hal_below<" not in text_of(f"__syncthreads(); {lock}")


@pytest.mark.parametrize("bound", ["n || p", "n == 3", "n & 3", "n ? 3 : n"])
def test_bounds_that_bind_no_tighter_than_the_comparison_are_not_taken(bound):
    body = "for (int i = threadIdx.x; i < n / 2; i += blockDim.x) p[i] = 1;"
    assert "hal_by_itself" in text_of(body)
    assert "hal_each" in text_of(body.replace("n / 2", bound))


def test_several_rounds_of_a_short_loop_are_made_at_once():
    turns = "hal_is_far<int>(hal_turn"
    plain = IN_STEP["a sum"]
    assert turns in text_of(plain)
    assert turns in text_of(
        plain.replace("s += p[k * n + threadIdx.x];", "{ s += p[k * n + threadIdx.x]; }")
    )
    for other in ("k < p[0]", "k <= n", "k < n - k", "k < n && n"):
        assert turns not in text_of(plain.replace("k < n", other))
    for other in ("k += 2", "k *= 2", "k--"):
        assert turns not in text_of(plain.replace("k++", other))


def test_several_rounds_by_the_width_of_a_block_are_made_at_once():
    rounds = "hal_goes_on<int>(("
    plain = IN_STEP["own parts"]
    assert rounds in text_of(plain)
    assert rounds not in text_of(plain.replace("s += p[i]", "p[i] = s"))  # nothing is kept
    assert rounds not in text_of(plain.replace("s += p[i]", "if (p[i]) s += p[i]"))
    assert rounds not in text_of(plain.replace("s += p[i]", "s += p[i]; p[i] = expf(i)"))


@pytest.mark.parametrize(("kind", "step"), [("float", 8.5), ("long long", 8), ("int", 3)])
def test_rounds_by_steps_of_all_kinds(lab, kind, step):
    kernel = lab.function(f"""
__global__ void kernel(const int *p, int *out, int n, {kind} step) {{
  int sum = 0;
  for (int i = threadIdx.x; i < n; i += step) sum += p[i];
  out[threadIdx.x] = sum;
}}
""")
    p, out = lab.array(np.arange(100), "i4"), lab.array(np.zeros(8), "i4")
    number = {"float": np.float32, "int": np.int32}.get(kind, np.int64)(step)
    lab.run(kernel, 1, 8, p, out, np.int32(100), number)
    assert out.tolist() == [sum(range(t, 100, int(step))) for t in range(8)]


HALVED = {
    "for": "for (int k = n / 2; k > 0; k /= 2) { BODY }",
    "a shift": "for (unsigned k = n; k > 32; k >>= 1) { BODY }",
    "a counter declared before": "int k = 0; for (k = n; k; k /= 2) { BODY }",
    "while": "int k = n; while (k != 0) { BODY k /= 2; }",
}


@pytest.mark.parametrize("loop", HALVED.values(), ids=HALVED)
def test_the_last_rounds_of_a_halved_counter_have_constants(loop):
    def is_halved(body):
        text = loop.replace("BODY", body)
        return "hal_levels" in text_of(f"const int t = threadIdx.x; {text}")

    body = "if (t < k) p[t] += p[t + k]; __syncthreads();"
    assert is_halved(body)
    assert not is_halved(body.replace("t < k", "t < n"))
    assert not is_halved(body.replace("if", "p[t] = 1; if"))  # of all threads
    assert not is_halved(f"{body} if (n == 3) break;")


@pytest.mark.parametrize("kind", ["unsigned", "unsigned int", "uint32_t"])
def test_an_unsigned_counter_that_is_an_index_alone_cannot_wrap(lab, kind):
    def is_wide(use):
        loop = f"for ({kind} i = threadIdx.x; i < n; i += blockDim.x) {{ {use} }}"
        return "const size_t i =" in text_of(f"__syncthreads(); {loop}")

    assert is_wide("p[i] += p[i] / 2;")
    assert not is_wide("p[i] = i;")
    assert not is_wide("p[i] = p[i - n];")
    source = f"""
__global__ void kernel(const int *p, int *out, unsigned n) {{
  __shared__ int s[1024];
  int sum = 0;
  for ({kind} i = threadIdx.x; i < n; i += blockDim.x) sum += p[i];
  s[threadIdx.x] = sum;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
}}
"""
    kernel = lab.function(source)
    numbers = np.arange(1000)
    p, out = lab.array(numbers, "i4"), lab.array(np.zeros(128), "i4")
    for block, length in ((1, 9), (32, 1000), (100, 999), (128, 1000)):
        lab.run(kernel, 1, block, p, out, np.uint32(length))
        own = [numbers[first:length:block].sum() for first in range(block)]
        assert out[:block].tolist() == own


def test_rounds_of_a_halved_counter_are_written_out_as_they_would_run():
    body = """ // every one
      if (t < k) p[t] += p[t + k]; /* once */ __syncthreads();"""
    text = text_of(f"int t = threadIdx.x; {HALVED['while'].replace('BODY', body)}")
    copy = text.partition("k = hal_levels; ")[2].partition("} if (k != 0)")[0]
    assert text.count("p[t] += p[t + k];") == 8
    assert text.count("if (k != 0) {") == 7
    assert "HAL_REGION_BEGIN(" in copy
    assert "__syncthreads" not in copy
    assert copy.count("k /= 2;") == 1


def test_shared_memory_of_a_loop_is_not_on_the_stack():
    for body, twins in (
        ("__shared__ int s[64]; s[threadIdx.x] = n; __syncthreads(); p[0] = s[n];", 1),
        ("for (int k = 0; k < n; k++) { __shared__ int s[64]; s[k] = n; __syncthreads(); }", 0),
    ):
        assert text_of(body).count("used)) __shared__") == twins


def test_constant_parameters_are_the_same_for_all_threads(lab):
    """Also where a function of the source takes one, which then cannot change it."""
    source = """
typedef const int Length;
__device__ int twice(const int &n, int x) { return n + x; }
__global__ void kernel(const int n, int *const __restrict__ p, Length m) {
  for (int i = threadIdx.x; i < m; i += blockDim.x) p[i] += twice(n, p[i]) + twice(m, i);
  __syncthreads();
  if (threadIdx.x == 0) p[0] = twice(n, p[m - 1]);
}
"""
    text = rewritten(source)
    assert "HAL_KERNEL(kernel, hal_by_itself," in text
    assert "hal_kept_n" not in text
    p = lab.array(np.arange(100), "i4")
    lab.run(lab.function(source), 1, 32, np.int32(7), p, np.int32(100))
    expected = 2 * np.arange(100) + 7 + 100 + np.arange(100)
    expected[0] = 7 + expected[99]
    assert p.tolist() == expected.tolist()


def test_small_blocks_run_no_loop_in_step():
    source = f"__global__ void __launch_bounds__(8) kernel(int *p, int n) {{ {IN_STEP['a sum']} }}"
    assert "HAL_KERNEL(kernel, hal_each," in rewritten(source)


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_what_is_not_understood_runs_side_by_side(body):
    assert (
        way_of(body, more="struct T { int x; T(int); }; struct S { int *p, x; };")
        == "hal_side_by_side"
    )


def test_barriers_and_changes_in_functions_and_macros_are_not_split():
    calls = "meet(); __syncthreads(); p[0] = 1;"
    meet = "__device__ void meet() { while (threadIdx.x) __syncthreads(); }"
    assert way_of(calls, more=meet) == "hal_side_by_side"
    assert way_of(calls, more="#define meet() p++") == "hal_side_by_side"
    changed = "rise(n); for (int i = 0; i < n; i++) { __syncthreads(); }"
    assert way_of(changed, more="__device__ void rise(int &n) { n++; }") == "hal_side_by_side"


def test_rows_are_counted_whether_or_not_a_kernel_asks_which(lab):
    source = """
__device__ int row() { return threadIdx.y + 3 * threadIdx.z; }
__global__ void count(int *p) { __syncthreads(); atomicAdd(p + threadIdx.x, 1); }
__global__ void plane(int *p) {
  __syncthreads();
  atomicAdd(p + threadIdx.x + 8 * threadIdx.y, 1);
}
__global__ void tell(int *p) { __syncthreads(); p[threadIdx.x + 8 * row()] = row(); }
"""
    module = lab.load(lab.image(source))
    p = lab.array(np.zeros(48), "i4")
    lab.run(lab.device.get_function(module, "count"), 1, (8, 3, 2), p)
    assert p.tolist() == [6] * 8 + [0] * 40
    lab.run(lab.device.get_function(module, "tell"), 1, (8, 3, 2), p)
    assert p.tolist() == [row for row in range(6) for _ in range(8)]
    p[:] = 0
    lab.run(lab.device.get_function(module, "plane"), 1, (8, 3, 2), p)
    assert p.tolist() == [2] * 24 + [0] * 24


@pytest.mark.parametrize("loop", [HALVED["for"], HALVED["while"]])
def test_trees_of_all_sizes(lab, loop):
    tree = "if (t < k) { s[t] += s[t + k]; m[t] = max(m[t], m[t + k]); } __syncthreads();"
    body = f"""
  extern __shared__ float s[];
  __shared__ float m[1024];
  const int t = threadIdx.x;
  const int n = blockDim.x / 2;
  float sum = 0, most = 0;
  for (int i = t; i < length; i += blockDim.x) {{
    sum += p[i];
    most = fmaxf(most, p[i]);
  }}
  s[t] = sum;
  m[t] = most;
  __syncthreads();
  {loop.replace("n / 2", "n").replace("BODY", tree)}
  if (t == 0) {{ out[0] = s[0]; out[1] = m[0]; }}
"""
    parameters = "const float *p, float *out, int length"
    text = text_of(body, parameters)
    assert "hal_goes_on" in text
    assert "hal_levels" in text
    kernel = lab.function(f"__global__ void kernel({parameters}) {{ {body} }}")
    numbers = np.random.default_rng(4).integers(0, 1000, 5000)
    p, out = lab.array(numbers, "f4"), lab.array(np.zeros(2), "f4")
    for block in (1, 2, 4, 32, 64, 128, 256, 1024):
        for length in (0, 3, block, 3 * block + 1, 4 * block):
            lab.run(kernel, 1, block, p, out, np.int32(length), shared=4 * block)
            own = numbers[:length]
            assert out.tolist() == [own.sum(), own.max(initial=0)], (block, length)


def test_sums_with_while_as_textbooks_have_them(lab):
    body = """
  __shared__ int cache[64];
  int t = threadIdx.x + blockIdx.x * blockDim.x, i = threadIdx.x, sum = 0;
  while (t < n) {
    sum += p[t];
    t += blockDim.x * gridDim.x;
  }
  cache[i] = sum;
  __syncthreads();
  auto half = blockDim.x / 2;
  while (half != 0) {
    if (i < half) cache[i] += cache[i + half];
    __syncthreads();
    half /= 2;
  }
  if (i == 0) out[blockIdx.x] = cache[0];
"""
    parameters = "const int *p, int *out, int n"
    assert way_of(body, parameters=parameters) == "hal_by_itself"
    kernel = lab.function(f"__global__ void kernel({parameters}) {{ {body} }}")
    p, out = lab.array(np.arange(1000), "i4"), lab.array(np.zeros(3), "i4")
    lab.run(kernel, 3, 64, p, out, np.int32(1000))
    owners = np.arange(1000) // 64 % 3
    assert out.tolist() == [int(p[owners == block].sum()) for block in range(3)]


def test_what_all_threads_have_in_common_ends_with_the_last_thread(lab):
    body = """
  if (n == 0) return;
  int i = 1;
  const int most = 64 / n;
  while (i < most) {
    p[threadIdx.x]++;
    __syncthreads();
    i *= 2 * n;
  }
  for (int k = 0; true; k++) {
    __syncthreads();
    if (k >= threadIdx.x) return;
    p[threadIdx.x]++;
  }
"""
    assert way_of(body) == "hal_by_itself"
    kernel = lab.function(f"__global__ void kernel(int *p, int n) {{ {body} }}")
    p = lab.array(np.zeros(32), "i4")
    lab.run(kernel, 1, (8, 4), p, np.int32(0))
    assert p.tolist() == [0] * 32
    lab.run(kernel, 1, 32, p, np.int32(1))
    assert p.tolist() == list(range(6, 38))


@pytest.mark.parametrize("seed", range(4))
def test_random_kernels_do_the_same_in_both_ways(lab, monkeypatch, seed):
    kernels = Kernels(seed)
    source = "".join(kernels.kernel(f"kernel{i}") for i in range(4))
    assert "hal_side_by_side" not in rewritten(source)
    kernels.meet = False  # without barriers between them, functions of warps may be on fibers
    source += "".join(kernels.kernel(f"kernel{i}") for i in (4, 5)).replace("__syncthreads();", "")
    check_both_ways(lab, monkeypatch, source, seed, 6)


def test_variables_whose_type_is_not_named(lab):
    body = """
  const int t = threadIdx.x;
  float x = p[t];
  const auto half = x / 2 + t, &more = p[t];
  __syncthreads();
  for (int i = 0; i < n; i++) {
    auto *to = p + t;
    const auto late = half * 2.0;
    auto narrow = (char)t;
    __syncthreads();
    *to += late + narrow;
    __syncthreads();
  }
"""
    assert way_of(body, parameters="float *p, int n") == "hal_by_itself"
    kernel = lab.function(f"__global__ void kernel(float *p, int n) {{ {body} }}")
    p = lab.array(np.arange(64), "f4")
    lab.run(kernel, 1, 64, p, np.int32(3))
    assert p.tolist() == [t + 3 * (t + 2 * t + t) for t in range(64)]
