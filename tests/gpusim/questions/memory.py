"""Ask about memory: sizes, kinds, fills, registration, attributes, pools."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from questions import lab
from questions.lab import Gate, alone, ask, get, question

_A = cu.CUpointer_attribute


@question()
def zero_sizes() -> dict[str, Any]:
    """Zero bytes of everything."""
    lab.open_context()
    s, p, host = lab.stream(), lab.words(), lab.pinned()
    null = cu.CUdeviceptr(0)
    return {
        "cuMemAlloc": ask(cu.cuMemAlloc, 0),
        "cuMemAllocManaged": ask(cu.cuMemAllocManaged, 0, 1),
        "cuMemHostAlloc": ask(cu.cuMemHostAlloc, 0, 0),
        "cuMemAllocAsync": ask(cu.cuMemAllocAsync, 0, s),
        "cuMemHostRegister": ask(cu.cuMemHostRegister, host, 0, 0),
        "cuMemcpyHtoDAsync": ask(cu.cuMemcpyHtoDAsync, p, host, 0, s),
        "cuMemcpyHtoDAsync null": ask(cu.cuMemcpyHtoDAsync, null, 0, 0, s),
        "cuMemcpyDtoHAsync": ask(cu.cuMemcpyDtoHAsync, host, p, 0, s),
        "cuMemcpyDtoDAsync null": ask(cu.cuMemcpyDtoDAsync, null, null, 0, s),
        "cuMemcpyAsync null": ask(cu.cuMemcpyAsync, null, null, 0, s),
        "cuMemsetD8Async": ask(cu.cuMemsetD8Async, p, 0, 0, s),
        "cuMemsetD8Async null": ask(cu.cuMemsetD8Async, null, 0, 0, s),
        "cuMemsetD32Async odd": ask(cu.cuMemsetD32Async, lab.at(p, 1), 0, 0, s),
        "synchronize": ask(cu.cuStreamSynchronize, s),
    }


@question()
def too_much() -> dict[str, Any]:
    """More memory than there is."""
    lab.open_context()
    s, huge = lab.stream(), 1 << 46
    return {
        "cuMemAlloc": ask(cu.cuMemAlloc, huge),
        "cuMemAlloc 2**63": ask(cu.cuMemAlloc, 1 << 63),
        "cuMemAllocAsync": ask(cu.cuMemAllocAsync, huge, s),
        "cuMemAlloc after": ask(cu.cuMemAlloc, 4096),
        "cuCtxSynchronize after": ask(cu.cuCtxSynchronize),
    }


@question()
def alignment() -> dict[str, Any]:
    """What allocations are aligned to, at least."""
    lab.open_context()
    s = lab.stream()
    odd = [int(get(cu.cuMemAlloc, size)) for size in (1, 3, 100, 257, 4097)]
    pooled = [int(get(cu.cuMemAllocAsync, size, s)) for size in (1, 3, 100, 257)]
    return {
        "cuMemAlloc 256": all(p % 256 == 0 for p in odd),
        "cuMemAlloc 512": all(p % 512 == 0 for p in odd),
        "cuMemAllocAsync 256": all(p % 256 == 0 for p in pooled),
        "cuMemHostAlloc 64": all(lab.pinned(size) % 64 == 0 for size in (1, 3, 100)),
    }


@question()
def fills() -> dict[str, Any]:
    """Fills of 1, 2 and 4 bytes at every address."""
    lab.open_context()
    s, p = lab.stream(), lab.words()
    answers: dict[str, Any] = {}
    for offset in (1, 2, 3):
        there = lab.at(p, offset)
        answers[f"8 at +{offset}"] = ask(cu.cuMemsetD8Async, there, 0x11, 5, s)
        answers[f"16 at +{offset}"] = ask(cu.cuMemsetD16Async, there, 0x2233, 2, s)
        answers[f"32 at +{offset}"] = ask(cu.cuMemsetD32Async, there, 0x44556677, 1, s)
        answers[f"16 now at +{offset}"] = ask(cu.cuMemsetD16, there, 0x2233, 2)
    get(cu.cuStreamSynchronize, s)
    get(cu.cuMemsetD32, p, 0, 8)
    get(cu.cuMemsetD16, lab.at(p, 2), 0xAABB, 3)
    answers["bytes"] = lab.read_bytes(p, 12)
    answers["past the end"] = ask(cu.cuMemsetD8Async, p, 0, 1 << 40, s)
    return answers


@question()
def copies_out_of_range() -> dict[str, Any]:
    """Copies beyond an allocation."""
    lab.open_context()
    s, p = lab.stream(), get(cu.cuMemAlloc, 4 << 20)
    host = lab.pinned(16 << 20)
    return {
        "H2D": ask(cu.cuMemcpyHtoDAsync, p, host, 8 << 20, s),
        "D2H": ask(cu.cuMemcpyDtoHAsync, host, p, 8 << 20, s),
        "unified": ask(cu.cuMemcpyAsync, p, cu.CUdeviceptr(host), 8 << 20, s),
        "host pointer as device": ask(
            cu.cuMemcpyHtoDAsync, cu.CUdeviceptr(host), host + 4096, 64, s
        ),
        "device pointer as host": ask(cu.cuMemcpyHtoDAsync, p, int(p) + 4096, 64, s),
        "synchronize": ask(cu.cuStreamSynchronize, s),
    }


@question()
def overlapping_copy() -> dict[str, Any]:
    """A copy within one buffer."""
    lab.open_context()
    s, p = lab.stream(), lab.words()
    return {
        "same": ask(cu.cuMemcpyDtoDAsync, p, p, 64, s),
        "overlap": ask(cu.cuMemcpyDtoDAsync, lab.at(p, 4), p, 64, s),
        "synchronize": ask(cu.cuStreamSynchronize, s),
    }


@question()
def free_wrongly() -> dict[str, Any]:
    """Frees of what is no allocation of that kind."""
    lab.open_context()
    p, host, managed, s = lab.words(), lab.pinned(), get(cu.cuMemAllocManaged, 64, 1), lab.stream()
    array = np.zeros(4096, np.uint8)
    pooled = get(cu.cuMemAllocAsync, 64, s)
    return {
        "inside": ask(cu.cuMemFree, lab.at(p, 4)),
        "unknown": ask(cu.cuMemFree, cu.CUdeviceptr(0xDEAD000)),
        "pinned by cuMemFree": ask(cu.cuMemFree, cu.CUdeviceptr(host)),
        "pageable by cuMemFreeHost": ask(cu.cuMemFreeHost, array.ctypes.data),
        "device by cuMemFreeHost": ask(cu.cuMemFreeHost, int(p)),
        "managed by cuMemFreeHost": ask(cu.cuMemFreeHost, int(managed)),
        "unknown async": ask(cu.cuMemFreeAsync, cu.CUdeviceptr(0xDEAD000), s),
        "device by cuMemFreeAsync": ask(cu.cuMemFreeAsync, p, s),
        "pooled by cuMemFree": ask(cu.cuMemFree, pooled),
        "unregister pageable": ask(cu.cuMemHostUnregister, array.ctypes.data),
        "unregister pinned": ask(cu.cuMemHostUnregister, host),
        "managed": ask(cu.cuMemFree, managed),
    }


@question()
def register() -> dict[str, Any]:
    """Registration of host memory."""
    lab.open_context()
    array = np.zeros(64 * 4096, np.uint8)
    page = (array.ctypes.data + 4095) & ~4095
    answers: dict[str, Any] = {
        "odd address and size": ask(cu.cuMemHostRegister, page + 100, 1000, 0),
        "the same again": ask(cu.cuMemHostRegister, page + 100, 1000, 0),
        "same page, other bytes": ask(cu.cuMemHostRegister, page + 2000, 500, 0),
        "overlap": ask(cu.cuMemHostRegister, page, 8192, 0),
        "unregister inside": ask(cu.cuMemHostUnregister, page + 101),
        "unregister": ask(cu.cuMemHostUnregister, page + 100),
        "unregister again": ask(cu.cuMemHostUnregister, page + 100),
        "unregister the others": [ask(cu.cuMemHostUnregister, at) for at in (page, page + 2000)],
        "pages": ask(cu.cuMemHostRegister, page, 8192, 1 | 2),
        "read-only flag": ask(cu.cuMemHostRegister, page + 32768, 4096, 8),
        "unknown flag": ask(cu.cuMemHostRegister, page + 65536, 4096, 0x100),
        "pinned": ask(cu.cuMemHostRegister, lab.pinned(), 4096, 0),
        "device": ask(cu.cuMemHostRegister, int(lab.words()), 256, 0),
        "unmapped": ask(cu.cuMemHostRegister, 0x10000, 4096, 0),
        "device pointer": ask(cu.cuMemHostGetDevicePointer, page, 0),
        "device pointer is host pointer": int(cu.cuMemHostGetDevicePointer(page, 0)[1] or 0)
        == page,
        "device pointer inside": ask(cu.cuMemHostGetDevicePointer, page + 8, 0),
        "device pointer of pageable": ask(cu.cuMemHostGetDevicePointer, page + 40 * 4096, 0),
        "device pointer flags": ask(cu.cuMemHostGetDevicePointer, page, 1),
    }
    s = lab.stream()
    pointer = cu.CUdeviceptr(int(cu.cuMemHostGetDevicePointer(page, 0)[1] or 0))
    if int(pointer):
        answers["kernel"] = lab.launch(lab.function("set"), s, pointer, 6)
    answers["unregister in use"] = ask(cu.cuMemHostUnregister, page)
    answers["value"] = int(array[page - array.ctypes.data])
    _kept.append(array)
    return answers


_kept: list[Any] = []


def _describe(pointer: int) -> dict[str, Any]:
    """Return the attributes of an address that hold in every process."""
    answers: dict[str, Any] = {}
    for name in ("MEMORY_TYPE", "IS_MANAGED", "DEVICE_ORDINAL", "MAPPED"):
        code, value = cu.cuPointerGetAttribute(
            getattr(_A, f"CU_POINTER_ATTRIBUTE_{name}"), cu.CUdeviceptr(pointer)
        )
        answers[name] = int(value) if int(code) == 0 else lab.answer_of(code)
    for name in ("DEVICE_POINTER", "HOST_POINTER"):
        code, value = cu.cuPointerGetAttribute(
            getattr(_A, f"CU_POINTER_ATTRIBUTE_{name}"), cu.CUdeviceptr(pointer)
        )
        answers[name] = (int(value) == pointer) if int(code) == 0 else lab.answer_of(code)
    return answers


@question()
def pointer_attributes() -> dict[str, Any]:
    """What the driver knows of an address."""
    lab.open_context()
    s = lab.stream()
    array = np.zeros(3 * 4096, np.uint8)
    page = (array.ctypes.data + 4095) & ~4095
    get(cu.cuMemHostRegister, page, 4096, 0)
    pooled = int(get(cu.cuMemAllocAsync, 1024, s))
    get(cu.cuStreamSynchronize, s)
    device = int(get(cu.cuMemAlloc, 1000))
    answers: dict[str, Any] = {}
    for name, pointer in (
        ("device", device),
        ("device inside", device + 16),
        ("pinned", lab.pinned()),
        ("managed", int(get(cu.cuMemAllocManaged, 4096, 1))),
        ("pooled", pooled),
        ("registered", page),
        ("pageable", np.zeros(100000, np.uint8).ctypes.data),
        ("unknown", 0xDEAD000),
        ("global variable", int(get(cu.cuModuleGetGlobal, lab.shared_module(), b"counter")[0])),
    ):
        answers.update({f"{name} {key}": value for key, value in _describe(pointer).items()})
    get(cu.cuMemHostUnregister, page)
    return answers


@question()
def managed_while_a_kernel_runs() -> dict[str, Any]:
    """Managed and pinned memory seen by both sides while a kernel runs."""
    lab.open_context()
    answers: dict[str, Any] = {}
    spin = lab.function("spin")
    attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
    kinds = {"pinned": lab.pinned()}
    if get(cu.cuDeviceGetAttribute, attribute, 0):
        kinds["managed"] = int(get(cu.cuMemAllocManaged, 4096, 1))
    for name, address in kinds.items():
        view = (ctypes.c_uint32 * 64).from_address(address)
        view[0] = view[1] = 0
        s = lab.stream()
        lab.launch(spin, s, cu.CUdeviceptr(address), cu.CUdeviceptr(address + 4))
        held = ask(cu.cuStreamQuery, s)
        view[0] = 77
        seen = lab.until(lambda view=view: view[1] == 77)
        answers[name] = [held, seen, ask(cu.cuStreamSynchronize, s)]
    return answers


@alone()
def free_while_used() -> dict[str, Any]:
    """``cuMemFree`` of what a held stream will still write."""
    lab.open_context()
    s, p = lab.stream(), lab.words()
    gate = Gate()
    gate.hold(s)
    get(cu.cuMemsetD32Async, p, 5, 1, s)
    freed = lab.waits(lambda: ask(cu.cuMemFree, p), gate)
    return {"free": freed, "synchronize": ask(cu.cuStreamSynchronize, s)}


@question()
def information() -> dict[str, Any]:
    """Free memory falls when memory is allocated."""
    lab.open_context()
    free, total = get(cu.cuMemGetInfo)
    p = get(cu.cuMemAlloc, 64 << 20)
    less, _ = get(cu.cuMemGetInfo)
    get(cu.cuMemFree, p)
    back, _ = get(cu.cuMemGetInfo)
    return {"less": free - less >= 64 << 20, "back": back > less, "in total": 0 < free <= total}
