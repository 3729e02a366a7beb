"""Split a kernel with barriers into regions, each to be run as a loop over the block's threads.

A region is a row of statements without a barrier. What stands between regions runs once for the
block: barriers, shared memory, and control flow and variables that are the same for all threads.
A variable that more than one region uses is computed again in each, if it follows from the
thread's index alone, and else kept in an array with an element for each thread.

Only what is understood as a whole is split: for anything else `split` returns None, and the
threads run side by side, as they always can.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hal.cpp_tokens import Token

__all__ = ["Edit", "split"]

_BARRIER: Final = ("__syncthreads", "(", ")", ";")
_OPERATORS: Final = re.compile(r"<<=|>>=|\+\+|--|[-+*/%&|^=!<>]=|\|\||>>")
_ASSIGNMENTS: Final = frozenset(
    ["=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"]
)
_TYPES: Final = frozenset(
    [
        "bool",
        "char",
        "short",
        "int",
        "long",
        "float",
        "double",
        "signed",
        "unsigned",
        "size_t",
        "int8_t",
        "int16_t",
        "int32_t",
        "int64_t",
        "uint8_t",
        "uint16_t",
        "uint32_t",
        "uint64_t",
    ]
)
_BUILT_IN: Final = frozenset(
    [
        "blockIdx",
        "blockDim",
        "gridDim",
        "x",
        "y",
        "z",
        "min",
        "max",
        "sizeof",
        "const",
        "true",
        "false",
    ]
)
# What may hide an effect or a declaration that is not seen here.
_NOT_TAKEN: Final = frozenset(
    [
        "goto",
        "switch",
        "case",
        "default",
        "typedef",
        "using",
        "struct",
        "class",
        "union",
        "enum",
        "template",
        "static",
        "volatile",
        "asm",
        "__asm__",
        "__asm",
        "try",
        "catch",
        "auto",
        "constexpr",
        "decltype",
        "operator",
        "new",
        "delete",
    ]
)
_CONTROL: Final = frozenset(["if", "for", "while", "do", "else", "return", "break", "continue"])


class Edit(NamedTuple):
    """The replacement of a range of the source."""

    start: int
    end: int
    text: str


class _RefusedError(Exception):
    """The kernel has something that is not understood."""


@dataclass(slots=True)
class _Variable:
    name: str
    type: str  # with its stars
    dimensions: str
    is_const: bool


@dataclass(slots=True)
class _Region:
    """A range of tokens that each thread runs, and what it declares for all of the range."""

    first: int
    last: int = 0  # behind the last token
    declared: list[_Variable] = field(default_factory=list)
    again: list[tuple[tuple[str, ...], int, int]] = field(default_factory=list)  # names, tokens


def split(
    tokens: Sequence[Token],
    parameters: Sequence[str],
    macros: Mapping[str, Sequence[Token] | None],
    users: frozenset[str],
    source: str,
) -> list[Edit] | None:
    """Return the edits that make a kernel run its block by itself, or None.

    Parameters
    ----------
    tokens
        Those of the body, braces included.
    parameters
        The names of the kernel's parameters.
    macros
        What each macro stands for; None for one with parameters.
    users
        The names that the source defines.
    source
        The text that the tokens are of.
    """
    try:
        return _Splitter(_merge(tokens), parameters, macros, users, source).edits()
    except (_RefusedError, IndexError):
        return None


def _merge(tokens: Sequence[Token]) -> list[Token]:
    """Join the signs of an operator."""
    merged: list[Token] = []
    for token in tokens:
        last = merged[-1] if merged else None
        if last and last.kind == token.kind == "sign" and last.end == token.start:
            text = last.text + token.text
            if _OPERATORS.fullmatch(text):
                merged[-1] = Token("sign", text, last.start, token.end)
                continue
        merged.append(token)
    return merged


class _Splitter:
    def __init__(
        self,
        tokens: list[Token],
        parameters: Sequence[str],
        macros: Mapping[str, Sequence[Token] | None],
        users: frozenset[str],
        source: str,
    ) -> None:
        self._tokens = tokens
        self._texts = [token.text for token in tokens]
        self._macros = macros
        self._users = users
        self._source = source
        self._regions: list[_Region] = []
        self._open: _Region | None = None
        self._names: set[str] = set(parameters)  # all that were declared between regions
        self._again: dict[str, bool] = {}
        self._headers: list[tuple[int, int]] = []
        self._pair = _pairs(self._texts)
        self._check()
        self._uniform = {name for name in parameters if not self._is_changed(name)}

    # What is refused as a whole, and what changes

    def _check(self) -> None:
        for index, token in enumerate(self._tokens):
            text = token.text
            before = self._texts[index - 1] if index else ""
            if token.kind == "directive":
                if not re.match(r"#\s*pragma\s+(GCC\s+)?unroll\b", text):
                    raise _RefusedError
            elif text in _NOT_TAKEN or (text == "[" and not self._is_operand(index - 1)):
                raise _RefusedError
            elif text == "&" and (
                before in _TYPES or self._texts[index + 2] in {"=", "{"} or before == ">"
            ):
                raise _RefusedError  # a reference
            elif text in self._macros:
                replaced = self._macros[text]
                if replaced is None or not all(
                    each.kind == "number" or each.text in _BUILT_IN or each.text in "+-*/%()<>"
                    for each in replaced
                ):
                    raise _RefusedError

    def _is_operand(self, index: int) -> bool:
        token = self._tokens[index]
        is_name = token.kind == "word" and token.text not in _CONTROL
        return is_name or token.kind == "number" or token.text in {")", "]"}

    def _is_changed(self, name: str, ranges: Sequence[tuple[int, int]] = ()) -> bool:
        """Return whether a variable may change outside of ranges, its declaration aside."""
        for index, text in enumerate(self._texts):
            if text != name or any(first <= index < last for first, last in ranges):
                continue
            before, after = self._texts[index - 1], self._texts[index + 1]
            if after in {".", "->"} or before in {".", "->"}:
                if before not in {".", "->"}:
                    return True
                continue
            if after in _ASSIGNMENTS or before in {"++", "--"}:
                return True
            if before == "&" and not self._is_operand(index - 2):
                return True
            if before in {"(", ","} and after in {",", ")"} and self._may_refer(index):
                return True
        return False

    def _may_refer(self, index: int) -> bool:
        """Return whether a name is the whole argument of a function that the source defines."""
        depth = 0
        for place in range(index - 1, -1, -1):
            depth += (self._texts[place] == ")") - (self._texts[place] == "(")
            if depth < 0:
                callee = self._tokens[place - 1]
                return callee.kind == "word" and callee.text in self._users
        return True

    def _is_free(self, first: int, last: int, known: set[str]) -> bool:
        """Return whether an expression is made of known names and pure operations alone."""
        for index in range(first, last):
            token = self._tokens[index]
            text = token.text
            if token.kind == "word":
                if text in _TYPES or text in _BUILT_IN or text in self._macros or text in known:
                    if self._texts[index + 1] == "(" and text not in {"min", "max", "sizeof"}:
                        return False
                    continue
                return False
            if (
                token.kind in {"string", "directive"}
                or text in _ASSIGNMENTS
                or text in {"[", "{", "->"}
            ):
                return False
            if text in {"*", "&"} and not self._is_operand(index - 1):
                return False
            if text in {"/", "%"} and self._tokens[index + 1].kind != "number":
                divisor = self._texts[index + 1]
                # Nobody may be left whose division it is.
                if (
                    divisor not in self._macros
                    and divisor != "blockDim"
                    and "threadIdx" not in known
                ):
                    return False
        return True

    # Statements between regions

    def edits(self) -> list[Edit]:
        self._block(1, len(self._tokens) - 1)
        self._close(len(self._tokens) - 1)
        return list(self._emit())

    def _close(self, index: int) -> None:
        if self._open is not None:
            self._open.last = index
            self._regions.append(self._open)
            self._open = None

    def _block(self, first: int, last: int) -> None:
        """Take the statements of a block that runs once for the block of threads."""
        index = first
        while index < last:
            index = self._statement(index)
        self._close(last)

    def _end(self, index: int) -> int:
        """Return the index behind the statement at `index`."""
        text = self._texts[index]
        if self._tokens[index].kind == "directive":
            return self._end(index + 1)
        if text == "{":
            return self._pair[index] + 1
        if text in {"for", "while", "if"}:
            end = self._end(self._pair[index + 1] + 1)
            if text == "if" and self._texts[end] == "else":
                return self._end(end + 1)
            return end
        if text == "do":
            end = self._end(index + 1)
            return self._pair[end + 1] + 2
        while self._texts[index] != ";":
            index = self._pair.get(index, index) + 1
        return index + 1

    def _statement(self, index: int) -> int:
        end = self._end(index)
        texts = self._texts[index:end]
        if tuple(texts) == _BARRIER:
            self._close(index)
        elif "__shared__" in texts:
            self._shared(index, end)
        elif "__syncthreads" in texts:
            self._close(index)
            self._around(index, end)
        elif texts[0] in _TYPES or (texts[0] == "const" and texts[1] in _TYPES):
            self._declaration(index, end)
        else:
            self._check_plain(index, end)
            self._open = self._open or _Region(index)
        return end

    def _shared(self, index: int, end: int) -> None:
        if self._texts[index] not in {"__shared__", "extern"}:
            raise _RefusedError
        self._close(index)
        self._names |= {token.text for token in self._tokens[index:end] if token.kind == "word"}

    def _check_plain(self, first: int, last: int) -> None:
        """Refuse a statement that may be a declaration, or leaves a loop that is not in it."""
        head, after = self._tokens[first], self._texts[first + 1]
        if head.kind == "word" and head.text not in _CONTROL:
            known = {"[", "(", ".", "->"} | _ASSIGNMENTS
            if after not in known:
                raise _RefusedError
        if head.text in {"break", "continue", "else"}:
            raise _RefusedError
        if not any(text in {"for", "while", "do"} for text in self._texts[first:last]) and any(
            text in {"break", "continue"} for text in self._texts[first:last]
        ):
            raise _RefusedError
        if head.text in {"if", "{"} and {"break", "continue"} & set(self._texts[first:last]):
            raise _RefusedError
        for index in range(first, last):
            if self._texts[index] == "return" and self._texts[index + 1] != ";":
                raise _RefusedError

    def _around(self, index: int, end: int) -> None:
        """Take control flow with barriers in it: it must be the same for all threads."""
        if self._tokens[index].kind == "directive":
            index += 1
        text = self._texts[index]
        if text == "{":
            self._block(index + 1, end - 1)
            return
        if text not in {"for", "if"}:
            raise _RefusedError
        close = self._pair[index + 1]
        if text == "for":
            self._header(index + 2, close)
        elif not self._is_free(index + 2, close, self._uniform):
            raise _RefusedError
        body = close + 1
        if self._texts[body] != "{":
            raise _RefusedError
        self._block(body + 1, self._pair[body])
        after = self._pair[body] + 1
        if after < end:  # else
            if self._texts[after] != "else" or self._texts[after + 1] not in {"{", "if"}:
                raise _RefusedError
            if self._texts[after + 1] == "{":
                self._block(after + 2, end - 1)
            else:
                self._around(after + 1, end)

    def _header(self, first: int, last: int) -> None:
        """Take a for statement's parentheses: counters that nothing else changes."""
        one = self._find(";", first, last)
        two = self._find(";", one + 1, last)
        variables, inits = self._declarators(first, one + 1)
        names = {variable.name for variable in variables}
        if names & ((self._names - self._uniform) | self._users) or any(
            variable.dimensions or self._is_changed(variable.name, [*self._headers, (first, last)])
            for variable in variables
        ):
            raise _RefusedError
        self._headers.append((first, last))
        for begin, end in inits:
            if begin == end or not self._is_free(begin, end, self._uniform):
                raise _RefusedError
        self._names |= names
        self._uniform |= names
        # It ends also if all threads have returned.
        if not self._is_free(one + 1, two, self._uniform) or names.isdisjoint(
            self._texts[one + 1 : two]
        ):
            raise _RefusedError
        step = [text for text in self._texts[two + 1 : last] if text not in _ASSIGNMENTS]
        if len(step) == last - two - 1 or not all(
            text in self._uniform or text in self._macros or not re.match(r"[A-Za-z_\[{&]", text)
            for text in step
        ):
            raise _RefusedError

    def _find(self, text: str, first: int, last: int) -> int:
        for index in range(first, last):
            if self._texts[index] == text:
                return index
        raise _RefusedError

    # Declarations

    def _declarators(self, first: int, end: int) -> tuple[list[_Variable], list[tuple[int, int]]]:
        """Return a declaration's variables, and where their initialisers begin and end."""
        index = first
        words = []
        while self._texts[index] in _TYPES or self._texts[index] == "const":
            words.append(self._texts[index])
            index += 1
        kind = " ".join(word for word in words if word != "const")
        if not kind:
            raise _RefusedError
        variables, inits = [], []
        while True:
            stars = ""
            while self._texts[index] in {"*", "const", "__restrict__", "__restrict"}:
                stars += f" {self._texts[index]}"
                index += 1
            name = self._tokens[index]
            if name.kind != "word" or name.text in _TYPES or name.text in self._macros:
                raise _RefusedError
            index += 1
            dimensions = ""
            while self._texts[index] == "[":
                close = self._pair[index]
                dimensions += "".join(f"{text} " for text in self._texts[index : close + 1])
                index = close + 1
            begin = index
            if self._texts[index] == "=":
                begin = index = index + 1
                while self._texts[index] not in {",", ";"}:
                    index = self._pair.get(index, index) + 1
            pointer = "const " if "*" in stars and "const" in words else ""
            last_star = stars.rpartition("*")[2]
            is_const = "const" in (last_star if "*" in stars else words)
            plain = f"{pointer}{kind}{stars[: len(stars) - len(last_star)]}"
            variables.append(_Variable(name.text, plain, dimensions, is_const))
            inits.append((begin, index))
            if self._texts[index] == ";" and index == end - 1:
                return variables, inits
            if self._texts[index] != ",":
                raise _RefusedError
            index += 1

    def _declaration(self, index: int, end: int) -> None:
        variables, inits = self._declarators(index, end)
        names = {variable.name for variable in variables}
        if names & (self._names | self._users) or len(names) < len(variables):
            raise _RefusedError
        self._names |= names
        fixed = all(
            begin < last
            and not variable.dimensions
            and not self._is_changed(variable.name, [(index, end)])
            for variable, (begin, last) in zip(variables, inits, strict=True)
        )
        if fixed and all(self._is_free(*each, self._uniform | names) for each in inits):
            self._close(index)
            self._uniform |= names
            return
        self._open = self._open or _Region(index)
        known = self._uniform | self._again.keys() | names | {"threadIdx"}
        if fixed and all(self._is_free(*each, known) for each in inits):
            self._again.update(dict.fromkeys(names, True))
            self._open.again.append((tuple(names), index, end))
            return
        self._open.declared += variables

    # The result

    def _emit(self) -> Iterator[Edit]:  # noqa: PLR0912 - a region is one piece
        regions = self._regions
        used = [{self._texts[i] for i in range(each.first, each.last)} for each in regions]
        kept: dict[str, _Variable] = {}
        for number, region in enumerate(regions):
            for variable in region.declared:
                if any(variable.name in words for words in used[number + 1 :]):
                    kept[variable.name] = variable
        start = self._tokens[0].end
        storage = "".join(
            f" {each.type} hal_kept_{name}[hal_threads_at_most]{each.dimensions};"
            for name, each in kept.items()
        )
        returns = any("return" in words for words in used)
        yield Edit(start, start, f"HAL_BLOCK_BEGIN({int(returns)});{storage}")
        before: list[tuple[tuple[str, ...], int, int]] = []
        declared: set[str] = set()
        for number, region in enumerate(regions):
            words = set(used[number])
            again = []
            for names, first, last in reversed(before):
                if not words.isdisjoint(names):
                    words |= set(self._texts[first:last])
                    again.append(
                        self._source[self._tokens[first].start : self._tokens[last - 1].end]
                    )
            loads, stores = [], []
            for name, each in kept.items():
                own = any(variable is each for variable in region.declared)
                if name not in words or not (own or name in declared):
                    continue
                place = f"hal_kept_{name}[hal_i]"
                if each.dimensions:
                    if own:
                        stores.append(f"__builtin_memcpy({place}, {name}, sizeof {name});")
                    else:
                        loads.append(f"auto &{name} = {place};")
                    continue
                if not own:
                    loads.append(
                        f"{each.type} {'const ' if each.is_const else ''}{name} = {place};"
                    )
                if own or self._is_changed_in(name, region):
                    stores.append(f"{place} = {name};")
            declared |= {variable.name for variable in region.declared}
            before += region.again
            begin, end = self._tokens[region.first].start, self._tokens[region.last - 1].end
            # A comment in a macro's line would take the rest of it away.
            text = " ".join(_without_comments(each) for each in reversed(again))
            yield Edit(
                begin, begin, f"HAL_REGION_BEGIN({int(returns)}) {text} {' '.join(loads)} {{"
            )
            for index in range(region.first, region.last):
                if self._texts[index] == "return":
                    token, semicolon = self._tokens[index], self._tokens[index + 1]
                    yield Edit(token.start, semicolon.end, f"HAL_REGION_RETURN(hal_end_{number})")
            label = f"hal_end_{number}:;" if "return" in used[number] else ""
            yield Edit(end, end, f"{' '.join(stores)} }} {label} HAL_REGION_END")
        for index, text in enumerate(self._texts):
            if text == "__syncthreads":
                yield Edit(self._tokens[index].start, self._tokens[index + 3].end, ";")

    def _is_changed_in(self, name: str, region: _Region) -> bool:
        others = [(0, region.first), (region.last, len(self._texts))]
        return self._is_changed(name, others)


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).replace("\n", " ")


def _pairs(texts: Sequence[str]) -> dict[int, int]:
    """Return the index of each opening bracket's partner."""
    pairs: dict[int, int] = {}
    stack: list[int] = []
    closing = {")": "(", "]": "[", "}": "{"}
    for index, text in enumerate(texts):
        if text in {"(", "[", "{"}:
            stack.append(index)
        elif text in closing:
            if not stack or texts[stack[-1]] != closing[text]:
                raise _RefusedError
            pairs[stack.pop()] = index
    if stack:
        raise _RefusedError
    return pairs
