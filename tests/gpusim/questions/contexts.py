"""Ask about contexts: primary ones, current ones, release with live objects, threads."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from questions import lab
from questions.lab import Gate, alone, ask, get, question


@alone()
def primary() -> dict[str, Any]:
    """The primary context: retained, released, retained again."""
    get(cu.cuInit, 0)
    device = get(cu.cuDeviceGet, 0)
    answers: dict[str, Any] = {
        "state at first": [int(v) for v in get(cu.cuDevicePrimaryCtxGetState, device)],
        "release before": ask(cu.cuDevicePrimaryCtxRelease, device),
    }
    first = get(cu.cuDevicePrimaryCtxRetain, device)
    answers["current after retain"] = int(get(cu.cuCtxGetCurrent))
    answers["allocate unbound"] = ask(cu.cuMemAlloc, 64)
    second = get(cu.cuDevicePrimaryCtxRetain, device)
    answers["the same"] = int(first) == int(second)
    answers["active"] = int(get(cu.cuDevicePrimaryCtxGetState, device)[1])
    get(cu.cuCtxSetCurrent, first)
    answers["device"] = int(get(cu.cuCtxGetDevice))
    answers["release"] = ask(cu.cuDevicePrimaryCtxRelease, device)
    answers["still there"] = ask(cu.cuMemAlloc, 64)
    answers["release the last"] = ask(cu.cuDevicePrimaryCtxRelease, device)
    answers["active then"] = int(get(cu.cuDevicePrimaryCtxGetState, device)[1])
    answers["release too often"] = ask(cu.cuDevicePrimaryCtxRelease, device)
    answers["allocate then"] = ask(cu.cuMemAlloc, 64)
    third = get(cu.cuDevicePrimaryCtxRetain, device)
    answers["retain again"] = "SUCCESS" if int(third) else "null"
    get(cu.cuCtxSetCurrent, third)
    answers["allocate again"] = ask(cu.cuMemAlloc, 64)
    return answers


@alone()
def release_with_objects() -> dict[str, Any]:
    """The last release with memory, a stream, an event and a module alive, and work held."""
    get(cu.cuInit, 0)
    device = get(cu.cuDeviceGet, 0)
    context = get(cu.cuDevicePrimaryCtxRetain, device)
    get(cu.cuCtxSetCurrent, context)
    s = lab.stream()
    p = lab.words()
    lab.event()
    m = lab.module()
    lab.launch(lab.function("set", m), s, p, 4)
    get(cu.cuStreamSynchronize, s)
    answers = {"release": ask(cu.cuDevicePrimaryCtxRelease, device)}
    again = get(cu.cuDevicePrimaryCtxRetain, device)
    get(cu.cuCtxSetCurrent, again)
    answers["free the old memory"] = ask(cu.cuMemFree, p)
    answers["new memory"] = ask(cu.cuMemAlloc, 64)
    return answers


@alone()
def release_behind_a_gate() -> dict[str, Any]:
    """The last release while a stream is held."""
    get(cu.cuInit, 0)
    device = get(cu.cuDeviceGet, 0)
    get(cu.cuCtxSetCurrent, get(cu.cuDevicePrimaryCtxRetain, device))
    s, gate = lab.stream(), Gate()
    gate.hold(s)

    def release() -> str:
        return ask(cu.cuDevicePrimaryCtxRelease, device)

    import threading  # noqa: PLC0415 - the thread must not bind a context

    box: list[str] = []
    worker = threading.Thread(target=lambda: box.append(release()), daemon=True)
    worker.start()
    worker.join(0.5)
    told = "waits" if worker.is_alive() else "returns"
    gate.open()
    worker.join(10)
    return {"release": [told, *box]}


@alone()
def reset() -> dict[str, Any]:
    """A reset of the primary context."""
    lab.open_context()
    p = lab.words()
    answers = {"reset": ask(cu.cuDevicePrimaryCtxReset, 0), "allocate": ask(cu.cuMemAlloc, 64)}
    answers["current"] = ask(cu.cuCtxGetDevice)
    answers["free"] = ask(cu.cuMemFree, p)
    return answers


@question()
def threads() -> dict[str, Any]:
    """Contexts are bound per thread."""
    context = lab.open_context()

    def elsewhere() -> dict[str, Any]:
        answers: dict[str, Any] = {"current": int(get(cu.cuCtxGetCurrent))}
        get(cu.cuCtxSetCurrent, context)
        answers["set none"] = ask(cu.cuCtxSetCurrent, cu.CUcontext(0))
        answers["then"] = int(get(cu.cuCtxGetCurrent))
        return answers

    answers = lab.in_thread(elsewhere, bind=False)
    answers["here"] = int(get(cu.cuCtxGetCurrent)) == int(context)
    return answers


@question()
def stream_context() -> dict[str, Any]:
    """The context of a stream is the one it was made in."""
    context = lab.open_context()
    s = lab.stream()
    code, *found = cu.cuStreamGetCtx(s)
    return {"code": lab.answer_of(code), "the same": int(found[0]) == int(context)}
