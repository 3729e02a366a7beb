"""CUDA's arithmetic on the half-words and bytes of a word, against numpy's on arrays of them."""

import itertools

import numpy as np
import pytest

BINARY = {
    "add": lambda a, b, _: a + b,
    "sub": lambda a, b, _: a - b,
    "hadd": lambda a, b, _: (a + b) >> 1,
    "avgu": lambda a, b, _: (a + b + 1) >> 1,
    "avgs": lambda a, b, _: np.where(a + b < 0, (a + b) >> 1, (a + b + 1) >> 1),
    "absdiff": lambda a, b, _: np.abs(a - b),
    "max": lambda a, b, _: np.maximum(a, b),
    "min": lambda a, b, _: np.minimum(a, b),
    "clipped_add": lambda a, b, limits: np.clip(a + b, *limits),
    "clipped_sub": lambda a, b, limits: np.clip(a - b, *limits),
    "abs": lambda a, _, __: np.abs(a),
    "clipped_abs": lambda a, _, limits: np.minimum(np.abs(a), limits[1]),
    "neg": lambda a, _, __: -a,
    "clipped_neg": lambda a, _, limits: np.minimum(-a, limits[1]),
    "sad": lambda a, b, _: np.abs(a - b).sum(axis=1, keepdims=True),
}
COMPARED = {"eq": np.equal, "ne": np.not_equal, "ge": np.greater_equal, "gt": np.greater,
            "le": np.less_equal, "lt": np.less}  # fmt: skip


def names():
    """Yield each name without its size, whether the parts have signs, and what is computed."""
    for name, kind in (("add", "add"), ("sub", "sub"), ("haddu", "hadd"), ("avgu", "avgu")):
        yield name, "u", BINARY[kind]
    for name in ("absdiff", "max", "min", "sad"):
        for sign in "su":
            yield f"{name}{sign}", sign, BINARY[name]
    for name in ("add", "sub"):
        for sign in "su":
            yield f"{name}{sign}s", sign, BINARY[f"clipped_{name}"]
    for name in ("abs", "neg"):
        yield name, "s", BINARY[name]
        yield f"{name}ss", "s", BINARY[f"clipped_{name}"]
    yield "avgs", "s", BINARY["avgs"]
    for word, compare in COMPARED.items():
        for sign in "u" if word in {"eq", "ne"} else "su":
            suffix = word + ("" if word in {"eq", "ne"} else sign)
            yield f"set{suffix}", sign, lambda a, b, _, compare=compare: compare(a, b)
            yield f"cmp{suffix}", sign, lambda a, b, _, compare=compare: -compare(a, b).astype(int)


def words():
    """Return pairs of words: all pairs of limits, and others by chance."""
    edges = [
        0,
        1,
        0x7F,
        0x80,
        0x81,
        0xFF,
        0x7FFF,
        0x8000,
        0xFFFF,
        0x80007FFF,
        0x7F80FF01,
        0xFFFFFFFF,
    ]
    pairs = np.array(list(itertools.product(edges, repeat=2)), "u4")
    others = np.random.default_rng(7).integers(0, 2**32, (1000, 2), "u4")
    return np.concatenate([pairs, others])


@pytest.mark.parametrize("size", [2, 4])
def test_parts_of_words_are_numbers_of_their_own(lab, size):
    cases = list(names())
    assert len(cases) == 41, "as many as CUDA's documentation has"
    unary = {"abs", "absss", "neg", "negss"}
    calls = [
        f"out[{k} * n + i] = __v{name}{size}({'a' if name in unary else 'a, b'});"
        for k, (name, _, _) in enumerate(cases)
    ]
    kernel = lab.function(f"""
__global__ void kernel(const unsigned *x, unsigned *out, int n) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const unsigned a = x[2 * i], b = x[2 * i + 1];
  {" ".join(calls)}
}}
""")
    x = lab.array(words(), "u4")
    out = lab.array(np.zeros((len(cases), len(x))), "u4")
    lab.run(kernel, -(-len(x) // 128), 128, x, out, np.int32(len(x)))
    bits = 32 // size
    for found, (name, sign, compute) in zip(out, cases, strict=True):
        part = np.dtype(f"{'i' if sign == 's' else 'u'}{bits // 8}")
        a, b = (x[:, k].copy().view(part).reshape(-1, size).astype(int) for k in (0, 1))
        limits = np.iinfo(part).min, np.iinfo(part).max
        expected = compute(a, b, limits)
        if name.startswith("sad"):
            assert (found == expected[:, 0]).all(), name
        else:
            expected = (expected & (2**bits - 1)).astype(f"u{bits // 8}").view("u4")[:, 0]
            assert (found == expected).all(), name
