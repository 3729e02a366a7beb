"""The native call table of a device, checked once when the device is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hal._base import speedups
from hal.arguments import shown
from hal.errors import PluginError
from hal.native import CallTable, NativeDevice

if TYPE_CHECKING:
    from hal._speedups import Calls


_ADDRESS_AT_MOST: Final = 2**64 - 1
_STATUS_AT_MOST: Final = 2**31 - 1
_NUMBERS: Final = frozenset({"not_ready", "most_launches"})
_MAY_BE_ZERO: Final = frozenset({"current", "context", *CallTable._field_defaults})


def table_of(native: NativeDevice, name: str) -> CallTable | None:
    """Return a device's call table, or None if it has none.

    Raises `PluginError` that names the device and the field for one that is wrong: C calls
    what stands in it.
    """
    table = native.call_table()
    if table is None:
        return None
    what = f"{name}: {type(native).__module__}.{type(native).__qualname__}.call_table"
    if not isinstance(table, CallTable):
        message = f"{what} returned {type(table).__name__}, and must return a CallTable or None"
        raise PluginError(message)
    optional = _MAY_BE_ZERO if "graphs" in native.features else _MAY_BE_ZERO | {"launch_graph"}
    for field, value in table._asdict().items():
        least = 0 if field in optional else 1
        most = _STATUS_AT_MOST if field in _NUMBERS else _ADDRESS_AT_MOST
        if type(value) is not int or not least <= value <= most:
            raise PluginError(
                f"{what} has {field}={shown(value)}, which is no int from {least} to {most:#x}"
            )
    return table


def direct_calls(table: CallTable | None, *, in_memory: bool) -> Calls | None:
    """Return a checked table as the C extension takes it; None if one of the two is missing.

    With `in_memory` events are those of `hal._engine.memory_events`, and the table has to have
    what these need.
    """
    if table is None or speedups.module is None:
        return None
    if not in_memory:
        table = table._replace(write_value=0, wait_value=0)  # by these C knows what events are
    elif not (table.write_value and table.wait_value):
        return None
    else:
        table = table._replace(query_stream=0)  # to write a number is cheap, and none is put off
    calls: Calls = speedups.module.Calls(*table)
    return calls
