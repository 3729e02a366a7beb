"""A kernel's typed parameters: check arguments by name and lay them out for a launch.

A `Signature` is compiled once per kernel and packs many times. So `pack`
looks only at the arguments' types, and caches for each combination of them the
conversions that the values need. `struct` checks ranges while it packs; only
when it refuses does `pack` look for the argument at fault.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Mapping, Sequence
from ctypes import addressof
from typing import Any, Final

import numpy as np

from hal._programs.elements import alignment_of, fits, is_element, refusal, sure_dtypes
from hal._programs.parameters import (
    POINTERS,
    SIZED,
    STORAGE_ALIGNMENT,
    TYPES,
    Converter,
    Layout,
    Parameter,
    ParameterBlock,
    Resolver,
    conversion,
    wrong_type,
)
from hal._programs.printing import PARAMETER, OutputPlace
from hal.arguments import as_items, as_mapping, as_text, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.handlers import own

_PackPlan = tuple[tuple[tuple[int, str], ...], tuple[tuple[int, Converter], ...]]

_POINTER: Final = 8
_RECORD_ALIGNMENT: Final = 16  # C++'s largest alignment of a structure without alignas
_MAX_PLANS: Final = 64
_SHOWN: Final = 200
_DECLARATION: Final = (
    r"\s*(?P<const>const\s+)?(?P<type>\w+)(?:\[(?P<size>[0-9]{1,18})\])?(?P<star>\s*\*)?"
    r"(?:(?:\s+|(?<=\*))(?P<name>[\w$]+))?\s*"
)


class Signature:
    """The typed parameters of a kernel, ready to pack arguments.

    Immutable; any thread may use it. `str` gives ``"(f32 a, const f32* x, ptr
    y, bytes[12] p)"``, which `parse` reads. Signatures are equal when their
    parameters are.

    `parameters` are in the kernel's order; raises `InvalidArgumentError` if two share a name.
    `constants` are the names of the pointers through which the kernel only reads. `output` is the
    name of the parameter that takes a `hal.Output` and may be left out, always the last one;
    None for a kernel that prints nothing.
    """

    __slots__ = (
        "_alignment",
        "_elements",
        "_layout",
        "_names",
        "_offsets",
        "_ones",
        "_pack_into",
        "_plans",
        "_pointer_bytes",
        "_storage_type",
        "constants",
        "output",
        "parameters",
    )

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters: Final = tuple(parameters)
        self._names = dict.fromkeys(parameter.name for parameter in self.parameters)
        if len(self._names) != len(self.parameters):
            raise InvalidArgumentError(f"{self} has two parameters of one name; give each its own")
        self.constants: Final = frozenset([each.name for each in self.parameters if each.is_const])
        # For pointers to known elements: the dtypes that surely fit, and the address bits to be 0
        self._elements = {
            each.name: (sure_dtypes(each.element), alignment_of(each.element) - 1)
            for each in self.parameters
            if each.element
        }
        # The pointers stand first, then the values, each aligned.
        self._pointer_bytes = end = _POINTER * len(self.parameters)
        code = f"<{end}s"
        offsets: list[int] = []
        # All pointers as one number: the base times `ones`, plus the offsets. One multiplication
        # costs a third of one addition per argument.
        self._ones = self._offsets = 0
        self._alignment = unit = 1
        for parameter in self.parameters:
            alignment = parameter.alignment
            offset = -(-end // alignment) * alignment
            code += f"{offset - end}x{parameter.code}"
            end = offset + parameter.size
            offsets.append(offset)
            self._alignment = max(self._alignment, alignment)
            self._ones += unit
            self._offsets += unit * offset
            unit <<= 8 * _POINTER
        self._layout = Layout(self.parameters, tuple(offsets))
        self._pack_into = struct.Struct(code).pack_into
        slack = self._alignment if self._alignment > STORAGE_ALIGNMENT else 0
        self._storage_type = ctypes.c_char * max(1, end + slack)
        self._plans: dict[tuple[type, ...], _PackPlan] = {}
        has_output = bool(parameters) and self.parameters[-1].name == PARAMETER
        self.output: Final = PARAMETER if has_output else None

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Return the signature described by a text like ``"(f32 a, const f32* x, bytes[12] p)"``.

        The parentheses and the names may be left out (``"ptr,u32"``); a
        parameter without a name is called ``arg0``, ``arg1`` and so on by its
        position. ``f32*`` is a pointer to such elements, which its buffers must
        have, and ``ptr`` is a pointer to any; with ``const`` the kernel only
        reads through it.
        Records (``bytes[N]``) are aligned to 16 bytes, ``any[N]`` (something
        of that size) as far as its size allows. Raises `InvalidArgumentError`
        for anything else, and lists the known types.
        """
        text = as_text(text, "a signature is text such as '(f32 a, ptr x)'")
        inside = text.strip()
        if inside.startswith("(") and inside.endswith(")"):
            inside = inside[1:-1].strip()
        parameters: list[Parameter] = []
        for index, part in enumerate(inside.split(",") if inside else ()):
            match = re.fullmatch(_DECLARATION, part)
            parameter = _parameter(match, index) if match else None
            if parameter is None:
                raise InvalidArgumentError(
                    f"signature {_shortened(text)}: {_shortened(part.strip())} is no parameter; "
                    "write a type and a name, as in '(f32 a, const f32* x)', with one of "
                    f"{', '.join(TYPES)}, bytes[N], any[N], or a pointer to one of them, f32* or "
                    "const f32*"
                )
            parameters.append(parameter)
        return cls(parameters)

    def pack(
        self,
        kernel_name: str,
        arguments: Sequence[object] | Mapping[str, object],
        resolve: Resolver,
    ) -> ParameterBlock:
        """Check arguments and pack them for a launch.

        A pointer takes a buffer, or None for a null pointer, and never a
        number. An integer takes an int or a numpy integer in its range; a
        float takes those and floats, rounded once to the nearest; a bool takes
        a bool. A record takes exactly its bytes: bytes-like, a numpy record or
        array, or a ctypes structure.

        `kernel_name` is the kernel's name in errors. `arguments` are in order, or by name; a last
        one called ``hal_output`` is a `hal.Output`, and null if it is left out. `resolve` is called
        once with each pointer's argument that is not None, and its exceptions are passed on.
        Raises `ArgumentTypeError` if arguments are missing, surplus or of a type that their
        parameter does not take, and `InvalidArgumentError` if a value is out of its parameter's
        range, or a record has another size.
        """
        if type(arguments) is not tuple:
            arguments = self._in_order(kernel_name, arguments)
        plan = self._plans.get(tuple(map(type, arguments)))
        if plan is None:
            if self.output is not None and len(arguments) == len(self.parameters) - 1:
                return self.pack(kernel_name, (*arguments, None), resolve)
            plan = self._make_plan(kernel_name, arguments)
        pointers, conversions = plan
        values: list[Any] = [*arguments]
        for index, name in pointers:
            address = resolve(values[index], name)
            if address is None:
                raise wrong_type(kernel_name, self.parameters[index], values[index])
            values[index] = address
        storage = self._storage_type()
        base = addressof(storage)
        offset = 0
        if self._alignment > STORAGE_ALIGNMENT:
            offset = -base % self._alignment
            base += offset
        try:
            for index, convert in conversions:
                values[index] = convert(values[index])
            addresses = (base * self._ones + self._offsets).to_bytes(self._pointer_bytes, "little")
            values[:0] = (storage, offset, addresses)
            self._pack_into(*values)
        except own(struct.error, OverflowError, ValueError, TypeError):
            for index, argument in enumerate(arguments):
                self._layout.pack_one(kernel_name, index, argument)
            raise
        return ParameterBlock(self._layout, storage, base)

    def _check_buffer(
        self, kernel_name: str, name: str, dtype: np.dtype[Any], address: int = 0
    ) -> None:
        """Raise unless a buffer of that dtype, at that address, may be passed for a parameter.

        Raises `ArgumentTypeError` if its elements are not the pointer's, and
        `InvalidArgumentError` for an address that is not a multiple of their size.
        """
        parameter = next(each for each in self.parameters if each.name == name)
        whose = f"kernel '{kernel_name}': parameter '{name}' ({parameter.type})"
        if not fits(parameter.element, dtype):
            raise ArgumentTypeError(f"{whose} {refusal(parameter.element, dtype)}")
        alignment = alignment_of(parameter.element)
        if address % alignment:
            raise InvalidArgumentError(
                f"{whose} takes memory that begins at a multiple of {alignment} bytes, and the "
                f"buffer begins at {address:#x}"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signature) and self.parameters == other.parameters

    def __hash__(self) -> int:
        return hash(self.parameters)

    def __reduce__(self) -> tuple[object, ...]:
        return Signature, (self.parameters,)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.parameters))})"

    def __repr__(self) -> str:
        return f"Signature({self.parameters!r})"

    def _make_plan(self, kernel_name: str, arguments: tuple[object, ...]) -> _PackPlan:
        """Check the number and the types of arguments, and cache their conversions."""
        count = len(self.parameters)
        if len(arguments) != count:
            missing = [parameter.name for parameter in self.parameters[len(arguments) :]]
            surplus = [f"argument {i + 1}" for i in range(count, len(arguments))]
            raise self._wrong_count(kernel_name, len(arguments), missing, surplus)
        last = arguments[-1] if self.output else None
        if last is not None and not isinstance(last, OutputPlace):
            raise ArgumentTypeError(
                f"kernel '{kernel_name}': parameter '{PARAMETER}', which it prints to, takes a "
                "hal.Output(device), a slot, or None for the driver's printf, not "
                f"{type(last).__name__}"
            )
        pointers: list[tuple[int, str]] = []
        conversions: list[tuple[int, Converter]] = []
        for index, parameter in enumerate(self.parameters):
            convert = conversion(kernel_name, parameter, arguments[index])
            if convert is not None:
                conversions.append((index, convert))
            elif parameter.kind in POINTERS:
                pointers.append((index, parameter.name))
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()  # types made at run time must not pile up
        plan = (tuple(pointers), tuple(conversions))
        self._plans[tuple(map(type, arguments))] = plan
        return plan

    def _in_order(self, kernel_name: str, arguments: object) -> tuple[object, ...]:
        if isinstance(arguments, Mapping):
            arguments = as_mapping(arguments, "arguments by name are a mapping")
            if self.output is not None and PARAMETER not in arguments:
                arguments = {**arguments, PARAMETER: None}
            if arguments.keys() == self._names.keys():
                return tuple(map(arguments.__getitem__, self._names))
            missing = [name for name in self._names if name not in arguments]
            surplus = [shown(name) for name in arguments if name not in self._names]
            raise self._wrong_count(kernel_name, len(arguments), missing, surplus)
        if isinstance(arguments, Sequence) and not isinstance(arguments, (str, bytes, bytearray)):
            return as_items(arguments, f"kernel '{kernel_name}': args are a tuple")
        raise ArgumentTypeError(
            f"kernel '{kernel_name}' takes its arguments as a tuple or, by name, as a mapping, "
            f"not as {type(arguments).__name__}; write (value,) for a single one"
        )

    def _wrong_count(
        self, kernel_name: str, given: int, missing: list[str], surplus: list[str]
    ) -> ArgumentTypeError:
        wrong = [f"missing: {', '.join(missing)}"] if missing else []
        wrong += [f"not in the signature: {', '.join(surplus)}"] if surplus else []
        return ArgumentTypeError(
            f"kernel '{kernel_name}' takes {len(self.parameters)} arguments {self}, got {given} "
            f"({'; '.join(wrong)})"
        )


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."


def _parameter(match: re.Match[str], index: int) -> Parameter | None:
    name = match["name"] or f"arg{index}"
    is_const = match["const"] is not None
    if match["star"]:
        element = match["type"] + (f"[{match['size']}]" if match["size"] else "")
        return Parameter(name, "ptr", 8, 8, is_const, element) if is_element(element) else None
    if match["size"] is not None:
        kind, size = SIZED.get(match["type"], ""), int(match["size"])
        if not kind or is_const:
            return None
        alignment = (
            min(size & -size or 1, _RECORD_ALIGNMENT) if kind == "any" else _RECORD_ALIGNMENT
        )
        return Parameter(name, kind, size, alignment)
    kind, size = TYPES.get(match["type"], ("", 0))
    if not kind or (is_const and kind != "ptr"):
        return None
    return Parameter(name, kind, size, size, is_const)
