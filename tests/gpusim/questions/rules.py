"""Ask what events mean: unrecorded, recorded again, waited for, timed, across devices."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from questions import lab
from questions.lab import Gate, alone, ask, get, question


@question()
def unrecorded() -> dict[str, Any]:
    """An event that was never recorded."""
    lab.open_context()
    e, s, timed = lab.event(), lab.stream(), lab.event(0)
    return {
        "query": ask(cu.cuEventQuery, e),
        "synchronize": ask(cu.cuEventSynchronize, e),
        "wait": ask(cu.cuStreamWaitEvent, s, e, 0),
        "after wait": ask(cu.cuStreamSynchronize, s),
        "elapsed": ask(cu.cuEventElapsedTime, timed, timed),
    }


@question()
def recorded() -> dict[str, Any]:
    """A recorded event before and after its stream got there."""
    lab.open_context()
    e, s = lab.event(), lab.stream()
    with Gate() as gate:
        gate.hold(s)
        first = ask(cu.cuEventRecord, e, s)
        held = [ask(cu.cuEventQuery, e), ask(cu.cuStreamQuery, s)]
    get(cu.cuStreamSynchronize, s)
    return {
        "record": first,
        "held": held,
        "done": [ask(cu.cuEventQuery, e), ask(cu.cuStreamQuery, s)],
    }


@question()
def record_overwrites() -> dict[str, Any]:
    """An event recorded again tells of the later record only."""
    lab.open_context()
    e, s, held = lab.event(), lab.stream(), lab.stream()
    get(cu.cuEventRecord, e, s)
    get(cu.cuStreamSynchronize, s)
    with Gate() as gate:
        gate.hold(held)
        before = ask(cu.cuEventQuery, e)
        get(cu.cuEventRecord, e, held)
        again = ask(cu.cuEventQuery, e)
        get(cu.cuEventRecord, e, s)
        get(cu.cuStreamSynchronize, s)
        back = ask(cu.cuEventQuery, e)
    get(cu.cuStreamSynchronize, held)
    return {"before": before, "on a held stream": again, "on a free one again": back}


@question()
def wait_captures() -> dict[str, Any]:
    """A wait is for the record before it; a later record changes nothing."""
    lab.open_context()
    e, a, b, c = lab.event(), lab.stream(), lab.stream(), lab.stream()
    get(cu.cuEventRecord, e, a)
    get(cu.cuStreamSynchronize, a)
    with Gate() as gate:
        get(cu.cuStreamWaitEvent, b, e, 0)
        gate.hold(c)
        get(cu.cuEventRecord, e, c)
        early = lab.until(lambda: ask(cu.cuStreamQuery, b) == "SUCCESS")
        get(cu.cuStreamWaitEvent, b, e, 0)
        late = ask(cu.cuStreamQuery, b)
    get(cu.cuStreamSynchronize, b)
    return {"a wait before the record": early, "a wait after it": late}


@question()
def wait_before_record() -> Any:
    """A wait for an event that is recorded only later does not wait."""
    lab.open_context()
    e, a, b = lab.event(), lab.stream(), lab.stream()
    with Gate() as gate:
        gate.hold(a)
        get(cu.cuStreamWaitEvent, b, e, 0)
        get(cu.cuEventRecord, e, a)
        return lab.until(lambda: ask(cu.cuStreamQuery, b) == "SUCCESS")


@question()
def destroy_while_used() -> dict[str, Any]:
    """An event destroyed while recorded and waited for keeps its effect."""
    lab.open_context()
    e, a, b = lab.event(), lab.stream(), lab.stream()
    with Gate() as gate:
        gate.hold(a)
        get(cu.cuEventRecord, e, a)
        get(cu.cuStreamWaitEvent, b, e, 0)
        destroyed = lab.waits(lambda: ask(cu.cuEventDestroy, e), Gate())
        held = ask(cu.cuStreamQuery, b)
    return {"destroy": destroyed, "held": held, "in the end": ask(cu.cuStreamSynchronize, b)}


@question()
def elapsed() -> dict[str, Any]:
    """Elapsed time between events with and without timing, done and not."""
    lab.open_context()
    timed, other, plain, s = lab.event(0), lab.event(0), lab.event(2), lab.stream()
    get(cu.cuEventRecord, timed, s)
    with Gate() as gate:
        gate.hold(s)
        get(cu.cuEventRecord, other, s)
        get(cu.cuEventRecord, plain, s)
        held = ask(cu.cuEventElapsedTime, timed, other)
        held_itself = ask(cu.cuEventElapsedTime, other, other)
    get(cu.cuStreamSynchronize, s)
    return {
        "held": held,
        "held itself": held_itself,
        "done": ask(cu.cuEventElapsedTime, timed, other),
        "not negative": get(cu.cuEventElapsedTime, timed, other) >= 0,
        "backwards not positive": get(cu.cuEventElapsedTime, other, timed) <= 0,
        "without timing": ask(cu.cuEventElapsedTime, timed, plain),
        "half recorded": ask(cu.cuEventElapsedTime, timed, lab.event(0)),
        "with itself": get(cu.cuEventElapsedTime, timed, timed),
    }


@question()
def stream_query() -> dict[str, Any]:
    """Queries and waits of fresh, held and default streams."""
    lab.open_context()
    s = lab.stream()
    fresh = ask(cu.cuStreamQuery, s)
    with Gate() as gate:
        gate.hold(s)
        return {
            "fresh": fresh,
            "held": ask(cu.cuStreamQuery, s),
            "default stream": ask(cu.cuStreamQuery, cu.CUstream(0)),
            "legacy stream 1": ask(cu.cuStreamQuery, cu.CUstream(1)),
            "per-thread stream 2": ask(cu.cuStreamQuery, cu.CUstream(2)),
            "context synchronize waits": lab.waits(lambda: ask(cu.cuCtxSynchronize), gate),
        }


@question()
def default_stream_order() -> dict[str, Any]:
    """The default stream waits for blocking streams and not for non-blocking ones."""
    lab.open_context()
    answers = {}
    for name, flags in (("blocking", 0), ("non-blocking", 1)):
        s, zero = lab.stream(flags), cu.CUstream(0)
        p = lab.words()
        with Gate() as gate:
            gate.hold(s)
            get(cu.cuMemsetD8Async, p, 1, 4, zero)
            answers[f"{name}: default stream done"] = lab.until(
                lambda zero=zero: ask(cu.cuStreamQuery, zero) == "SUCCESS", 0.3
            )
        get(cu.cuCtxSynchronize)
        with Gate() as gate:
            gate.hold(zero)
            get(cu.cuMemsetD8Async, p, 1, 4, s)
            answers[f"{name}: behind a held default stream"] = lab.until(
                lambda s=s: ask(cu.cuStreamQuery, s) == "SUCCESS", 0.3
            )
        get(cu.cuCtxSynchronize)
    return answers


@question()
def stream_destroyed_with_work() -> dict[str, Any]:
    """A stream destroyed with work in it finishes the work, and does not wait for it."""
    lab.open_context()
    s, e, p = lab.stream(), lab.event(), lab.words()
    with Gate() as gate:
        gate.hold(s)
        get(cu.cuMemsetD32Async, p, 5, 1, s)
        get(cu.cuEventRecord, e, s)
        code = lab.waits(lambda: ask(cu.cuStreamDestroy, s), gate)
    return {"destroy": code, "event": ask(cu.cuEventSynchronize, e), "work": lab.read(p)}


@question()
def across_devices() -> dict[str, Any]:
    """Events and streams of two devices."""
    lab.need_two()
    first = lab.open_context()
    e, s = lab.event(), lab.stream()
    p = lab.words()
    lab.open_context(1)
    t, f = lab.stream(), lab.event()
    q = lab.words()
    answers = {
        "record a foreign event": ask(cu.cuEventRecord, e, t),
        "record a foreign event and stream": ask(cu.cuEventRecord, e, s),
        "query a foreign event": ask(cu.cuEventQuery, e),
        "wait on a foreign event": ask(cu.cuStreamWaitEvent, t, e, 0),
        "wait on a foreign stream": ask(cu.cuStreamWaitEvent, s, f, 0),
        "query a foreign stream": ask(cu.cuStreamQuery, s),
        "memset of foreign memory": ask(cu.cuMemsetD8Async, p, 0, 4, t),
        "memset on a foreign stream": ask(cu.cuMemsetD8Async, p, 0, 4, s),
        "copy between, no peers": ask(cu.cuMemcpyDtoDAsync, q, p, 4, t),
        "copy unified, no peers": ask(cu.cuMemcpyAsync, q, p, 4, t),
        "peer copy": ask(cu.cuMemcpyPeerAsync, q, get(cu.cuCtxGetCurrent), p, first, 4, t),
        "peer copy on a foreign stream": ask(
            cu.cuMemcpyPeerAsync, q, get(cu.cuCtxGetCurrent), p, first, 4, s
        ),
        "synchronize both": [ask(cu.cuStreamSynchronize, each) for each in (s, t)],
        "free foreign memory": ask(cu.cuMemFree, p),
        "kernel on a foreign stream": lab.launch(lab.function("nothing", lab.module()), s),
    }
    answers["synchronize"] = ask(cu.cuCtxSynchronize)
    lab.open_context()
    answers["synchronize first"] = ask(cu.cuCtxSynchronize)
    return answers


@alone()
def peers() -> dict[str, Any]:
    """Peer access: twice, with oneself, off, off twice, and what a kernel then may do."""
    lab.need_two()
    a = lab.open_context()
    p = lab.words()
    b = lab.open_context(1)
    if not get(cu.cuDeviceCanAccessPeer, 1, 0):
        return {"can": 0}
    answers: dict[str, Any] = {
        "can": [get(cu.cuDeviceCanAccessPeer, 0, 1), get(cu.cuDeviceCanAccessPeer, 1, 0)],
        "disable first": ask(cu.cuCtxDisablePeerAccess, a),
        "with itself": ask(cu.cuCtxEnablePeerAccess, b, 0),
        "flags": ask(cu.cuCtxEnablePeerAccess, a, 1),
        "null": ask(cu.cuCtxEnablePeerAccess, cu.CUcontext(0), 0),
        "enable": ask(cu.cuCtxEnablePeerAccess, a, 0),
        "again": ask(cu.cuCtxEnablePeerAccess, a, 0),
    }
    s = lab.stream()
    answers["kernel on peer memory"] = lab.launch(lab.function("set", lab.module()), s, p, 9)
    answers["synchronize"] = ask(cu.cuStreamSynchronize, s)
    answers["read"] = lab.read(p)
    answers["disable"] = ask(cu.cuCtxDisablePeerAccess, a)
    answers["disable again"] = ask(cu.cuCtxDisablePeerAccess, a)
    return answers


@alone()
def kernel_without_peers() -> dict[str, Any]:
    """A kernel writes memory of a device that is no peer."""
    lab.need_two()
    lab.open_context()
    p = lab.words()
    lab.open_context(1)
    s = lab.stream()
    return {
        "launch": lab.launch(lab.function("set", lab.module()), s, p, 9),
        "synchronize": ask(cu.cuStreamSynchronize, s),
    }
