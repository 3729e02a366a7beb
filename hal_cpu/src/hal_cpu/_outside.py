"""Find what a kernel's body may name that stands outside of it: types of plain data, constants."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Final

from hal.cpp_tokens import Token, tokenize
from hal_cpu._region_tokens import TYPES, VECTORS, Outside

DEFINE: Final = re.compile(r"#\s*define\s+(\w+)")

_NUMBERS: Final = TYPES - {"auto"}
_HEADS: Final = frozenset(
    ["typedef", "using", "struct", "enum", "const", "constexpr", "static", "__constant__"]
)
_QUALIFIERS: Final = frozenset(["const", "constexpr", "static", "__device__", "__constant__"])


def outside(source: str, users: frozenset[str]) -> Outside:
    """Return what kernels find outside of them in all of a source, `users` being its names."""
    tokens = list(tokenize(source))
    texts = [token.text for token in tokens if token.kind != "directive"]
    types, constants = set(VECTORS), set[str]()
    begins = True
    for index, text in enumerate(texts):
        if begins and text in _HEADS:
            end = index
            while end < len(texts) and texts[end] != ";":
                end += 1
                if texts[end - 1] == "{":
                    while end < len(texts) and texts[end] != "}":
                        end += 1
            _take(texts[index:end], types, constants)
        begins = text in {";", "{", "}", ")"}
    return Outside(_macros(tokens), users, frozenset(types), frozenset(constants))


def _macros(tokens: Iterable[Token]) -> dict[str, list[Token] | None]:
    """Return what each macro stands for; None if it has parameters or several definitions."""
    macros: dict[str, list[Token] | None] = {}
    for token in tokens:
        match = DEFINE.match(token.text) if token.kind == "directive" else None
        if match:
            rest = token.text[match.end() :]
            several = match[1] in macros or rest.startswith("(")
            macros[match[1]] = None if several else list(tokenize(rest))
    return macros


def _take(texts: Sequence[str], types: set[str], constants: set[str]) -> None:
    """Take a declaration, without its semicolon."""
    first = texts.index("{") if "{" in texts else 0
    last = len(texts) - 1 - texts[::-1].index("}") if first and "}" in texts else 0
    head = set(texts[: first or 1])
    if "struct" in head and last:
        # With a parenthesis it may have functions, and its variables need more than their bytes.
        members = texts[first + 1 : last]
        is_plain = {"(", "{", "&", "=", ":", "<"}.isdisjoint(members) and all(
            member in _NUMBERS | types
            for before, member in zip(["{", *members], members, strict=False)
            if before in {"{", ";"}
        )
        names = [name for name in texts[first - 1 : first] if name != "struct"]
        if texts[0] == "typedef":
            names += texts[last + 1 :]
        if is_plain and all(name.isidentifier() for name in names):
            types |= set(names)
    elif "enum" in head and last:
        members = texts[first:last]
        constants |= {name for before, name in itertools.pairwise(members) if before in {"{", ","}}
    elif texts[0] == "using" and texts[2:3] == ["="]:
        if texts[3:] and (_NUMBERS | types).issuperset(texts[3:]):
            types.add(texts[1])
    elif texts[0] == "typedef":
        if texts[1:-1] and (_NUMBERS | types).issuperset(texts[1:-1]):
            types.add(texts[-1])
    else:
        end = 0
        while end < len(texts) and texts[end] in _NUMBERS | _QUALIFIERS:
            end += 1
        is_number = not _NUMBERS.isdisjoint(texts[:end])
        is_fixed = not {"const", "constexpr", "__constant__"}.isdisjoint(texts[:end])
        value = texts[end + 2 : -1] if texts[end + 1 : end + 2] == ["("] else []
        is_value = value and all(each in constants or not each.isidentifier() for each in value)
        is_plain = is_value or texts[end + 1 : end + 2] in ([], ["="])
        if is_number and is_fixed and is_plain and "," not in texts:
            constants |= set(texts[end : end + 1])
