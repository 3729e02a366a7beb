"""How a vendor's distribution announces its backend.

A plugin is an entry point in the group ``hal.backends`` whose name is the
backend's name and whose object carries one hook::

    from hal.plugin import Backend, hookimpl

    @hookimpl
    def hal_backend() -> Backend:
        return Backend(name="acme", summary="Acme One accelerators", probe=..., open=...)

Importing the object and calling the hook must load no vendor library and open
no device: that is what `Backend.probe` and `Backend.open` are for; `on_first_use`
makes them of the names of what is in modules that import the library.
"""

import errno
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pluggy

from hal.native import NativeCompiler, NativeDriver

__all__ = [
    "ENTRY_POINT_GROUP",
    "NATIVE_API",
    "Backend",
    "hookimpl",
    "hookspec",
    "is_exhausted",
    "on_first_use",
]

ENTRY_POINT_GROUP = "hal.backends"
NATIVE_API = 1
"""The version of `hal.native` that this core speaks."""

hookspec = pluggy.HookspecMarker("hal")
hookimpl = pluggy.HookimplMarker("hal")


class Backend(NamedTuple):
    """The record of one backend, which the hook returns."""

    name: str
    """The backend's name, the same as its entry point's: ``"cuda"``."""
    summary: str
    """One line for ``hal devices``, without the name."""
    probe: Callable[[], None]
    """Check that the driver and at least one device are here. May load the vendor's library; must
    not create a context. Raises `BackendUnavailableError` with the native reason."""
    open: Callable[[], NativeDriver]
    """Return the driver. Called once per process, on first use, after a `probe` that passed; the
    core keeps the result."""
    native_api: int = NATIVE_API
    """The version of `hal.native` that the plugin was written for."""
    compiler: Callable[[], NativeCompiler] | None = None
    """Return the compiler for the backend's devices, which needs none of them: called once per
    process, on first use, without `probe`. Raises `BackendUnavailableError` if the vendor's
    bindings are missing. None for a backend whose devices load images only."""


def on_first_use(where: str) -> Callable[[], Any]:
    """Return a function that imports the module of ``"module:name"``, and calls what it names."""
    module, _, name = where.partition(":")

    def call() -> Any:  # noqa: ANN401 - the core checks it
        return getattr(importlib.import_module(module), name)()

    return call


def is_exhausted(error: BaseException) -> bool:
    """Return whether a plugin has met a process or a system that has run out of something.

    Of files or memory, say: it is not at fault, and may work soon.
    """
    resources = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC}
    return isinstance(error, OSError) and error.errno in resources


class HookSpecification:
    """The hooks that a plugin may implement."""

    @hookspec
    def hal_backend(self) -> Backend:
        """Return the record of this plugin's backend; load nothing, open nothing."""
        raise NotImplementedError
