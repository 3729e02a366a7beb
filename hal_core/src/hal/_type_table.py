"""Let the compiler tabulate what a kernel's parameters are, and read its table back.

The type of a parameter may be an alias, a structure or an enumeration of the
user, and no reader of text knows its size. So C++ is appended to the source:
constant expressions over the parameters' own types, in two globals of the image.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from hal._signature import Parameter, Signature
from hal.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hal.native import EntryPoint

__all__ = ["read_type_table", "type_table"]

# The numbers of the kinds in the table, in order; zero ends it.
_KINDS: Final = ("", "ptr", "int", "uint", "float", "bool", "record")
# Every name begins with hal_, because the user's macros (N, T, value) are alive here.
_TRAITS: Final = """
#line 1 "hal_type_table"
namespace hal_detail {
template <typename hal_t> struct hal_kind;
template <typename hal_t, bool hal_enum> struct hal_other {
  static constexpr unsigned int hal_value = 6;
};
template <typename hal_t> struct hal_other<hal_t, true> : hal_kind<__underlying_type(hal_t)> {};
template <typename hal_t> struct hal_kind : hal_other<hal_t, __is_enum(hal_t)> {};
template <unsigned int hal_n> struct hal_is { static constexpr unsigned int hal_value = hal_n; };
template <typename hal_t> struct hal_kind<hal_t *> : hal_is<1> {};
template <> struct hal_kind<decltype(nullptr)> : hal_is<1> {};
template <> struct hal_kind<char> : hal_is<(char(-1) < char(0)) ? 2 : 3> {};
template <> struct hal_kind<signed char> : hal_is<2> {};
template <> struct hal_kind<short> : hal_is<2> {};
template <> struct hal_kind<int> : hal_is<2> {};
template <> struct hal_kind<long> : hal_is<2> {};
template <> struct hal_kind<long long> : hal_is<2> {};
template <> struct hal_kind<unsigned char> : hal_is<3> {};
template <> struct hal_kind<unsigned short> : hal_is<3> {};
template <> struct hal_kind<unsigned int> : hal_is<3> {};
template <> struct hal_kind<unsigned long> : hal_is<3> {};
template <> struct hal_kind<unsigned long long> : hal_is<3> {};
template <> struct hal_kind<wchar_t> : hal_is<(wchar_t(-1) < wchar_t(0)) ? 2 : 3> {};
template <> struct hal_kind<char16_t> : hal_is<3> {};
template <> struct hal_kind<char32_t> : hal_is<3> {};
#ifdef __cpp_char8_t
template <> struct hal_kind<char8_t> : hal_is<3> {};
#endif
#if defined(__FLT16_MAX__) && !defined(__CUDACC__)
template <> struct hal_kind<_Float16> : hal_is<4> {};
#endif
template <> struct hal_kind<float> : hal_is<4> {};
template <> struct hal_kind<double> : hal_is<4> {};
template <> struct hal_kind<long double> : hal_is<(sizeof(long double) > 8) ? 6 : 4> {};
template <> struct hal_kind<bool> : hal_is<5> {};
// A function type makes the language adjust its parameter: arrays decay, qualifiers fall off.
template <typename hal_t> struct hal_parameter;
template <typename hal_t> struct hal_parameter<void(hal_t)> : hal_kind<hal_t> {
  static constexpr unsigned int hal_size = sizeof(hal_t);
  static constexpr unsigned int hal_alignment = alignof(hal_t);
  static constexpr bool hal_copyable = __is_trivially_copyable(hal_t);
};
}
"""


def type_table(entries: Sequence[EntryPoint]) -> str:
    """Return C++17 text that makes the compiler tabulate the kernels' parameters.

    The text goes after the source, at global scope, and includes nothing. It
    defines two globals with C names, marked with the macro ``HAL_TABLE`` that
    must be defined before it: ``const char hal_kernels[]``, such as
    ``"saxpy(a,x,y,n);blur(in,out)"``, and ``const unsigned int
    hal_parameters[]`` with kind, size and alignment of every parameter in the
    same order and three zeros at the end. The compiler refuses a parameter
    that is not trivially copyable, with kernel and parameter in its message.

    A kernel that stands under an ``#if`` is listed whether or not it was
    compiled, and the types of its parameters must exist either way.
    """
    lines: list[str] = []
    rows: list[str] = []
    for entry in entries:
        for text, name in entry.parameters:
            alias = f"hal_p{len(rows)}"
            lines.append(
                f"using {alias} = hal_detail::hal_parameter<void({text})>;\n"
                f"static_assert({alias}::hal_copyable, "
                f"\"kernel '{entry.name}': parameter '{name}' must be trivially copyable\");\n"
            )
            rows.append(f"{alias}::hal_value, {alias}::hal_size, {alias}::hal_alignment, ")
    heads = (f"{entry.name}({','.join(name for _, name in entry.parameters)})" for entry in entries)
    # Directly after `extern "C"` the definitions have external linkage, const or not.
    return (
        f"{_TRAITS}{''.join(lines)}"
        f'extern "C" HAL_TABLE const char hal_kernels[] = "{";".join(heads)}";\n'
        f'extern "C" HAL_TABLE const unsigned int hal_parameters[] = {{{"".join(rows)}0, 0, 0}};\n'
    )


def read_type_table(kernels: bytes, parameters: bytes) -> dict[str, Signature]:
    """Return the signature of each kernel from the bytes of a type table's two globals.

    Raises `InvalidArgumentError` if they are not what `type_table` defines.
    """
    damaged = "the image's table of kernel parameters is damaged; compile the source again"
    try:
        numbers = list(struct.iter_unpack("<3I", parameters))
        heads = bytes(kernels).rstrip(b"\0").decode()
        signatures: dict[str, Signature] = {}
        position = 0
        for head in heads.split(";") if heads else ():
            name, _, inside = head.removesuffix(")").partition("(")
            names = inside.split(",") if inside else []
            signatures[name] = Signature(
                tuple(
                    Parameter(each, _KINDS[kind], size, alignment)
                    for each, (kind, size, alignment) in zip(
                        names, numbers[position : position + len(names)], strict=True
                    )
                )
            )
            position += len(names)
    except (struct.error, UnicodeDecodeError, ValueError, IndexError) as error:
        raise InvalidArgumentError(damaged) from error
    if numbers[position:] != [(0, 0, 0)]:
        raise InvalidArgumentError(damaged)
    return signatures
