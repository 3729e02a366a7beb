"""Facts about this process from the operating system: processors, memory, refused calls."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import platform
from collections.abc import Iterator
from typing import Final

from hal.errors import HalError, OperationError
from hal.handlers import dropped, own

_WAYS_OUT: Final = {
    errno.EMFILE: "close some, or raise the limit (ulimit -n)",
    errno.ENFILE: "close some: it is the whole system's limit",
    errno.ENOSPC: "make room there, or set TMPDIR to a folder that has some",
    errno.EDQUOT: "make room there, or set TMPDIR to a folder that has some",
    errno.ENOENT: "make the folder, or set TMPDIR to one that is there",
    errno.EROFS: "set TMPDIR to a folder that can be written to",
    errno.EACCES: "set TMPDIR to a folder that can be written to",
}


@contextlib.contextmanager
def refusals(doing: str, kind: type[HalError] = OperationError) -> Iterator[None]:
    """Turn each `OSError` inside into an error of this kind, with the path and the cause."""
    try:
        yield
    except own(OSError) as error:
        number = error.errno or 0
        path = f": {error.filename!r}" if error.filename else ""
        way_out = f"; {_WAYS_OUT[number]}" if number in _WAYS_OUT else ""
        message = f"{doing}: {error.strerror or error}{path}{way_out}"
        raise kind(message, native_name=describe_errno(number), native_code=number) from error


def _read_group(name: str) -> str:
    """Return the value of a resource in this process's control group, or "" if it has none."""
    try:
        with open(f"/sys/fs/cgroup/{name}", encoding="utf-8") as file:
            return file.read().strip()
    except own(OSError, ValueError):
        return ""


def processor_count() -> int:
    """Return how many processors this process may use, its control group's quota included."""
    count = len(os.sched_getaffinity(0))
    quota, _, period = _read_group("cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        count = min(count, max(1, -(-int(quota) // int(period))))
    return count


def total_memory() -> int:
    """Return the machine's memory in bytes, or the control group's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _read_group("memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


@functools.cache
def _processor() -> dict[str, str]:
    """Return what the system says of the first processor; nothing where it says nothing."""
    found: dict[str, str] = {}
    with (
        refusals("the processor's features cannot be read"),
        dropped(FileNotFoundError, PermissionError),
        open("/proc/cpuinfo", encoding="utf-8") as lines,
    ):
        for line in itertools.takewhile(str.strip, lines):
            name, _, value = line.partition(":")
            found[name.strip()] = value.strip()
    return found


def processor_name() -> str:
    """Return the processor's name, or that of its architecture."""
    return _processor().get("model name") or platform.processor() or platform.machine()


@functools.cache
def processor_features() -> frozenset[str]:
    """Return the instruction set extensions of this processor, in the system's names."""
    found = _processor()
    return frozenset((found.get("flags") or found.get("Features", "")).split())


def missing_features(wanted: str) -> list[str]:
    """Return the processor features of an image that this processor lacks."""
    return sorted(set(wanted.split()) - processor_features())


def free_memory() -> int | None:
    """Return the bytes available without swapping, or None if the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="utf-8") as lines:
            found = next((line for line in lines if line.startswith("MemAvailable:")), "")
        free = int(found.split()[1]) * 1024
    except own(OSError, ValueError, IndexError):
        return None
    limit, used = _read_group("memory.max"), _read_group("memory.current")
    if limit.isdigit() and used.isdigit():
        free = min(free, max(int(limit) - int(used), 0))
    return free


def describe_errno(number: int) -> str:
    """Return the name of an error number, as in ``"ENOMEM"``."""
    return errno.errorcode.get(number, str(number))
