"""Slots for numbers: scalar arguments and grids, which each execution gives (rule C3).

A binding table has the address of a buffer for a buffer's slot. For a slot of a scalar it has
the bytes that the parameters get, and for one of a grid three numbers. So two tables
are equal if they have the same effect, and a number is converted once for each execution.
"""

from typing import Any, Final, NamedTuple

from hal._base.failures import placed
from hal._kernels.executable import Kernel
from hal._kernels.launch_shape import check_grid
from hal._kernels.packing import is_plain
from hal._memory.extent import Extent
from hal._programs.parameters import POINTERS, SIZED, Parameter
from hal.arguments import as_three
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError
from hal.handlers import own

GRID: Final = -1
"""The argument of a grid, beside the indices of parameters."""


class ValueUse(NamedTuple):
    """A dispatch's use of a slot's number: for a parameter, by its index, or for the `GRID`.

    For a parameter `start` and `size` say where its bytes are in the table's, once it is recorded.
    """

    slot: int
    argument: int
    kernel: Kernel
    start: int = 0
    size: int = 0


class Scalars:
    """The checks of a scalar slot: its value must suit all parameters that it serves."""

    __slots__ = ("_forms", "_size")

    def __init__(self) -> None:
        # For each type of parameter, where its bytes begin, and the first parameter of the type
        self._forms: dict[str, tuple[int, Kernel, int]] = {}
        self._size = 0

    def add(self, use: ValueUse) -> ValueUse:
        """Note a use; return it with the place of its bytes."""
        parameter = use.kernel.signature.parameters[use.argument]
        known = self._forms.get(parameter.type)
        if known is None:
            known = self._forms[parameter.type] = self._size, use.kernel, use.argument
            self._size += parameter.size
        return use._replace(start=known[0], size=parameter.size)

    def convert(self, slot: int, value: object) -> bytes:
        """Return the bytes of a value; raise if it is none for one of the parameters."""
        if isinstance(value, Extent):
            raise _no_number(slot, "a scalar", value, self._whose())
        packed = b""
        for _, kernel, index in self._forms.values():
            try:
                packed += kernel._signature._layout.pack_one(kernel._name, index, value)
            except own(HalError) as error:
                raise placed(f"execute: slot {slot}", error) from error
        return packed

    def codes(self) -> str:
        """Return the code of each form, in order; none if one is no plain number's."""
        found = [kernel.signature.parameters[index] for _, kernel, index in self._forms.values()]
        return "".join([each.code for each in found]) if all(map(is_plain, found)) else ""

    def _whose(self) -> str:
        for _, kernel, index in self._forms.values():
            return f"parameter {kernel.signature.parameters[index]} of kernel {kernel.name!r}"
        return "no command"


class Grids:
    """The checks of a grid slot: one to three numbers within the limits of its kernels."""

    __slots__ = ("_kernel",)

    def __init__(self) -> None:
        self._kernel: Kernel | None = None  # the first one, which errors name

    def add(self, use: ValueUse) -> ValueUse:
        """Note a use; return it."""
        self._kernel = self._kernel or use.kernel
        return use

    def convert(self, slot: int, value: object) -> tuple[int, int, int]:
        """Return the three numbers of a grid; raise if it is none."""
        if isinstance(value, Extent):
            whose = f"kernel {self._kernel.name!r}" if self._kernel else "no command"
            raise _no_number(slot, "a grid", value, whose)
        try:
            if self._kernel is None:
                return as_three(value, "the grid", 0)
            return check_grid(self._kernel, value)
        except own(HalError) as error:
            raise placed(f"execute: slot {slot}", error) from error


def takes_number(parameter: Parameter, kind: str | None) -> bool:
    """Return whether a parameter takes a slot's number, where `kind` is the slot's if known."""
    if parameter.kind in POINTERS:
        return kind == "scalar" and parameter.kind != "ptr"
    return True


def stand_in(parameter: Parameter) -> Any:  # noqa: ANN401 - of any type that the parameter takes
    """Return an argument that a parameter takes, until an execution gives it."""
    if parameter.kind in SIZED.values():
        return bytes(parameter.size)
    return False if parameter.kind == "bool" else 0


def wrong_kind(what: str, takes: str, slot: int, kind: str) -> InvalidArgumentError:
    """Return the error for a slot in a place of another kind."""
    stands = "a number" if kind == "scalar" else f"a {kind}"
    return InvalidArgumentError(
        f"{what} takes {takes}, and slot {slot} stands for {stands}; take another slot, whose kind "
        "device.record(slots=[...]) gives: a dtype for a buffer, 'scalar' or 'grid'"
    )


def _no_number(slot: int, kind: str, value: object, whose: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"execute: slot {slot} stands for {kind}, of {whose}, and takes no {type(value).__name__}"
    )
