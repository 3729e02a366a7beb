"""Every call of the public interface, found by looking at it, with arguments that are odd.

A new method is covered by itself. A parameter whose name is not in
`odd_arguments.GOOD` has to be put there, unless it can be left out.
"""

import contextlib
import enum
import faulthandler
import functools
import gc
import inspect
import json
import os
import random
import sys
import threading
import time
import warnings

from odd_arguments import ALWAYS, good_of
from odd_values import ODD, Odd
from odd_world import LIMIT, OBJECTS, SUBJECTS, World

import hal
from hal import collectives, flow
from hal._commands.slots import Slots
from hal._transfers.collective_methods import Collectives

__all__ = ["KEYWORDS", "MADE", "batches", "main", "parameters_of", "targets_of"]

CASES = 900
"""Calls of one method with one odd argument, at the most; of more, some are drawn."""
MIXED = 60
"""Calls of one method with several odd arguments, all of them drawn."""
LONGEST_TEXT = 2000

INTERNAL = {
    "Flow": {
        *("run", "renew", "check", "check_open", "refuse", "lanes_of", "queue_of", "write_raw"),
        *("launch", "look", "reaches"),
    },
    "Group": {"call_for", "check", "enter", "line_up", "look", "make", "settle", "withdraw"},
    "Routine": {"end"},
    "TrackedBuffer": {
        *("check_copy", "check_fill", "check_type", "check_write", "forget_name", "named")
    },
    "PhysicalDevice": {"add", "look"},
    "Signature": {"pack", "check_buffer"},
    "Slots": {"need", "need_value"},
}

RECORDS = (
    *(hal.BackendStatus, hal.DeviceDescription, hal.MemoryHeap, hal.MemoryQuery),
    *(hal.MemoryStatistics, hal.MemoryUse, hal.Printed, hal.PrintedLine, hal.ProgramImage),
    *(flow.Merge, collectives.Place, flow.Step),  # which `Context.link` checks
)
MADE = {hal.Timepoint, hal.Fence, hal.File, hal.Output, flow.Flow, flow.Context}
"""Classes that users call themselves; the others are made by methods."""
SPECIAL = ("__getitem__", "__contains__", "__or__", "__array__", "__dlpack__", "__call__")
PASSED_ON = {"Flow.submit"}
"""What calls a user's function at once, whose errors are passed on."""
KEYWORDS = {
    "create_device": ("max_in_flight", "memory_limit", "pool_keep", "command_buffer", "nonsense"),
    "virtual_devices": ("max_in_flight",),
    "Routine.__call__": ("n",),
}
for _name in vars(Collectives):
    if _name[0] != "_":
        KEYWORDS[f"Queue.{_name}"] = ("wait", "signal", "name")
        KEYWORDS[f"CommandBuffer.{_name}"] = ("name", "wait")


THREADS = 256 + 64 + 8
"""What hal starts at the most, for host calls and work of its own (docs/lifetimes.md), and some."""


def targets_of(owner):
    """Yield the public methods of a class, or functions of a module, with their names."""
    if inspect.ismodule(owner):
        for name in owner.__all__:
            found = getattr(owner, name)
            if inspect.isfunction(found) or (
                callable(found) and not inspect.isclass(found) and not inspect.ismodule(found)
            ):
                yield name, found
        return
    if owner in MADE:
        yield owner.__name__, owner
    for name in sorted(dir(owner)):
        found = inspect.getattr_static(owner, name)
        if isinstance(found, property) or name in INTERNAL.get(owner.__name__, ()):
            continue
        if name.startswith("_") and name not in SPECIAL:
            continue
        function = getattr(owner, name)
        if callable(function) and (function.__module__ or "").startswith("hal"):
            yield f"{owner.__name__}.{name}", function


def batches():
    """Return what is tried together: modules, and classes, by name."""
    found = {"hal": hal, "hal.flow": flow, "hal.collectives": collectives, "Slots": Slots}
    for module in (hal, flow, collectives):
        for name in module.__all__:
            kind = getattr(module, name)
            if not inspect.isclass(kind) or issubclass(kind, (BaseException, enum.Enum)):
                continue
            if kind not in RECORDS:
                found[f"{module.__name__}.{name}"] = kind
    return found


def parameters_of(function):
    """Return the parameters that a user gives."""
    return [
        each
        for each in inspect.signature(function).parameters.values()
        if each.name not in {"self", "_"}
    ]


def main(batch, spec="cpu", seed=0):
    """Make the calls of a batch, and print what none of them may do."""
    warnings.simplefilter("error")
    world = World(spec)
    world.check()
    for name in vars(World):
        with contextlib.suppress(hal.errors.UnimplementedError):
            if name.startswith("_") and not name.startswith("__"):
                getattr(world, name[1:])
    before = _resources(world)
    count = 0
    for title, function in targets_of(batches()[batch]):
        faulthandler.dump_traceback_later(4 * LIMIT, exit=True)
        count += _try_method(world, title, function, random.Random(f"{seed} {title}"))
    faulthandler.dump_traceback_later(4 * LIMIT, exit=True)
    world.check()
    deadline, pause = time.monotonic() + LIMIT, threading.Event()
    after = _resources(world)
    while any(after[name] > before[name] for name in before) and time.monotonic() < deadline:
        pause.wait(0.05)  # a thread of hal's closes the files of what was shared
        after = _resources(world)
    if any(after[name] > before[name] for name in before):
        _complain(batch, f"before {before}, after {after}")
    world.close()
    sys.stdout.write(json.dumps({"calls": count}) + "\n")


def _resources(world):
    """Return what may not grow."""
    for _ in range(3):
        gc.collect()
        world.device.wait_idle(LIMIT)
        world.device.trim()
    return {
        "bytes": world.device.statistics().bytes_now,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count() > THREADS,
    }


def _complain(call, what):
    sys.stdout.write(json.dumps({"call": call, "what": what}) + "\n")


def _try_method(world, title, function, draw):
    """Call a method with each odd value in the place of each argument, and with several."""
    parameters = parameters_of(function)
    places = [(each, None) for each in parameters if each.kind is not each.VAR_KEYWORD]
    for each in parameters:
        if each.kind is each.VAR_KEYWORD:
            places += [(each, keyword) for keyword in KEYWORDS[title]]
    names = [*ODD, *OBJECTS]
    cases = [{place: name} for place in places for name in names]
    if len(cases) > CASES:
        cases = draw.sample(cases, CASES)
    if len(places) > 1:
        for _ in range(MIXED):
            chosen = draw.sample(places, draw.randint(2, min(4, len(places))))
            cases.append({place: draw.choice(names) for place in chosen})
    for case in cases:
        with contextlib.suppress(hal.errors.UnimplementedError):  # of making what it takes
            _try(world, title, function, parameters, case)
    return len(cases)


def _try(world, title, function, parameters, case):
    """Make one call, and say what is wrong with how it ended."""
    given = {place: ODD.get(name) or _of_world(world, name) for place, name in case.items()}
    told = ", ".join(f"{key or each.name}={case[each, key]}" for each, key in case)
    what = f"{title}({told})"
    values = {place: each.make() for place, each in given.items()}
    positional, named = _arguments(world, title, parameters, values)
    call = _bound(world, title, function)
    try:
        result = call(*positional, **named)
        _finish(result)
    except hal.HalError as error:
        _check_text(what, error)
    except BaseException as error:  # noqa: BLE001 - that is what is looked for
        if not (title in PASSED_ON and any(map(callable, values.values()))):
            _complain(what, f"raw {type(error).__name__}: {_text(error)}{_where(error)}")
    else:
        if len(given) == 1 and result is not NotImplemented:
            ((parameter, keyword),) = given
            if not _may_take(title, parameter, keyword, given[parameter, keyword]):
                _complain(what, f"taken, and returned {type(result).__name__}")


def _arguments(world, title, parameters, values):
    """Return the arguments of a call, the good ones with the odd ones."""
    positional, named = [], {}
    starred = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    for each in parameters:
        mine = {key: value for (other, key), value in values.items() if other is each}
        is_many = each.kind in {each.VAR_KEYWORD, each.VAR_POSITIONAL}
        if not mine and (each.name in ALWAYS or (each.default is each.empty and not is_many)):
            good = good_of(title, each.name)
            assert good is not None, f"{title}: put {each.name!r} into GOOD"
            mine = {None: good[0](world)}
        if each.kind is each.VAR_KEYWORD:
            named.update(mine)
        elif each.kind in {each.POSITIONAL_ONLY, each.VAR_POSITIONAL} or (
            starred and each.kind is not each.KEYWORD_ONLY
        ):
            positional.extend(mine.values())
        else:
            named.update((each.name, value) for value in mine.values())
    return positional, named


def _may_take(title, parameter, keyword, given):
    """Return whether a value of this kind may be taken, where that is known."""
    found = good_of(title, keyword or parameter.name) or good_of(title, parameter.name)
    if found is None or found[1] is None:
        return True
    return bool(given.kinds & found[1]) or ("none" in given.kinds and parameter.default is None)


def _check_text(what, error):
    """Look at the text of an error of ours: it is there, short, and without addresses."""
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001
        _complain(what, f"a text that fails: {type(broken).__name__}")
        return
    if len(text) > LONGEST_TEXT:
        _complain(what, f"a text of {len(text)} characters: {text[:100]}")
    if "object at 0x" in text:
        _complain(what, f"an address in {text[:200]}")


def _bound(world, title, function):
    """Return a method of an object that may be used up."""
    owner, _, method = title.rpartition(".")
    if not owner or inspect.isclass(function):
        return function
    kind = next(each for each in SUBJECTS if each.__name__ == owner)
    name = SUBJECTS[kind]
    if inspect.ismethod(function):
        return function
    is_costly = name in {
        "device",
        "queue",
        "executable",
        "kernel",
        "program",
        "virtual",
        "flow",
        "context",
    }
    subject = getattr(world, name) if is_costly and method != "close" else world.fresh(name)
    return getattr(subject, method)


def _of_world(world, name):
    attribute, kinds = OBJECTS[name]
    made = functools.partial(getattr, world, attribute or "usage")
    return Odd(made, frozenset(kinds))


def _finish(result):
    """End what a call has begun."""
    if isinstance(result, hal.Submission):
        result.wait(LIMIT)
    elif isinstance(result, hal.Buffer) and result.allocation is not None:
        result.allocation.wait(LIMIT)
    elif isinstance(result, (hal.Device, hal.Queue)):
        result.close(LIMIT)
    elif isinstance(result, (flow.Context, flow.Flow, flow.Pipeline, flow.VirtualDevice)):
        result.close()
    elif type(result) is tuple and result and isinstance(result[0], flow.VirtualDevice):
        for each in result:
            each.close()


def _text(error):
    try:
        return str(error)[:200]
    except BaseException:  # noqa: BLE001
        return "(no text)"


def _where(error):
    trace = error.__traceback__
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{os.path.basename(code.co_filename)}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " at " + " > ".join(places[-4:])


if __name__ == "__main__":
    main(*sys.argv[1:])
