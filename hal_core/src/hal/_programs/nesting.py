"""How deep words stand in the statements of their functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hal.cpp_tokens import Token, tokenize

_HEADED: Final = frozenset({"for", "if", "switch", "while"})
_BEFORE_BODY: Final = frozenset({")", "const", "final", "noexcept", "override"})


class _Nesting:
    """The statements around a token of a source."""

    __slots__ = ("_before", "_blocks", "_depth", "_ended", "_header", "_heads", "_level")

    def __init__(self) -> None:
        self._blocks: list[tuple[int | None, list[str]]] = []  # around each open brace
        self._depth: int | None = None  # of the block in its function; None outside of functions
        self._heads: list[str] = []  # the statements without braces that are open in the block
        self._ended: list[str] = []  # those that ended last: an `else` goes on with them
        self._header = ""  # the word whose parentheses are being read, of which `_level` are open
        self._level = 0
        self._before = ""

    @property
    def depth(self) -> int | None:
        """How many blocks and statements of its function are open; None where that is no matter."""
        return None if self._depth is None or self._header else self._depth + len(self._heads)

    def take(self, text: str) -> None:
        """Go on by one token."""
        if self._header:
            self._level += (text == "(") - (text == ")")
            if text == ")" and not self._level:
                self._heads.append(self._header)
                self._header = ""
        elif text == "{":
            self._blocks.append((self._depth, self._heads))
            if self._depth is not None:
                self._depth += len(self._heads) or 1
            elif self._before in _BEFORE_BODY:
                self._depth = 0
            self._heads = []
        elif text in {"}", ";"}:
            if text == "}" and self._blocks:
                self._depth, self._heads = self._blocks.pop()
            self._ended, self._heads = self._heads, []
        elif self._depth is not None:
            self._take_word(text)
        self._before = text

    def _take_word(self, text: str) -> None:
        if text == "else":
            while self._ended and self._ended.pop() != "if":
                pass
            self._heads = [*self._ended, text]
        elif text in _HEADED:
            if self._before == "else":  # `else if` is one statement
                self._heads.pop()
            self._header = text
        elif text == "do":
            self._heads.append(text)


def nested_words(source: str, word: str) -> Iterator[tuple[Token, int]]:
    """Yield each such word in a function, and in how many blocks and statements of it that stands.

    Words of preprocessor lines are left out: where a macro is used is not known here.
    """
    nesting = _Nesting()
    for token in tokenize(source):
        if token.kind == "directive":
            continue
        if token.text == word and nesting.depth is not None:
            yield token, nesting.depth
        nesting.take(token.text)
