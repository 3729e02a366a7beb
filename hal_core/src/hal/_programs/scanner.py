"""Find the kernels of portable source without a compiler.

The portable dialect is what CUDA C++ and HIP C++ have in common. Only the
compiler knows the kind and the size of a parameter: see `hal._programs.type_table`.

`scan` accepts a kernel (a ``__global__`` function with a body) only if

- it stands at global scope (``extern "C"`` is fine), is not a template, returns void, and does
  not have the name of a function of the dialect;
- no other kernel has its name, whatever the preprocessor would choose, and no ``#if``
  divides its head;
- every parameter has a name, and no parameter is a reference or has a default.

``HAL_BLOCK(x, y, z)`` and ``HAL_SHARED_MEMORY(bytes)`` may stand in front of
the name or behind the parameters of a kernel's definition: the launch uses
them where a dispatch does not say. No compiler sees these marks:
`read_source` replaces them with spaces.

Macros are not expanded: a kernel that a macro writes is not found. Text under
``#if 0`` is skipped; both sides of any other condition are read.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from typing import Final

from hal._programs.words import BUILTIN_TYPES, NO_FUNCTIONS, NO_NAMES, QUALIFIERS, RESERVED
from hal.cpp_tokens import (
    Token,
    bracket_depths,
    edited,
    matching_parentheses,
    split_at_commas,
    tokenize,
    without_attributes,
    without_splices,
)
from hal.errors import InvalidArgumentError
from hal.native import EntryPoint

_COMMAND: Final = r"#\s*(\w*)\s*(.*)"
_NOT_BLANK: Final = r"[^\r\n]"
_LITERALS: Final = {"0": False, "false": False, "1": True, "true": True}

# The marks of a kernel, and how many expressions each takes at most.
_MARKS: Final = {"HAL_BLOCK": 3, "HAL_SHARED_MEMORY": 1}


@dataclasses.dataclass(slots=True)
class _Conditional:
    """An open ``#if``, and the state that each of its branches starts from.

    Each branch may open the same function, as in ``#if A``, ``void f() {``, ``#else``, ``void
    g() {``, ``#endif``: read one after the other, the second would stand inside of the first.
    """

    state: tuple[tuple[str, ...], tuple[Token, ...], int, EntryPoint | None]
    skipping: bool
    dead: bool  # stands in skipped text itself
    taken: bool  # a branch under ``#if 1`` was read, so no other is
    unknown: bool  # the compiler decides at least one of its conditions


def scan(source: str, *, filename: str) -> tuple[EntryPoint, ...]:
    """Find every kernel that the source defines, in the order of the text, with its exact places.

    The type text of a parameter is a C++ type-id, as in ``float *[2]``: without its name,
    comments and attributes. The line is that of ``__global__``. Raises `InvalidArgumentError` for
    a kernel that breaks a rule of the dialect (see the module), with file, line, kernel and what
    to do.
    """
    return _Scanner(source, filename).scan()


@functools.lru_cache(maxsize=64)
def read_source(source: str, *, filename: str) -> tuple[tuple[EntryPoint, ...], str]:
    """Return the result of `scan`, and the source without the marks of its kernels.

    Every other character keeps its place. Kept for the last sources, which may be compiled again.
    """
    scanner = _Scanner(source, filename)
    entries = scanner.scan()
    blanks = [
        (start, end, re.sub(_NOT_BLANK, " ", source[start:end])) for start, end in scanner.marks
    ]
    return entries, edited(source, blanks)


class _Scanner:
    """One walk over the tokens, with the open scopes and the head of the current declaration.

    Scopes named "namespace", "extern" and "class" hold declarations; "inner"
    (braces in parentheses) is part of one; inside "kernel" and "body" only
    braces count.
    """

    def __init__(self, source: str, filename: str) -> None:
        self._source = source
        self._filename = filename
        self._found: dict[int, EntryPoint] = {}  # by the place of the parameters
        self._scopes: list[str] = []
        self._head: list[Token] = []
        self._parentheses = 0
        self._kernel: EntryPoint | None = None  # whose body is open, or was last
        self._conditionals: list[_Conditional] = []
        self.marks: set[tuple[int, int]] = set()  # their starts and ends

    def scan(self) -> tuple[EntryPoint, ...]:
        for token in tokenize(self._source):
            if token.kind == "directive":
                self._directive(token)
            elif not self._conditionals or not self._conditionals[-1].skipping:
                self._step(token)
        if self._kernel is not None and "kernel" in self._scopes:
            raise self._error(self._kernel, "its body is never closed; a '}' is missing")
        found = sorted(self._found.values(), key=lambda entry: entry.body_start)
        seen: dict[str, EntryPoint] = {}
        for entry in found:
            first = seen.setdefault(entry.name, entry)
            if first is not entry:
                raise self._error(
                    entry,
                    f"line {first.line} defines it already, and a kernel has no overloads or "
                    "variants; rename one, or keep one and put the #if inside its body or in "
                    "front of it, around an alias for the types that differ",
                )
        return tuple(found)

    def _step(self, token: Token) -> None:
        text = token.text
        scope = self._scopes[-1] if self._scopes else ""
        if text == "}":
            self._close(token)
        elif scope in {"kernel", "body"}:
            if text == "{":
                self._scopes.append("body")
        elif text == "{":
            self._scopes.append(self._open(token))
        elif text == ";" and scope != "inner":
            self._end_declaration()
        else:
            self._head.append(token)
            if scope != "inner":
                self._parentheses += (text == "(") - (text == ")")

    def _open(self, token: Token) -> str:
        if self._parentheses > 0:
            self._head.append(token)
            return "inner"
        texts = [part.text for part in self._head]
        if "__global__" in texts:
            kernel = self._read_head(token)
            self._kernel = kernel or self._kernel
            return "kernel" if kernel else "body"
        if "namespace" in texts:
            scope = "namespace"
        elif texts[-2:-1] == ["extern"] and texts[-1][0] == '"':
            scope = "extern"
        elif {"class", "struct", "union"}.intersection(texts) and texts[-1] not in {")", "="}:
            scope = "class"
        else:
            return "body"
        self._end_declaration()
        return scope

    def _close(self, token: Token) -> None:
        if not self._scopes:
            return  # one too many: the compiler reports it
        scope = self._scopes.pop()
        if scope == "kernel" and self._kernel is not None:
            entry = self._kernel._replace(body_end=token.end)
            self._found[entry.parameters_start] = entry
        if scope == "inner":
            self._head.append(token)
        elif not self._scopes or self._scopes[-1] not in {"kernel", "body"}:
            self._end_declaration()

    def _end_declaration(self) -> None:
        self._head.clear()
        self._parentheses = 0

    def _directive(self, token: Token) -> None:
        match = re.match(_COMMAND, token.text, re.DOTALL)
        name, rest = match.groups() if match else ("", "")
        decided = _LITERALS.get(rest.strip()) if name in {"if", "elif"} else None
        current = self._conditionals[-1] if self._conditionals else None
        if name in {"if", "ifdef", "ifndef"}:
            dead = current is not None and current.skipping
            current = _Conditional(
                state=(tuple(self._scopes), tuple(self._head), self._parentheses, self._kernel),
                skipping=dead or decided is False,
                dead=dead,
                taken=decided is True,
                unknown=decided is None,
            )
            self._conditionals.append(current)
        elif name == "endif" and current is not None:
            self._conditionals.pop()
        elif name not in {"else", "elif", "elifdef", "elifndef"}:
            current = None  # #define, #pragma
        elif current is not None and not current.dead:
            current.skipping = current.taken or decided is False
            if not current.skipping:
                scopes, head, self._parentheses, self._kernel = current.state
                self._scopes, self._head = list(scopes), list(head)
                current.taken = decided is True
                current.unknown |= decided is None and name != "else"
        undecided = current is not None and current.unknown and not current.dead
        if self._head and (undecided or name == "include"):
            # Leave a mark: the preprocessor assembles the declaration.
            self._head.append(Token("mark", "#", token.start, token.end))

    # Heads of declarations

    def _read_head(self, brace: Token) -> EntryPoint | None:
        """Return the kernel whose body the brace opens, or None if it is not a function's."""
        head = self._head
        texts = [token.text for token in head]
        groups = [
            (start, end)
            for start, end in matching_parentheses(texts)
            if start > 0 and texts[start - 1] not in NO_FUNCTIONS
        ]
        if not groups:
            return None
        start, end = groups[-1]
        entry = EntryPoint(
            name=texts[start - 1],
            parameters=(),
            line=self._line(head[texts.index("__global__")]),
            parameters_start=head[start].end,
            parameters_end=head[end].start,
            body_start=brace.start,
            body_end=brace.end,
        )
        if "template" in texts[:start] or entry.name == ">":
            raise self._error(
                entry,
                "a template cannot be an entry point; make it a __device__ function, and call it "
                "from a kernel with plain types",
            )
        if head[start - 1].kind != "word":
            raise self._error(
                entry, "its name is not plainly written before the '('; write it there"
            )
        if "#" in texts[start:]:
            raise self._error(
                entry,
                "a preprocessor line stands in its declaration, so that its parameters are not "
                "known; put the #if in front of it, around an alias for the types that differ",
            )
        if texts[start - 2] == "::" or "namespace" in self._scopes:
            raise self._error(
                entry, "it is in a namespace; move it to global scope (what it calls may stay)"
            )
        if "class" in self._scopes:
            raise self._error(entry, "it is in a class; move it to global scope")
        self._check_kernel(entry, texts[: start - 1])
        entry = self._with_marks(entry, head)
        tokens = without_attributes(head[start + 1 : end])
        if [token.text for token in tokens] in ([], ["void"]):
            return entry
        parameters = tuple(
            self._parameter(entry, number, part)
            for number, part in enumerate(split_at_commas(tokens), start=1)
        )
        return entry._replace(parameters=parameters)

    def _check_kernel(self, entry: EntryPoint, before: list[str]) -> None:
        """Raise if the name is taken or the return type is not void."""
        if entry.name in RESERVED:
            raise self._error(
                entry, "C or the dialect has a function of this name; rename the kernel"
            )
        depths = bracket_depths(before)
        outer = [text for text, depth in zip(before, depths, strict=True) if depth == 0]
        returned = [text for text in outer if text in BUILTIN_TYPES or text in {"*", "&"}]
        if returned and returned != ["void"]:
            raise self._error(
                entry,
                f"it returns `{' '.join(returned)}`, and a kernel returns void; write results "
                "through a pointer",
            )

    def _with_marks(self, entry: EntryPoint, head: list[Token]) -> EntryPoint:
        """Return the kernel with the values of its marks, and note their places."""
        texts = [token.text for token in head]
        found: dict[str, tuple[str, ...]] = {}
        bounds = ""
        for start, end in matching_parentheses(texts):
            mark = texts[start - 1] if start else ""
            if mark not in _MARKS and mark != "__launch_bounds__":
                continue
            values = tuple(map(self._text, split_at_commas(head[start + 1 : end])))
            if mark not in _MARKS:
                bounds = "" if "#" in texts else values[0]
                continue
            most = _MARKS[mark]
            problem = ""
            if "#" in texts:
                problem = "stands in a declaration with a preprocessor line; put the #if around a "
                problem += "macro for its value"
            elif mark in found:
                problem = "stands there twice"
            elif not all(values) or len(values) > most:
                problem = f"takes {'one to three numbers' if most > 1 else 'one number'}"
            if problem:
                raise self._error(entry, f"{mark} {problem}", self._line(head[start - 1]))
            found[mark] = values
            self.marks.add((head[start - 1].start, head[end].end))
        return entry._replace(
            block=found.get("HAL_BLOCK", ()),
            shared_memory="".join(found.get("HAL_SHARED_MEMORY", ())),
            launch_bounds=bounds,
        )

    def _parameter(self, entry: EntryPoint, number: int, tokens: list[Token]) -> tuple[str, str]:
        texts = [token.text for token in tokens]
        depths = bracket_depths(texts)
        outer = {text for text, depth in zip(texts, depths, strict=True) if depth == 0}
        index = _find_name(tokens)
        if "..." in outer:
            problem = "makes the kernel variadic; give it a fixed number of parameters"
        elif "=" in outer:
            problem = "has a default value; remove it, and pass the value"
        elif "auto" in outer:
            problem = "makes the kernel a template; write out its type"
        elif outer & {"&", "&&"} or {("(", "&"), ("(", "&&")}.intersection(
            itertools.pairwise(texts)
        ):
            problem = "is a reference; take a pointer, or take it by value"
        elif index is None:
            problem = (
                "has no name that can be found, and arguments are checked by name; write it as "
                "`type name`, with an alias where the type is involved"
            )
        else:
            nameless = [*tokens[:index], tokens[index]._replace(text=""), *tokens[index + 1 :]]
            return self._text(nameless), tokens[index].text
        line = self._line(tokens[0]) if tokens else entry.line
        raise self._error(entry, f"parameter {number} (`{self._text(tokens)}`) {problem}", line)

    def _text(self, tokens: list[Token]) -> str:
        """Return the tokens' text, with one space wherever the source has space or comments."""
        pieces: list[str] = []
        end = tokens[0].start if tokens else 0
        for token in tokens:
            if token.text and without_splices(self._source[end : token.start]):
                pieces.append(" ")
            pieces.append(token.text)
            end = token.end
        return "".join(pieces).strip()

    def _line(self, token: Token) -> int:
        return self._source.count("\n", 0, token.start) + 1

    def _error(
        self, entry: EntryPoint, problem: str, line: int | None = None
    ) -> InvalidArgumentError:
        name = entry.name if entry.name.isidentifier() else "?"
        where = f"{self._filename}:{line or entry.line}"
        return InvalidArgumentError(f"{where}: kernel '{name}': {problem}")


def _find_name(tokens: list[Token]) -> int | None:
    """Return the index of the token that names a parameter, or None if it is unclear."""
    texts = [token.text for token in tokens]
    depths = bracket_depths(texts)
    index = len(tokens) - 1
    for start, end in matching_parentheses(texts):
        if depths[start] == 0 and start > 0 and texts[start - 1] not in NO_FUNCTIONS:
            # A pointer to an array or to a function: (*name)
            index = end - 1
            if texts[start + 1] != "*" or not {"*", *QUALIFIERS}.issuperset(
                texts[start + 1 : index]
            ):
                return None
            break
    else:
        while index > 0 and texts[index] == "]":
            index = max(i for i in range(-1, index) if i < 0 or depths[i] == depths[index]) - 1
    if index < 1 or tokens[index].kind != "word" or texts[index] in NO_NAMES:
        return None
    if texts[index - 1] == "::":
        return None
    # `const Foo`, `struct Foo`: what is left must be a type, not only words about one.
    rest = (token for token in tokens[:index] if token.kind == "word")
    return index if any(token.text not in QUALIFIERS for token in rest) else None
