"""The part of a device that lower packages know: the base of `hal._devices.device.Device`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from hal._engine.device_context import DeviceContext
from hal._engine.external import External
from hal._engine.steps import CallStep
from hal._memory.heap import Heap
from hal._memory.settings import MemorySettings
from hal._memory.storage import Storage
from hal.errors import ClosedError
from hal.native import DeviceInfo, MemoryType, NativeDevice


class CopyStream:
    """A stream of calls that block, the step of the call that has it, and what its copy uses.

    An interrupt leaves the latter two: the copy may go on, and the next call waits for it.
    """

    __slots__ = ("owner", "stream", "used")

    def __init__(self) -> None:
        self.owner: CallStep | None = None
        self.stream = 0
        self.used: object = None


class DeviceCore:
    """The native device, with its context, memory and primitives.

    Buffers, kernels and recordings type against this class, so that their packages need not
    import the one that makes them. Their public ``device`` is always a `Device`.
    """

    __slots__ = (
        "__weakref__",
        "_access",
        "_backend",
        "_closed",
        "_command_buffer",
        "_context",
        "_copy",
        "_copy_from_host",
        "_copy_streams",
        "_copy_to_host",
        "_external",
        "_fill",
        "_heap",
        "_instances",
        "_launch",
        "_launch_indirect",
        "_name",
        "_native",
        "_pageable",
        "_plain_name",
    )

    def __init__(
        self,
        backend: str,
        plain_name: str,
        name: str,
        context: DeviceContext,
        settings: MemorySettings,
    ) -> None:
        native: NativeDevice = context.native
        self._backend = backend
        self._plain_name = plain_name
        self._name = name  # no other open device's
        self._native = native
        # One bound method for all operations: a new one for each would be one more
        # object for the collector to walk while they are pending.
        self._fill: Callable[..., object] = native.fill
        self._copy: Callable[..., object] = native.copy
        self._copy_from_host: Callable[..., object] = native.copy_from_host
        self._copy_to_host: Callable[..., object] = native.copy_to_host
        self._launch: Callable[..., object] = native.launch
        self._launch_indirect: Callable[..., object] = native.launch_indirect
        self._closed = False
        self._command_buffer = "auto"
        self._context = context
        self._heap = Heap(context, settings)
        self._copy_streams: list[CopyStream] = []  # of `hal._memory.blocking`
        self._external = External(context)
        # Contexts of the devices whose memory kernels may use, besides ours
        self._access: frozenset[DeviceContext] = frozenset()
        # References to the pools of graph instances of living recordings
        # (`hal._commands.instances`). No `WeakSet`: others add to it while it is copied.
        self._instances: dict[ref[Any], None] = {}
        self._pageable = "pageable_copies" in native.features

    # Of `Device`, for the packages between this one and `hal._devices`
    queue: Any
    queues: Any
    allocate: Callable[..., Any]
    upload: Callable[..., Any]

    @property
    def name(self) -> str:
        """The backend and the index, as in ``"cuda:1"``, and its own name if it was given one.

        If the same device is open several times, a number distinguishes them in representations,
        errors and the names of queues: ``"cuda:1 (2)"`` is the second.
        """
        return self._plain_name

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._backend

    @property
    def info(self) -> DeviceInfo:
        """The description of the hardware."""
        return self._native.info

    @property
    def features(self) -> frozenset[str]:
        """The optional features that work natively, out of `hal.native.FEATURES`."""
        return self._native.features

    def _host_copies(self, storage: Storage) -> bool:
        """Return whether the host, which sees a memory, also copies it; else the driver does."""
        # The driver copies managed memory, since the device may have it; not on a device with the
        # feature "pageable_copies".
        return storage.host_address is not None and (
            self._pageable or storage.memory is MemoryType.HOST
        )

    def _live(self) -> None:
        """Raise unless the device is open."""
        if self._closed:
            again = self.name.partition("/")[0]
            message = f"{self._name} is closed; open it again with hal.create_device({again!r})"
            raise ClosedError(message)
