"""An error of a signal handler's comes out of blocks that catch or drop errors of its kind (O3)."""

import ast
import functools
import signal
from pathlib import Path

import pytest
from core_harness import handled_by

from hal.handlers import dropped, own

ROOT = Path(__file__).parents[2]
CODE = sorted(
    path.relative_to(ROOT)
    for path in ROOT.glob("hal_*/src/**/*.py")
    if not {"_cli", "demo"}.intersection(path.parts)  # the program is ours, and its handlers
)
WHOLE = {"BaseException", "Exception", "GeneratorExit", "KeyboardInterrupt", "SystemExit"}
"""Those who catch these ask whose an error is, or raise it again; ruff wants a reason for each."""


def is_careful(handler):
    """Return whether an ``except`` is not for errors of some kinds, or raises them again."""
    kinds = ast.unparse(handler.type)
    last = handler.body[-1]
    raises = isinstance(last, ast.Raise) and last.exc is None
    is_own = kinds.startswith(("own(", "_own("))
    return is_own or kinds in WHOLE or (raises and not leaves(handler.body))


def leaves(body):
    """Return whether something in a block but its last statement leaves it in another way."""
    inner = [node for each in body[:-1] for node in ast.walk(each)]
    return any(isinstance(node, (ast.Return, ast.Continue, ast.Break, ast.Raise)) for node in inner)


@pytest.mark.parametrize("path", CODE, ids=str)
def test_no_except_takes_errors_of_its_kinds_whoever_raised_them_o3(path):
    """O3: it says ``except own(...)``, and ``with dropped(...)`` instead of ``suppress``."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    nodes = {node for each in functions for node in ast.walk(each)}
    careless = [
        f"line {node.lineno}: {ast.unparse(node).splitlines()[0]}"
        for node in nodes
        if (isinstance(node, ast.ExceptHandler) and not is_careful(node))
        or (isinstance(node, ast.Attribute) and node.attr == "suppress")
    ]
    assert careless == []


def caught(function):
    try:
        function()
    except own(OSError, KeyError) as error:
        return error


def dropping(function):
    with dropped(OSError, KeyError):
        function()


def alarm(handler):
    """Have a signal handler run here."""
    with handled_by(handler):
        signal.raise_signal(signal.SIGALRM)


def fail(kind, *_):
    raise kind("x")


@pytest.mark.parametrize("block", [caught, dropping])
@pytest.mark.parametrize("kind", [OSError, TimeoutError, KeyError])
def test_a_handlers_error_comes_out_o3(block, kind):
    """O3: a function's does not, nor does one of another kind."""
    block(functools.partial(fail, kind))
    with pytest.raises(kind):
        block(lambda: alarm(functools.partial(fail, kind)))
    with pytest.raises(ValueError, match="x"):
        block(functools.partial(fail, ValueError))
