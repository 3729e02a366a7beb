"""Let the compiler tabulate kernel parameters, and read its table back.

The type of a parameter may be a user's alias, structure or enumeration, whose
size cannot be read from the text. So C++ is appended to the source: constant
expressions over the parameters' own types, in two globals of the image.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from hal._programs.parameters import Parameter, element_name
from hal._programs.printing import PARAMETER
from hal._programs.signature import Signature
from hal.errors import InvalidArgumentError
from hal.handlers import own
from hal.native import EntryPoint

_MAGIC: Final = int.from_bytes(b"hal\0", "little")
_VERSION: Final = 3  # the version of the table's format; the first had no number
# The numbers of the kinds in the table, in order.
_KINDS: Final = ("", "ptr", "int", "uint", "float", "bool", "record", "bfloat")
_ROW: Final = struct.Struct("<4I")
_DAMAGED: Final = "the image's table of kernel parameters is damaged; compile the source again"
# Every name begins with hal_, because the user's macros (N, T, value) are active here.
_TRAITS: Final = """
#line 1 "hal_type_table"
struct __half;  // the 16-bit floats, whether their headers are included or not
struct __nv_bfloat16;
#ifdef __clang__  // a parameter that is volatile is the user's
#pragma clang diagnostic ignored "-Wdeprecated-volatile"
#endif
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
// GCC 12 has the type's limits on ARM, and the type in C only.
#if defined(__FLT16_MAX__) && !defined(__CUDACC__) && \
    !(defined(__aarch64__) && !defined(__clang__) && __GNUC__ < 13)
template <> struct hal_kind<_Float16> : hal_is<4> {};
#endif
template <> struct hal_kind<__half> : hal_is<4> {};
template <> struct hal_kind<__nv_bfloat16> : hal_is<7> {};
template <> struct hal_kind<float> : hal_is<4> {};
template <> struct hal_kind<double> : hal_is<4> {};
template <> struct hal_kind<long double> : hal_is<(sizeof(long double) > 8) ? 6 : 4> {};
template <> struct hal_kind<bool> : hal_is<5> {};
// What a pointer points to, as its kind and size, if its type is complete: no function, no void.
template <typename hal_t> struct hal_is_object { static constexpr bool hal_yes = false; };
template <typename hal_t> struct hal_is_object<const hal_t> {
  static constexpr bool hal_yes = true;
};
template <> struct hal_is_object<const void> { static constexpr bool hal_yes = false; };
template <unsigned long long hal_n> struct hal_sized { using hal_type = void; };
template <typename hal_t, bool hal_object, typename hal_v> struct hal_element {
  static constexpr unsigned int hal_bits = 0;
};
template <typename hal_t>
struct hal_element<hal_t, true, typename hal_sized<sizeof(hal_t)>::hal_type> {
  static constexpr unsigned int hal_size = sizeof(hal_t) < 0x1000000 ? sizeof(hal_t) : 0;
  static constexpr unsigned int hal_bits =
      hal_size ? hal_kind<hal_t>::hal_value << 4 | hal_size << 8 : 0;
};
template <typename hal_t>
struct hal_pointee : hal_element<hal_t, hal_is_object<const hal_t>::hal_yes, void> {};
// Through a pointer to what is const the kernel only reads.
template <typename hal_t> struct hal_pointer { static constexpr unsigned int hal_flag = 0; };
template <typename hal_t> struct hal_pointer<hal_t *> {
  static constexpr unsigned int hal_flag = hal_pointee<hal_t>::hal_bits;
};
template <typename hal_t> struct hal_pointer<const hal_t *> {
  static constexpr unsigned int hal_flag = hal_pointee<hal_t>::hal_bits | 1;
};
template <typename hal_t> struct hal_pointer<volatile hal_t *> {
  static constexpr unsigned int hal_flag = hal_pointee<hal_t>::hal_bits;
};
template <typename hal_t> struct hal_pointer<const volatile hal_t *> {
  static constexpr unsigned int hal_flag = hal_pointee<hal_t>::hal_bits | 1;
};
// A function type makes the language adjust its parameter: arrays decay, qualifiers fall off.
template <typename hal_t> struct hal_parameter;
template <typename hal_t> struct hal_parameter<void(hal_t)> : hal_kind<hal_t>, hal_pointer<hal_t> {
  static constexpr unsigned int hal_size = sizeof(hal_t);
  static constexpr unsigned int hal_alignment = alignof(hal_t);
  static constexpr bool hal_copyable = __is_trivially_copyable(hal_t);
};
// A number's own type. No function compares it: NVRTC takes none that is not a device's.
template <typename hal_t> struct hal_bare { using hal_type = hal_t; };
template <typename hal_t> struct hal_bare<hal_t &> { using hal_type = hal_t; };
template <typename hal_t> struct hal_bare<hal_t &&> { using hal_type = hal_t; };
}
"""


class KernelEntry(NamedTuple):
    """A kernel, as it is known before its image is loaded, and the launch that it is made for."""

    signature: Signature | None  # None where only loading tells
    block: tuple[int, int, int] | None = None  # threads in x, y and z
    shared_memory: int = 0  # dynamic, in bytes


def type_table(entries: Sequence[EntryPoint], suffix: str = "") -> str:
    """Return C++17 text that makes the compiler tabulate the kernels and their parameters.

    The text goes after the source, at global scope, and includes nothing. It
    defines two globals with C names, marked with the macro ``HAL_TABLE``, which
    must be defined before it: ``const char hal_kernels[]``, such as
    ``"saxpy(a,x,y,n);blur(in,out)"``, and ``const unsigned int
    hal_parameters[]``, in rows of four: first a constant that identifies the
    table, its version, and the numbers of kernels and parameters; then for each
    kernel the three numbers of its block (zeros: none) and its shared memory,
    followed by kind, size, alignment and flag of every parameter: 1 for a pointer
    to const, 16 times the kind and 256 times the size of what a pointer points to. The
    compiler refuses a parameter that is not trivially copyable, and a block or
    shared memory that is not constant or too small, with the kernel in its message.

    A kernel under an ``#if`` is listed whether or not it was compiled, so
    everything that its parameters and marks mention must exist either way.
    `suffix` is appended to the globals' names, where images are linked.
    """
    lines: list[str] = []
    count = sum(len(entry.parameters) for entry in entries)
    rows = [f"{_MAGIC}, {_VERSION}, {len(entries)}, {count}"]
    number = 0
    for entry in entries:
        sizes = [f"({text})" for text in entry.block]
        shared = f"({entry.shared_memory or 0})"
        lines += [
            f"static_assert((long long){text} >= {least}, "
            f"\"kernel '{entry.name}': {mark} takes {least} or more\");\n"
            f"static_assert((long long){text} <= 0xffffffffll && "
            f"(hal_detail::hal_bare<decltype({text})>::hal_type)(long long){text} == {text}, "
            f"\"kernel '{entry.name}': {mark} takes whole numbers below 2**32\");\n"
            for texts, least, mark in ((sizes, 1, "HAL_BLOCK"), ([shared], 0, "HAL_SHARED_MEMORY"))
            for text in texts
        ]
        # Ones fill up a block of one or two numbers; zeros mean no block.
        sizes = (sizes + ["1"] * 2)[:3] if sizes else ["0"] * 3
        rows.append(", ".join(f"(unsigned int){text}" for text in (*sizes, shared)))
        for text, name in entry.parameters:
            alias = f"hal_p{number}"
            number += 1
            lines.append(
                f"using {alias} = hal_detail::hal_parameter<void({text})>;\n"
                f"static_assert({alias}::hal_copyable, "
                f"\"kernel '{entry.name}': parameter '{name}' must be trivially copyable\");\n"
            )
            rows.append(
                f"{alias}::hal_value, {alias}::hal_size, {alias}::hal_alignment, {alias}::hal_flag"
            )
    heads = (f"{entry.name}({','.join(name for _, name in entry.parameters)})" for entry in entries)
    # Directly after `extern "C"` the definitions have external linkage, const or not.
    return (
        f"{_TRAITS}{''.join(lines)}"
        f'extern "C" HAL_TABLE const char hal_kernels{suffix}[] = "{";".join(heads)}";\n'
        f'extern "C" HAL_TABLE const unsigned int hal_parameters{suffix}[] = '
        f"{{{', '.join(rows)}}};\n"
    )


def read_type_table(kernels: bytes, parameters: bytes) -> dict[str, KernelEntry]:
    """Return what the bytes of a type table's two globals say of each kernel.

    Raises `InvalidArgumentError` if they do not have the format of `type_table`,
    or have that of another version of hal.
    """
    magic, version = (
        struct.unpack_from("<2I", parameters) if len(parameters) >= _ROW.size else (0, 0)
    )
    if magic != _MAGIC or version != _VERSION:
        found = f"of version {version}" if magic == _MAGIC else "of an older version or damaged"
        raise InvalidArgumentError(
            f"the image's table of kernel parameters is {found}, and this hal reads version "
            f"{_VERSION}; compile the source again, or pass signatures={{'name': '(f32 a, ptr x)'}}"
        )
    entries: dict[str, KernelEntry] = {}
    try:
        _, *rows = _ROW.iter_unpack(parameters)
        counts = struct.unpack_from("<2I", parameters, 8)
        heads = bytes(kernels).rstrip(b"\0").decode()
        position = 0
        for head in heads.split(";") if heads else ():
            name, _, inside = head.removesuffix(")").partition("(")
            names = inside.split(",") if inside else []
            *block, shared_memory = rows[position]
            described = rows[position + 1 : position + 1 + len(names)]
            position += 1 + len(names)
            typed: list[Parameter] = []
            for each, (kind, size, alignment, flag) in zip(names, described, strict=True):
                element = element_name(_KINDS[flag >> 4 & 15], flag >> 8)
                element = "" if each == PARAMETER else element
                typed.append(
                    Parameter(each, _KINDS[kind], size, alignment, bool(flag & 1), element)
                )
            x, y, z = block if all(block) else (0, 0, 0)
            threads = (x, y, z) if x else None
            entries[name] = KernelEntry(Signature(typed), threads, shared_memory)
    except own(struct.error, UnicodeDecodeError, ValueError, IndexError) as error:
        raise InvalidArgumentError(_DAMAGED) from error
    if (len(entries), position - len(entries)) != counts or position != len(rows):
        raise InvalidArgumentError(_DAMAGED)
    return entries
