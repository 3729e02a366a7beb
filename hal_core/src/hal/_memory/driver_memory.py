"""The native calls that allocate and free a device's memory (rules M1, M3); no books are kept."""

from __future__ import annotations

from typing import Final

from hal._base import sync
from hal._engine import contexts, progress
from hal._engine.device_context import DeviceContext
from hal._memory.blocks import ASYNC, Block, check_countable
from hal._memory.settings import MemorySettings
from hal.errors import ClosedError, HalError
from hal.handlers import dropped


class DriverMemory:
    """The driver's memory of one native device, its stream-ordered pool included."""

    __slots__ = (
        "_context",
        "_is_ended",
        "_keep",
        "_stream",
        "at_hand",
        "frees",
        "growing",
        "housekeeping",
        "is_async",
        "is_closed",
        "is_visible",
    )

    def __init__(self, context: DeviceContext, settings: MemorySettings, cache_limit: int) -> None:
        self._context = context
        self._stream = 0  # for stream-ordered frees of memory that no work uses
        self._is_ended = False
        # Held during native allocations: closing the device waits until they are done
        self.growing: Final = sync.OwnedLock()
        # Held during stream-ordered frees, which never block
        self.housekeeping: Final = sync.OwnedLock()
        self.is_closed = False  # whether the device is being closed; set under `growing`
        # Another object whenever a block has been given back (see `DeviceContext.epoch`)
        self.frees = object()
        # How many bytes of the driver's pool may be in use before the pool must grow, which may
        # block: so many were in use before, and the pool keeps them. C allocates no further.
        self.at_hand = 0
        has_pool = "async_allocations" in context.native.features
        # Whether the driver's pool serves allocas of device memory
        self.is_async = has_pool and settings.async_allocations
        # Whether the host sees that memory, at the same address
        self.is_visible = "host_visible_device_memory" in context.native.features
        if self.is_async:
            keep = settings.pool_keep
            if keep is None:
                keep = cache_limit if settings.memory_limit is None else 0
            context.native.bind()
            context.native.configure_pool(keep, settings.pool_reuse)
            self._keep = keep

    def check_open(self) -> None:
        """Raise `ClosedError` if the device is being closed.

        With the growing lock, or with that of the books, which the close takes after it.
        """
        if self.is_closed:
            message = f"{self._context.name} is closed; open it again with hal.create_device"
            raise ClosedError(message)

    def allocate(self, block: Block) -> None:
        """Make a block's memory; with the growing lock, after `check_open`. May block.

        Raises `OutOfMemoryError`. The block has whatever an interrupt leaves.
        """
        native, memory = self._context.native, block.memory
        check_countable(block.size)
        progress.start()  # a finaliser cannot
        native.bind()
        self.at_hand = 0  # the pool's memory may go to this
        block.address = native.allocate(block.size, memory)
        block.host_address = native.host_pointer(block.address, memory)

    def free(self, block: Block) -> None:
        """Free a block that is out of the books; does nothing on a lost context.

        May block, except for a block of the driver's pool.
        """
        if block.way == ASYNC:
            with self.housekeeping:
                self.free_async(block)
            return
        if not block.address:  # an interrupt came before the allocation
            return
        self.frees = object()
        if self._context.lost is None:
            with dropped(HalError):  # nobody is left to report to
                self._context.native.bind()
                self._context.native.free(block.address, block.memory)

    def free_async(self, block: Block) -> None:
        """Free memory of the driver's pool that nobody uses; with the housekeeping lock."""
        native = self._context.native
        self.frees = object()
        if self._context.lost is None and block.address:  # 0: a Ctrl-C came before it was made
            with dropped(HalError):
                native.bind()
                if not self._stream:
                    self._stream = native.create_stream()
                native.free_async(self._stream, block.address)

    def note_in_use(self, pooled: int) -> None:
        """Note the bytes of the pool that are in use now."""
        self.at_hand = max(self.at_hand, min(pooled, self._keep))

    def pool_statistics(self) -> tuple[int, int] | None:
        """Return the bytes that the driver's pool holds and those in use; None if it is not used.

        With the growing or the housekeeping lock: nobody closes the native device meanwhile.
        """
        if not self.is_async or self.is_closed or self._context.lost is not None:
            return None
        self._context.native.bind()
        return self._context.native.pool_statistics()

    def trim_pool(self, keep: int) -> None:
        """Free memory of the driver's pool until `keep` bytes are left.

        The driver gives back only what a synchronisation has shown to be complete, so
        the streams without work are synchronised first, which does not block.
        """
        if not self.is_async:
            return
        with dropped(HalError):
            contexts.synchronize_idle(self._context)
        with self.growing:
            if self.is_closed or self._context.lost is not None:
                return
            native = self._context.native
            native.bind()
            self.at_hand = 0
            with dropped(HalError):
                if self._stream:
                    native.synchronize_stream(self._stream)
                # Bindings refuse numbers that the driver has no type for.
                native.trim_pool(min(keep, native.info.total_memory))

    def close(self) -> None:
        """Close the native device, once."""
        if self._is_ended:
            return
        native = self._context.native
        if self._stream and self._context.lost is None:
            with dropped(HalError):
                native.bind()
                native.synchronize_stream(self._stream)
                stream, self._stream = self._stream, 0  # cleared first: never destroyed twice
                native.destroy_stream(stream)
        self._is_ended = True
        native.close()
