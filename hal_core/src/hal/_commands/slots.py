"""Slots: places of a recording that each execution fills with its own (rule C3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from hal._base.checks import check_index, explain_range
from hal._commands.hazards import END
from hal._commands.temporaries import Arena, Life
from hal._commands.values import Grids, Scalars, ValueUse, wrong_kind
from hal._memory.core import DeviceCore
from hal._memory.extent import shape_of
from hal._memory.usage import DISPATCH
from hal._programs.printing import OutputPlace
from hal.arguments import as_dtype, as_int, as_items, shown
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError
from hal.handlers import own

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


SlotSpecs: TypeAlias = (
    "int | Sequence[DTypeLike | tuple[DTypeLike, int] | tuple[DTypeLike, int | None, DeviceCore]]"
)
"""The number of a recording's slots, or what each takes: a dtype, with bytes and whose memory it
is if that matters, or a kind.
"""

_MOST: Final = 1 << 16  # the most slots of one recording
_VALUES: Final[dict[str | None, type[Scalars | Grids]]] = {"scalar": Scalars, "grid": Grids}
_COUNTED: Final = object()  # instead of a dtype: the slot was only counted
DIRECT: Final = -1
"""The memory of all buffers given directly, for `hal._commands.hazards.Access`."""


class Slot(OutputPlace):
    """A placeholder for what is given when the recording is executed.

    Taken from `CommandBuffer.slots`. A buffer slot is accepted wherever the recording takes a
    buffer, a scalar slot as an argument of `CommandBuffer.dispatch` that is not a pointer, and a
    grid slot as its grid; each in any number of commands. `size` is the number of bytes that a
    bound buffer has at least, if it was given when the recording began, or None. A fill or a copy
    of a slot without a size needs a size of its own; a kernel may use the whole bound buffer.
    """

    __slots__ = ("_dtype", "_index", "_life", "_offset", "_size", "_slots")

    def __init__(
        self,
        slots: Slots,
        index: int,
        offset: int,
        size: int,
        dtype: np.dtype[Any],
        life: Life | None = None,
    ) -> None:
        self._life = life  # of the temporary that it is, or is part of
        self._slots = slots
        self._index = index
        self._offset = offset
        self._size = size  # END if there is none
        self._dtype = dtype

    @property
    def index(self) -> int:
        """The slot's place in the binding table."""
        return self._index

    @property
    def kind(self) -> str:
        """The kind of value: ``"buffer"``, ``"scalar"`` or ``"grid"``.

        A slot of ``slots=3``, without a declaration, becomes a scalar slot when the first command
        passes it to a parameter that takes a number.
        """
        return self._slots._rules[self._index].kind or "buffer"

    @property
    def offset(self) -> int:
        """Its beginning, in bytes from the start of the bound buffer."""
        return self._offset

    @property
    def size(self) -> int | None:
        """The size in bytes, or None where only the binding has one."""
        return self._size if self._offset + self._size < END else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of an element, which a fill converts numbers to.

        Bytes unless the recording began with another type. A slot of bytes takes
        any buffer whose elements fit the kernels' pointers.
        """
        return self._dtype

    def subspan(
        self, offset: int, size: int | None = None, *, dtype: DTypeLike | None = None
    ) -> Slot:
        """Return a part of the slot: `size` bytes from `offset` on; None means all of the rest.

        `dtype` is this slot's unless given. Raises `InvalidArgumentError` for
        bytes outside a slot with a size, and for a slot of a number.
        """
        self._slots._check_kind(self, "subspan")
        start = check_index(offset, "subspan: the offset")
        length = self._size - start if size is None else check_index(size, "subspan: the size")
        if start > self._size or length > self._size - start:
            asked = None if size is None else length
            thing = f"slot {self._index}" if self._life is None else "the temporary"
            message = explain_range("subspan", start, asked, thing, self._size)
            raise InvalidArgumentError(message)
        kind = self._dtype if dtype is None else as_dtype(dtype)
        return Slot(self._slots, self._index, self._offset + start, length, kind, self._life)

    def view(self, dtype: DTypeLike) -> Slot:
        """Return the slot with its bytes read as elements of another type, as in `Buffer.view`.

        The bound buffer is not compared with that type.
        """
        self._slots._check_kind(self, "view")
        kind = as_dtype(dtype)
        return Slot(self._slots, self._index, self._offset, self._size, kind, self._life)

    def __repr__(self) -> str:
        if self._life is not None:
            state = ", given back" if self._life.is_over else ""
            return f"<Temporary {self._dtype}, {self._size} bytes{state}>"
        if self.kind != "buffer":
            return f"<Slot {self._index} for a {self.kind}>"
        size = "of any size" if self.size is None else f"{self.size} bytes"
        return f"<Slot {self._index} from {self._offset}, {self._dtype}, {size}>"


class SlotRule:
    """The kind and the size of what a slot stands for, and what the commands need of it."""

    __slots__ = (
        "alignment",
        "device",
        "dtype",
        "elements",
        "kind",
        "needed",
        "numbers",
        "rights",
        "size",
    )

    def __init__(
        self, device: DeviceCore, dtype: np.dtype[Any], size: int, kind: str | None
    ) -> None:
        self.device = device  # whose memory it stands for
        self.dtype = dtype
        self.size = size  # END if none was given
        self.kind = kind  # None until a command has decided
        self.needed = 0 if size == END else size
        self.alignment = 1
        self.rights = 0  # bits of `hal._memory.usage`
        self.elements: set[str] = set()
        self.numbers = _VALUES[kind]() if kind in _VALUES else None  # which numbers it takes


class Slots(Sequence[Slot]):
    """The slots of one recording, with a rule for each.

    Once there are temporaries, the rule of a hidden slot for their plan follows.
    """

    __slots__ = ("__weakref__", "_arena", "_count", "_device", "_rules")

    def __init__(self, device: DeviceCore, specs: object) -> None:
        self._device = device
        self._rules: list[SlotRule] = []
        for index, (dtype, size, owner) in enumerate(_read_specs(specs, device)):
            what = f"slot {index}"
            is_value = type(dtype) is str and size is None and dtype in _VALUES
            known = dtype if is_value else None if dtype is _COUNTED else "buffer"
            try:
                kind = as_dtype(dtype if known == "buffer" else np.uint8)
            except own(ArgumentTypeError) as error:
                message = f"{what}: {error}, and neither of the kinds 'scalar' and 'grid'"
                raise ArgumentTypeError(message) from error.__cause__
            shape_of(0, kind, what)
            length = END if size is None else check_index(size, f"{what}: the size")
            self._rules.append(SlotRule(owner, kind, length, known))
        self._count = len(self._rules)
        self._arena: Arena | None = None  # of the temporaries

    def __len__(self) -> int:
        return self._count

    def _take_temporary(self, size: int, dtype: np.dtype[Any]) -> Slot:
        arena = self._arena
        if arena is None:
            arena = self._arena = Arena()
            self._rules.append(SlotRule(self._device, np.dtype(np.uint8), END, "buffer"))
        life = arena.take(size or 1)
        return Slot(self, self._count, life.start, size, dtype, life)

    def _give_temporary(self, temporary: object, last: int) -> None:
        """End a temporary, whose commands are up to `last`.

        Raises unless it is a whole one of this recording that has not ended.
        """
        life = temporary._life if isinstance(temporary, Slot) else None
        if not isinstance(temporary, Slot) or life is None:
            raise ArgumentTypeError(
                "dealloca takes a temporary of this recording (commands.alloca()), not "
                f"{type(temporary).__name__}; other memory outlives its executions"
            )
        self._check_own(temporary, "dealloca")
        if temporary._offset != life.start or (temporary._size or 1) != life.size:
            message = "dealloca takes the whole temporary that alloca returned, not a part of it"
            raise InvalidArgumentError(message)
        life.is_over = True
        life.last = last

    @property
    def kinds(self) -> tuple[str, ...]:
        """The `Slot.kind` of each slot."""
        return tuple([each.kind or "buffer" for each in self._rules[: self._count]])

    def _check_kind(self, slot: Slot, what: str, kind: str = "buffer") -> None:
        """Raise unless a slot stands for something of a kind, or may."""
        known = self._rules[slot._index].kind
        if known is not None and known != kind:
            takes = "a number" if kind == "scalar" else f"a {kind}"
            raise wrong_kind(what, takes, slot._index, known)

    def _check_own(self, slot: Slot, what: str, kind: str = "") -> None:
        """Raise unless an object is a slot of this recording that can be used."""
        life = slot._life
        if slot._slots is not self:
            kind = "slot" if life is None else "temporary"
            message = f"{what}: the {kind} is another recording's; take it from this one"
            raise InvalidArgumentError(message)
        if life is not None and life.is_over:
            raise ClosedError(f"{what}: the temporary was given back with dealloca; take another")
        if kind:
            self._check_kind(slot, what, kind)

    def _check_device(self, slot: Slot, device: DeviceCore, what: str, rights: int) -> None:
        """Raise unless commands of a device may use a slot for memory in this way."""
        owner = self._rules[slot._index].device
        if owner is device or (rights & DISPATCH and owner._context in device._access):
            return
        if slot._life is not None:
            message = (
                f"{what}: the temporary is memory of {owner._name}, and this command is one of "
                f"{device._name}; copy it there first, with copy()"
            )
        else:
            message = (
                f"{what}: slot {slot._index} stands for memory of {owner._name}, and this command "
                f"is one of {device._name}; declare the slot for that device, with "
                "device.record(slots=[(dtype, bytes or None, device), ...]), or copy() it there"
            )
        raise InvalidArgumentError(message)

    def __getitem__(self, index: int) -> Slot:  # type: ignore[override] # slots are not sliced
        number = as_int(index, "a slot's index is an int")
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise _SlotIndexError(
                f"there is no slot {shown(number)}: the recording has {len(self)}; ask for more "
                "with device.record(slots=...)"
            )
        return Slot(self, number, 0, self._rules[number].size, self._rules[number].dtype)

    def __iter__(self) -> Iterator[Slot]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<Slots {', '.join(map(repr, self))}>"

    def need(self, index: int, size: int, alignment: int, rights: int, element: str) -> None:
        """Note that a command uses the first `size` bytes, from a multiple of `alignment` on.

        It also needs certain rights, bits of `hal._memory.usage`, and elements, if they matter.
        """
        rule = self._rules[index]
        rule.kind = "buffer"
        if element:
            rule.elements.add(element)
        rule.rights |= rights
        rule.needed = max(rule.needed, size)
        rule.alignment = max(rule.alignment, alignment)

    def need_value(self, use: ValueUse) -> ValueUse:
        """Note that a command uses a slot's number; return the use with the place of its bytes."""
        rule = self._rules[use.slot]
        if rule.numbers is None:
            rule.kind, rule.numbers = "scalar", Scalars()  # it was only counted
        return rule.numbers.add(use)


class _SlotIndexError(InvalidArgumentError, IndexError):
    """The error for a missing slot; also an `IndexError`, which iterating relies on."""


def _read_specs(specs: object, device: DeviceCore) -> list[tuple[Any, object, DeviceCore]]:
    """Return the type or kind, the size, or None, and the device of each slot."""
    rule = (
        "record: slots are a number, or a list that has a dtype, a (dtype, bytes), a (dtype, bytes "
        "or None, device), 'scalar' or 'grid' for each"
    )
    if isinstance(specs, (list, tuple, range)):
        given = as_items(specs, rule)
    else:
        count = as_int(specs, rule)
        if count < 0:
            message = f"record: the number of slots is 0 or more; {shown(count)} was given"
            raise InvalidArgumentError(message)
        given = ((_COUNTED, None),) * min(count, _MOST + 1)
    if len(given) > _MOST:
        message = f"record: a recording has {_MOST} slots at most, not {shown(specs)}"
        raise InvalidArgumentError(message)
    found = []
    for each in given:
        dtype, size, owner = each, None, device
        if isinstance(each, tuple) and len(each) == 2:  # noqa: PLR2004 - a pair
            dtype, size = each
        elif isinstance(each, tuple) and len(each) == 3:  # noqa: PLR2004 - and a device
            dtype, size, owner = each
            if not isinstance(owner, DeviceCore):
                raise ArgumentTypeError(f"{rule}; {type(owner).__name__} is no device")
            owner._live()
        found.append((dtype, size, owner))
    return found
