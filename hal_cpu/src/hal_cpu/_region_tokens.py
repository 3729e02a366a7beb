"""The words and brackets of a kernel's body, as its division into regions sees them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from hal.cpp_tokens import Token

_WORD: Final = re.compile(r"\w+")
BARRIER: Final = ("__syncthreads", "(", ")", ";")
OPERATORS: Final = re.compile(r"<<=|>>=|\+\+|--|[-+*/%&|^=!<>]=|\|\||&&|>>")
ASSIGNMENTS: Final = frozenset(
    ["=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"]
)
TYPES: Final = frozenset(
    _WORD.findall(
        """auto bool char short int long float double signed unsigned volatile ushort uint ulong
        size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t"""
    )
)
LOOSE: Final = frozenset(["==", "!=", "<", ">", "<=", ">=", "&", "|", "^", "&&", "||", "?"])
"""Operators that bind no tighter than a comparison."""
WIDE: Final = frozenset(
    [
        *_WORD.findall("int unsigned long uint ulong size_t int32_t int64_t uint32_t uint64_t"),
        *("unsigned int", "unsigned long", "long long", "unsigned long long"),
    ]
)
"""Types of whole numbers, any of which has a sum of its own."""
UNSIGNED: Final = frozenset({"unsigned", "unsigned int", "uint", "uint32_t"})
"""Those of 32 bits and no sign."""
BUILT_IN: Final = frozenset(_WORD.findall("blockIdx blockDim gridDim warpSize const true false"))
THREAD: Final = frozenset({"threadIdx", "hal_rank"})
"""What tells which thread of its block one is."""
PURE: Final = frozenset(
    _WORD.findall(
        """min max sizeof abs labs llabs umin umax __clz __clzll __ffs __ffsll __popc __popcll
        __mul24 __umul24 __log2f __logf __log10f __expf __powf __fdividef"""
    )
) | frozenset(
    f"{name}{kind}"
    for name in _WORD.findall(
        "ceil exp exp2 fabs floor fmax fmin fmod log log10 log2 pow rint round rsqrt sqrt trunc"
    )
    for kind in ("", "f")
)
"""Functions whose results are those of their arguments."""
VECTORS: Final = frozenset(
    f"{kind}{size}"
    for kind in _WORD.findall("char uchar short ushort int uint longlong ulonglong float double")
    for size in "1234"
) | frozenset(
    _WORD.findall("half half2 __half __half2 nv_bfloat16 nv_bfloat162 __nv_bfloat16 __nv_bfloat162")
)
"""The dialect's own types of plain data."""
PLAIN: Final = (TYPES | VECTORS) - {"auto"}
"""Types whose variables hold no pointer."""
_AFTER_STATIC: Final = ("__shared__", "constexpr")
GIVEN: Final = re.compile(r"hal_given(\d+)(?:_by|_if|_mask|_all)?")
"""The names of what a step of warps takes from each thread, and gives it."""
# What may hide an effect or a declaration that is not seen here.
NOT_TAKEN: Final = frozenset(
    _WORD.findall(
        """goto typedef using struct class union enum template static
        asm __asm__ __asm try catch constexpr decltype operator new delete"""
    )
)
CONTROL: Final = frozenset(
    _WORD.findall("if for while do else switch case default return break continue")
)


_UNROLL: Final = re.compile(r"#\s*pragma\s+(GCC\s+)?unroll\b")


class Edit(NamedTuple):
    """The replacement of a range of the source."""

    start: int
    end: int
    text: str


class Outside(NamedTuple):
    """What a kernel finds outside of it."""

    macros: Mapping[str, Sequence[Token] | None]
    """What each macro stands for; None for one with parameters."""
    users: frozenset[str]
    """The names that the source defines."""
    types: frozenset[str] = VECTORS
    """Those of them, and of the dialect, whose variables need no more than their bytes."""
    constants: frozenset[str] = frozenset()
    """Those of them that are numbers which no kernel changes."""


class RefusedError(Exception):
    """The kernel has something that is not understood."""


class HiddenError(RefusedError):
    """Something stands in the kernel that only the preprocessor can tell."""


class DiffersError(Exception):
    """A variable, the argument, is not the same for all threads."""


def merge(tokens: Sequence[Token]) -> list[Token]:
    """Join the signs of an operator."""
    merged: list[Token] = []
    for token in tokens:
        last = merged[-1] if merged else None
        if last and last.kind == token.kind == "sign" and last.end == token.start:
            text = last.text + token.text
            if OPERATORS.fullmatch(text):
                merged[-1] = Token("sign", text, last.start, token.end)
                continue
        merged.append(token)
    return merged


def simplified(tokens: Sequence[Token]) -> list[Token]:
    """Return a declaration's tokens with fewer words.

    `static` adds nothing before `__shared__` and `constexpr`, and who does not change a variable
    need not know that it is `constexpr` and not `const`. An `if constexpr` is an `if` whose token
    is of the kind "constexpr".
    """
    found: list[Token] = []
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        if token.text == "constexpr":
            if found and found[-1].text == "if":
                found[-1] = found[-1]._replace(kind="constexpr")
            elif after is None or after.text != "const":
                found.append(token._replace(text="const"))
        elif token.text != "static" or after is None or after.text not in _AFTER_STATIC:
            found.append(token)
    return found


def last_number(numbered: re.Pattern[str], texts: Sequence[str]) -> int:
    """Return the highest number of names that are numbered so, or 0."""
    return max([0, *(int(each[1]) for each in map(numbered.match, texts) if each)])


def hides(macros: Mapping[str, Sequence[Token] | None], text: str) -> bool:
    """Return whether a word is a macro that is no plain number."""
    replaced = macros.get(text, ())
    return replaced is None or not all(
        each.kind == "number" or each.text in BUILT_IN or each.text in "+-*/%()<>"
        for each in replaced
    )


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).replace("\n", " ")


def pairs_of(texts: Sequence[str]) -> dict[int, int]:
    """Return the index of each opening bracket's partner."""
    pairs: dict[int, int] = {}
    stack: list[int] = []
    closing = {")": "(", "]": "[", "}": "{"}
    for index, text in enumerate(texts):
        if text in {"(", "[", "{"}:
            stack.append(index)
        elif text in closing:
            if not stack or texts[stack[-1]] != closing[text]:
                raise RefusedError
            pairs[stack.pop()] = index
    if stack:
        raise RefusedError
    return pairs


class Words:
    """A kernel's body, and what may be asked about its words."""

    def __init__(
        self,
        tokens: list[Token],
        outside: Outside,
        parameters: Iterable[str] = (),
    ) -> None:
        self.tokens = tokens
        self.texts = [token.text for token in tokens]
        self._macros = outside.macros
        self.pair = pairs_of(self.texts)
        self.declared = self._declared(outside.types) | {*parameters}
        self.types = TYPES | (outside.types - self.declared)
        self._constants = (BUILT_IN | outside.constants) - self.declared
        self._users = outside.users - self.types - self._constants

    def edit(self, source: str, first: int, behind: int, text: str) -> Edit:
        """Return the edit that puts a text in place of some tokens, with as many lines."""
        start, end = self.tokens[first].start, self.tokens[behind - 1].end
        lines = source.count("\n", start, end) - text.count("\n")
        return Edit(start, end, text + "\n" * lines)

    def _declared(self, types: frozenset[str]) -> set[str]:
        """Return all names that the body may declare."""
        heads = {*TYPES, *types, "const", "extern", "__shared__"}
        skipped, behind = {*heads, "*", "&"}, {"=", ",", ";", "["}
        names = set()
        begins = [
            index
            for index, text in enumerate(self.texts)
            if text in heads and self.texts[index - 1] in {"{", "}", ";", "(", ")", ":"}
        ]
        for index in begins:
            place, sign = index, ","
            while sign == ",":
                while self.texts[place] in skipped and self.texts[place + 1] not in behind:
                    place += 1
                if self.tokens[place].kind != "word":
                    break
                names.add(self.texts[place])
                while self.texts[place] not in {",", ";", ")"}:
                    place = self.pair.get(place, place) + 1
                sign = self.texts[place]
                place += 1
        return names

    def is_hidden(self, index: int) -> bool:
        """Return whether only the preprocessor can tell what stands here."""
        token = self.tokens[index]
        if token.kind == "directive":
            return not _UNROLL.match(token.text)
        return hides(self._macros, token.text)

    def is_macro(self, text: str) -> bool:
        return text in self._macros

    def is_constant(self, text: str) -> bool:
        """Return whether a word is a number that stands outside of the kernel."""
        return text in self._constants

    def around(self, index: int, kinds: str = "([{") -> int:
        """Return the innermost opening bracket of these kinds around a word."""
        return max(a for a, b in self.pair.items() if a < index < b and self.texts[a] in kinds)

    def parts(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the tokens of each part between commas, of a declaration or of arguments."""
        parts = []
        index = first
        while index < end:
            if self.texts[index] == ",":
                parts.append((first, index))
                first = index + 1
            index = self.pair.get(index, index) + 1
        return [*parts, (first, end)]

    def is_operand(self, index: int) -> bool:
        token = self.tokens[index]
        is_name = token.kind == "word" and token.text not in CONTROL
        return is_name or token.kind == "number" or token.text in {")", "]"}

    def is_changed(self, name: str, ranges: Sequence[tuple[int, int]] = ()) -> bool:
        """Return whether a variable may change outside of ranges, its declaration aside."""
        for index, text in enumerate(self.texts):
            if text != name or any(first <= index < last for first, last in ranges):
                continue
            before, after = self.texts[index - 1], self.texts[index + 1]
            if after in {".", "->"} or before in {".", "->"}:
                if before not in {".", "->"}:
                    return True
                continue
            if after in ASSIGNMENTS or before in {"++", "--"}:
                return True
            if before == "&" and not self.is_operand(index - 2):
                return True
            if before in {"(", ","} and after in {",", ")"} and self._may_refer(index):
                return True
        return False

    def _is_written(self, name: str) -> bool:
        """Return whether a parameter may change; refuse one of which a member may."""
        for index, text in enumerate(self.texts):
            if text != name or self.texts[index - 1] in {".", "->"}:
                continue
            end = index + 1
            while self.texts[end] == "." or (end > index + 1 and self.texts[end] == "["):
                end = end + 2 if self.texts[end] == "." else self.pair[end] + 1
            if end == index + 1:
                others = [(0, index), (end, len(self.texts))]
                if self.texts[end] != "->" and self.is_changed(name, others):
                    return True
            elif self.texts[end] in {*ASSIGNMENTS, "(", "->"} or (
                self.texts[index - 1] in {"++", "--"}
                or (self.texts[index - 1] == "&" and not self.is_operand(index - 2))
            ):
                raise RefusedError
        return False

    def _may_refer(self, index: int) -> bool:
        """Return whether a name is the whole argument of a function that the source defines."""
        depth = 0
        for place in range(index - 1, -1, -1):
            depth += (self.texts[place] == ")") - (self.texts[place] == "(")
            if depth < 0:
                callee = self.tokens[place - 1]
                return callee.kind == "word" and callee.text in self._users
        return True

    def _is_free(
        self, first: int, last: int, known: set[str], elements: frozenset[str] = frozenset()
    ) -> bool:
        """Return whether an expression is made of known names and pure operations alone.

        `elements` are the arrays that it may read.
        """
        for index in range(first, last):
            token = self.tokens[index]
            text = token.text
            if token.kind == "word":
                is_called = self.texts[index + 1] == "("
                if self.texts[index - 1] == ".":  # a member of what was known before
                    is_known = not is_called
                elif is_called:
                    is_known = text in PURE and text not in self._users
                else:
                    is_known = (
                        text in elements
                        or text in known
                        or text in self.types
                        or text in self._constants
                        or text in self._macros
                    )
                if not is_known:
                    return False
                continue
            if (
                token.kind in {"string", "directive"}
                or text in ASSIGNMENTS
                or text in {"{", "->"}
                or (text == "[" and not self._is_element(index, elements))
            ):
                return False
            if text in {"*", "&"} and not self.is_operand(index - 1):
                return False
        return True

    def _is_element(self, index: int, arrays: frozenset[str]) -> bool:
        """Return whether a bracket opens behind one of the arrays, or behind such a bracket."""
        while self.texts[index - 1] == "]":
            index = next(a for a, b in self.pair.items() if b == index - 1)
        return self.texts[index - 1] in arrays

    def end(self, index: int) -> int:
        """Return the index behind the statement at `index`."""
        text = self.texts[index]
        if self.tokens[index].kind == "directive":
            return self.end(index + 1)
        if text == "{":
            return self.pair[index] + 1
        if text in {"for", "while", "if", "switch"}:
            end = self.end(self.pair[index + 1] + 1)
            if text == "if" and self.texts[end] == "else":
                return self.end(end + 1)
            return end
        if text == "do":
            end = self.end(index + 1)
            return self.pair[end + 1] + 2
        while self.texts[index] != ";":
            index = self.pair.get(index, index) + 1
        return index + 1

    def find(self, text: str, first: int, last: int) -> int:
        for index in range(first, last):
            if self.texts[index] == text:
                return index
        raise RefusedError
