"""A Ctrl-C at any place where the interpreter looks for signals, and one that follows it."""

import sys

import hal

_OURS = hal.__path__[0]


class Interrupts:
    """Raise KeyboardInterrupt as the n-th function of hal is entered or has called one of C's.

    And a second one m such places later. Python drops a profile function that raises, so the
    tracing of the exception sets it again.
    """

    def __init__(self, first, second):
        self.left, self.then, self.places = first, second, []
        self.is_due = False

    def profile(self, frame, event, argument):
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(_OURS):
            return
        outer = frame
        while outer is not None:
            if outer.f_code.co_name == "__del__":  # Python drops what a finaliser raises
                return
            outer = outer.f_back
        self.left -= 1
        if self.left == 0:
            self.places.append(f"{event} {frame.f_code.co_name}:{frame.f_lineno}")
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
