"""Kernels with functions of warps that become loops: a call is a step between two of these."""

import numpy as np
import pytest
from test_reworded import BEGIN, HEAD, check_becomes_loops, texts_of

from hal.errors import WorkFailedError
from hal_cpu import _compile

SUM = """
__inline__ __device__ int warp_sum(int v) {
#pragma unroll
  for (int offset = warpSize / 2; offset > 0; offset /= 2)
    v += __shfl_down_sync(0xffffffff, v, offset);
  return v;
}
"""

# Each source has a kernel `kernel(int *p, int n)` for a block of 64 threads.
SHAPES = {
    "a sum": f"{SUM}{HEAD} {{ {BEGIN} p[t] = warp_sum(p[t] * 3 + n); }}",
    "all shuffles": f"""{HEAD} {{
  {BEGIN}
  int a = p[t] + t;
  a += __shfl_sync(~0u, a, 3) + __shfl_sync(0xFFFFFFFFu, a, t * 5) + __shfl_sync(-1, a, n, 8);
  a += 3 * __shfl_up_sync((unsigned)-1, a, 1) - __shfl_up_sync(0xffffffff, a, t % 7, 16);
  a ^= __shfl_down_sync(0xffffffffffffffffull, a, n);
  for (int i = 1; i < warpSize; i <<= 1) a += __shfl_xor_sync(0xffffffff, a, i) % 100;
  p[t] = a + __shfl_xor_sync(0xffffffff, a, 21) + __shfl_xor_sync(~0, a, t);
}}""",
    "widths": f"""{HEAD} {{
  {BEGIN}
  int a = p[t];
  for (int w = 2; w <= 32; w *= 2) {{
    a += __shfl_sync(~0u, a, t + 1, w) + __shfl_down_sync(~0u, a, 1, w);
    a += __shfl_up_sync(~0u, a, 1, w) + __shfl_xor_sync(~0u, a, 1, w);
  }}
  p[t] = a % 10000;
}}""",
    "votes": f"""#define FULL 0xffffffffU
{HEAD} {{
  {BEGIN}
  const unsigned mask = FULL;
  unsigned a = __ballot_sync(mask, p[t] > 300), b = 0;
  b += __any_sync(FULL, t == 40) + 2 * __all_sync(FULL, t < 60) + 4 * __all_sync(mask, t < 64);
  b += __popc(__ballot_sync(mask, p[t] & 1) & ((1u << t % 32) - 1));
  p[t] = a + b + (__activemask() == ~0u) + __match_any_sync(mask, p[t] % 5);
}}""",
    "reductions": f"""{HEAD} {{
  {BEGIN}
  int a = p[t] - 300;
  unsigned b = p[t];
  p[t] = __reduce_add_sync(~0u, a) + __reduce_min_sync(~0u, a) - __reduce_max_sync(~0u, a);
  p[t] += __reduce_and_sync(~0u, b | t) ^ __reduce_or_sync(~0u, b) ^ __reduce_xor_sync(~0u, b);
}}""",
    "threads that return": f"""{HEAD} {{
  {BEGIN}
  if (t % 3 == 0 || t > 50) return;
  int a = __shfl_down_sync(~0u, t, 2) + __shfl_xor_sync(~0u, p[t], 3) + __activemask();
  if (t > 47) return;
  p[t] = a + __ballot_sync(~0u, t & 1) + __all_sync(~0u, t % 3) + __reduce_add_sync(~0u, t);
}}""",
    "other types": f"""
struct Pair {{ float a; char b; }};
{HEAD} {{
  {BEGIN}
  double d = __shfl_xor_sync(~0u, p[t] * 0.5, 5);
  Pair pair = {{t * 1.5f, (char)t}};
  pair = __shfl_sync(~0u, pair, t + 1, 4);
  const int *from = __shfl_sync(~0u, p + t, 7);
  float2 both = __shfl_down_sync(~0u, make_float2(t, n), 1);
  p[t] = d + pair.a + pair.b + (from - p) + both.x + both.y;
}}""",
    "calls in calls": f"""{SUM}{HEAD} {{
  {BEGIN}
  int a = __shfl_sync(~0u, warp_sum(__shfl_xor_sync(~0u, p[t], 1)),
    __shfl_sync(~0u, t, 3)), b = 2;
  const unsigned c = a, d = __ballot_sync(~0u, c & 1),
    e = __any_sync(~0u, d > 5);
  p[t] = warp_sum(warp_sum(a + b) % 7) + __LINE__ + d + e;
}}""",
    "a condition": f"{HEAD} {{ {BEGIN} if (__any_sync(~0u, p[t] > 500)) p[t] = n; else p[t]++; }}",
    "a block's sum": f"""{SUM}
{HEAD} {{
  static __shared__ int parts[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int v = warp_sum(p[threadIdx.x]);
  if (lane == 0) parts[warp] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? parts[lane] : 0;
  v = warp_sum(v);
  p[threadIdx.x] += v * (warp == 0);
}}""",
    "memory that a warp shares": f"""{HEAD} {{
  {BEGIN}
  __syncwarp();
  for (int i = 1; i < 32; i *= 2) {{
    int a = s[t ^ i];
    __syncwarp();
    s[t] += a % 99;
    __syncwarp(0xffffffff);
  }}
  p[t] = s[t];
}}""",
    "a scan": f"""{HEAD} {{
  {BEGIN}
  int lane = t & 31, a = p[t];
  #pragma unroll
  for (int i = 1; i < 32; i *= 2) {{
    int b = __shfl_up_sync(0xffffffff, a, i);
    if (lane >= i) a += b;
  }}
  p[t] = a;
}}""",
    "the last warp": f"""{SUM}
{HEAD} {{
  __shared__ int parts[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int v = warp_sum(p[threadIdx.x]);
  if (lane == 0) parts[warp] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? parts[lane] : 0;
  if (warp == 0) v = warp_sum(v);
  p[threadIdx.x] += v;
}}""",
    "threads that end": f"{SUM}{HEAD} {{ {BEGIN} if (t < 40 + n) p[t] = warp_sum(s[t] % 50); }}",
    "threads that come again": f"""{SUM}{HEAD} {{
  {BEGIN}
  int a = p[t];
  for (int i = 0; i < n; i++)
    if (t < 40) a += warp_sum(a % 50);
  if (t < 40) a -= __any_sync(~0u, a > 90);
  if (t < 30) {{ if (t > 20) a += __popc(__activemask()); }}
  p[t] = a;
}}""",
    "warps that differ": f"""{SUM}{HEAD} {{
  {BEGIN}
  int a = p[t], k = 3;
  if (t >= 32) {{
    a = warp_sum(a) + __activemask();
    if (a % 2) return;
    for (int i = 0; i < n; i++) {{
      if (i == 3) break;
      const int more = n + i;
      a += __shfl_xor_sync(~0u, a, i) % more;
    }}
    if (n > 5) a += __popc(__ballot_sync(~0u, a % 3));
    k += n;
  }} else if (n == 7) a++;
  else
    a--;
  __syncthreads();
  s[t] = a;
  __syncthreads();
  p[t] = s[63 - t] + k * __all_sync(~0u, a);
}}""",
    "conditions in conditions": f"""{SUM}{HEAD} {{
  {BEGIN}
  int a = p[t];
  if (t < 32 + n * 0) {{
    if (n % 2) {{ if (t / 32 == 0) a = warp_sum(a); }}
    else
      a += n;
    s[t] = a;
    __syncwarp();
    a += s[t ^ 1];
  }}
  p[t] = a;
}}""",
}
# Masks of some lanes, barriers with votes.
SHAPES |= {
    "those of a vote": f"""{HEAD} {{
  {BEGIN}
  int a = p[t];
  const unsigned mask = __ballot_sync(0xffffffff, a % 3 == 0);
  if (a % 3 == 0) {{
    for (int i = 16; i > 0; i /= 2) a += __shfl_down_sync(mask, a, i);
    a += __any_sync(mask, a > 900) + 2 * __all_sync(mask, a > 20) + __match_any_sync(mask, a % 5);
    a += __reduce_add_sync(mask, a) + __popc(__ballot_sync(mask, a & 1));
    __syncwarp(mask);
  }}
  p[t] = a;
}}""",
    "those that are here": f"""{HEAD} {{
  {BEGIN}
  if (t > 40) return;
  int a = p[t];
  if (t % 32 > n) {{
    int m = __activemask();
    a += __shfl_xor_sync(m, a, 1) + __reduce_max_sync(m, a);
  }}
  p[t] = a;
}}""",
    "several of a warp": f"""{HEAD} {{
  {BEGIN}
  const unsigned half = t % 32 < 16 ? 0xffff : 0xffff0000, quarter = 0x11111111u << (t & 3);
  int a = p[t];
  a += __shfl_xor_sync(half, a, 1) + __reduce_min_sync(quarter, a) * 3 + __all_sync(half, a > 9);
  a += __ballot_sync(half, a & 1) + __match_any_sync(quarter, a % 3) + __any_sync(quarter, a > 99);
  unsigned same = __match_any_sync(~0u, a % 3);
  p[t] = a + __reduce_add_sync(same, a) + __shfl_sync(same, a, 3) + __shfl_up_sync(quarter, a, 4);
}}""",
    "parameters": f"""
__device__ int sum(unsigned mask, int v) {{
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(mask, v, i);
  return v;
}}
{HEAD} {{ {BEGIN} unsigned m = n ? ~0u : 0; m |= 1; p[t] = sum(~0u, p[t]) + sum(m, t); }}""",
    "constants outside": f"""
constexpr unsigned ALL = 0xffffffffu;
const unsigned long long WIDE = ~0ull;
{HEAD} {{ {BEGIN} p[t] += __shfl_xor_sync(ALL, p[t], 1) + __shfl_xor_sync(WIDE, p[t], 2); }}""",
    "of all": f"""{HEAD} {{
  {BEGIN}
  int a = __syncthreads_count(p[t] > 500) * 100;
  a += __syncthreads_or(p[t] == 7) * 10 + __syncthreads_and(p[t] >= 0);
  p[t] = a + __syncthreads_count(t * 0.01f);
}}""",
    "of those that are left": f"""{HEAD} {{
  {BEGIN}
  if (t % 3 == 1) return;
  const int a = __syncthreads_count(p[t] > 500);
  p[t] = a + __syncthreads_or(t > 62) * 1000 + __syncthreads_and(t % 3 != 1) * 2000;
}}""",
    "that end a loop": f"""{HEAD} {{
  {BEGIN}
  int a = p[t];
  bool goes_on = true;
  while (goes_on) {{
    a -= a / 2;
    goes_on = __syncthreads_or(a > 10);
  }}
  for (int i = 0; i < n; i++) {{
    const int b = __syncthreads_count(a < i);
    if (b > 10) break;
    s[t] += b;
  }}
  do a -= 3; while (__syncthreads_or(a >
      5));
  while (!__syncthreads_and(a > 20)) {{
    a++;
    if (n % 2) continue;
    a += t % 3;
  }}
  while (__syncthreads_or(a > 90)) a -= 7;
  if (n > 3) a += __syncthreads_count(a & 1);
  p[t] = a + s[63 - t];
}}""",
}
KEPT = {
    "masks with which others pass": "if (t < 16) p[t] = __any_sync(~0u, t);"
    " if (t > 15) p[t] = __shfl_sync(t < 32 ? 0xffff0000 : ~0u, t, 3); p[t] = __any_sync(~0u, n);",
    "a round that ends before a vote": "int a = t; do { if (a-- > 9) continue; s[t] = a; }"
    " while (__syncthreads_or(a > 0)); p[t] = s[t];",
    "a vote of some": "if (t < 32) p[t] = __syncthreads_count(t); p[t] += __any_sync(~0u, t);",
    "a loop of some": "for (int i = 0; i < t / 32; i++) p[t] = __any_sync(~0u, t);",
    "a barrier of a warp": "if (t < 32) { __syncthreads(); p[t] = __any_sync(~0u, t); }",
    "two ways": "if (t % 2) p[t] = __any_sync(~0u, t); else p[t] = __any_sync(~0u, n);",
    "two in turn": "if (t > 40) { p[t] = __any_sync(~0u, t); return; } p[t] = __any_sync(~0u, n);",
    "a loop that some leave": "for (int i = 0; i < n; i++)"
    " { if (t < 32) { p[t] = __any_sync(~0u, t); if (n == 3) break; } }",
    "what some change": "int k = n; while (k > 0) { k--; __syncthreads();"
    " if (t < 32) { p[t] = __any_sync(~0u, t); k--; } }",
    "a right side": "if (t < 32 && __any_sync(~0u, t)) p[t] = 3;",
    "a width of each": "p[t] = __shfl_sync(~0u, t, 1, t < 32 ? 8 : 4);",
}


@pytest.mark.parametrize("source", SHAPES.values(), ids=SHAPES)
def test_shapes_that_become_loops(lab, monkeypatch, source):
    check_becomes_loops(lab, monkeypatch, source)


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_shapes_that_do_not(lab, body):
    (text,) = texts_of(lab, f"{HEAD} {{ {BEGIN} {body} }}")
    assert "hal_by_itself" not in text
    assert "hal_given" not in text


NAMES = "its mask 0xffffffff names the lanes"
WAIT = "which do not come: they wait at"
# What a kernel of 64 threads does, and what of it fails.
MISSED = {
    "at a barrier": (
        "if (t < 40) x[t] = __any_sync(~0u, t);\n  __syncthreads();",
        f"k.cu:3: __any_sync(): {NAMES} 0xffffff00, {WAIT} a __syncthreads(); ",
    ),
    "at another call": (
        """if (t < 32 || t == 34) {
    x[t] = __shfl_sync(~0u, t, 3);
  }
  if (t != 40) return;
  x[t] = __any_sync(~0u, t);""",
        f"k.cu:4: __shfl_sync(): {NAMES} 0x00000100, {WAIT} __any_sync() in line 7 of k.cu; ",
    ),
    "at another condition": (
        """for (int i = 0; i < 3; i++) {
    if (t < 5) __syncwarp();
    if (t == 6 && i == 2) x[t] = __ballot_sync(~0u, i);
  }""",
        f"k.cu:4: __syncwarp(): {NAMES} 0x00000040, {WAIT} __ballot_sync() in line 5 of k.cu; ",
    ),
    "a mask without oneself": (
        "x[t] = __shfl_sync(0xff, t, 3);",
        "k.cu:3: __shfl_sync(): its mask 0x000000ff leaves out lane 8, which calls it; ",
    ),
    "a mask of those at a barrier": (
        "if (t < 16) x[t] = __any_sync(0xfffff, t);\n  __syncthreads();",
        f"k.cu:3: __any_sync(): its mask 0x000fffff names the lanes 0x000f0000, {WAIT} a __syncthr",
    ),
    "several masks": (
        "x[t] = __reduce_add_sync(t % 32 < 31 ? 0xffffffff : 0xc0000000, 1);",
        f"k.cu:3: __reduce_add_sync(): {NAMES} 0x80000000, {WAIT} __reduce_add_sync() in line 3 of",
    ),
    "a vote": (
        "if (t < 40) x[t] = __any_sync(~0u, t);\n  x[t] = __syncthreads_count(t);",
        f"k.cu:3: __any_sync(): {NAMES} 0xffffff00, {WAIT} a __syncthreads(); ",
    ),
}


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize(("body", "text"), MISSED.values(), ids=MISSED)
def test_a_mask_names_threads_that_wait_elsewhere(device, monkeypatch, body, text, loops):
    head = "__global__ void HAL_BLOCK(64) k(unsigned *x) {\n  int t = threadIdx.x;\n  "
    monkeypatch.setattr(_compile, "LOOPS", loops)
    kernel = device.compile(f"{head}{body}\n}}", filename="k.cu")["k"]
    x = device.upload(np.zeros(64, np.uint32))
    with pytest.raises(WorkFailedError) as caught:
        device.queue.dispatch(kernel, grid=(3, 2), args=(x,)).wait(timeout=60)
    assert f"kernel 'k', block (0, 0, 0): {text}" in str(caught.value)
