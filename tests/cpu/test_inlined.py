"""Kernels that become loops once functions with barriers stand in place of their calls."""

import pytest
from random_kernels import Kernels, check_both_ways
from test_reworded import BEGIN, HEAD, check_becomes_loops, texts_of

from hal.errors import CompilationError

SWAP = """
__device__ int swap(int a, int *s) {
  const int t = threadIdx.x;
  s[t] = a;
  __syncthreads();
  int b = s[63 - t];
  __syncthreads();
  return b;
}
"""

# Each source has a kernel `kernel(int *p, int n)` for a block of 64 threads.
SHAPES = {
    "a result": f"{SWAP}{HEAD} {{ {BEGIN} int a = swap(n + t, s); p[t] = a * 2; }}",
    "a result in an expression": f"""{SWAP}{HEAD} {{
  {BEGIN}
  p[t] += 3 * swap(p[t], s) + n; const int b = max(t,
    swap(t * n, s)), c = b + 1;
  if (swap(c, s) > 70) p[t] += b;
  p[t] += __LINE__;
}}""",
    "a result of a result": f"{SWAP}{HEAD} {{ {BEGIN} p[t] = swap(swap(n ^ t, s) + t, s); }}",
    "no result": f"""
static __device__ __forceinline__ void add(float *v, const unsigned n) {{
  for (unsigned i = n / 2; i > 0; i /= 2) {{
    if (threadIdx.x < i) v[threadIdx.x] += v[threadIdx.x + i];
    __syncthreads();
  }}
}}
{HEAD} {{
  __shared__ float v[64];
  const int t = threadIdx.x;
  v[t] = p[t] + n;
  __syncthreads();
  add(v, 64);
  p[t] = v[0];
}}""",
    "functions that call functions": f"""{SWAP}
__device__ int twice(int a, int *s) {{
  int t = swap(a, s);
  __syncthreads();
  return swap(t + 1, s);
}}
__device__ int thrice(int a, int *s) {{ return twice(swap(a, s), s); }}
{HEAD} {{ {BEGIN} p[t] = thrice(t * n, s); }}""",
    "names of the kernel": f"""
__device__ int f(int n, int t, int *p) {{
  int s = n + t, a = 3;
  p[threadIdx.x] = s;
  __syncthreads();
  {{ int a = p[63 - threadIdx.x]; s += a; }}
  return s + a;
}}
{HEAD} {{ {BEGIN} int a = n; p[t] = f(t, a, s); __syncthreads(); p[t] -= f(a + 1, p[t], s); }}""",
    "shared memory of a function": f"""
__device__ int g(int a, int i) {{
  __shared__ int first[3][2], kept[64];
  if (i) kept[threadIdx.x] = a;
  __syncthreads();
  return kept[63 - threadIdx.x];
}}
{HEAD} {{
  {BEGIN}
  int b = g(n, 1);
  __syncthreads();
  b += g(0, 0) + g(1, 0);
  p[t] = b + s[t];
}}""",
    "dynamic shared memory of a function": f"""
__device__ int g(int a) {{
  extern __shared__ int own[];
  own[threadIdx.x] = a;
  __syncthreads();
  return own[0];
}}
{HEAD} {{
  __shared__ int own;
  p[threadIdx.x] += g(n);
  __syncthreads();
  p[threadIdx.x] ^= g(3);
}}""",
    "behind another variable": f"""{SWAP}
{HEAD} {{ {BEGIN} int a = n++, b = swap(n, s); p[t] = a + b; }}""",
    "templates": f"""
template <int N, typename T> __device__ T total(T a) {{
  __shared__ T s[N];
  s[threadIdx.x] = a;
  __syncthreads();
  T sum = 0;
  for (int i = 0; i < N; i++) sum += s[i];
  __syncthreads();
  return sum;
}}
template <class T, unsigned int SIZE, bool IS> __device__ void store(T *p, T a) {{
  if (IS && SIZE > 32) {{ __syncthreads(); p[threadIdx.x] = a + SIZE; }}
}}
{HEAD} {{
  const int t = threadIdx.x;
  float a = total<64, float>(t * 0.5f) + total<64, unsigned int>(n);
  store<int, 64, true>(p, a + total<64, int>(3));
}}""",
    "templates whose arguments are deduced": f"""
template <typename T> __device__ T swap(T a, T *s) {{
  s[threadIdx.x] = a;
  __syncthreads();
  T b = s[63 - threadIdx.x];
  __syncthreads();
  return b;
}}
template <int ADD, typename T> __device__ T add(const int k, T a, T *s) {{
  a += k + ADD;
  return swap(a, s);
}}
{HEAD} {{
  __shared__ float s[64];
  const float a = p[threadIdx.x] * 0.75f;
  float b = swap(a, s);
  p[threadIdx.x] = 100 * add<3>(n, b, s);
}}""",
    "references": f"""
__device__ void rotate(int &a, int &b, const int &c, int (&s)[64]) {{
  s[threadIdx.x] = a;
  __syncthreads();
  a = b + c;
  b = s[(threadIdx.x + c) % 64];
  __syncthreads();
}}
{HEAD} {{
  {BEGIN}
  int a = p[t], b = n;
  int c = 5;
  rotate(a, b, c, s);
  rotate(b, s[t], c, s);
  p[t] = a + 3 * b + s[t];
}}""",
    "rows": f"""
__device__ int turn(int s[][8], int a) {{
  s[threadIdx.x / 8][threadIdx.x % 8] = a;
  __syncthreads();
  return s[threadIdx.x % 8][threadIdx.x / 8];
}}
{HEAD} {{ __shared__ int rows[8][8]; p[threadIdx.x] = turn(rows, threadIdx.x * n); }}""",
    "groups": f"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__device__ int swap(int a, int *s, cg::thread_block block) {{
  s[block.thread_rank()] = a;
  cg::sync(block);
  return s[63 - threadIdx.x];
}}
__device__ int swop(int a, int *s, const cg::thread_block &block) {{
  s[threadIdx.x] = a;
  block.sync();
  return s[63 - threadIdx.x];
}}
{HEAD} {{
  cg::thread_block me = cg::this_thread_block();
  {BEGIN}
  int a = swop(n, s, me);
  __syncthreads();
  p[t] = swop(a + t, s, cg::this_thread_block());
}}""",
    "macros": f"""
#define AT(i) s[(i) % 64]
#define MEET() __syncthreads()
#ifdef NO_SUCH_MACRO
__device__ int f(int *s, int a) {{ return 0; }}
#else
__device__ int f(int *s, int a) {{
  MEET();
  AT(threadIdx.x) = a;
  MEET();
  return AT(threadIdx.x + 3);
}}
#endif
{HEAD} {{ {BEGIN} MEET(); p[t] = f(s, AT(5 + t) + n); }}""",
    "a kernel that is a function": f"""
template <int N> __device__ __forceinline__ void all(int *p, int n) {{
  if (threadIdx.x >= N) return;
  {BEGIN}
  __syncthreads();
  p[t] = s[N - 1 - t] + n;
}}
{HEAD} {{ all<64>(p, n); }}""",
    "a barrier without braces": f"""{SWAP}{HEAD} {{
  {BEGIN}
  for (int i = 0; i < n % 5; i++) for (int j = 0; j < i; j++) {{ __syncthreads(); s[t] += j; }}
  if (n > 3)
    __syncthreads();
  else // nothing
    p[t] += swap(n, s);
  __syncthreads();
  do p[t] += swap(p[t], s); while (n < 0);
#pragma unroll
  for (int i = 0; i < 3; i++)
#pragma unroll
    for (int j = 0; j < 2; j++)
      if (i > j) p[t] ^= swap(i + t, s);
  p[t] += s[t] + __LINE__;
}}""",
}
HIDDEN = {
    "of a condition": f"{SWAP}{HEAD} {{ {BEGIN} if (n && swap(t, s)) p[t] = 1; }}",
    "of a loop": f"{SWAP}{HEAD} {{ {BEGIN} while (swap(n, s)) n = 0; }}",
    "of a thread": f"{SWAP}{HEAD} {{ {BEGIN} if (t < 64) p[t] = swap(n, s); }}",
    "in a comma's right side": f"{SWAP}{HEAD} {{ {BEGIN}"
    f" int a, b; b = (a = n++, swap(n, s)); p[t] = a + b; }}",
    "of several returns": "__device__ int f(int a) { if (a > 3) return 1; __syncthreads();"
    f" return a; }} {HEAD} {{ p[threadIdx.x] = f(n); }}",
    "of another name outside": "__device__ int more = 3;"
    "__device__ int f(int a) { __syncthreads(); return a + more; }"
    f"{HEAD} {{ int more = 2; p[threadIdx.x] = f(n) + more; }}",
    "of several functions": "__device__ int f(int a) { __syncthreads(); return a; }"
    "__device__ int f(float a) { return 2; }"
    f"{HEAD} {{ p[threadIdx.x] = f(n); }}",
    "of itself": "__device__ int f(int a) { __syncthreads(); return a > 0 ? f(a - 1) : 3; }"
    f"{HEAD} {{ p[threadIdx.x] = f(n); }}",
    "of what comes later": "__device__ int g(double a) { return 1; }"
    "__device__ int f(int a) { __syncthreads(); return g(a); }"
    "__device__ int g(int a) { return 2; }"
    f"{HEAD} {{ p[threadIdx.x] = f(n); }}",
    "of warps": "__device__ int f(int a)"
    " { __syncthreads(); return __match_all_sync(~0u, a, &a); }"
    f"{HEAD} {{ p[threadIdx.x] = f(n); }}",
    "of a type that is not seen": "template <class T> __device__ T f(T a)"
    " { __syncthreads(); return a; }"
    f"{HEAD} {{ float a[2] = {{1, 2}}; p[threadIdx.x] = f(n) + f(a[1]) + f(a)[0]; }}",
    "of a copy": "__device__ int f(const int &a, int *s) { s[0] = 3; __syncthreads(); return a; }"
    f"{HEAD} {{ {BEGIN} p[t] = f(s[0], s); }}",
    "of an address": "__device__ int f(int *a)"
    " { __syncthreads(); *a = 1; __syncthreads(); return *a; }"
    f"{HEAD} {{ int a = n; p[threadIdx.x] = f(&a) + a; }}",
}


@pytest.mark.parametrize("source", SHAPES.values(), ids=SHAPES)
def test_shapes_that_become_loops(lab, monkeypatch, source):
    check_becomes_loops(lab, monkeypatch, source)


@pytest.mark.parametrize("source", HIDDEN.values(), ids=HIDDEN)
def test_shapes_that_do_not(lab, source):
    (text,) = texts_of(lab, source)
    assert "hal_by_itself" not in text
    assert "hal_in1" not in text


ERRORS = {
    "in a function": (
        (
            "__device__ int f(int a) {\n  __syncthreads();\n  return mistake;\n}\n"
            f"{HEAD} {{\n  p[threadIdx.x] = f(n);\n}}\n"
        ),
        "user.cpp:3:10: error: ",
    ),
    "in an argument": (
        f"{SWAP}{HEAD} {{\n  {BEGIN}\n  p[t] = swap(\n    mistake, s);\n}}\n",
        "user.cpp:13:5: error: ",
    ),
    "of an argument": (
        f"{SWAP}{HEAD} {{\n  {BEGIN}\n  p[t] = swap(&mistake, s);\n}}\n",
        "user.cpp:12:16: error: ",
    ),
    "behind a call": (
        f"{SWAP}{HEAD} {{\n  {BEGIN}\n  if (n) p[t] = swap(1,\n s);\n  p[0] = mistake;\n}}\n",
        "user.cpp:14:10: error: ",
    ),
}


@pytest.mark.parametrize(("source", "place"), ERRORS.values(), ids=ERRORS)
def test_errors_show_the_users_line(lab, source, place):
    with pytest.raises(CompilationError) as caught:
        lab.image(source)
    assert place in str(caught.value)
    assert "mistake" in str(caught.value)
    assert "hal_in" not in str(caught.value)


class Calling(Kernels):
    """The same kernels, with functions that are made of such statements."""

    def __init__(self, seed):
        super().__init__(seed)
        self.functions = []

    def statement(self, depth):
        pick = self.random.choice
        if depth == 0 or self.random.random() < 0.6:
            return super().statement(depth)
        self.count += 1
        kept, name = list(self.variables), f"f{self.count}"
        a, b = pick(kept), pick(kept)
        meet, self.meet, self.variables = self.meet, False, ["v0", "v1"]
        by, kind = pick(["", "&"]), pick(["int", "unsigned"])
        head = f"{kind} {name}(int v0, int {by}v1, int *s, {pick(['const ', ''])}int n)"
        if templated := pick([True, False]):
            head = f"template <int K> __device__ {head}"
        else:
            head = f"static __device__ {head}"
        body = self.block(depth - 1)
        self.functions.append(f"""
{head} {{
  const int t = threadIdx.x + blockDim.x * threadIdx.y, size = blockDim.x * blockDim.y;
  const unsigned x = threadIdx.x;
  int own[3] = {{n, v1, {"K" if templated else "5"}}};
  __shared__ int mine[256];
  for (int j = 0; j < size; j++) mine[j] = 1;  // some threads may have returned
  __syncthreads();
  mine[t] = v0;
  __syncthreads();
  {body}
  v1 += mine[(t + 1) % size] % 50 + own[2];
  __syncthreads();
  return (unsigned)v0 % 1000 + own[0];
}}
""")
        self.meet, self.variables = meet, kept
        call = f"{name}{'<3>' if templated else ''}({a}, {b}, s, n)"
        choices = [
            f"__syncthreads(); {a} = {call};",
            f"{b} += 3 * ({call} % 7) + t;",
            f"if ({call} % 3 == 1) {a}++;",
            f"for (int z = 0; z < n % 3; z++) {a} ^= {call};",
            f"if (n % 2) {a} += {call}; else {call};",
            f"const int w{self.count} = {call}; {a} -= w{self.count} % 100;",
        ]
        return str(pick(choices))


@pytest.mark.parametrize("seed", range(2))
def test_random_kernels_do_the_same_in_both_ways(lab, monkeypatch, seed):
    kernels = Calling(seed)
    texts = [kernels.kernel(f"kernel{i}") for i in range(4)]
    source = "".join([*kernels.functions, *texts])
    (text,) = texts_of(lab, source, options=())
    assert text.count("hal_by_itself,") == 4
    check_both_ways(lab, monkeypatch, source, seed, 4)
