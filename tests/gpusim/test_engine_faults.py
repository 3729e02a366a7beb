# ruff: noqa: E501 - the programs in strings
"""gpusim's faults on request, device loss, and its face as the real bindings see it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import build
import pytest
from engine_harness import HERE, abort, run

MODES = pytest.mark.parametrize("mode", ["free", "stepped"])
HEADER = Path("/usr/local/cuda/include/cuda.h")


def test_the_nth_call_of_a_function_fails_and_does_nothing():
    run(
        """
        cu = Driver(); s = cu.stream(); a = cu.allocate(4)
        cu.fail("cuMemsetD8Async", 2, 719)
        expect(0, "cuMemsetD8Async", a, 1, 4, s); expect(719, "cuMemsetD8Async", a, 2, 4, s)
        cu.call("cuStreamSynchronize", s); assert cu.read(a, 4) == b"\\1" * 4
        expect(0, "cuMemsetD8Async", a, 3, 4, s)
        cu.fail("*", 2, 2); cu.fail("cuMemFree", 1, 999)
        expect(0, "cuStreamQuery", s) if cu.code("cuStreamSynchronize", s) == 0 else None
        assert cu.library.gpusim_fail_none() == 1
        before = cu.library.gpusim_calls(b"cuMemFree"); total = cu.library.gpusim_calls(None)
        cu.call("cuMemFree_v2", a)
        assert cu.library.gpusim_calls(b"cuMemFree") == before + 1 and cu.library.gpusim_calls(None) == total + 1
    """.replace(
            'expect(0, "cuStreamQuery", s) if cu.code("cuStreamSynchronize", s) == 0 else None',
            'expect(0, "cuStreamSynchronize", s); expect(2, "cuStreamQuery", s)',
        )
    )


def test_faults_can_be_asked_for_by_the_environment():
    program = """
        cu = Driver()
        print([cu.code("cuMemAlloc_v2", byref(c_uint64()), 8) for _ in range(4)])
    """
    assert run(program, fail="cuMemAlloc:2:2,cuMemAlloc:3:999").strip() == "[0, 2, 999, 0]"
    assert run(program, lose_at=5).strip() == "[0, 719, 719, 719]"


@MODES
def test_a_lost_device_ends_every_wait_and_calls_no_host_function(mode):
    run(
        """
        cu = Driver(devices=2); s, t = cu.stream(), cu.stream(); flag = cu.pinned(4); flag[:] = 0; called = []
        e = cu.event(); a = cu.allocate(4)
        cu.call("cuCtxSetCurrent", cu.contexts[1]); u = cu.stream(); cu.call("cuCtxSetCurrent", cu.contexts[0])
        cu.call("cuStreamWaitValue32_v2", s, flag.ctypes.data, 1, 0)
        cu.host(s, lambda: called.append(1)); cu.call("cuEventRecord", e, s)
        cu.call("cuStreamWaitEvent", u, e, 0)
        codes = []
        def wait():
            cu.call("cuCtxSetCurrent", cu.contexts[0]); codes.append(cu.code("cuStreamSynchronize", s))
        thread = threading.Thread(target=wait); thread.start()
        time.sleep(0.05)
        cu.library.gpusim_lose_device(0, 0)
        thread.join(30); assert codes == [719], codes
        expect(719, "cuEventQuery", e); expect(719, "cuEventSynchronize", e); expect(719, "cuMemsetD8Async", a, 0, 4, t)
        expect(719, "cuStreamCreate", byref(c_uint64()), 1); cu.call("cuDevicePrimaryCtxRetain", byref(c_uint64()), 0)
        cu.call("cuDevicePrimaryCtxRelease_v2", 0)
        expect(0, "cuCtxSetCurrent", cu.contexts[1])
        cu.call("cuCtxSynchronize")  # its waiters go on
        flag[0] = 1; time.sleep(0.05)
        assert not called
        expect(0, "cuDevicePrimaryCtxRelease_v2", 0)
        expect(719, "cuDevicePrimaryCtxRetain", byref(c_uint64()), 0)  # a lost one is not had afresh
        cu.library.gpusim_reset(); cu.call("cuCtxSetCurrent", cu.contexts[1]); cu.call("cuCtxSynchronize")
        """,
        mode=mode,
    )


def test_the_device_is_lost_at_a_call():
    run("""
        cu = Driver(); s = cu.stream()
        cu.library.gpusim_lose_device_at(ctypes.c_ulong(cu.library.gpusim_calls(None) + 2), 700)
        expect(0, "cuStreamQuery", s); expect(700, "cuStreamQuery", s); expect(700, "cuStreamQuery", s)
    """)


def test_a_device_fault_names_the_seed_and_the_kernel():
    process = """
        cu = Driver(); s = cu.stream(); fill = cu.function(cu.module(image()), "fill")
        cu.launch(fill, s, c_void_p(4096), c_uint32(7), c_uint32(1))
        expect(700, "cuStreamSynchronize", s)
        cu.library.gpusim_reset()
        cu.code("cuStreamWaitEvent", s, cu.event(), 0)
    """
    said = abort(process, images=True, seed=5)
    assert "device 0 fails with 700 for good: fill (free, seed 5)" in said


def test_the_real_bindings_run_on_it():
    pytest.importorskip("cuda.bindings.driver")
    run("""
        from cuda.bindings import driver
        ctypes.CDLL(os.environ["GPUSIM_LIBRARY"])
        def ok(result):
            assert not int(result[0]), result
            return result[1] if len(result) == 2 else result[1:]
        ok(driver.cuInit(0)); context = ok(driver.cuDevicePrimaryCtxRetain(0)); ok(driver.cuCtxSetCurrent(context))
        assert b"software" in ok(driver.cuDeviceGetName(64, 0))
        assert int(ok(driver.cuCtxGetDevice())) == 0
        s = ok(driver.cuStreamCreate(1)); a = ok(driver.cuMemAlloc(64)); data = bytearray(64)
        ok(driver.cuMemsetD8Async(a, 5, 64, s)); ok(driver.cuStreamSynchronize(s))
        props = driver.CUmemPoolProps(); props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; props.location.id = 1
        pool = ok(driver.cuMemPoolCreate(props)); ok(driver.cuMemPoolDestroy(pool))
        g = ok(driver.cuGraphCreate(0)); p = driver.CUDA_MEMSET_NODE_PARAMS()
        p.dst, p.elementSize, p.width, p.height, p.value = a, 2, 32, 1, 0x0102
        node = ok(driver.cuGraphAddMemsetNode(g, None, 0, p, context)); x = ok(driver.cuGraphInstantiate(g, 0))
        ok(driver.cuGraphLaunch(x, s)); ok(driver.cuStreamSynchronize(s)); ok(driver.cuMemcpyDtoH(data, a, 64))
        assert data == b"\\2\\1" * 32
        assert ok(driver.cuGetErrorName(driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)) == b"CUDA_ERROR_ILLEGAL_ADDRESS"
        assert int(driver.cuModuleLoadData(b"not an image")[0]) == 200
    """)


LAYOUT = r"""
#include <stddef.h>
#include HEADER
#include OURS
#define SAME(theirs, field, ours, mine)                                     \
  _Static_assert(offsetof(theirs, field) == offsetof(struct ours, mine), #theirs "." #field)
#define SIZE(theirs, ours) _Static_assert(sizeof(theirs) == sizeof(struct ours), #theirs)
SIZE(CUDA_MEMCPY3D, cu_memcpy3d); SAME(CUDA_MEMCPY3D, dstMemoryType, cu_memcpy3d, target_type);
SAME(CUDA_MEMCPY3D, srcDevice, cu_memcpy3d, source_device); SAME(CUDA_MEMCPY3D, WidthInBytes, cu_memcpy3d, width);
SIZE(CUDA_KERNEL_NODE_PARAMS, cu_kernel_node); SAME(CUDA_KERNEL_NODE_PARAMS, extra, cu_kernel_node, extra);
SAME(CUDA_KERNEL_NODE_PARAMS, kern, cu_kernel_node, kernel);
SIZE(CUDA_MEMSET_NODE_PARAMS_v2, cu_memset_node); SAME(CUDA_MEMSET_NODE_PARAMS, width, cu_memset_node, width);
SIZE(CUmemPoolProps, cu_pool_props); SAME(CUmemPoolProps, location, cu_pool_props, location);
SIZE(CUmemAccessDesc, cu_access);
SIZE(CUmemLocation, cu_location);
"""


@pytest.mark.skipif(not HEADER.exists(), reason="no cuda.h is installed")
def test_structs_are_laid_out_as_in_cuda_h(tmp_path):
    source = tmp_path / "layout.c"
    source.write_text(LAYOUT)
    flags = [f'-DHEADER="{HEADER}"', f'-DOURS="{HERE / "cuda.h"}"', "-std=c11", "-fsyntax-only"]
    subprocess.run([*build.find_compiler(), *flags, str(source)], check=True)


@pytest.mark.skipif(not HEADER.exists(), reason="no cuda.h is installed")
def test_versions_are_those_of_cuda_h():
    """A symbol with a suffix is what cuda.h makes of the name, and one without has none there."""
    renamed = dict(re.findall(r"#\s*define (cu\w+)\s+(cu\w+_v\d)\s", HEADER.read_text()))
    table = re.findall(r"ENTRY\((cu\w+), \d+, (cu\w+)\)", (HERE / "cuda_table.c").read_text())
    assert len(table) > 100
    symbols: dict[str, set[str]] = {}
    for name, symbol in table:
        symbols.setdefault(name, set()).add(symbol)
    for name, ours in symbols.items():
        wanted = renamed.get(name)
        allowed = {name, wanted} if wanted else {name, f"{name}_v2"}
        assert ours <= allowed | {"cuGraphInstantiateWithFlags"}, (name, ours, wanted)
