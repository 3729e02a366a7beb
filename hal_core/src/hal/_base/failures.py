"""Keep errors that many threads will see, and raise fresh copies of them (rule S4)."""

from __future__ import annotations

import os
import traceback
from types import MemberDescriptorType
from typing import Any, Final

from hal.arguments import as_text
from hal.errors import HalError, OperationError, SemaphoreFailedError
from hal.handlers import is_a_handlers, own

# The builtin class's descriptor: a user's class may redefine its attributes.
_traceback: Final[Any] = vars(BaseException)["__traceback__"]
_cause: Final[Any] = vars(BaseException)["__cause__"]
_context: Final[Any] = vars(BaseException)["__context__"]
_members: Final[Any] = vars(BaseExceptionGroup)["exceptions"]


def keep(error: BaseException) -> BaseException:
    """Return `error` fit to be kept: without tracebacks, its own and those of what it links to.

    The frames of a traceback would keep every buffer in their variables alive.
    """
    for link in _links(error):
        _traceback.__set__(link, None)
    return error


def twin(error: BaseException) -> BaseException:
    """Return a version fit to be kept of an error that its owner still uses.

    That is the error itself if it has no traceback to lose, else a copy. An error that
    cannot be copied, as its class has storage of its own, loses its traceback.
    """
    links = _links(error)
    if not any(_traceback.__get__(link) for link in links):
        return error
    try:
        twins = {id(link): _again(link) for link in links}
    except own(Exception):  # whatever a class of the user's raises there
        return keep(error)
    for link in links:
        for place in (_cause, _context):
            other = place.__get__(link)
            place.__set__(twins[id(link)], None if other is None else twins[id(other)])
        twins[id(link)].__suppress_context__ = link.__suppress_context__
    return twins[id(error)]


def _again(error: BaseException) -> BaseException:
    """Return an exception like `error`, made by its builtin base."""
    kind = type(error)
    base: Any = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    if issubclass(base, BaseExceptionGroup):
        raise TypeError("its members would be the same")
    again: BaseException = base.__new__(kind, *error.args)
    base.__init__(again, *error.args)
    vars(again).update(vars(error))
    _take_over(again, error)
    return again


def _take_over(made: BaseException, error: BaseException) -> None:
    """Have a new error what Python keeps apart from its arguments, such as the name of a file.

    Only texts and numbers: the object that an `AttributeError` is about would be kept alive.
    """
    for kind in type(error).__mro__:
        for member in vars(kind).values() if kind.__module__ == "builtins" else ():
            if isinstance(member, MemberDescriptorType):
                value = member.__get__(error)
                if isinstance(value, (int, str, bytes)):
                    member.__set__(made, value)


def _links(error: BaseException) -> list[BaseException]:
    """Return an error and all errors that it links to, once each."""
    found: dict[int, BaseException] = {}
    rest: list[BaseException | None] = [error]
    while rest:
        link = rest.pop()
        if link is None or id(link) in found:
            continue
        found[id(link)] = link
        rest += (_cause.__get__(link), _context.__get__(link))
        if isinstance(link, BaseExceptionGroup):
            rest += _members.__get__(link)
    return list(found.values())


def of_function(error: BaseException, function: object, place: str) -> BaseException:
    """Return the failure of a host operation whose `function` raised `error`, fit to be kept.

    It describes the place in words: frames would keep alive what the function used.
    """
    try:
        name = as_text(function.__qualname__, "")  # type: ignore[attr-defined]
    except own(Exception):  # it has none, or code of the user's looks for it
        name = told(function)
    try:
        steps = traceback.extract_tb(_traceback.__get__(error))
        ours = os.path.dirname(os.path.dirname(__file__)) + os.sep
        theirs = [each for each in steps if not each.filename.startswith(ours)]
        lines = "".join(traceback.format_list(theirs)).rstrip()
    except own(Exception):  # it reads files
        lines = ""
    failure = error
    if not isinstance(error, HalError):
        failure = SemaphoreFailedError(f"the function {name} of {place} raised {told(error)}")
        failure.__cause__ = error
    note = f"Traceback of {name} (most recent call last):\n{lines}"
    if lines and note not in getattr(failure, "__notes__", ()):
        failure.add_note(note)
    return keep(failure)


def told(error: object) -> str:
    """Return an object's `repr`, or a substitute if that raises."""
    try:
        return repr(error)
    except own(Exception):  # whatever user code raises
        return object.__repr__(error)


def as_failure(error: Exception, what: str) -> HalError:
    """Return the failure of an operation whose native call raised `error`, fit to be kept.

    `what` says when that was. Raises the error itself if it is not the plugin's (O3).
    """
    if is_users(error):
        raise error
    if isinstance(error, HalError):
        failure = error
    else:
        failure = OperationError(
            f"the backend raised {told(error)} while {what}; a plugin must raise a HalError"
        )
        failure.__cause__ = error
    keep(failure)
    return failure


def is_users(error: BaseException) -> bool:
    """Return whether an exception from a native call is not the plugin's (O3).

    These are Ctrl-C and its like, a full stack or memory of Python's, and everything that a
    user's signal handler raises, errors of hal's included: the handler may have called hal.
    """
    if not isinstance(error, Exception):
        return True
    if isinstance(error, (RecursionError, MemoryError)) and not isinstance(error, HalError):
        return True
    return is_a_handlers(error)


def fresh(error: BaseException) -> HalError:
    """Return a new exception to raise for a kept one, which becomes its cause.

    It is of the kept one's class if that is a `HalError`, else a `SemaphoreFailedError`.
    """
    # Not the kept one itself: raised from many threads it would grow its traceback, and link
    # contexts that have nothing to do with each other.
    if isinstance(error, HalError):
        copy = _blank(error.__class__)
        copy.args = error.args
        copy.__dict__.update(error.__dict__)
        _take_over(copy, error)
        notes = copy.__dict__.pop("__notes__", ())
        if isinstance(error, SemaphoreFailedError) and error.__cause__ is not None:
            # It stands for its cause already, and says more about it.
            for note in notes:
                copy.add_note(note)
            error = error.__cause__
    else:
        copy = SemaphoreFailedError(f"the semaphore was failed with {told(error)}")
    copy.__cause__ = error
    return copy


def placed(place: str, error: HalError) -> HalError:
    """Return a new exception like `error` whose message begins with where it happened.

    Raises the error itself if it is not the plugin's (O3).
    """
    if is_users(error):
        raise error
    told = fresh(error)
    told.args = (f"{place}: {error}", *error.args[1:])
    return told


def _blank(kind: type[HalError]) -> HalError:
    """Return an exception of a class without calling its initialiser, which may want arguments.

    A builtin among the bases (`MemoryError`, `OSError`) creates its own objects.
    """
    for base in kind.__mro__:
        if "__new__" in vars(base):
            try:
                made: HalError = vars(base)["__new__"](kind)
            except own(TypeError):
                continue  # another base decides
            return made
    raise TypeError(f"{kind.__name__} cannot be made")
