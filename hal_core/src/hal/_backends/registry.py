"""Find the installed backends, refuse two of one name, and resolve device specifications.

A plugin is found by its entry point alone, never by importing a name: a
checkout's folder called ``hal_cuda`` would import as well.
"""

from __future__ import annotations

import itertools
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, NoReturn

import numpy as np

from hal._backends.installed import PluginEntry, entry_points
from hal._backends.plugins import BackendStatus, DeviceDescription, Plugin
from hal._base.process import refuse_after_fork
from hal.arguments import as_flag, as_text, ask, number_of, shown
from hal.errors import (
    ArgumentTypeError,
    BackendNotFoundError,
    BackendUnavailableError,
    InvalidArgumentError,
    NotFoundError,
    PluginError,
)
from hal.handlers import own
from hal.native import NativeCompiler, NativeDriver
from hal.plugin import ENTRY_POINT_GROUP, Backend

_FIRST_PARTY: Final = {"cpu": "hal_cpu", "cuda": "hal_cuda", "hip": "hal_hip"}
"""Distributions that an error may tell the user to install, by backend name."""


class Target(NamedTuple):
    """The result of `resolve`: the target that a device specification names."""

    backend: Backend
    driver: NativeDriver
    device_index: int
    parameters: dict[str, str]


class Registry:
    """The plugins found and the drivers opened.

    The process has one, whose methods this module exports; tests make more.
    Any thread may call any method.
    """

    def __init__(self, find: Callable[[], Iterable[PluginEntry]]) -> None:
        self._entry_points = find
        # What searches have found; the first one's result stays. Several threads may search at
        # once. With a lock, a signal handler that opens a device would wait for its own thread.
        self._found: list[tuple[Plugin, ...]] = []

    def renew(self) -> None:
        """Forget the parent's drivers and what its threads hold; for a forked child."""
        for plugin in itertools.chain(*self._found[:1]):
            plugin.renew()

    def backends(self, *, probe: bool = False) -> tuple[BackendStatus, ...]:
        """Return the status of every installed backend, sorted by name.

        Loads no vendor library, unless `probe` is true: then every backend is
        asked whether its driver and a device are here, which may take a second.
        A backend that is broken or unavailable is listed with its reason; this
        function raises for none of them.
        """
        is_probed = as_flag(probe, "backends: probe")
        return tuple(plugin.status(probe=is_probed) for plugin in self._search())

    def devices(self) -> tuple[DeviceDescription, ...]:
        """Return every device of every available backend, sorted by backend, then index.

        Opens every backend's driver, but no device. Skips backends that are broken or
        unavailable; `backends` tells why.
        """
        refuse_after_fork()
        found: list[DeviceDescription] = []
        for plugin in self._search():
            try:
                found += plugin.devices()
            except own(BackendUnavailableError, PluginError):
                continue  # `backends` reports it
        return tuple(found)

    def resolve(self, spec: str, parameters: Mapping[str, object]) -> Target:
        """Find the backend, open driver, device index and parameters that a specification names.

        `spec` is ``name[:index][?key=value&key=value]`` or ``uuid[?key=value&...]``. The index
        counts from 0, the default. Values are taken literally: pass a value that contains ``&``
        by keyword instead. `parameters` win over those in `spec`; their values are strings, or
        numbers and booleans, which become ``"4"`` and ``"true"``. See `hal.create_device` for the
        errors; a native error and a plugin's exception are their causes.
        """
        if not isinstance(spec, str):
            raise ArgumentTypeError(
                f"a device specification is a string such as 'cpu' or 'cuda:1', not {shown(spec)}"
            )
        spec = as_text(spec, "a device specification is a string")
        head, _, query = spec.partition("?")
        merged = _parse_parameters(spec, query)
        merged.update((key, _parameter_text(key, value)) for key, value in parameters.items())
        plugins = {plugin.name: plugin for plugin in self._search()}
        name, colon, index_text = head.partition(":")
        if name in plugins:
            plugin, index = plugins[name], number_of(index_text) if colon else 0
            if index < 0:
                raise InvalidArgumentError(
                    f"{shown(index_text)} in the device specification {shown(spec)} is no device "
                    "index; write it as in 'cuda:1'"
                )
        elif any(map(str.isdigit, name)):  # as in every UUID, and in few names
            device = self._device_with_uuid(head)
            plugin, index = plugins[device.backend], device.info.index
        else:
            _raise_not_found(name, list(plugins))
        driver = plugin.driver()
        count = len(plugin.devices())
        if count == 0:
            raise BackendUnavailableError(f"{plugin.title} is installed, but has no device here")
        if index >= count:
            valid = ", ".join(f"{plugin.name}:{i}" for i in range(count))
            raise NotFoundError(
                f"asked for {shown(head)}; backend {plugin.name!r} has {count} "
                f"device{'s' if count > 1 else ''}: {valid}"
            )
        return Target(plugin.backend(), driver, index, merged)

    def compiler_of(self, name: str) -> NativeCompiler:
        """Return a backend's compiler, which needs no device.

        Raises `BackendNotFoundError`, `BackendUnavailableError` if its bindings
        are missing, `PluginError`, and `UnimplementedError` for a backend without one.
        """
        plugins = {plugin.name: plugin for plugin in self._search()}
        if name not in plugins:
            _raise_not_found(name, list(plugins))
        return plugins[name].compiler()

    def _search(self) -> tuple[Plugin, ...]:
        """Return the plugins, sorted by name; look for them on first use, and load none."""
        if self._found:
            return self._found[0]
        try:
            self._found.append(_claims(self._entry_points()))
        except own(OSError) as error:
            message = f"the installed backends cannot be listed: {error}"
            raise BackendUnavailableError(message) from error
        return self._found[0]

    def _device_with_uuid(self, uuid: str) -> DeviceDescription:
        """Return the one device with this UUID; letter case does not matter."""
        matches = [device for device in self.devices() if device.uuid.lower() == uuid.lower()]
        if not matches:
            _raise_not_found(uuid, [plugin.name for plugin in self._search()])
        if len(matches) > 1:
            specs = " and ".join(device.spec for device in matches)
            raise InvalidArgumentError(
                f"asked for the device {shown(uuid)}, which is both {specs}; ask for one of these"
            )
        return matches[0]


def _claims(entries: Iterable[PluginEntry]) -> tuple[Plugin, ...]:
    """Return a plugin for each entry point; those that claim the same name are refused."""
    owners: dict[str, list[PluginEntry]] = {}
    for entry_point in entries:
        owners.setdefault(entry_point.name, []).append(entry_point)
    plugins: list[Plugin] = []
    for name, claims in sorted(owners.items()):
        claimants = " and ".join(sorted(claim.distribution or "?" for claim in claims))
        refusal = f"{claimants} both provide {name!r}; uninstall one of them"
        plugins += [Plugin(claim, refusal if len(claims) > 1 else "") for claim in claims]
    return tuple(plugins)


def _parse_parameters(spec: str, query: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for part in query.split("&") if query else ():
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise InvalidArgumentError(
                f"{shown(part)} in the device specification {shown(spec)} is not key=value"
            )
        if key in parameters:
            raise InvalidArgumentError(f"{shown(key)} is given twice in {shown(spec)}")
        parameters[key] = value
    return parameters


def _parameter_text(key: str, value: object) -> str:
    """Return a keyword parameter as it would be written in a specification."""
    rule = f"device parameter {shown(key)} must be a string, a number or a boolean"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, str):
        return as_text(value, rule)
    if isinstance(value, numbers.Real):
        return ask(str, value, rule)
    raise ArgumentTypeError(f"{rule}, not {shown(value)}")


def _raise_not_found(name: str, installed: list[str]) -> NoReturn:
    """Raise that no installed backend has this name, with the next step if it is known."""
    import difflib  # noqa: PLC0415 - of errors

    message = f"asked for {shown(name)}; installed: {', '.join(installed) or 'no backend at all'}"
    close = difflib.get_close_matches(name.lower(), {*installed, *_FIRST_PARTY}, n=1)
    if name in _FIRST_PARTY:
        message += f"; in a clone of hal: pip install ./{_FIRST_PARTY[name]}"
    elif close:
        message += f"; did you mean {close[0]!r}?"
    elif any(map(str.isdigit, name)):
        message += "; no available device has this UUID"
    elif not installed:
        message += "; in a clone of hal: pip install ./hal_cpu"
    raise BackendNotFoundError(message)


_registry: Final = Registry(lambda: entry_points(ENTRY_POINT_GROUP))
os.register_at_fork(after_in_child=_registry.renew)
backends: Final = _registry.backends
devices: Final = _registry.devices
resolve: Final = _registry.resolve
compiler_of: Final = _registry.compiler_of
