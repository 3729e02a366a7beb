"""Split C++ source into tokens with their exact places, for the core and for backends.

Just enough to find declarations: comments are dropped, a preprocessor
line is one token, nothing is expanded. Line splices, raw strings, digit
separators and digraphs are honoured, so that text which merely looks like
code is never taken for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

__all__ = [
    "Token",
    "bracket_depths",
    "matching_parentheses",
    "split_at_commas",
    "tokenize",
    "without_attributes",
    "without_splices",
]

# These are compiled when a source is read: it takes milliseconds, and `import hal` waits for none.
#
# A line splice may stand inside any token except a raw string.
_SPLICE: Final = r"(?:\\[ \t\v\f]*\r?\n)"
_COMMENT: Final = (
    rf"/{_SPLICE}*/(?:{_SPLICE}|[^\n])*+"
    rf"|/{_SPLICE}*\*[\s\S]*?(?:\*{_SPLICE}*/|\Z)"
)  # fmt: skip
_RAW_STRING: Final = (
    rf"(?:u{_SPLICE}*8|[uUL])?{_SPLICE}*R{_SPLICE}*"
    r'"(?P<delimiter>[^ ()\\\t\v\f\n]{0,16})\([\s\S]*?(?:\)(?P=delimiter)"|\Z)'
)
# A quote that is never closed ends with its line, as in GCC: prose under ``#if 0`` has them.
_QUOTED: Final = (
    rf'"(?:{_SPLICE}|\\[^\n]|[^"\\\n])*+"?'
    rf"|'(?:{_SPLICE}|\\[^\n]|[^'\\\n])*+'?"
)  # fmt: skip

_TOKEN: Final = (
    rf"(?P<newline>\n)|(?P<space>(?:[ \t\r\v\f\ufeff]|{_SPLICE})++|{_COMMENT})"
    rf"|(?P<string>{_RAW_STRING}|{_QUOTED})"
    rf"|(?P<number>\.?[0-9](?:{_SPLICE}|[eEpP][+-]|'\w|[\w.])*+)"
    rf"|(?P<word>(?:[^\W\d]|\$)(?:{_SPLICE}|[\w$])*+)"
    r"|(?P<sign><:(?!:(?![:>]))|:>|<%|%>|%:|::|->|&&|<<|<=|\.\.\.|[\s\S])"
)
_REST_OF_DIRECTIVE: Final = rf"(?:{_SPLICE}|{_COMMENT}|{_RAW_STRING}|{_QUOTED}|[^\n])*+"
_INVISIBLE: Final = rf"{_COMMENT}|{_SPLICE}"
_DIGRAPHS: Final = {"<:": "[", ":>": "]", "<%": "{", "%>": "}", "%:": "#"}
_ATTRIBUTES: Final = frozenset({"__attribute__", "__attribute", "__declspec"})
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    """A token of C++, with its offsets in the source."""

    kind: str
    """"word", "number", "string" (characters too), "sign", or "directive"."""
    text: str
    """Without splices, a digraph in its plain form; a directive without its comments."""
    start: int
    end: int


def tokenize(source: str) -> Iterator[Token]:
    """Yield the tokens in order; never fails: text that is not C++ comes out as signs."""
    token, rest_of_directive = re.compile(_TOKEN), re.compile(_REST_OF_DIRECTIVE)
    position, at_line_start = 0, True
    while match := token.match(source, position):
        kind, start, position = match.lastgroup, match.start(), match.end()
        if kind == "newline":
            at_line_start = True
        elif kind is not None and kind != "space":
            text = without_splices(match[0]) if kind == "word" else match[0]
            text = _DIGRAPHS.get(text, text)
            if at_line_start and text == "#":
                if rest := rest_of_directive.match(source, position):
                    position = rest.end()
                    # A comment counts as a space, a splice as nothing.
                    text += re.sub(_INVISIBLE, lambda it: " " if it[0][0] == "/" else "", rest[0])
                yield Token("directive", text, start, position)
            else:
                at_line_start = False
                yield Token(kind, text, start, position)


def without_splices(text: str) -> str:
    """Return the text with its spliced lines joined."""
    return re.sub(_SPLICE, "", text) if "\\" in text else text


def edited(source: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """Return the source with a text in place of each range, which is its start and its end."""
    made: list[str] = []
    position = 0
    for start, end, text in sorted(edits):
        made += (source[position:start], text)
        position = end
    return "".join([*made, source[position:]])


def matching_parentheses(texts: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield the indices of each ``(`` outside every bracket, and of its ``)``."""
    expected: list[str] = []
    start = 0
    for index, text in enumerate(texts):
        if text in _CLOSING:
            if not expected:
                start = index
            expected.append(_CLOSING[text])
        elif expected and text == expected[-1]:
            expected.pop()
            if not expected and text == ")":
                yield start, index


def bracket_depths(texts: Iterable[str]) -> list[int]:
    """Return how many brackets enclose each token of a type; a bracket does not enclose itself.

    Angle brackets count, except inside parentheses, where they may compare.
    """
    expected: list[str] = []
    depths: list[int] = []
    for text in texts:
        if expected and text == expected[-1]:
            expected.pop()
            depths.append(len(expected))
            continue
        depths.append(len(expected))
        if text in _CLOSING:
            expected.append(_CLOSING[text])
        elif text == "<" and (not expected or expected[-1] == ">"):
            expected.append(">")
    return depths


def split_at_commas(tokens: list[Token]) -> list[list[Token]]:
    """Return the parts between the commas outside every bracket."""
    parts: list[list[Token]] = [[]]
    depths = bracket_depths(token.text for token in tokens)
    for token, depth in zip(tokens, depths, strict=True):
        if depth == 0 and token.text == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def without_attributes(tokens: list[Token]) -> list[Token]:
    """Return the tokens without ``[[...]]``, ``__attribute__((...))`` and the like."""
    kept: list[Token] = []
    index = 0
    while index < len(tokens):
        text = tokens[index].text
        after = tokens[index + 1].text if index + 1 < len(tokens) else ""
        if (text == "[" and after == "[") or (text in _ATTRIBUTES and after == "("):
            index += text != "["
            depths = bracket_depths(token.text for token in tokens[index:])
            index += next((i for i in range(1, len(depths)) if depths[i] == 0), len(depths))
        elif text != "__grid_constant__":
            kept.append(tokens[index])
        index += 1
    return kept
