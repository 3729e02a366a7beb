"""What a schedule is in writing, and the errors that a run of one ends with."""


class ScheduleError(AssertionError):
    """Report a broken rule, with the choices that lead to it."""

    def __init__(self, kind, message, choices=(), trace=None):
        super().__init__(kind, message)
        self.kind = kind
        self.message = message
        self.choices = list(choices)
        self.trace = trace
        self.case = ""

    def __str__(self):
        lines = [f"{self.kind}: {self.message}"]
        lines.append(f"replay: {self.case or '?'} {encode(self.choices)!r}")
        if self.trace is not None:
            lines.append("trace (the last 400 steps):")
            lines.extend(self.trace[-400:])
        return "\n".join(lines)


class NondeterminismError(Exception):
    """Report that a replayed prefix met other choices than before."""


class PrunedError(Exception):
    """A strategy cut the run off: the rest is known."""


class Strategy:
    """Say, in `pick`, what a run does next; by default anything may be preempted, any number."""

    reduces = False
    """Whether it asks what each step touches."""

    def may_preempt(self, scheduler):
        """Return whether a thread that could go on may stand back."""
        return True

    def is_known(self, scheduler):
        """Return whether what follows from here was explored."""
        return False


def encode(choices):
    """Write choices as a short string; zeros at the end are implied."""
    text = []
    zeros = 0
    for choice in choices:
        if choice == 0:
            zeros += 1
            continue
        if zeros:
            text.append("0" * zeros if zeros < 4 else f"({zeros})")
            zeros = 0
        text.append(
            "0123456789abcdefghijklmnopqrstuvwxyz"[choice] if choice < 36 else f"<{choice}>"
        )
    return "".join(text)


def decode(text):
    """Read what `encode` wrote."""
    choices = []
    position = 0
    while position < len(text):
        letter = text[position]
        if letter in "(<":
            end = text.index(")" if letter == "(" else ">", position)
            number = int(text[position + 1 : end])
            choices.extend([0] * number if letter == "(" else [number])
            position = end + 1
        else:
            choices.append(int(letter, 36))
            position += 1
    return choices
