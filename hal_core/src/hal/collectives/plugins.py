"""Find the installed providers of collectives, and choose one."""

from __future__ import annotations

import functools
from importlib import metadata

import pluggy

from hal.arguments import shown
from hal.collectives.embedded import PROVIDER
from hal.errors import BackendNotFoundError, BackendUnavailableError, PluginError
from hal.handlers import own
from hal.native_collectives import ENTRY_POINT_GROUP, HookSpecification, Join, Provider
from hal.plugin import is_exhausted


@functools.cache
def _load() -> tuple[dict[str, Provider], dict[str, str]]:
    """Return the providers by name, and why others are broken. A broken one hides no other.

    Raises `BackendUnavailableError`, which is not remembered, if the process has nothing left to
    load one with.
    """
    found: dict[str, Provider] = {PROVIDER.name: PROVIDER}
    broken: dict[str, str] = {}
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        manager = pluggy.PluginManager("hal")
        manager.add_hookspecs(HookSpecification)
        try:
            manager.register(entry.load(), name=entry.name)
            manager.check_pending()
            records = manager.hook.hal_collectives()
        except own(Exception, SystemExit) as error:  # whatever a plugin raises
            if is_exhausted(error):
                message = f"the provider {entry.name!r} of collectives is not available now"
                raise BackendUnavailableError(f"{message}: {error}") from error
            broken[entry.name] = f"{type(error).__name__}: {error}"
            continue
        record = records[0] if records else None
        if not isinstance(record, Provider) or record.name != entry.name:
            broken[entry.name] = (
                f"hal_collectives of {entry.value} returned {record!r}, and must return a "
                f"hal.native_collectives.Provider with the name {entry.name!r}"
            )
        elif entry.name in found:
            broken[entry.name] = f"two plugins provide {entry.name!r}; uninstall one of them"
        else:
            found[entry.name] = record
    return found, broken


def providers() -> tuple[str, ...]:
    """Return the names of the installed providers of collectives, sorted."""
    found, broken = _load()
    return tuple(sorted({*found, *broken}))


def choose(request: Join, name: str | None) -> Provider:
    """Return the provider of that name, or the best one for a request.

    Raises `BackendNotFoundError`, `PluginError` and, with the reasons, `BackendUnavailableError`.
    """
    found, broken = _load()
    if name is not None:
        if name in broken:
            raise PluginError(f"the provider {name!r} of collectives is broken: {broken[name]}")
        if name not in found:
            known = ", ".join(providers())
            message = f"no provider of collectives is called {shown(name)}; installed: {known}"
            raise BackendNotFoundError(message)
        reason = _refusal(found[name], request)
        if reason:
            message = f"the provider {name!r} of collectives cannot be used here: {reason}"
            raise BackendUnavailableError(message)
        return found[name]
    reasons = {}
    for each in sorted(found.values(), key=lambda each: (-each.priority, each.name)):
        reason = _refusal(each, request)
        if not reason:
            return each
        reasons[each.name] = reason
    told = "".join(f"\n  {each}: {reason}" for each, reason in (reasons | broken).items())
    place = request.place
    raise BackendUnavailableError(
        f"no provider of collectives can join rank {place.rank} of {place.size} on "
        f"{request.device.name}:{told}"
    )


def _refusal(provider: Provider, request: Join) -> str:
    """Return why a provider cannot serve a request, or an empty text."""
    backend = request.device.backend
    if provider.backends and backend not in provider.backends:
        return f"it works on streams of {' and '.join(provider.backends)}, not of {backend}"
    return provider.suits(request)
