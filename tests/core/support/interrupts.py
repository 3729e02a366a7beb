"""A Ctrl-C at any place where the interpreter looks for signals, and a second that follows it."""

import itertools
import sys

import hal


def try_places(trial, kind):
    """Call ``trial(n)`` for every place n, until there is none, and print what is wrong.

    It returns the places that were interrupted, and what it has found wrong.
    """
    last, _ = _try_all(lambda place, _: trial(place), kind, lambda _: (0,), 1)
    assert last > 10, last


def try_pairs(trial, kind, seconds, step=1):
    """Call ``trial(n, m)`` as `try_places` does, for every second place m in ``seconds(n)``."""
    _, doubles = _try_all(trial, kind, seconds, step)
    assert doubles > 5, doubles


def _try_all(trial, kind, seconds, step):
    """Return the last place, and how many second places were interrupted."""
    problems = doubles = 0
    for first in itertools.count(1, step):
        for second in seconds(first):
            places, wrong = trial(first, second)
            doubles += len(places) == 2
            if wrong:
                problems += 1
                told = f"{kind}, {first}, {second}, {places}: {wrong}"
                print(told, file=sys.stderr)  # noqa: T201 - for the parent
        if not places or problems > 5:
            return first, doubles
    raise AssertionError


class Interrupts:
    """Raise KeyboardInterrupt as the n-th function of hal is entered or has called one of C's.

    And a second one m such places later, unless that is 0. Inside of a ``with`` block, which drops
    the exception. Python drops a profile function that raises, so the tracing of the exception sets
    it again.
    """

    ours = (hal.__path__[0],)
    """Where the code is that it interrupts."""

    def __init__(self, first, second=0):
        self.left, self.then, self.places = first, second, []
        self.is_due = False

    def __enter__(self):
        if self.then:
            sys.settrace(self.trace)
        sys.setprofile(self.profile)
        return self

    def __exit__(self, kind, *_):
        sys.setprofile(None)
        sys.settrace(None)
        return kind is KeyboardInterrupt

    def profile(self, frame, event, argument):
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(self.ours):
            return
        names, outer = [], frame
        while outer is not None:
            names.append(outer.f_code.co_name)
            outer = outer.f_back
        if "__del__" in names:  # Python drops what a finaliser raises
            return
        self.left -= 1
        if self.left == 0:
            self.places.append(f"{event} {names[0]}:{frame.f_lineno} < " + " < ".join(names[1:5]))
            self.left, self.then = self.then, 0
            self.is_due = self.left > 0
            self.interrupt()

    def interrupt(self):
        raise KeyboardInterrupt

    def trace(self, frame, event, argument):
        if event == "exception" and self.is_due:
            self.is_due = False
            sys.setprofile(self.profile)
        return self.trace


class Nested(Interrupts):
    """Call ``act()`` there instead, in code of a package: as a signal handler does."""

    def __init__(self, number, package, act):
        super().__init__(number)
        self.ours, self.interrupt = (package.__path__[0],), act


def nest_everywhere(package, act):
    """Call ``act()`` once for every place of itself in a package, with another ``act()`` there."""
    for number in itertools.count(1):
        with Nested(number, package, act) as nested:
            act()
        if not nested.places:
            break
    assert number > 10, number
