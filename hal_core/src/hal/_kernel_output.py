"""Have kernels write what they print into memory of the run: a rewrite of portable source.

`printf` becomes a function that records its format and its arguments, and each
kernel that may call it gets one parameter more, behind its own: a pointer to
`hal.Output`'s memory, or null, for the driver's own printf. A kernel leaves it
where functions that it calls find it, in a variable that a block shares.

A source that prints nothing is not touched. Of one that does, lines stay where
they are, and columns up to the end of a kernel's parameters. What an included
file prints is the driver's, and so is what several linked sources print.

A record is a multiple of 8 bytes: its size; the thread and the block, three
32-bit numbers each; the format, and each argument, as a word with its kind
(and from bit 8 on, of a text, its length) and its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hal._cpp_tokens import Token, tokenize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hal.native import EntryPoint

__all__ = ["HEADER", "PARAMETER", "mentions_output", "with_output"]

PARAMETER: Final = "hal_output"
"""What the hidden parameter is called."""

HEADER: Final = 24
"""Bytes in front of the records: how many they may take, how many were asked for, calls cut."""

_PRINT: Final = "printf"
_TRACE: Final = "HAL_TRACE"
# As long as what it stands for, so that columns stay.
_RECORD: Final = "hal_pf"
_ELSEWHERE: Final = frozenset({"::", ".", "->"})

_PRELUDE: Final = r"""
struct hal_printed { unsigned long long hal_capacity, hal_used, hal_cut; };
__device__ inline hal_printed *&hal_output_here() {
  __shared__ hal_printed *hal_here;
  return hal_here;
}
__device__ inline unsigned int hal_length(const char *hal_text) {
  unsigned int hal_n = 0;
  while (hal_text && hal_text[hal_n]) ++hal_n;
  return hal_n;
}
__device__ inline unsigned int hal_room(const char *hal_text) {
  return 8 + (hal_length(hal_text) + 7) / 8 * 8;
}
__device__ inline unsigned int hal_room(char *hal_text) {
  return hal_room((const char *)hal_text);
}
template <typename hal_t> __device__ inline unsigned int hal_room(hal_t) { return 16; }
__device__ inline void hal_put(unsigned long long *&hal_at, const char *hal_text) {
  const unsigned int hal_n = hal_length(hal_text);
  *hal_at++ = 4ull | ((unsigned long long)hal_n << 8);
  for (unsigned int hal_i = 0; hal_i < hal_n; ++hal_i) ((char *)hal_at)[hal_i] = hal_text[hal_i];
  hal_at += (hal_n + 7) / 8;
}
__device__ inline void hal_put(unsigned long long *&hal_at, char *hal_text) {
  hal_put(hal_at, (const char *)hal_text);
}
__device__ inline void hal_put(unsigned long long *&hal_at, double hal_value) {
  *hal_at++ = 2;
  *(double *)hal_at++ = hal_value;
}
__device__ inline void hal_put(unsigned long long *&hal_at, float hal_value) {
  hal_put(hal_at, (double)hal_value);
}
template <typename hal_t>
__device__ inline void hal_put(unsigned long long *&hal_at, hal_t *hal_value) {
  *hal_at++ = 3;
  *hal_at++ = (unsigned long long)hal_value;
}
template <typename hal_t>
__device__ inline void hal_put(unsigned long long *&hal_at, hal_t hal_value) {
  *hal_at++ = hal_t(-1) < hal_t(0) ? 1 : 5;
  *hal_at++ = (unsigned long long)hal_value;
}
template <typename... hal_t>
__device__ inline int hal_record(hal_printed *hal_to, const char *hal_format, hal_t... hal_values) {
  const unsigned int hal_rooms[] = {32u, hal_room(hal_format), hal_room(hal_values)...};
  unsigned long long hal_size = 0;
  for (unsigned int hal_each : hal_rooms) hal_size += hal_each;
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
  hal_put(hal_at, hal_format);
  const int hal_done[] = {0, (hal_put(hal_at, hal_values), 0)...};
  return (int)sizeof...(hal_values) + hal_done[0];
}
template <typename... hal_t>
__device__ inline int hal_pf(const char *hal_format, hal_t... hal_values) {
  hal_printed *const hal_to = hal_output_here();
  if (hal_to) return hal_record(hal_to, hal_format, hal_values...);
  printf(hal_format, hal_values...);
  return (int)sizeof...(hal_values);
}
template <typename hal_t>
__device__ inline void hal_trace(const char *hal_name, hal_t hal_value) {
  hal_printed *const hal_to = hal_output_here();
  if (hal_to) hal_record(hal_to, "%N = %V\n", hal_name, hal_value);
}
"""


def mentions_output(source: str) -> bool:
    """Return whether a source may print or trace: whether a rewrite is worth a look."""
    return _PRINT in source or _TRACE in source


def with_output(
    source: str, entries: Sequence[EntryPoint], trace: str, *, prints: bool = True
) -> tuple[str, str]:
    """Return a prelude, and a source whose kernels print to their hidden parameter.

    Parameters
    ----------
    source, entries
        The text, and what `hal._kernel_source.scan` finds in it.
    trace
        The condition under which a thread traces, or empty for nothing.
    prints
        False leaves all to the driver's printf, and traces nothing.
    """
    words: set[str] = set()
    if prints:
        words = {_PRINT, _TRACE} if trace else {_PRINT}
    used = [token for token in _plain_words(source) if token.text in words]
    edits: list[tuple[int, int, str]] = [
        (token.start, token.end, _RECORD) for token in used if token.text == _PRINT
    ]
    places = [token.start for token in used]
    is_anywhere = not all(
        any(entry.body_start < place < entry.body_end for entry in entries) for place in places
    )
    if used:
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
    pieces: list[str] = []
    position = 0
    for start, end, text in sorted(edits):
        pieces += (source[position:start], text)
        position = end
    pieces.append(source[position:])
    prelude = _PRELUDE if used else ""
    if _TRACE in source:
        prelude += f"#define {_TRACE}(...) {_trace(trace if prints else '')}\n"
    return prelude, "".join(pieces)


def _trace(condition: str) -> str:
    if not condition:
        return "((void)0)"
    return f"((({condition})) ? hal_trace(#__VA_ARGS__, (__VA_ARGS__)) : (void)0)"


def _plain_words(source: str) -> Iterator[Token]:
    """Find words outside of texts and comments, those in macros, too, that are no members."""
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
