"""Conditional loads of neighbouring elements, which GCC 12 vectorises wrongly by itself."""

import platform
from unittest import mock

import numpy as np
import pytest

import hal
from hal_cpu import _masked_loads, _toolchain

ROWS, FIRST = 64, 13


def kernel(name, width, end):
    loads = "".join(f"float v{c} = taken ? in[i + {c}] : 0.0f;" for c in range(width))
    return f"""
__global__ void {name}_{width}(const float *in, float *out, int rows) {{
  float sum[{width}] = {{}};
  for (int r = 0; r < {ROWS}; r++) {{
    int i = r * {width};
    bool taken = r >= {FIRST};
    {loads}
    {end(width)}
  }}
  for (int c = 0; c < {width}; c++) out[c + {width} * {ROWS}] = sum[c];
}}"""


FORMS = {
    "rows": lambda width: "".join(f"out[i + {c}] = v{c} + 1.0f;" for c in range(width)),
    "columns": lambda width: "".join(f"sum[{c}] += v{c};" for c in range(width)),
    "total": lambda width: f"sum[0] = sum[0] + {' + '.join(f'v{c}' for c in range(width))};",
}


@pytest.mark.parametrize("form", FORMS)
def test_conditional_loads_of_neighbours(form):
    widths = range(1, 10)
    source = "".join(kernel(form, width, FORMS[form]) for width in widths)
    with hal.create_device("cpu") as device:
        loaded = device.load(hal.compile(source, target=device))
        for width in widths:
            given = np.arange(ROWS * width, dtype=np.float32).reshape(ROWS, width) % 97
            taken = np.where(np.arange(ROWS)[:, None] >= FIRST, given, 0)
            out = np.zeros((ROWS + 1, width), np.float32)
            wanted = out.copy()
            if form == "rows":
                wanted[:-1] = taken + 1
            elif form == "columns":
                wanted[-1] = taken.sum(axis=0)
            else:
                wanted[-1, 0] = taken.sum()
            buffer, result = device.upload(given), device.upload(out)
            run = loaded[f"{form}_{width}"]
            device.queue.dispatch(run, grid=1, block=1, args=[buffer, result, ROWS]).wait()
            device.queue.read(result, out).wait()
            assert np.array_equal(out, wanted), width


SINGLE = """
__global__ void kernel(const float *a, const float *b, const int *c, float *out, int n) {
  for (int i = 0; i < 64; i++) out[i] = c[i] > 3 ? %s : 0.0f;
}"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names processors of this kind")
@pytest.mark.parametrize(
    ("value", "runs"),
    [
        ("a[i] * b[i]", 1),
        ("a[i] * a[i + n]", 1),
        ("a[2 * i] * a[2 * i + 1]", 2),
        ("a[(i << 1) + n] * a[2 * (i + 1) + n]", 2),
    ],
)
def test_only_loads_of_neighbours_are_compiled_again(value, runs, monkeypatch, tmp_path):
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path))
    if _toolchain.find_compiler().family != "gcc":
        pytest.skip("only GCC is watched")
    run = mock.Mock(wraps=_toolchain.run_compiler)
    monkeypatch.setattr(_toolchain, "run_compiler", run)
    hal.compile(SINGLE % value, target="cpu:x86-64-v3")  # the level that has masked loads
    assert run.call_count == runs


def test_an_address_that_uses_a_sum_many_times_is_not_followed_for_ever():
    lines = "".join(f"  a{i + 1} = a{i} + a{i};\n" for i in range(60))
    assert _masked_loads.may_be_grouped(f"{lines}  x = .MASK_LOAD (a60, 8B, m);\n" * 2)
