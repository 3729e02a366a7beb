"""Load a plugin when it is first asked for, keep why one is broken, and open its driver once.

Each plugin is loaded and registered in a `pluggy.PluginManager` of its own,
inside its own ``try``, so that a broken plugin hides no other and a misspelt
hook affects only its owner. Only what is asked for is loaded: a CPU device needs
no other vendor's module.

No lock is held meanwhile. A plugin's module may be half imported by a thread that
will ask for the plugin, and with a lock the two would wait for each other. Threads
that load at the same time load the same module and get the same record.

A driver is opened once per process under a lock per backend that knows its
owner: a plugin that asks for itself gets an error instead of a deadlock.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import pluggy

from hal._backends.installed import PluginEntry
from hal._base.failures import keep
from hal._base.sync import OwnedLock, get_ident
from hal.errors import BackendUnavailableError, HalError, PluginError, UnimplementedError
from hal.handlers import own
from hal.native import DeviceInfo, NativeCompiler, NativeDriver
from hal.plugin import NATIVE_API, Backend, HookSpecification, is_exhausted

_Result = TypeVar("_Result")
_State = Literal["installed", "available", "unavailable", "broken"]


class BackendStatus(NamedTuple):
    """The status of one installed plugin."""

    name: str
    """The backend's name, as `hal.create_device` takes it."""
    state: _State
    """``"installed"``: loaded, but not yet asked whether it works here; ``"available"``: a driver
    and a device are here; ``"unavailable"``: they are not; ``"broken"``: the plugin itself is at
    fault."""
    reason: str
    """Why it is unavailable or broken; otherwise empty."""
    summary: str
    """The plugin's own one-line description; empty if it is broken."""
    distribution: str
    version: str
    """The installed distribution and its version; empty if the installer kept no record."""


class DeviceDescription(NamedTuple):
    """A device that can be opened."""

    backend: str
    """The name of the backend that offers it."""
    info: DeviceInfo
    """What the backend's driver says of it."""

    @property
    def spec(self) -> str:
        """The specification that opens it with `hal.create_device`: ``"cuda:1"``."""
        return f"{self.backend}:{self.info.index}"

    @property
    def uuid(self) -> str:
        """Its UUID, which opens it as well."""
        return self.info.uuid


class Plugin:
    """One entry point's plugin: its record, or why there is none, and its driver."""

    def __init__(self, entry_point: PluginEntry, refusal: str = "") -> None:
        """Keep the entry point; with a refusal the plugin is broken, and is never loaded."""
        self.name = entry_point.name
        self.distribution, self.version = entry_point.distribution, entry_point.version
        self._entry_point = entry_point
        self._record: Backend | BaseException | None = PluginError(refusal) if refusal else None
        self._driver: NativeDriver | None = None
        self._is_inherited = False  # a parent process opened the driver
        self._compiler: NativeCompiler | None = None
        self.renew()

    def renew(self) -> None:
        """Forget the parent process's driver, and what its threads were doing with it."""
        self._is_inherited |= self._driver is not None
        self._driver = None
        self._loaders: set[int] = set()  # threads that load it now
        self._lock = OwnedLock()

    @property
    def title(self) -> str:
        """Its name in error messages."""
        origin = f"{self.distribution} {self.version}".strip() or "of no known distribution"
        return f"backend {self.name!r} ({origin})"

    def load(self) -> Backend | BaseException:
        """Return the record, or why there is none; load it on first use.

        Raises `BackendUnavailableError` if the process has nothing left to load it with, and
        `PluginError` if the plugin asks for itself meanwhile.
        """
        if self._record is not None:
            return self._record
        thread = get_ident()
        if thread in self._loaders:
            raise PluginError("a plugin asked hal for backends while it was being loaded")
        try:
            self._loaders.add(thread)
            self._record = _load(self._entry_point)
        except own(Exception, SystemExit) as error:
            if is_exhausted(error):
                raise self._not_now(error) from error  # not the plugin's fault, and soon over (O3)
            if not isinstance(error, PluginError):
                # Kept, it must keep no frames alive: its tracebacks become text.
                error.add_note("".join(traceback.format_exception(error)).rstrip())
            self._record = keep(error)
        finally:
            self._loaders.discard(thread)
        return self._record

    def backend(self) -> Backend:
        """Return the record; raise as `load` does, and `PluginError` if there is none."""
        record = self.load()
        if isinstance(record, Backend):
            return record
        raise PluginError(f"{self.title} is installed but broken: {_reason(record)}") from record

    def status(self, *, probe: bool) -> BackendStatus:
        """Return the status; with `probe`, ask the plugin first.

        Raises `PluginError` if the plugin asks for itself while it is being loaded.
        """
        state: _State = "installed"
        reason = summary = ""
        record: Backend | BaseException | None = None
        try:
            record = self.load()
            if not isinstance(record, Backend):
                state, reason = "broken", _reason(record)
            else:
                summary = record.summary
                if probe:
                    self._probe()
                    state = "available"
        except own(BackendUnavailableError) as error:
            state, reason = "unavailable", _reason(error.__cause__ or error)
        except own(PluginError) as error:
            if record is None:
                raise
            state, reason = "broken", _reason(error.__cause__ or error)
        return BackendStatus(self.name, state, reason, summary, self.distribution, self.version)

    def _not_now(self, error: BaseException) -> BackendUnavailableError:
        return BackendUnavailableError(
            f"{self.title} is installed but not available now: {_reason(error)}"
        )

    def driver(self) -> NativeDriver:
        """Return the driver, opened on first use and kept."""
        backend = self.backend()
        if self._driver is not None:
            return self._driver
        with self._exclusively():
            if self._driver is None:
                self._call(backend.probe)
                self._driver = self._made(backend.open, NativeDriver, "open()")
            return self._driver

    def compiler(self) -> NativeCompiler:
        """Return the compiler, made on first use and kept.

        Raises `UnimplementedError` for a backend that has none.
        """
        if self._compiler is not None:
            return self._compiler
        backend = self.backend()
        if backend.compiler is None:
            raise UnimplementedError(f"{self.title} has no compiler: its devices load images only")
        with self._exclusively():
            if self._compiler is None:
                self._compiler = self._made(backend.compiler, NativeCompiler, "compiler()")
            return self._compiler

    def _made(self, make: Callable[[], _Result], kind: type[Any], what: str) -> _Result:
        """Return what the plugin makes; raise unless it is of that kind."""
        made = self._call(make)
        if not isinstance(made, kind):
            raise PluginError(
                f"{self.title} is installed but broken: its {what} returned "
                f"{type(made).__name__}, not a hal.native.{kind.__name__}"
            )
        return made

    def devices(self) -> list[DeviceDescription]:
        """Return the driver's devices."""
        infos = self._call(self.driver().devices)
        return [DeviceDescription(self.name, info) for info in infos]

    def _probe(self) -> None:
        """Raise unless the backend works here."""
        backend = self.backend()
        if self._driver is None:
            with self._exclusively():
                self._call(backend.probe)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Admit one thread at a time to probe and open, and it once."""
        if self._lock._is_owned():
            raise PluginError(
                f"{self.title} asked for itself while it was being opened, or a signal handler did"
            )
        with self._lock:
            yield

    def _call(self, function: Callable[[], _Result]) -> _Result:
        """Call the plugin; its exceptions become one of the two errors that `resolve` names."""
        try:
            return function()
        except own(PluginError) as error:
            raise PluginError(f"{self.title} is installed but broken: {error}") from error
        except own(HalError) as error:  # the vendor's error: the plugin worked
            message = f"{self.title} is installed but not available here: {_reason(error)}"
            if self._is_inherited:
                message += "; this process was forked after its driver was opened: fork before that"
            raise BackendUnavailableError(
                message, native_name=error.native_name, native_code=error.native_code
            ) from error
        except own(Exception, SystemExit) as error:
            if is_exhausted(error):
                raise self._not_now(error) from error
            raise PluginError(f"{self.title} is installed but broken: {_reason(error)}") from error


def _load(entry_point: PluginEntry) -> Backend:
    """Return an entry point's record; raise `PluginError` with the reason alone."""
    manager = pluggy.PluginManager("hal")
    manager.add_hookspecs(HookSpecification)
    manager.register(entry_point.load(), name=entry_point.name)
    manager.check_pending()  # raises for a misspelt hook
    records = manager.hook.hal_backend()
    if not records:
        raise PluginError(
            f"{entry_point.value} has no function hal_backend marked with hal.plugin.hookimpl "
            "that returns a hal.plugin.Backend"
        )
    record = records[0]
    if not isinstance(record, Backend):
        raise PluginError(
            f"hal_backend of {entry_point.value} returned {type(record).__name__}, "
            "not a hal.plugin.Backend"
        )
    if record.native_api != NATIVE_API:
        behind = "hal-core" if record.native_api > NATIVE_API else entry_point.distribution
        raise PluginError(
            f"it was written for version {record.native_api} of hal.native, and the installed "
            f"hal-core speaks version {NATIVE_API}; upgrade {behind or 'the plugin'}"
        )
    if record.name != entry_point.name:
        raise PluginError(
            f"its entry point is called {entry_point.name!r} and its record {record.name!r}; "
            "the two must be the same"
        )
    return record


def _reason(error: BaseException) -> str:
    """Describe an error in one line, with the vendor's name for it."""
    if not isinstance(error, HalError):
        return f"{type(error).__name__}: {error}"
    text = str(error)
    if error.native_name is None or error.native_name in text:
        return text
    code = "" if error.native_code is None else f" {error.native_code}"
    return f"{text} ({error.native_name}{code})"
