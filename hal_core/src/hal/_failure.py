"""Keep errors that many threads will see, and raise them afresh (rule S4)."""

from __future__ import annotations

from hal.errors import HalError, SemaphoreFailedError

__all__ = ["fresh", "keep", "placed"]


def keep(error: BaseException) -> BaseException:
    """Return `error` fit to be kept: without tracebacks, its own and its causes'.

    The frames of a traceback would keep every buffer of their variables alive.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


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
        copy = SemaphoreFailedError(f"the semaphore was failed with {error!r}")
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
