"""Keep errors that many threads will see, and raise them afresh (rule S4)."""

from __future__ import annotations

from typing import Any, Final

from hal.errors import HalError, SemaphoreFailedError

__all__ = ["fresh", "keep", "placed", "told"]


# Of the builtin class: a user's may do as it likes with its attributes.
_traceback: Final[Any] = vars(BaseException)["__traceback__"]
_cause: Final[Any] = vars(BaseException)["__cause__"]
_context: Final[Any] = vars(BaseException)["__context__"]
_members: Final[Any] = vars(BaseExceptionGroup)["exceptions"]


def keep(error: BaseException) -> BaseException:
    """Return `error` fit to be kept: without tracebacks, its own and those of what it links to.

    The frames of a traceback would keep every buffer of their variables alive.
    """
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        link = rest.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        _traceback.__set__(link, None)
        rest += (_cause.__get__(link), _context.__get__(link))
        if isinstance(link, BaseExceptionGroup):
            rest += _members.__get__(link)
    return error


def told(error: BaseException) -> str:
    """Return an error's `repr`, or what stands for one that raises."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - whatever user code raises
        return object.__repr__(error)


def fresh(error: BaseException) -> HalError:
    """Return a new exception to raise for a kept one, which becomes its cause.

    It is of the kept one's class if that is a `HalError`, else a
    `SemaphoreFailedError`. One instance raised from many threads would grow
    its traceback and link unrelated contexts.
    """
    if isinstance(error, HalError):
        copy = _blank(error.__class__)
        copy.args = error.args
        copy.__dict__.update(error.__dict__)
        copy.__dict__.pop("__notes__", None)
    else:
        copy = SemaphoreFailedError(f"the semaphore was failed with {told(error)}")
    copy.__cause__ = error
    return copy


def placed(place: str, error: HalError) -> HalError:
    """Return a new exception like `error` that says first where it came about."""
    told = fresh(error)
    told.args = (f"{place}: {error}", *error.args[1:])
    return told


def _blank(kind: type[HalError]) -> HalError:
    """Return an exception of a class without calling its initialiser, which may ask for more.

    A builtin among the bases (`MemoryError`, `OSError`) makes its own objects.
    """
    for base in kind.__mro__:
        if "__new__" in vars(base):
            try:
                made: HalError = vars(base)["__new__"](kind)
            except TypeError:
                continue  # another base has the say
            return made
    message = f"{kind.__name__} cannot be made"
    raise TypeError(message)
