"""The command ``hal``.

`main` is the entry point. It imports the libraries of the ``cli`` extra only
when it runs, so that it can report their absence in one line.
"""

from __future__ import annotations

import importlib.util
import sys

_LIBRARIES = ("rich", "typer")


def main() -> int:
    """Run ``hal`` with the process's arguments; return the exit status.

    0: done. 1: it ran and the answer is no (a check failed). 2: the user's
    mistake, something that this machine lacks (the libraries of an extra,
    too), or standard output that cannot be written, reported in one line on
    standard error. 130: stopped with Ctrl-C. 141: the reader of standard
    output has gone, as after SIGPIPE.
    """
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"hal: the command line needs {' and '.join(missing)}; "
            'install the extra, in a clone of hal: pip install "./hal_core[cli]"\n'
        )
        return 2
    from hal._cli.app import run  # noqa: PLC0415 - only after the check above

    return run(sys.argv[1:])
