"""Rewrite portable source so that kernels print into memory of the run.

The rewrite replaces `printf` with a function that records its format and its
arguments. Each kernel that may call it gets one more parameter, behind its
own: a pointer to `hal.Output`'s memory, or null, for the driver's own printf.
The kernel stores the pointer in a variable that its block shares, where the
functions that it calls find it.

A trace is told by its macro how deep it stands in the statements of its function.

A source that prints nothing stays as it is. In one that does, lines keep
their places, and so do columns up to the end of a kernel's parameters. Output
of an included file goes to the driver's printf, as does that of several
linked sources.

A record is a multiple of 8 bytes: its size; the thread and the block, three
32-bit numbers each; the format, and each argument, as a word with its kind
(and from bit 8 on, of a text, its length) and its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, repeat
from typing import Final, NamedTuple

from hal._programs.nesting import nested_words
from hal.cpp_tokens import Token, edited, tokenize
from hal.native import EntryPoint

PARAMETER: Final = "hal_output"
"""The name of the hidden parameter."""

HEADER: Final = 24
"""Bytes in front of the records: their limit, the bytes asked for, and the calls cut."""

UNTRACED: Final = "#define HAL_TRACE(...) ((void)0)\n"
"""The line put before a source that traces nothing."""

_PRINT: Final = "printf"
# Each is as long as the word that it replaces, so that the columns of messages hold.
_RECORD: Final = "hal_pf"
_TRACE: Final = "HAL_TRACE"
_TRACES: Final = tuple(_TRACE if depth == 0 else f"HAL_TRC_{depth}" for depth in range(10))
"""The macros for traces by their depth; deeper ones take the last."""
_INCLUDE: Final = r'^[ \t]*#[ \t]*include[ \t]*"'
# Behind `int` the word is a declaration.
_ELSEWHERE: Final = frozenset({"::", ".", "->", "int"})

_PRELUDE: Final = r"""
struct hal_printed { unsigned long long hal_capacity, hal_used, hal_cut; };
__device__ inline hal_printed *&hal_output_here() {
  __shared__ hal_printed *hal_here;
  return hal_here;
}
struct hal_item {
  unsigned long long hal_kind;
  union {
    unsigned long long hal_bits;
    double hal_number;
    const char *hal_text;
  };
};
__device__ inline hal_item hal_take(double hal_value) {
  hal_item hal_taken;
  hal_taken.hal_kind = 2, hal_taken.hal_number = hal_value;
  return hal_taken;
}
__device__ inline hal_item hal_take(float hal_value) { return hal_take((double)hal_value); }
__device__ inline hal_item hal_take(long double hal_value) { return hal_take((double)hal_value); }
template <typename hal_t> __device__ inline hal_item hal_take(hal_t *hal_value) {
  hal_item hal_taken;
  hal_taken.hal_kind = 3, hal_taken.hal_text = (const char *)hal_value;
  return hal_taken;
}
__device__ inline hal_item hal_take(decltype(nullptr)) { return hal_take((const char *)0); }
// What is no number is no argument: no function fits where the user calls.
template <typename hal_r, typename...> struct hal_when { typedef hal_r hal_type; };
template <typename hal_t>
__device__ inline auto hal_take(hal_t hal_value) -> typename hal_when<
    hal_item, decltype((unsigned long long)hal_value), decltype(hal_t(-1) < hal_t(0))>::hal_type {
  hal_item hal_taken;
  hal_taken.hal_kind = hal_t(-1) < hal_t(0) ? 1 : 5;
  hal_taken.hal_bits = (unsigned long long)hal_value;
  return hal_taken;
}
__device__ inline bool hal_has(const char *hal_letters, char hal_letter) {
  while (*hal_letters && *hal_letters != hal_letter) ++hal_letters;
  return *hal_letters;
}
// Of a text that another thread is writing only this length counts.
__device__ inline void hal_measure(hal_item &hal_of, unsigned long long hal_most) {
  unsigned long long hal_n = 0;
  while (hal_of.hal_text && hal_n < hal_most && hal_of.hal_text[hal_n]) ++hal_n;
  hal_of.hal_kind = 4 | hal_n << 8;
}
// A pointer is text for %s, and then no more than its precision may be read of it.
__device__ inline void hal_find_texts(const char *hal_form, hal_item *hal_at, hal_item *hal_end) {
  while (*hal_form) {
    if (*hal_form++ != '%') continue;
    unsigned long long hal_most = ~0ull;
    bool hal_is_precise = false;
    for (; *hal_form && hal_has("-+ #0123456789.*hlLjzt", *hal_form); ++hal_form) {
      const char hal_letter = *hal_form;
      if (hal_letter == '.') {
        hal_is_precise = true, hal_most = 0;
      } else if (hal_letter == '*') {
        if (hal_at == hal_end) return;
        const int hal_given = (int)hal_at++->hal_bits;
        if (hal_is_precise) hal_most = hal_given < 0 ? ~0ull : (unsigned long long)hal_given;
      } else if (hal_is_precise && hal_letter >= '0' && hal_letter <= '9') {
        hal_most = 10 * hal_most + (unsigned long long)(hal_letter - '0');
      }
    }
    const char hal_letter = *hal_form;
    if (hal_letter) ++hal_form;
    if (!hal_letter || !hal_has("diouxXcsfFeEgGaApV", hal_letter)) continue;
    if (hal_at == hal_end) return;
    if (hal_letter == 's' && hal_at->hal_kind == 3) hal_measure(*hal_at, hal_most);
    ++hal_at;
  }
}
__device__ inline unsigned long long hal_words(const hal_item &hal_of) {
  return (hal_of.hal_kind & 255) == 4 ? ((hal_of.hal_kind >> 8) + 7) / 8 : 1;
}
// The first item is the format.
__device__ __noinline__ inline int
hal_record(hal_printed *hal_to, hal_item *hal_items, int hal_count) {
  hal_measure(hal_items[0], ~0ull);
  hal_find_texts(hal_items[0].hal_text, hal_items + 1, hal_items + hal_count);
  unsigned long long hal_size = 32;
  for (int hal_i = 0; hal_i < hal_count; ++hal_i) hal_size += 8 + 8 * hal_words(hal_items[hal_i]);
  const unsigned long long hal_start = atomicAdd(&hal_to->hal_used, hal_size);
  if (hal_start + hal_size > hal_to->hal_capacity) {
    atomicAdd(&hal_to->hal_cut, 1ull);
    return -1;
  }
  unsigned long long *hal_at = (unsigned long long *)((char *)(hal_to + 1) + hal_start);
  *hal_at++ = hal_size;
  unsigned int *hal_where = (unsigned int *)hal_at;
  hal_where[0] = threadIdx.x, hal_where[1] = threadIdx.y, hal_where[2] = threadIdx.z;
  hal_where[3] = blockIdx.x, hal_where[4] = blockIdx.y, hal_where[5] = blockIdx.z;
  hal_at += 3;
  for (int hal_i = 0; hal_i < hal_count; ++hal_i) {
    const hal_item &hal_each = hal_items[hal_i];
    const unsigned long long hal_n = hal_each.hal_kind >> 8;
    *hal_at++ = hal_each.hal_kind;
    if ((hal_each.hal_kind & 255) != 4) *hal_at = hal_each.hal_bits;
    for (unsigned long long hal_j = 0; hal_j < hal_n; ++hal_j)
      ((char *)hal_at)[hal_j] = hal_each.hal_text[hal_j];
    hal_at += hal_words(hal_each);
  }
  return hal_count - 1;
}
template <typename... hal_t>
__device__ inline auto hal_pf(const char *hal_format, hal_t... hal_values) ->
    typename hal_when<int, decltype(hal_take(hal_values))...>::hal_type {
  hal_printed *const hal_to = hal_output_here();
  if (hal_to) {
    hal_item hal_items[] = {hal_take(hal_format), hal_take(hal_values)...};
    return hal_record(hal_to, hal_items, 1 + (int)sizeof...(hal_values));
  }
  hal_driver_printf(hal_format, hal_values...);
  return (int)sizeof...(hal_values);
}
__device__ inline void hal_show(const char *hal_format, const char *hal_name, hal_item hal_of);
template <typename hal_t>
__device__ inline void hal_log(const char *hal_format, const char *hal_name, hal_t hal_value) {
  hal_printed *const hal_to = hal_output_here();
  if (!hal_to) {
    hal_show(hal_format, hal_name, hal_take(hal_value));
    return;
  }
  hal_item hal_items[] = {hal_take(hal_format), hal_take(hal_name), hal_take(hal_value)};
  hal_record(hal_to, hal_items, 3);
}
template <typename hal_t>
__device__ inline auto hal_trace(const char *hal_name, hal_t hal_value) ->
    typename hal_when<void, decltype(hal_take(hal_value))>::hal_type {
  hal_log("%s = %V\n", hal_name, hal_value);
}
__device__ inline void hal_trace(const char *hal_name, const char *hal_value) {
  hal_log("%s = %s\n", hal_name, hal_value);
}
__device__ inline void hal_trace(const char *hal_name, char *hal_value) {
  hal_log("%s = %s\n", hal_name, hal_value);
}
"""

_SHOWN: Final = r"""
#define HAL_SHOW(hal_form, hal_value) \
  printf("block (%u, %u, %u) thread (%u, %u, %u): %s = " hal_form "\n", blockIdx.x, blockIdx.y, \
         blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, hal_name, hal_value)
__device__ inline void hal_show(const char *hal_format, const char *hal_name, hal_item hal_of) {
  if (hal_format[6] == 's') HAL_SHOW("%s", hal_of.hal_text);
  else if (hal_of.hal_kind == 1) HAL_SHOW("%lld", (long long)hal_of.hal_bits);
  else if (hal_of.hal_kind == 2) HAL_SHOW("%.9g", hal_of.hal_number);
  else if (hal_of.hal_kind == 3) HAL_SHOW("%p", (const void *)hal_of.hal_text);
  else HAL_SHOW("%llu", hal_of.hal_bits);
}
"""
"""The code of a trace without an output, if the whole program traces."""

_UNSHOWN: Final = "__device__ inline void hal_show(const char *, const char *, hal_item) {}\n"


class Printing(NamedTuple):
    """The way in which the calls of a source that print are compiled."""

    trace: str = ""  # the condition under which a thread traces; empty to trace nothing
    shows: bool = False  # whether the driver prints the traces of a run without an output
    discards: bool = False  # whether nobody prints what a run without an output prints


class OutputPlace:
    """The argument for the hidden parameter: a `hal.Output`, or a slot that is bound to one."""

    __slots__ = ()


def may_trace(source: str, defines: Mapping[str, str]) -> bool:
    """Return whether a source, or a file of the user's that it includes, may trace."""
    texts = (source, *defines.values())
    return (
        any(_TRACE in text for text in texts)
        or re.search(_INCLUDE, source, re.MULTILINE) is not None
    )


def may_print(source: str, defines: Mapping[str, str], trace: str) -> bool:
    """Return whether a source prints, or traces on a condition, so that it needs the rewrite."""
    return bool(trace) or any(_PRINT in text for text in (source, *defines, *defines.values()))


def with_output(
    source: str, entries: Sequence[EntryPoint], defines: Mapping[str, str], how: Printing
) -> tuple[str, str, dict[str, str]]:
    """Return a prelude, and source and macros whose kernels print to their hidden parameter.

    `entries` are the kernels that `hal._programs.scanner.scan` finds in the source.
    """
    trace = how.trace
    macros = {
        edited(name, _calls(name)): edited(value, _calls(value)) for name, value in defines.items()
    }
    edits = _calls(source)
    places = [start for start, _, _ in edits]
    if not trace and not places and macros == defines:
        return UNTRACED, source, macros
    # Only the compiler knows which kernels use what a macro or, with a trace, an included file
    # defines.
    is_anywhere = bool(trace) or macros != defines
    is_anywhere |= not all(
        any(entry.body_start < place < entry.body_end for entry in entries) for place in places
    )
    if trace:
        edits += [
            (each.start, each.end, _TRACES[min(depth, len(_TRACES) - 1)])
            for each, depth in nested_words(source, _TRACE)
        ]
    for entry in entries:
        if not is_anywhere and not any(
            entry.body_start < place < entry.body_end for place in places
        ):
            continue
        hidden = f"hal_printed *{PARAMETER}"
        if entry.parameters:
            edits.append((entry.parameters_end, entry.parameters_end, f", {hidden}"))
        else:  # `(void)` must go
            edits.append((entry.parameters_start, entry.parameters_end, hidden))
        begin = entry.body_start + 1
        edits.append((begin, begin, f" hal_output_here() = {PARAMETER};"))
    traces = '#line 1 "trace"\n' + "".join(map(_trace, _TRACES, repeat(trace), count()))
    printf = "((void)0)" if how.discards else "printf(__VA_ARGS__)"
    driver = f"#define hal_driver_printf(...) {printf}\n"
    shown = _SHOWN if how.shows else _UNSHOWN
    prelude = driver + _PRELUDE + shown + (traces if trace else UNTRACED)
    return prelude, edited(source, edits), macros


def _trace(name: str, condition: str, depth: int) -> str:
    text = f'"{"  " * depth}" #__VA_ARGS__'
    return f"#define {name}(...) ((({condition})) ? hal_trace({text}, (__VA_ARGS__)) : (void)0)\n"


def _calls(source: str) -> list[tuple[int, int, str]]:
    """Return the edits that make calls of printf record."""
    if _PRINT not in source:
        return []
    words = _plain_words(source)
    return [(word.start, word.end, _RECORD) for word in words if word.text == _PRINT]


def _plain_words(source: str) -> Iterator[Token]:
    """Find words outside strings and comments, also in macros, that are not members."""
    before = ""
    for token in tokenize(source):
        if token.kind == "directive":
            text = source[token.start + 1 : token.end]
            if text.lstrip().startswith("define"):
                for part in _plain_words(text):
                    start = token.start + 1
                    yield part._replace(start=start + part.start, end=start + part.end)
        else:
            if token.kind == "word" and before not in _ELSEWHERE:
                yield token
            before = token.text
