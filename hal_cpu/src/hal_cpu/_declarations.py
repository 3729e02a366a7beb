"""Walk over a source once: its declarations, its kernels and functions, its shared memory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from hal.cpp_tokens import Token, tokenize
from hal.native import EntryPoint
from hal_cpu._outside import DEFINE
from hal_cpu._region_tokens import Edit

_WORD: Final = re.compile(r"\w+")

# Words before a parenthesis that is not a function's.
_KEYWORDS: Final = frozenset(
    _WORD.findall(
        """if while for switch return sizeof alignof decltype catch alignas __attribute__ __align__
        __launch_bounds__ static_assert noexcept"""
    )
)
# Words of a declaration that are not the declared name.
_COMMON: Final = frozenset(
    _WORD.findall(
        """alignas auto bool char class const constexpr double enum extern float inline int long
        mutable public private protected short signed static struct template thread_local typedef
        typename union unsigned using void volatile __device__ __host__ __constant__ __shared__
        __global__ __restrict__ __forceinline__ __noinline__ __managed__ __align__ size_t int8_t
        int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t"""
    )
)


@dataclass(slots=True)
class Chunk:
    """The words of one declaration outside kernels, and the names that it may define."""

    words: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Body:
    """The place of a function's braces and the words in it, a kernel's parameters included."""

    start: int
    end: int = 0
    words: set[str] = field(default_factory=set)
    tokens: list[Token] = field(default_factory=list)
    head: list[Token] = field(default_factory=list)  # what stands before; none for a kernel
    number: int = 0  # of its chunk
    is_global: bool = False


@dataclass(slots=True)
class Text:
    """The results of one walk over a text.

    Attributes
    ----------
    chunks
        The declarations outside kernels, macros among them.
    macros
        The macros alone.
    kernels
        The kernels by name.
    functions
        The other functions' bodies.
    dynamic
        The names at namespace scope that stand for dynamic shared memory.
    edits
        The changes for shared memory and for kernels' declarations.
    """

    chunks: list[Chunk] = field(default_factory=list)
    macros: list[Chunk] = field(default_factory=list)
    kernels: dict[str, Body] = field(default_factory=dict)
    functions: list[Body] = field(default_factory=list)
    dynamic: set[str] = field(default_factory=set)
    edits: list[Edit] = field(default_factory=list)


def spread(roots: frozenset[str], chunks: Sequence[Chunk]) -> set[str]:
    """Return the roots and every name whose definition mentions one, directly or not."""
    found = set(roots)
    waiting = list(chunks)
    while True:
        left = []
        for chunk in waiting:
            if chunk.words.isdisjoint(found):
                left.append(chunk)
            else:
                found |= chunk.names
        if len(left) == len(waiting):
            return found
        waiting = left


def read(source: str, entries: Sequence[EntryPoint]) -> Text:
    """Walk a text once and collect what its rewriting needs."""
    text = Text(kernels={entry.name: Body(entry.body_start, entry.body_end) for entry in entries})
    tokens = list(tokenize(source))
    places = sorted((entry.parameters_start, entry.body_end, entry.name) for entry in entries)
    reader = _Reader(text)
    for index, token in enumerate(tokens):
        while places and token.start >= places[0][1]:
            places.pop(0)
            reader.leave_kernel()
        kernel = text.kernels[places[0][2]] if places and token.start >= places[0][0] else None
        if token.kind == "directive":
            if kernel is not None:
                kernel.tokens.append(token)
            macros = list(_directive(token.text))
            text.macros += macros
            text.chunks += macros
            reader.split(token)
            continue
        if token.text == "__shared__":
            local = kernel is not None or reader.opaque()
            _shared(text, tokens, index, source, local=local)
        if kernel is None:
            reader.step(token)
        elif token.kind == "word":
            kernel.words.add(token.text)
        if kernel is not None and kernel.start <= token.start < kernel.end:
            kernel.tokens.append(token)
    if places:
        reader.leave_kernel()
    reader.end_declaration()
    return text


class _Reader:
    """A splitter of the text outside kernels into declarations."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._scopes: list[bool] = []  # for each open brace whether it contains declarations
        self._chunk = Chunk()
        self._head: list[Token] = []  # the chunk's tokens outside of braces
        self._function: Body | None = None
        self._is_split = False  # by a preprocessor line, which must stay

    def opaque(self) -> bool:
        """Return whether the place is inside a function, a class or an initialiser."""
        return bool(self._scopes) and not self._scopes[-1]

    def step(self, token: Token) -> None:
        """Take the next token."""
        opaque = self.opaque()
        if token.kind == "word":
            self._chunk.words.add(token.text)
            if self._function is not None:
                self._function.words.add(token.text)
        elif token.text == "{":
            declarations = not opaque and _holds_declarations(self._head)
            self._scopes.append(declarations)
            if declarations:
                self.end_declaration()
                return
            if not opaque and _is_function(self._head):
                is_global = len(self._scopes) == 1
                self._function = Body(token.start, head=self._head[:], is_global=is_global)
        elif token.text == "}" and self._scopes:
            self._scopes.pop()
        if self._function is not None:
            self._function.tokens.append(token)
        if not opaque:
            self._head.append(token)
        if token.text in {";", "}"} and not self.opaque():
            if self._function is not None:
                self._function.end = token.end
                self._function.number = len(self._text.chunks)
                self._text.functions.append(self._function)
            if token.text == ";":
                self._leave_out_kernel(token.end)
            self.end_declaration()

    def split(self, token: Token) -> None:
        """Note that a preprocessor line stands here, perhaps inside of a declaration."""
        self._is_split = bool(self._head)
        if self._function is not None:
            self._function.tokens.append(token)

    def leave_kernel(self) -> None:
        """Begin anew behind a kernel, of which only the head was seen: nobody calls its name."""
        self._head = []
        self.end_declaration()

    def _leave_out_kernel(self, end: int) -> None:
        """Remove a kernel's declaration ahead of it, which lacks the added parameter."""
        words = {token.text for token in self._head}
        is_ours = "__global__" in words and not words.isdisjoint(self._text.kernels)
        if is_ours and "template" not in words and not self._is_split:
            self._text.edits.append(Edit(self._head[0].start, end, ""))

    def end_declaration(self) -> None:
        """Store the declaration and begin the next."""
        self._chunk.names |= _names(self._head)
        self._text.chunks.append(self._chunk)
        self._chunk, self._head, self._function = Chunk(), [], None
        self._is_split = False


def template_end(texts: Sequence[str]) -> int:
    """Return the index behind ``template <...>``, with which a declaration may begin."""
    depth = 0
    if texts[:1] == ["template"]:
        for index, text in enumerate(texts):
            depth += (text == "<") - (text == ">")
            if text == ">" and depth == 0:
                return index + 1
    return 0


def _is_function(head: list[Token]) -> bool:
    """Return whether the brace after these tokens opens a function's body."""
    texts = [token.text for token in head]
    words = set(texts[template_end(texts) :])
    return "(" in words and words.isdisjoint({"class", "struct", "union", "enum", "="})


def _holds_declarations(head: list[Token]) -> bool:
    """Return whether the brace after these tokens opens a namespace or ``extern "C"``."""
    texts = [token.text for token in head]
    return "namespace" in texts or (
        len(head) > 1 and texts[-2] == "extern" and head[-1].kind == "string"
    )


def _names(head: list[Token]) -> set[str]:
    """Return what a declaration may define, judged by its tokens outside all braces.

    For a function that is its name. For the rest (classes, variables, aliases)
    it is every word that could be one: too many names are safe, since a kernel then
    merely runs in the slower of two ways.
    """
    head = head[template_end([token.text for token in head]) :]
    if any(token.text == "operator" for token in head):  # its parameters' names are no types
        head = [each for each, after in itertools.pairwise(head) if after.text not in {",", ")"}]
    functions: set[str] = set()
    depth = 0
    for before, token in itertools.pairwise(head):
        depth += (before.text == "(") - (before.text == ")")
        called = token.text == "(" and before.kind == "word" and depth == 0
        if called and before.text not in _KEYWORDS | _COMMON:
            functions.add(before.text)
    return functions or {token.text for token in head if token.kind == "word"} - _COMMON


def _directive(text: str) -> Iterator[Chunk]:
    """Yield the names that a preprocessor line defines."""
    match = DEFINE.match(text)
    if match:
        words = {token.text for token in tokenize(text[match.end() :]) if token.kind == "word"}
        yield Chunk(words=words, names={match[1]})


def _shared(text: Text, tokens: list[Token], index: int, source: str, *, local: bool) -> None:
    """Note the edits of a declaration of shared memory; `index` is that of ``__shared__``."""
    first = index
    while first > 0 and tokens[first - 1].text in {"extern", "static", "const", "volatile"}:
        first -= 1
    last = index
    while last < len(tokens) and tokens[last].text != ";":
        last += 1
    statement = tokens[first:last]
    if "extern" not in [token.text for token in statement]:
        # The macro brings a `static` of its own.
        for token in statement:
            if token.text == "static":
                text.edits.append(Edit(token.start, token.end, ""))
        return
    bracket = next((i for i, token in enumerate(statement) if token.text == "["), None)
    if bracket is None or bracket + 1 >= len(statement) or statement[bracket + 1].text != "]":
        return
    name = statement[bracket - 1].text
    words: list[str] = []
    depth = 0
    skipping = False  # inside __align__(...), which the memory satisfies anyway
    for token in statement[: bracket - 1]:
        if token.text in {"__align__", "alignas", "__attribute__"}:
            skipping = True
        elif skipping:
            depth += (token.text == "(") - (token.text == ")")
            skipping = depth > 0
        elif token.text not in {"extern", "__shared__", "static"}:
            words.append(token.text)
    dimensions = source[statement[bracket + 1].end : statement[-1].end]
    replacement = f"HAL_DYNAMIC_TYPE({name}, {dimensions}, {' '.join(words)})"
    if local:
        replacement += f"; HAL_DYNAMIC_POINTER({name})"
    else:
        text.dynamic.add(name)
    text.edits.append(Edit(statement[0].start, statement[-1].end, replacement))
