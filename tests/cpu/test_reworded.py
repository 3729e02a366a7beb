"""Kernels with barriers that become loops once their macros are replaced, or words of theirs."""

from unittest import mock

import numpy as np
import pytest
from random_kernels import Kernels, check_both_ways

from hal.errors import CompilationError
from hal_cpu import _build, _compile, _toolchain
from hal_cpu._making import Making

HEAD = "__global__ void kernel(int *p, int n)"
BEGIN = "const int t = threadIdx.x; __shared__ int s[64]; s[t] = p[t];"

# Each source has a kernel `kernel(int *p, int n)` for a block of 64 threads.
SHAPES = {
    "an index as a macro": f"""
#define AT(i, j) s[((i) * 8 + (j)) % 64]
{HEAD} {{ {BEGIN} __syncthreads(); p[t] = AT(t, n); }}
""",
    "a macro that pastes and makes text": f"""
#define NAME(a, b) a##b
#define LENGTH(a) sizeof(#a)
{HEAD} {{ {BEGIN} int ab = n; __syncthreads(); p[t] = s[63 - t] + NAME(a, b) + LENGTH(n + ab); }}
""",
    "a macro that is the barrier": f"""
#define MEET __syncthreads()
#define MEET_AND(...) do {{ MEET; __VA_ARGS__; }} while (0)
{HEAD} {{ {BEGIN} MEET; int a = s[63 - t]; MEET_AND(s[t] = a); MEET; p[t] = s[(t + n) % 64]; }}
""",
    "a macro of statements over several lines": f"""
#define HALVE(k) if (t < (k)) \\
    s[t] += s[t + (k)]; \\
  __syncthreads();
{HEAD} {{
  {BEGIN}
  __syncthreads();
  HALVE(
      32) HALVE(16)
  p[t] = s[0] + __LINE__;
}}
""",
    "a macro with several definitions": f"""
#if defined(__CUDACC__) || !defined(__syncthreads)
#define SIZE 3
#elif defined(threadIdx) && NULL_ == 0
#define SIZE (2 + 3)
#else
#define SIZE 8
#endif
{HEAD} {{ {BEGIN} for (int i = 0; i < SIZE; i++) {{ __syncthreads(); s[t] += i; }} p[t] = s[t]; }}
""",
    "a type that is a macro": f"""
#define real float
#define POINTER(T) T *__restrict__
{HEAD} {{
  {BEGIN}
  real a = s[t] / 2;
  POINTER(int) q = p;
  __syncthreads();
  q[t] = (int)(a * n);
}}
__global__ void __launch_bounds__(sizeof(real)) other(real *p, real x) {{ p[0] = x; }}
""",
    "conditions in the body": f"""
#define WIDTH 8
{HEAD} {{
  {BEGIN}
#if WIDTH > 4
  __syncthreads();
#else
  return;
#endif
#ifdef NO_SUCH_MACRO
  p[t] = no_such_name;
#else
  p[t] = s[(t + WIDTH) % 64];
#endif
}}
""",
    "definitions in the body": f"""
{HEAD} {{
  {BEGIN}
#define ONE(x) ((x) + 1)
  __syncthreads();
  p[t] = ONE(s[63 - t]);
#undef ONE
#define ONE(x) ((x) - 1)
  p[t] *= ONE(n);
}}
""",
    "a kernel that is not there": f"""
#define MEET() __syncthreads()
#ifdef NO_SUCH_MACRO
__global__ void other(int *p) {{ MEET(); }}
#endif
{HEAD} {{ {BEGIN} MEET(); p[t] = s[63 - t]; }}
""",
    "an assertion": f"""
#define MEET() __syncthreads()
{HEAD} {{ {BEGIN} MEET(); assert(t < 64); p[t] = s[63 - t]; }}
""",
    "headers of the dialect": f"""
#include <math.h>
#include <cuda_fp16.h>
#include <limits.h>
#define LAST INT_MAX
#if LAST > 3
#define HALF(x) __float2half(x)
#endif
{HEAD} {{ {BEGIN} half a = HALF(s[t] / 2.0f); __syncthreads(); p[t] = (float)a + LAST % n; }}
""",
    "groups": f"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
{HEAD} {{
  cg::thread_block block = cg::this_thread_block();
  {BEGIN}
  cg::sync(block);
  int a = s[63 - t];
  block.sync();
  s[t] = a + n;
  cg::this_thread_block().sync();
  p[t] = s[(t + 1) % 64];
}}
""",
    "counters of several loops": f"""
{HEAD} {{
  {BEGIN}
  int i, j, last;
  for (i = 0; i < n % 5; i++) {{
    __syncthreads();
    last = s[(t + i) % 64];
    __syncthreads();
    for (j = t; j < t + i; j++) last += j;
    s[t] += last;
  }}
  for (i = t; i < 64; i += blockDim.x) p[i] = s[i];
}}
""",
    "a counter that is used behind its loop": f"""
{HEAD} {{
  {BEGIN}
  unsigned int i, k;
  for (i = 32; i > 0; i >>= 1) {{ __syncthreads(); if (t < i) s[t] += s[t + i]; }}
  for (k = 0; k < n % 4; k++) {{ __syncthreads(); }}
  __syncthreads();
  p[t] = s[0] + i + k;
}}
""",
    "shared memory in a loop": f"""
{HEAD} {{
  {BEGIN}
  for (int i = 0; i < n % 5; i++) {{
    __shared__ int own[64];
    own[t] = s[t] + i;
    __syncthreads();
    s[t] += own[63 - t];
    __syncthreads();
  }}
  p[t] = s[t];
}}
""",
    "one name in several blocks": f"""
{HEAD} {{
  {BEGIN}
  for (int i = 0; i < n % 5; i++) {{
    int a = s[t];
    __syncthreads();
    s[63 - t] += a;
    __syncthreads();
  }}
  for (int i = 0; i < n % 4; i++) {{
    int a = s[t] * 2, b = a;
    __syncthreads();
    {{
      float a = t;
      __syncthreads();
      b += a;
    }}
    s[t] += a % 100 + b % 99;
  }}
  p[t] = s[t];
}}
""",
    "vectors, structures and aliases": f"""
typedef float real;
using whole = int;
struct Pair {{ whole a; real b[2]; }};
typedef struct {{ int2 c; Pair d; }} Both;
{HEAD} {{
  {BEGIN}
  float4 v = make_float4(t, n, 1, 2);
  Pair pair = {{t, {{1.5f, 2.5f}}}};
  real r = v.x + v.w;
  Both both;
  both.c = make_int2(t, n);
  __syncthreads();
  v.x += s[63 - t];
  both.d = pair;
  __syncthreads();
  pair.a += both.c.x + both.d.b[1] * 2;
  p[t] = v.x + v.y + pair.a + pair.b[0] * 2 + r;
}}
""",
    "constants outside": f"""
const int FEW = 3;
enum {{ MORE = 5, MOST }};
__constant__ int given = 4;
{HEAD} {{
  {BEGIN}
  const float table[] = {{1, 2.5f, FEW}};
  for (int i = 0; i < max(FEW, MORE) + given - log2f(4); i++) {{
    __syncthreads();
    s[t] += i;
  }}
  while (n > MOST && FEW) {{ __syncthreads(); break; }}
  p[t] = s[t] + table[t % 3] * 2;
}}
""",
    "constants inside": f"""
{HEAD} {{
  constexpr int R = 4, ALL = 2 * R;
  static constexpr float BY = 0.5f;
  constexpr int weights[3] = {{1, 5, 2}};
  const int t = threadIdx.x;
  __shared__ int s[ALL * 8];
  int sums[R][2];
  for (int i = 0; i < R; i++) sums[i][1] = p[t] * weights[i % 3];
  s[t] = sums[1][1];
  __syncthreads();
  for (int i = 0; i < R; i++) sums[i][1] += s[(t + i) % ALL];
  for (int j = 0; j < n; j++) {{
    constexpr unsigned char K = 2;
    int mine[K] = {{t, s[t]}};
    __syncthreads();
    s[t] = (int)(mine[1] * BY) + mine[0] % (K + 1);
    __syncthreads();
  }}
  p[t] = sums[3][1] + s[t ^ 1];
}}""",
    "steps of several counters": f"""
{HEAD} {{
  {BEGIN}
  for (int i = blockIdx.x, j = 5; i < 9; i += gridDim.x * 2, --j) {{
    __syncthreads();
    s[t] += i * j;
  }}
  p[t] = s[t];
}}
""",
    "values in parentheses": f"""
constexpr unsigned int rounds(4);
{HEAD} {{
  {BEGIN}
  int a(p[t]), b(a * 3);
  const float2 both(make_float2(t, n));
  auto c(both.x + both.y);
  __syncthreads();
  for (int i(1); i < rounds; i++) {{
    s[t] += a + i;
    __syncthreads();
  }}
  p[t] = s[63 - t] + b + (int)c;
}}""",
    "volatile memory": f"""
__device__ void sum(volatile int *s, int t) {{
  int v = s[t];
  for (int i = 16; i > 0; i /= 2) {{
    v += s[t + i];
    __syncwarp();
    s[t] = v;
    __syncwarp();
  }}
}}
{HEAD} {{
  {BEGIN}
  volatile __shared__ float f[64];
  __shared__ volatile int g[96];
  volatile int a = p[t];
  f[t] = a * 0.3f;
  g[t] = 0;
  g[t + 32] = t;
  __syncthreads();
  if (t < 32) sum(g, t);
  a += __shfl_xor_sync(~0u, a, 1);
  __syncthreads();
  p[t] = g[t] + a + (int)f[63 - t] + s[n];
}}""",
    "conditions of the compiler": f"""
template <int N> __device__ int last(int a, const int *s) {{
  if constexpr (N > 32)
    __syncthreads();
  else
    a++;
  return a + s[N - 1];
}}
{HEAD} {{
  {BEGIN}
  if constexpr (warpSize == 32) {{
    __syncthreads();
    p[t] = s[63 - t];
  }} else
    p[t] = 0;
  p[t] += last<64>(t, s) + last<3>(n, s);
}}""",
    "elements of parameters": f"""
__device__ void set(int *to, int a) {{ *to = __syncthreads_and(a); }}
{HEAD} {{ {BEGIN} set(&p[t], s[t]); set(&p[t], p[t] && n); }}""",
    "constants of constants": f"""constexpr const int size = 5;
{HEAD} {{
  constexpr const int half = size / 2;
  {BEGIN}
  for (int i = 0; i < half; i++) {{ __syncthreads(); s[t] += i; }}
  p[t] = s[t];
}}""",
}
HIDDEN = {
    "a divergent barrier": f"#define MEET __syncthreads()\n{HEAD} {{ if (p[0]) {{ MEET; }} }}",
    "the dialect's name": "#define __syncthreads() p[0]++\n"
    f"{HEAD} {{ __syncthreads(); p[0] = 1; }}",
    "a variable named like a function": f"{HEAD} {{ int max = p[0];"
    " if (max) { __syncthreads(); } }",
    "a function named like the dialect's": "__device__ int max(int a, int b) { return 1; }"
    f"{HEAD} {{ if (max(1, 2) > 1) {{ __syncthreads(); }} }}",
    "a variable named like a constant": "const int FEW = 3;"
    f"{HEAD} {{ int FEW = p[0]; if (FEW) {{ __syncthreads(); }} }}",
    "a variable that is no constant": "__device__ int few = 3;"
    f"{HEAD} {{ if (few) {{ __syncthreads(); }} few = 2; }}",
    "a variable named like a type": "struct Pair { int a; };"
    f"{HEAD} {{ long a, Pair = p[0]; if (Pair) {{ __syncthreads(); }} }}",
    "a type with functions": "struct Pair { int a; Pair() {} };"
    f"{HEAD} {{ Pair pair; __syncthreads(); p[0] = pair.a; }}",
}


QUICKLY = ("-O1",)
"""The text that is compiled is in question, and not how well: it takes less than half the time."""


def texts_of(lab, source, options=QUICKLY, **request):
    """Return what the compiler gets of a source: one text, unless the first has errors."""
    with (
        mock.patch.object(Making, "_run", autospec=True, side_effect=Making._run) as run,
        mock.patch.object(type(_build.CACHE), "load", return_value=None),
    ):
        lab.image(source, options=options, **request)
    return [call.args[-1] for call in run.call_args_list]


def results_of(lab, source, block=64, options=QUICKLY, **request):
    kernel = lab.function(source, options=options, **request)
    rng = np.random.default_rng(1)
    results = []
    for n in (1, 7, 12):
        p = lab.array(rng.integers(0, 100, 64), "i4")
        lab.run(kernel, 1, block, p, np.int32(n), shared=1024)
        results.append(p.tolist())
    return results


def check_becomes_loops(lab, monkeypatch, source):
    """Check that a kernel becomes loops, with the results that it has with fibers."""
    (text,) = texts_of(lab, source)
    assert "HAL_KERNEL(kernel, hal_by_itself," in text
    results = results_of(lab, source)
    monkeypatch.setattr(_compile, "LOOPS", False)
    assert "hal_by_itself" not in texts_of(lab, source)[0]
    assert results == results_of(lab, source)


@pytest.mark.parametrize("source", SHAPES.values(), ids=SHAPES)
def test_shapes_that_become_loops(lab, monkeypatch, source):
    check_becomes_loops(lab, monkeypatch, source)


@pytest.mark.parametrize("source", HIDDEN.values(), ids=HIDDEN)
def test_shapes_that_do_not(lab, source):
    (text,) = texts_of(lab, source)
    assert "hal_by_itself" not in text


def test_macros_and_functions_of_included_files(lab, monkeypatch, tmp_path):
    (tmp_path / "mine.h").write_text(
        "#pragma once\n#ifndef WIDTH\n#error\n#endif\n#define AT(i) s[((i) + WIDTH) % 64]\n"
        "inline __device__ int twice(int a) { return 2 * a; }\n"
    )
    source = f"""#define WIDTH 8
#include <math.h>
#include "mine.h"
{HEAD} {{ {BEGIN} __syncthreads(); p[t] = twice(AT(t)) + __LINE__; }}
"""
    request = {"include_directories": (str(tmp_path),), "defines": {"MORE": "1"}}
    (text,) = texts_of(lab, source, **request)
    assert "HAL_KERNEL(kernel, hal_by_itself," in text
    results = results_of(lab, source, **request)
    monkeypatch.setattr(_compile, "LOOPS", False)
    assert results == results_of(lab, source, **request)


def test_macros_of_the_request(lab):
    source = f"{HEAD} {{ {BEGIN} MEET(); p[t] = s[WIDTH - 1 - t] + n; }}"
    request = {"defines": {"MEET": "__syncthreads"}, "options": ("-DWIDTH=64",)}
    (text,) = texts_of(lab, source, **request)
    assert "HAL_KERNEL(kernel, hal_by_itself," in text
    assert results_of(lab, source, **request)


def test_sources_that_need_no_preprocessor_do_not_run_it(lab):
    with (
        mock.patch.object(_toolchain, "run_compiler", wraps=_toolchain.run_compiler) as run,
        mock.patch.object(type(_build.CACHE), "load", return_value=None),
    ):
        lab.image(f"#define FEW 3\n{HEAD} {{ {BEGIN} __syncthreads(); p[t] = s[FEW] + n + 17; }}")
        lab.image(
            f"#define ADD(a) p[0] += a\n{HEAD} {{ for (int i = 0; i < n; i++) ADD(i + 17); }}"
        )
    assert run.call_count == 2


ERRORS = {
    "behind a macro": (
        f"#define MEET() __syncthreads()\n{HEAD} {{\n  MEET();\n  p[0] = mistake;\n}}\n",
        "user.cpp:4:10: error: ",
        "mistake",
    ),
    "behind a counter": (
        f"{HEAD} {{\n  int i;\n  for (i = 0; i < n; i++) p[i] = mistake;\n}}\n",
        "user.cpp:3:34: error: ",
        "mistake",
    ),
    "in a macro": (
        f"#define MEET() (mistake, __syncthreads())\n{HEAD} {{\n  MEET();\n  p[0] = 1;\n}}\n",
        "user.cpp:1:17: error: ",
        "mistake",
    ),
    "no condition": (f"{HEAD} {{ if x __syncthreads(); }}\n", "user.cpp:1:44: error: ", "x"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_show_the_users_line(lab, case):
    source, place, text = ERRORS[case]
    with pytest.raises(CompilationError) as caught:
        lab.image(source)
    message = str(caught.value)
    assert place in message
    assert text in message
    for word in ("hal_user_source", "image.cpp", "/tmp"):
        assert word not in message


class Reworded(Kernels):
    """The same kernels, and what else they may be written with."""

    macros = """
#define AT(i) s[(i)]
#define MEET __syncthreads()
#define STEP(a, b) a = (a * 5 + b % 11 - t) % 1000
#define SHARE(a, b) MEET; s[t] = a; \\
  MEET; b += AT((t + 1) % size); MEET
typedef struct { int a; short b[2]; } Pair;
const int FEW = 3;
"""

    def kernel(self, name):
        text = super().kernel(name)
        return text.replace("int v0 =", "int c0, c1; unsigned c2; int v0 =")

    def statement(self, depth):
        if self.random.random() < 0.5:
            return super().statement(depth)
        pick = self.random.choice
        a, b = pick(self.variables), pick(self.variables)
        self.count += 1
        name = f"w{self.count}"
        c = pick(["c0", "c1", "c2"])
        choices = [
            f"STEP({a}, {b});",
            f"SHARE({a}, {b});",
            f"\n#if WIDE{pick(['', ' == 0'])}\nSHARE({a}, {b});\n#else\n{a} += AT(t);\n#endif\n",
            f"for ({c} = t % 3; {c} < 5; {c}++) {a} += {c} * {b} % 7;",
            f"for ({c} = 0; {c} < n % 5; {c}++) {{ SHARE({a}, {b}); {a} += {c}; }}",
            f"for ({c} = t; {c} < n * 2; {c} += size) {{ {a} ^= {c} + AT(t); }}",
            f"Pair {name} = {{{a}, {{3, 4}}}}; MEET; {b} += {name}.a % 50 + {name}.b[{a} & 1];",
            f"float4 {name} = make_float4(t, 1, {a} % 9, 2); MEET; {b} += {name}.x + {name}.z;",
            f"{{ int r = {a}; SHARE(r, {b}); {{ int r = {b} % 5; SHARE(r, {a}); }} {b} += r; }}",
            (
                f"for (int m = 0; m < FEW; m++) {{ __shared__ int f[256]; f[t] = {a}; MEET;"
                f" {b} += f[t] % (9 + m); MEET; }}"
            ),
        ]
        return str(pick(choices))


@pytest.mark.parametrize("seed", range(4))
def test_random_kernels_do_the_same_in_both_ways(lab, monkeypatch, seed):
    kernels = Reworded(seed)
    source = "".join([kernels.macros, *(kernels.kernel(f"kernel{i}") for i in range(4))])
    options = (f"-DWIDE={seed % 2}",)
    (text,) = texts_of(lab, source, options=options)
    assert text.count("hal_by_itself,") == 4
    check_both_ways(lab, monkeypatch, source, seed, 4, options=options)
