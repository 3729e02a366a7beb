"""Open devices by their specifications."""

from __future__ import annotations

from hal._backends import registry
from hal._base.failures import is_users, told
from hal._base.process import refuse_after_fork
from hal._commands.recorder import check_mode
from hal._devices import lifecycle
from hal._devices.device import Device
from hal._engine.memory_events import open_memory_events
from hal._memory.settings import MemorySettings, take_settings
from hal.arguments import as_choice, as_name, number_of, shown
from hal.errors import BackendUnavailableError, HalError, InvalidArgumentError, PluginError
from hal.handlers import dropped, own
from hal.native import FEATURES

_SEMAPHORES = ("events", "memory")
_PARAMETERS = ("command_buffer", "max_in_flight", "name", "semaphores", *MemorySettings._fields)


def create_device(spec: str = "cpu", **parameters: object) -> Device:
    """Open a device.

    `spec` is a backend and an index, ``"cpu"``, ``"cuda:1"``, with parameters
    if wanted, ``"cuda?max_in_flight=64"``, or a device's UUID. Parameters of
    the core: ``max_in_flight``, the native launches that a queue issues before the
    rest stand in its backlog (Q1); ``cache_limit``, ``memory_limit`` and
    ``pool_keep``, numbers of bytes as in ``"512M"``,
    ``async_allocations``, ``"true"`` (the default) or ``"false"``, and ``pool_reuse``, ``"any"``,
    ``"ordered"`` or ``"stream"`` (M1, M3, docs/memory.md); ``command_buffer``,
    ``"graph"``, ``"stream"`` or ``"auto"``, how recordings run that do not say
    (C4); ``semaphores``, ``"events"`` (the default) or ``"memory"``, whether the ends of
    operations are the driver's events or numbers that its streams write to memory
    (docs/semaphores.md); ``name``, which stands behind the device's own, as in
    ``"cuda:1/NAME"``. All others go
    to the backend. Raises `BackendNotFoundError`, `BackendUnavailableError` or
    `PluginError`, `NotFoundError` for an index or a UUID,
    `InvalidArgumentError` for an unknown parameter, and `UnimplementedError` for graphs, or
    semaphores in memory, on a device without them.
    """
    refuse_after_fork()
    backend, driver, index, given = registry.resolve(spec, parameters)
    rest = dict(given)
    limit_text = rest.pop("max_in_flight", None)
    limit = None
    if limit_text is not None:
        limit = number_of(limit_text)
        if limit < 1:
            message = f"max_in_flight is a number of 1 or more, not {shown(limit_text)}"
            raise InvalidArgumentError(message)
    own_name = as_name(rest.pop("name", ""), "a device")
    mode = rest.pop("command_buffer", "auto")
    check_mode(mode, FEATURES, spec)
    semaphores = as_choice(rest.pop("semaphores", "events"), _SEMAPHORES, "semaphores")
    settings = take_settings(rest)
    for name in rest:
        if name not in driver.parameters:
            known = ", ".join((*driver.parameters, *_PARAMETERS))
            message = f"{backend.name} devices have no parameter {shown(name)}; they have: {known}"
            raise InvalidArgumentError(message)
    try:
        native = driver.open_device(index, rest)
    except (BackendUnavailableError, InvalidArgumentError, PluginError):
        raise
    except own(Exception) as error:
        if not isinstance(error, HalError):
            if is_users(error):
                raise
            raise PluginError(
                f"{backend.name}:{index} cannot be opened: the plugin raised {told(error)}, and "
                "must raise a HalError"
            ) from error
        message = f"{backend.name}:{index} cannot be opened: {error}"
        raise BackendUnavailableError(
            message, native_name=error.native_name, native_code=error.native_code
        ) from error
    try:
        name = f"{backend.name}:{index}"
        check_mode(mode, native.features, name)
        memory_events = open_memory_events(native, name) if semaphores == "memory" else None
        device = Device(backend.name, native, limit, settings, own_name, memory_events)
    except BaseException:
        # A Ctrl-C at the end may come when it is open already.
        made = [each for each in lifecycle.devices if each._native is native]
        with dropped(HalError):  # the first error is the one to report
            (made[0] if made else native).close()
        raise
    device._command_buffer = mode
    return device
