"""Put functions with barriers in place of their calls in a kernel, which can then be divided.

The function's statements stand before the statement of the call: its parameters are variables, its
names get a number of their own, and what it returns is a variable in place of the call. All of it
is done on the text, and only where that leaves no doubt: a function that is defined once, at global
scope, that returns at its end, and whose other words mean the same in the kernel.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from hal.cpp_tokens import Token, matching_parentheses, split_at_commas
from hal.handlers import dropped
from hal_cpu._declarations import Body, Text, template_end
from hal_cpu._region_tokens import (
    CONTROL,
    NOT_TAKEN,
    TYPES,
    Edit,
    Outside,
    RefusedError,
    Words,
    hides,
    last_number,
    merge,
    simplified,
)

_MOST: Final = 4000  # tokens of a kernel with what is put into it
_SPECIFIERS: Final = frozenset(
    ["static", "inline", "__inline__", "__device__", "__host__", "__forceinline__", "__noinline__"]
)
# What tells where it stands.
_PLACED: Final = frozenset(
    ["assert", "__LINE__", "__FILE__", "__func__", "__FUNCTION__", "HAL_TRACE", "printf"]
)
# Operators whose left side comes before the right one, or decides whether that is done.
_SEQUENCES: Final = frozenset(["&&", "||", "?", "<<", ">>", "and", "or"])
_MEMBER: Final = frozenset([".", "->", "::"])
_TILE: Final = "thread_block_tile"
_GROUPS: Final = frozenset(["thread_block", _TILE])
_MAKERS: Final = frozenset(["this_thread_block", "tiled_partition"])  # of groups
# Of numbers, by their type.
_SUFFIXES: Final = {
    "int": "",
    "unsigned": "u",
    "unsigned int": "u",
    "uint": "u",
    "uint32_t": "u",
    "size_t": "ul",
}
_NUMBERED: Final = re.compile(r"hal_in(\d+)(?:_|\Z)")


class _Parameter(NamedTuple):
    type: list[str]
    name: str
    sign: str  # "" for a value, "*" for a pointer written as an array, "&" for a reference, or
    # "[" for an array of arrays: that is a pointer in few places, and else the array itself


class Function(NamedTuple):
    """A function that may stand in place of its calls."""

    name: str
    template: list[list[str]]  # the words of each parameter
    parameters: list[_Parameter]
    result: list[str]
    body: Words
    later: frozenset[str]
    """The names that are defined behind it."""


def functions(
    text: Text, meeting: Collection[str], warps: Collection[str], outside: Outside
) -> dict[str, Function]:
    """Return the functions of a source that may stand in place of their calls.

    `meeting` are the names of those that may reach a barrier, `warps` of those by whose calls
    a kernel cannot be divided.
    """
    found: dict[str, Function] = {}
    for body in text.functions:
        if not {*meeting}.isdisjoint(token.text for token in body.head):
            with dropped(RefusedError, LookupError, StopIteration):
                function = _function(body, text, outside)
                is_one = sum(function.name in chunk.names for chunk in text.chunks) == 1
                if is_one and function.name not in warps:
                    found[function.name] = function
    return found


def _function(body: Body, text: Text, outside: Outside) -> Function:
    texts = [token.text for token in body.head]
    begin = template_end(texts)
    first, last = next(matching_parentheses(texts[begin:]))
    first, last = first + begin, last + begin
    parts = split_at_commas(body.head[first + 1 : last])
    template = split_at_commas(body.head[2 : begin - 1]) if begin else []
    named = {part[1].text for part in template if part[0].text in {"class", "typename"}}
    words = Words(merge(simplified(body.tokens)), outside._replace(types=outside.types | named))
    if (
        not body.is_global
        or texts[first - 1] in body.words
        or last + 1 < len(texts)
        or "operator" in texts
        or not (NOT_TAKEN | _PLACED).isdisjoint(words.texts)
        or any(map(words.is_hidden, range(len(words.texts))))
        or any(hides(outside.macros, each) or each == "=" for each in texts)
        or any("\n" in each for each in words.texts)
    ):
        raise RefusedError
    return Function(
        texts[first - 1],
        [[token.text for token in part] for part in template],
        [_parameter([token.text for token in part]) for part in parts if part[1:]],
        [each for each in texts[begin : first - 1] if each not in _SPECIFIERS],
        words,
        frozenset[str]().union(*(chunk.names for chunk in text.chunks[body.number + 1 :])),
    )


def _parameter(texts: Sequence[str]) -> _Parameter:
    texts = [each for each in texts if not each.startswith("__restrict")]
    if "(" in texts:  # T (&name)[N]
        place = texts.index("(")
        if texts[place + 1] != "&" or texts[place + 3] != ")":
            raise RefusedError
        return _Parameter(texts[:place], texts[place + 2], "&")
    end = texts.index("[") if "[" in texts else len(texts)
    kind, name, sign = texts[: end - 1], texts[end - 1], ""
    if kind[-1] == "&":
        kind, sign = kind[:-1], "&"
    elif "[" in texts:
        sign = "*" if texts.count("[") == 1 else "["
    if not name.isidentifier() or name in TYPES or "&" in kind:
        raise RefusedError
    return _Parameter(kind, name, sign)


def inlined(
    kernel: Words, source: str, parameters: Collection[str], known: Mapping[str, Function]
) -> Iterator[Edit]:
    """Yield edits that put functions in place of their calls, one in each statement.

    Parameters
    ----------
    kernel
        The kernel's body.
    source
        The text that its tokens are of.
    parameters
        The names of the kernel's parameters.
    known
        The functions, by name.
    """
    taken = kernel.declared | {*parameters}
    size = len(kernel.texts)
    number = last_number(_NUMBERED, kernel.texts)
    statements, shared = set[int](), {*kernel.texts}
    for index, text in enumerate(kernel.texts):
        if text in known and text not in taken and kernel.texts[index - 1] not in _MEMBER:
            number += 1
            size += len(known[text].body.texts)
            first = statement_of(kernel, index)
            if size > _MOST:
                raise RefusedError
            if first not in statements:
                statements.add(first)
                call = _Call(kernel, source, (first, index), known[text], number)
                yield from call.edits(parameters, shared)


def statement_of(kernel: Words, index: int) -> int:
    """Return where the statement of a call begins, in the innermost block around it."""
    block = kernel.around(index, "{")
    if block and kernel.texts[block - 1] not in {")", "{", "}", ";", "else", "do"}:
        raise RefusedError
    first = block + 1
    while kernel.end(first) <= index:
        first = kernel.end(first)
    return first


def check_order(kernel: Words, first: int, index: int) -> None:
    """Refuse a call if something in its statement may have to be done before it."""
    texts = kernel.texts
    if texts[first] == "if" and index < kernel.pair[first + 1]:
        first += 2
    elif texts[first] in CONTROL or kernel.tokens[first].kind == "directive":
        raise RefusedError
    for place in range(first, index):
        before = kernel.tokens[kernel.around(place) - 1]
        is_in_call = before.kind == "word" and before.text not in CONTROL
        if texts[place] in _SEQUENCES or (texts[place] == "," and not is_in_call):
            raise RefusedError


class _Call:
    """A call in a kernel."""

    def __init__(
        self,
        kernel: Words,
        source: str,
        place: tuple[int, int],
        function: Function,
        number: int,
    ) -> None:
        self._first, self._index = place  # where its statement begins, and itself
        self._last = kernel.end(self._first)
        self._kernel = kernel
        self._source = source
        self._function = function
        self._prefix = f"hal_in{number}"
        self._names: dict[str, str] = {}  # what the function's names become
        self._shared: dict[str, tuple[int, int]] = {}  # its declarations, by their last name
        self._given: list[list[str]] = []
        texts, open_ = kernel.texts, self._index + 1
        if texts[open_] == "<":
            close = texts.index(">", open_)
            parts = split_at_commas(kernel.tokens[open_ + 1 : close])
            self._given = [[token.text for token in part] for part in parts]
            open_ = close + 1
        if texts[open_] != "(" or len(self._given) > len(function.template):
            raise RefusedError
        self._open, self._close = open_, kernel.pair[open_]
        self._given += map(self._deduced, function.template[len(self._given) :])
        check_order(kernel, self._first, self._index)

    def edits(self, parameters: Collection[str], shared: set[str]) -> Iterator[Edit]:
        """Yield the edits.

        `parameters` are the names of the kernel's, `shared` those that it has for the shared memory
        of functions.
        """
        kernel, body = self._kernel, self._function.body
        place, value = self._returns()
        self._find_shared()
        lines = [*self._templates(), *self._arguments(parameters), self._text(1, place)]
        start = kernel.tokens[0].end
        for name, (first, last) in self._shared.items():
            if name not in shared:
                shared.add(name)
                yield Edit(start, start, f" {self._text(first, last, is_shared=True)}")
        if value is not None:
            kind = [each for each in self._function.result if each != "const"]
            text = self._text(value, len(body.texts) - 2)
            lines.append(f"{self._type(kind)} {self._prefix} = {text};")
        if self._is_alone():
            yield self._kernel.edit(self._source, self._index, self._last, " ".join(lines))
            return
        start = kernel.tokens[self._first].start
        yield Edit(start, start, f"{' '.join(lines)} ")
        yield self._kernel.edit(self._source, self._index, self._close + 1, self._prefix)

    def _is_alone(self) -> bool:
        """Return whether the call is all of its statement."""
        return (self._first, self._last) == (self._index, self._close + 2)

    def _returns(self) -> tuple[int, int | None]:
        """Return where the function's statements end, and where its result stands."""
        body = self._function.body
        end = len(body.texts) - 1
        returns = [place for place, text in enumerate(body.texts) if text == "return"]
        if self._function.result == ["void"]:
            # To return from the last statement of the kernel is to return from the kernel.
            is_last = self._last == len(self._kernel.texts) - 1
            if not self._is_alone() or (returns and not is_last):
                raise RefusedError
            return end, None
        place = returns[0]
        if (
            len(returns) > 1
            or body.end(place) != end
            or body.texts[place - 1] not in {"{", "}", ";"}
            or len(body.parts(place + 1, end - 1)) > 1
            or {"const", "*"}.issubset(self._function.result)
        ):
            raise RefusedError
        return place, place + 1

    # Names

    def _find_shared(self) -> None:
        """Find and name shared memory, which is the same in all calls of the function."""
        body = self._function.body
        for index, text in enumerate(body.texts):
            if text != "__shared__":
                continue
            first = index - (body.texts[index - 1] == "extern")
            last = body.end(first)
            if body.texts[first - 1] not in {"{", "}", ";"}:
                raise RefusedError
            given = [re.sub(r"\W", "_", word) for words in self._given for word in words]
            for begin, _ in body.parts(index, last - 1):
                place = begin
                while body.texts[place + 1] not in {"[", ",", ";"}:
                    place = body.pair.get(place, place) + 1
                name = body.texts[place]
                self._names[name] = "_".join(["hal_in", self._function.name, *given, name])
            self._shared[self._names[name]] = first, last

    def _deduced(self, template: Sequence[str]) -> list[str]:
        """Return what a template's parameter is: the type of a variable that is an argument.

        Or the size of one that is a tile.
        """
        texts, types = self._kernel.texts, {*self._kernel.types, "const"}
        parts = self._kernel.parts(self._open + 1, self._close)
        for (first, last), parameter in zip(parts, self._function.parameters, strict=True):
            if template[-1] not in parameter.type or last > first + 1:
                continue
            name = texts[first]
            place = next(i for i, text in enumerate(texts) if text == name)
            value = texts[place : self._kernel.end(place)]
            if not _MAKERS.isdisjoint(value) and value[1] == "=":
                return [value[value.index("<") + 1] if _TILE in parameter.type else _TILE]
            if parameter.type != [template[-1]] or parameter.sign:
                continue
            begin = place
            while texts[begin - 1] in types:
                begin -= 1
            words = [each for each in texts[begin:place] if each != "const"]
            if self._is_declared(name, words) and texts[place + 1] != "[":
                return words
        raise RefusedError

    def _templates(self) -> Iterator[str]:
        """Name what stands for the template's parameters; yield declarations of constants."""
        for words, given in zip(self._function.template, self._given, strict=True):
            *kind, name = words
            if kind in (["class"], ["typename"]):
                self._names[name] = _TILE if given == [_TILE] else self._type(given)
            elif len(given) != 1 or not kind or not TYPES.issuperset(kind):
                raise RefusedError
            elif given[0].isdecimal() and " ".join(kind) in _SUFFIXES:
                # A loop up to a number is unrolled, and shared memory is as large.
                self._names[name] = given[0] + _SUFFIXES[" ".join(kind)]
            else:
                self._names[name] = f"{self._prefix}_{name}"
                yield f"const {' '.join(kind)} {self._names[name]} = {given[0]};"

    def _arguments(self, parameters: Collection[str]) -> list[str]:
        """Name the function's variables; return the declarations of those for its parameters.

        `parameters` are the kernel's.
        """
        kernel, function = self._kernel, self._function
        taken = kernel.declared | {*parameters}
        parts = kernel.parts(self._open + 1, self._close)
        arguments = [kernel.tokens[a:b] for a, b in parts if a < b]
        if len(arguments) != len(function.parameters):  # a comma is one of a template, perhaps
            arguments = split_at_commas(kernel.tokens[self._open + 1 : self._close])
        if len(arguments) != len(function.parameters):
            raise RefusedError
        mine = {*function.body.declared, *(each.name for each in function.parameters)}
        self._names |= {name: f"{self._prefix}_{name}" for name in mine - self._names.keys()}
        free = {word for each in function.parameters for word in each.type}
        texts = function.body.texts
        free |= {each for before, each in itertools.pairwise(texts) if before not in {".", "->"}}
        if (
            not (free - self._names.keys() - TYPES).isdisjoint({*taken, *function.later})
            or not function.later.isdisjoint(self._names)
            or any(map(kernel.is_macro, self._names))
        ):
            raise RefusedError
        lines: list[str] = []
        stand_ins = {}
        for (kind, parameter, sign), tokens in zip(function.parameters, arguments, strict=True):
            words = [token.text for token in tokens]
            text = self._join(tokens, {})
            if not _GROUPS.isdisjoint({*kind, *map(self._names.get, kind)}):
                is_itself = words[-3:] == ["this_thread_block", "(", ")"] or len(words) == 1
            else:
                is_itself = sign in {"&", "["} and len(words) == 1 and words[0] in taken
                is_itself &= "const" not in kind or (
                    words[0] not in parameters and self._is_declared(words[0], kind)
                )
                is_itself &= sign == "&" or not function.body.is_changed(parameter)
                is_itself &= "sizeof" not in function.body.texts
            if is_itself:
                stand_ins[parameter] = text
                continue
            is_element = words[1:2] == ["["] and words[0] in taken and "const" not in kind
            if sign == "[" or (sign == "&" and not is_element):
                raise RefusedError
            line = f"{self._type(kind)} {sign}{self._names[parameter]} = {text};"
            # What may be the same for all threads comes first.
            lines.insert(0 if len(words) == 1 else len(lines), line)
        self._names |= stand_ins
        return lines

    def _is_declared(self, name: str, kind: Sequence[str]) -> bool:
        """Return whether a variable of the kernel is plainly declared once, with this type."""
        texts = self._kernel.texts
        words = [each for each in self._type(kind).split() if each != "const"]
        heads = [
            texts[index - len(words) - 1 : index]
            for index, text in enumerate(texts)
            if text == name
            and (
                texts[index - 1] in {*self._kernel.types, "*", "&"}
                or (texts[index - 1] == "," and texts[self._kernel.around(index)] == "{")
            )
        ]
        return len(heads) == 1 and heads[0][1:] == words and heads[0][0] not in TYPES

    def _type(self, words: Sequence[str]) -> str:
        """Return a type of the function as the kernel writes it."""
        named = [each for word in words for each in self._names.get(word, word).split()]
        types = {*named} - {"const", "*"}
        if not types or "auto" in types or not self._kernel.types.issuperset(types):
            raise RefusedError
        return " ".join(named)

    # Text

    def _text(self, first: int, last: int, *, is_shared: bool = False) -> str:
        """Return tokens of the function in one line, without its shared memory's declarations."""
        left_out = () if is_shared else self._shared.values()
        tokens = [
            self._function.body.tokens[index]
            for index in range(first, last)
            if not any(a <= index < b for a, b in left_out)
        ]
        return self._join(tokens, self._names)

    def _join(self, tokens: Sequence[Token], names: Mapping[str, str]) -> str:
        text, before = "", None
        for token in tokens:
            if token.kind != "directive":  # how to unroll a loop
                is_named = token.kind == "word" and not (before and before.text in _MEMBER)
                text += " " if before and before.end < token.start else ""
                text += names.get(token.text, token.text) if is_named else token.text
                text += " constexpr" if token.kind == "constexpr" else ""
                before = token
        return text
