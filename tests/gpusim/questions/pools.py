"""Ask about stream-ordered allocation."""

from __future__ import annotations

import ctypes
import time
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


# What a pool holds and gives out again

_SIZE = 256 << 20
"""Larger than what a driver reserves at once, so that growth shows."""


class Pool:
    """Have a pool of the question's own, which keeps everything, and some streams."""

    def __init__(self, *reuse: int, keep: int = 1 << 40) -> None:
        lab.open_context()
        properties = cu.CUmemPoolProps()
        properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = 0
        self.native = get(cu.cuMemPoolCreate, properties)
        for number, value in enumerate(reuse or (1, 1, 1), 1):
            get(cu.cuMemPoolSetAttribute, self.native, cu.CUmemPool_attribute(number), value)
        threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        get(cu.cuMemPoolSetAttribute, self.native, threshold, cu.cuuint64_t(keep))

    def allocate(self, on: Any, parts: int = 4) -> Any:
        """Allocate some quarters of the size."""
        return get(cu.cuMemAllocFromPoolAsync, parts * _SIZE // 4, self.native, on)

    def held(self) -> list[int]:
        """Return what the pool has reserved and what of it is in use, in whole sizes."""
        found = []
        for number in (5, 7):
            name = cu.CUmemPool_attribute(number)
            found.append(int(get(cu.cuMemPoolGetAttribute, self.native, name)) // _SIZE)
        return found


@question()
def pool_reuse_on_the_stream() -> dict[str, Any]:
    """What a held stream has freed it may allocate again, in other sizes."""
    pool, s, gate = Pool(0, 0, 0), lab.stream(), Gate()
    gate.hold(s)
    first = pool.allocate(s)
    answers: dict[str, Any] = {"allocated": pool.held()}
    get(cu.cuMemFreeAsync, first, s)
    answers["freed"] = pool.held()
    parts = [pool.allocate(s, 1) for _ in range(4)]
    answers["in four parts"] = pool.held()
    for each in parts:
        get(cu.cuMemFreeAsync, each, s)
    whole = pool.allocate(s)
    answers["whole again"] = pool.held()
    get(cu.cuMemFreeAsync, whole, s)
    for _ in range(20):
        get(cu.cuMemFreeAsync, pool.allocate(s), s)
    answers["twenty times"] = pool.held()
    gate.open()
    get(cu.cuCtxSynchronize)
    return answers


@question()
def pool_reuse_on_another_stream() -> dict[str, Any]:
    """What a held stream has freed serves another one behind an event, if that is allowed."""
    answers: dict[str, Any] = {}
    for name, reuse, ordered in (
        ("unordered", (1, 0, 0), False),
        ("behind an event", (1, 0, 0), True),
        ("behind an event, not allowed", (0, 0, 0), True),
        ("unordered, all allowed, memory left", (1, 1, 1), False),
    ):
        pool, s, t, gate = Pool(*reuse), lab.stream(), lab.stream(), Gate()
        gate.hold(s)
        get(cu.cuMemFreeAsync, pool.allocate(s), s)
        if ordered:
            event = lab.event()
            get(cu.cuEventRecord, event, s)
            get(cu.cuStreamWaitEvent, t, event, 0)
        get(cu.cuMemFreeAsync, pool.allocate(t), t)
        answers[name] = pool.held()
        gate.open()
        get(cu.cuCtxSynchronize)
        get(cu.cuMemPoolDestroy, pool.native)
    return answers


@question()
def pool_reuse_when_complete() -> dict[str, Any]:
    """What was freed and is complete serves another stream, if allowed or known to the host."""
    answers: dict[str, Any] = {}
    for name, reuse, wait in (
        ("allowed", (0, 1, 0), None),
        ("not allowed", (0, 0, 0), None),
        ("query of the event", (0, 0, 0), cu.cuEventQuery),
        ("synchronised with the event", (0, 0, 0), cu.cuEventSynchronize),
        ("synchronised with the stream", (0, 0, 0), cu.cuStreamSynchronize),
    ):
        pool, s, t = Pool(*reuse), lab.stream(), lab.stream()
        get(cu.cuMemFreeAsync, pool.allocate(s), s)
        event = _complete(s)
        if wait is not None:
            get(wait, s if wait is cu.cuStreamSynchronize else event)
        get(cu.cuMemFreeAsync, pool.allocate(t), t)
        answers[name] = pool.held()
        get(cu.cuCtxSynchronize)
        get(cu.cuMemPoolDestroy, pool.native)
    return answers


def _complete(s: Any) -> Any:
    """Let a stream come to its end; return an event there, of which the driver was not asked."""
    event, done = lab.event(), ctypes.c_uint32.from_address(lab.pinned(4))
    get(cu.cuStreamWriteValue32, s, ctypes.addressof(done), 1, 0)
    get(cu.cuEventRecord, event, s)
    if not lab.until(lambda: done.value == 1):
        raise lab.Setup("the stream does not come to its end")
    time.sleep(0.05)  # the event is behind the value
    return event


@question()
def pool_gives_back() -> dict[str, Any]:
    """What a pool holds that nobody uses, after queries, synchronisations and trims."""
    answers: dict[str, Any] = {}
    for name, wait in (
        ("not asked", None),
        ("query of the event", cu.cuEventQuery),
        ("query of the stream", cu.cuStreamQuery),
        ("synchronised with the event", cu.cuEventSynchronize),
        ("synchronised with the stream", cu.cuStreamSynchronize),
    ):
        for keep in (0, 1 << 40):
            pool, s = Pool(keep=keep), lab.stream()
            get(cu.cuMemFreeAsync, pool.allocate(s), s)
            event = _complete(s)
            if wait is not None:
                get(wait, s if "stream" in name else event)
            held = [pool.held()[0]]
            get(cu.cuMemPoolTrimTo, pool.native, 0)
            answers[f"{name}, keeps {'all' if keep else 'none'}"] = [*held, pool.held()[0]]
            get(cu.cuCtxSynchronize)
            get(cu.cuMemPoolDestroy, pool.native)
    return answers
