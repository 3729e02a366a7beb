"""Kernels with cooperative groups that become loops: the groups are the block, and tiles of it."""

import numpy as np
import pytest
from test_reworded import BEGIN, HEAD, check_becomes_loops, texts_of

from hal.errors import WorkFailedError
from hal_cpu import _compile

GROUPS = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
"""
SIZES = [32, 8]

# Each source has a kernel `kernel(int *p, int n)` for a block of 64 threads; T is the size.
SHAPES = {
    "shuffles": f"""{HEAD} {{
  {BEGIN}
  auto tile = cg::tiled_partition<T>(cg::this_thread_block());
  int a = p[t];
  for (int i = tile.size() / 2; i > 0; i /= 2) a += tile.shfl_down(a, i);
  a ^= tile.shfl_xor(a, 1) + tile.shfl_up(t, 3) * 7;
  a -= tile.shfl(a, tile.thread_rank() + n);
  s[t] = a;
  tile.sync();
  cg::sync(tile);
  p[t] = s[t ^ 1] * 3 + tile.meta_group_rank() + tile.meta_group_size() * 5 + tile.num_threads();
}}""",
    "votes": f"""{HEAD} {{
  {BEGIN}
  const cg::thread_block block = cg::this_thread_block();
  const cg::thread_block_tile<T> tile = cg::tiled_partition<T>(block);
  unsigned a = tile.ballot(p[t] > 50) + 31 * tile.match_any(p[t] % 3);
  a += tile.any(p[t] > 90) * 7 + tile.all(p[t] > 5);
  p[t] = a + tile.any(0.5) + tile.all(t / 64.0f + 1);
}}""",
    "reductions": f"""{HEAD} {{
  {BEGIN}
  auto tile = cg::tiled_partition<T>(cg::this_thread_block());
  float a = p[t] * 0.37f;
  a = cg::reduce(tile, a, cg::plus<float>());
  int b = cg::reduce(tile, p[t], cg::greater<int>{{}}) + cg::reduce(tile, s[t], cg::less<int>());
  p[t] = __float_as_int(a) ^ b * cg::reduce(tile, cg::reduce(tile, b, cg::bit_xor<int>()),
    cg::plus<int>());
}}""",
    "some threads": f"""{HEAD} {{
  {BEGIN}
  auto tile = cg::tiled_partition<T>(cg::this_thread_block());
  int a = p[t];
  if (t < 32 || t / T == 32 / T) a += tile.shfl_xor(a, 1) * 3 + tile.any(a > 70);
  if (t % 5 == 2) return;
  p[t] = cg::reduce(tile, a, cg::plus<int>()) + tile.ballot(t & 1);
}}""",
    "the block": f"""{HEAD} {{
  cg::thread_block block = cg::this_thread_block();
  auto tile = cg::tiled_partition<32>(block);
  auto part = cg::tiled_partition<T>(tile);
  __shared__ int s[64];
  int t = block.thread_rank();
  s[t] = p[t];
  block.sync();
  for (int i = cg::this_thread_block().thread_rank(); i < 64; i += block.size()) s[i]++;
  cg::sync(block);
  p[t] = s[63 - t] + part.shfl_down(t, 1) + tile.shfl_xor(t, 16) + block.group_index().x
    + block.thread_index().y + block.group_dim().x + block.num_threads();
}}""",
    "functions": f"""
__device__ int rank(cg::thread_block block) {{ return block.thread_rank(); }}
__device__ int sum(const cg::thread_block_tile<T> &tile, int a) {{
  for (int i = tile.size() / 2; i > 0; i /= 2) a += tile.shfl_xor(a, i);
  return a;
}}
__device__ int total(int a, cg::thread_block block) {{
  auto tile = cg::tiled_partition<T>(block);
  __shared__ int parts[64];
  a = sum(tile, a);
  if (tile.thread_rank() == 0) parts[tile.meta_group_rank()] = a;
  block.sync();
  return parts[0] + parts[64 / T - 1];
}}
{HEAD} {{
  auto block = cg::this_thread_block();
  const int a = p[rank(block)];
  p[threadIdx.x] = total(a, block);
}}""",
    "templates": f"""
template <class G> __device__ int sum(G group, int *s, int a) {{
  const int rank = group.thread_rank();
  for (int i = group.size() / 2; i > 0; i /= 2) {{
    s[rank] = a;
    group.sync();
    if (rank < i) a += s[rank + i];
    group.sync();
  }}
  return a;
}}
template <typename V, unsigned int size>
__device__ V total(const cg::thread_block_tile<size> &tile, V a) {{
  for (unsigned int i = size / 2; i > 0; i /= 2) a += tile.shfl_xor(a, i);
  return a;
}}
{HEAD} {{
  {BEGIN}
  auto block = cg::this_thread_block();
  cg::thread_block_tile<T> tile = cg::tiled_partition<T>(block);
  int a = p[t];
  float b = a * 0.3f;
  __shared__ int all[64];
  p[t] = sum(block, all, a) + total(tile, a) + (int)total<float, T>(tile, b);
}}""",
    "a namespace that is used": f"""using namespace cooperative_groups;
{HEAD} {{
  {BEGIN}
  thread_block block = this_thread_block();
  thread_block_tile<T> tile = tiled_partition<T>(block);
  block.sync();
  p[t] += tile.shfl_xor(s[63 - block.thread_rank()], 1);
}}""",
    "no barrier": f"""{HEAD} {{
  auto block = cg::this_thread_block();
  const int t = block.thread_rank();
  if (t < block.size() - 3) p[t] += n;
  __syncthreads();
}}""",
}
KEPT = {
    "a group that goes elsewhere": "auto group = cg::this_thread_block(); auto *q = &group;"
    " q->sync();",
    "an operation of one's own": "auto tile = cg::tiled_partition<32>(cg::this_thread_block());"
    " p[t] = cg::reduce(tile, t, [](int a, int b) { return a - b; });",
    "an unknown method": "auto tile = cg::tiled_partition<32>(cg::this_thread_block());"
    " int all; p[t] = tile.match_all(t, all);",
    "two sizes": "if (n) { auto tile = cg::tiled_partition<32>(cg::this_thread_block());"
    " tile.sync(); } else { auto tile = cg::tiled_partition<8>(cg::this_thread_block());"
    " tile.sync(); }",
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", SHAPES.values(), ids=SHAPES)
def test_groups_that_become_loops(lab, monkeypatch, source, size):
    check_becomes_loops(lab, monkeypatch, f"#define T {size}\n{GROUPS}{source}")


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_groups_that_do_not(lab, body):
    (text,) = texts_of(lab, f"{GROUPS}{HEAD} {{ {BEGIN} {body} }}")
    assert "hal_side_by_side" in text
    assert "hal_tile" not in text


def test_ranks_in_blocks_of_several_rows(device, monkeypatch):
    source = f"""{GROUPS}
__global__ void k(int *x) {{
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  const int t = block.thread_rank();
  x[t] = tile.shfl(t, 3) + 100 * tile.thread_rank();
  block.sync();
  if (t < 20) x[t] += x[95];
}}"""
    t = np.arange(96)
    expected = t // 8 * 8 + 3 + t % 8 * 100
    expected[:20] += expected[95]
    for loops in (True, False):
        monkeypatch.setattr(_compile, "LOOPS", loops)
        x = device.upload(np.zeros(96, np.int32))
        kernel = device.compile(source)["k"]
        device.queue.dispatch(kernel, grid=1, block=(4, 6, 4), args=(x,)).wait(timeout=60)
        assert (x.numpy() == expected).all()


@pytest.mark.parametrize("loops", [True, False])
def test_a_tile_waits_for_its_own_threads_alone(device, monkeypatch, loops):
    source = f"""{GROUPS}
__global__ void k(int *x, int n) {{
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  const int t = threadIdx.x;
  int v = t;
  if (t < n) v += tile.shfl(t, 2);
  __syncthreads();
  x[t] = v;
}}"""
    monkeypatch.setattr(_compile, "LOOPS", loops)
    kernel = device.compile(source, filename="k.cu")["k"]
    x = device.upload(np.zeros(64, np.int32))
    device.queue.dispatch(kernel, grid=1, block=64, args=(x, 40)).wait(timeout=60)
    t = np.arange(64)
    assert (x.numpy() == t + (t // 8 * 8 + 2) * (t < 40)).all()
    text = r"__shfl_sync\(\): its mask 0x0000ff00 names the lanes 0x0000f000, which do not come"
    with pytest.raises(WorkFailedError, match=text):
        device.queue.dispatch(kernel, grid=1, block=64, args=(x, 44)).wait(timeout=60)
