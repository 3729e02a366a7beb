"""Ask about stream-ordered allocation."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from questions import lab
from questions.lab import Gate, alone, ask, get, question

# Stream-ordered allocation


@question()
def pool_rules() -> dict[str, Any]:
    """Stream-ordered allocations."""
    lab.open_context()
    s, t = lab.stream(), lab.stream()
    p = get(cu.cuMemAllocAsync, 4096, s)
    answers: dict[str, Any] = {
        "fill": ask(cu.cuMemsetD8Async, p, 7, 4096, s),
        "free": ask(cu.cuMemFreeAsync, p, s),
        "synchronize": ask(cu.cuStreamSynchronize, s),
    }
    q = get(cu.cuMemAllocAsync, 4096, s)
    answers["freed at once on another stream"] = ask(cu.cuMemFreeAsync, q, t)
    r = get(cu.cuMemAllocAsync, 4096, s)
    get(cu.cuMemFreeAsync, r, s)
    again = get(cu.cuMemAllocAsync, 4096, s)
    answers["reused on the same stream"] = int(again) == int(r)
    answers["default stream"] = ask(cu.cuMemAllocAsync, 4096, cu.CUstream(0))
    answers["cuMemFree of it"] = ask(cu.cuMemFree, again)
    answers["cuMemFreeAsync then"] = ask(cu.cuMemFreeAsync, again, s)
    return answers


@alone()
def pool_use_after_free() -> dict[str, Any]:
    """A stream-ordered allocation freed twice, and used after it was freed."""
    lab.open_context()
    s, t, host = lab.stream(), lab.stream(), lab.pinned()
    p = get(cu.cuMemAllocAsync, 4096, s)
    get(cu.cuMemFreeAsync, p, s)
    return {
        "free again": ask(cu.cuMemFreeAsync, p, s),
        "use": ask(cu.cuMemsetD8Async, p, 7, 4096, s),
        "use on another stream": ask(cu.cuMemsetD8Async, p, 7, 4096, t),
        "copy": ask(cu.cuMemcpyDtoHAsync, host, p, 64, s),
        "synchronize": ask(cu.cuStreamSynchronize, s),
    }


@question()
def pool_behind_a_gate() -> dict[str, Any]:
    """A held stream allocates and frees at once; what it freed serves no other stream."""
    lab.open_context()
    s, t, gate = lab.stream(), lab.stream(), Gate()
    size = 1 << 20
    gate.hold(s)
    p = get(cu.cuMemAllocAsync, size, s)
    allocated = ask(cu.cuStreamQuery, s)
    get(cu.cuMemFreeAsync, p, s)
    q = get(cu.cuMemAllocAsync, size, t)
    fill = ask(cu.cuMemsetD8Async, q, 1, size, t)
    free = lab.until(lambda: ask(cu.cuStreamQuery, t) == "SUCCESS", 0.5)
    gate.open()
    get(cu.cuCtxSynchronize)
    return {
        "stream": allocated,
        "the same address": int(q) == int(p),
        "fill": fill,
        "another stream runs": free,
    }


@question()
def pools() -> dict[str, Any]:
    """Memory pools."""
    lab.open_context()
    s = lab.stream()
    pool = get(cu.cuDeviceGetDefaultMemPool, 0)
    props = cu.CUmemPoolProps()
    props.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    props.location.id = 0
    own = get(cu.cuMemPoolCreate, props)
    attribute = cu.CUmemPool_attribute
    answers: dict[str, Any] = {
        "default threshold": int(
            get(cu.cuMemPoolGetAttribute, pool, attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        ),
        "reuse follow": int(
            get(
                cu.cuMemPoolGetAttribute,
                pool,
                attribute.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
            )
        ),
        "reuse opportunistic": int(
            get(cu.cuMemPoolGetAttribute, pool, attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC)
        ),
        "set threshold": ask(
            cu.cuMemPoolSetAttribute,
            own,
            attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            cu.cuuint64_t(1 << 40),
        ),
        "allocate": ask(cu.cuMemAllocFromPoolAsync, 4096, own, s),
        "used": int(get(cu.cuMemPoolGetAttribute, own, attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)),
        "trim": ask(cu.cuMemPoolTrimTo, own, 0),
        "destroy in use": ask(cu.cuMemPoolDestroy, own),
        "destroy the default one": ask(cu.cuMemPoolDestroy, pool),
    }
    bad = cu.CUmemPoolProps()
    answers["create from nothing"] = ask(cu.cuMemPoolCreate, bad)
    return answers
