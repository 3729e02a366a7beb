"""The device parameters about the use of memory (rule M1)."""

from typing import Any, Final, NamedTuple

from hal.arguments import as_choice, number_of, shown
from hal.errors import InvalidArgumentError

_FACTORS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_REUSES: Final = ("any", "ordered", "stream")
_LARGEST: Final = 2**63 - 1
_LEAST: Final = {"cache_limit": 0, "memory_limit": 1, "pool_keep": 0}


class MemorySettings(NamedTuple):
    """The parameters of `hal.create_device` about memory."""

    cache_limit: int | None = None
    """The most unused bytes that are kept; None means an eighth of the device's memory."""
    memory_limit: int | None = None
    """The most bytes that hal holds, kept ones included; None means that only the device limits
    it."""
    async_allocations: bool = True
    """Whether `Queue.alloca` takes device memory from the driver's stream-ordered pool, where the
    device has one, and not from the core's own (`hal._memory.segment_pool`)."""
    pool_keep: int | None = None
    """The most unused bytes that the driver's pool may hold; None means the cache limit, or 0 with
    a memory limit."""
    pool_reuse: str = "any"
    """Which freed memory the driver's pool gives to other streams: see
    `hal.native.NativeDevice.configure_pool`."""


def take_settings(parameters: dict[str, str]) -> MemorySettings:
    """Remove the memory parameters from `parameters` and return them.

    Raises `InvalidArgumentError` for a malformed value.
    """
    sizes: dict[str, Any] = {
        name: _size(name, parameters, least) for name, least in _LEAST.items() if name in parameters
    }
    settings = MemorySettings(**sizes)
    if "async_allocations" in parameters:
        text = parameters.pop("async_allocations")
        if text.lower() not in {"true", "false", "1", "0"}:
            raise InvalidArgumentError(f"async_allocations is 'true' or 'false', not {shown(text)}")
        settings = settings._replace(async_allocations=text.lower() in {"true", "1"})
    reuse = parameters.pop("pool_reuse", "any")
    return settings._replace(pool_reuse=as_choice(reuse, _REUSES, "pool_reuse"))


def _size(name: str, parameters: dict[str, str], least: int) -> int:
    """Remove and return a number of bytes such as ``"65536"``, ``"512K"`` or ``"4G"``."""
    text = parameters.pop(name)
    digits, factor = text, 1
    if text and text[-1].upper() in _FACTORS:
        digits, factor = text[:-1], _FACTORS[text[-1].upper()]
    size = number_of(digits) * factor
    if not least <= size <= _LARGEST:
        raise InvalidArgumentError(
            f"{name} is a number of bytes of {least} or more, with K, M or G behind it for "
            f"2**10, 2**20 or 2**30 of them, as in {name}=512M; not {shown(text)}"
        )
    return size
