"""The layer stands on the public interface of the core, and the core without it."""

import ast
import subprocess
import sys
from pathlib import Path

import hal.flow

FILES = sorted(Path(hal.flow.__path__[0]).glob("*.py"))
# Ways to the same results in C, which know the core's insides
SHORTCUTS = {"shortcuts.py": {"hal._base", "hal._base.speedups"}}


def foreign_privates(tree):
    """Find imports of private modules, and private attributes of anything but `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id == "self"
        ):
            names = [f"x.{node.attr}"]
        else:
            continue
        for name in names:
            if any(part.startswith("_") and not part.endswith("__") for part in name.split(".")):
                yield f"{name} in line {node.lineno}"


def test_nothing_private_of_the_core_is_used():
    assert len(FILES) > 5
    # What a class of this layer gets from its base is its own. A lock of threading's that may be
    # taken twice does not tell in another way whether this thread has it, nor is freed in a child.
    own = {"x._lock", "x._members", "x._is_owned", "x._at_fork_reinit"}
    for path in FILES:
        allowed = own | SHORTCUTS.get(path.name, set())
        found = [
            each
            for each in foreign_privates(ast.parse(path.read_text("utf-8")))
            if each.split(" ")[0] not in allowed
        ]
        assert found == [], path.name


def test_private_use_is_found():
    assert list(foreign_privates(ast.parse("from hal._devices import queue\nbuffer._storage")))


def test_hal_does_not_load_it():
    program = "import hal, sys; assert not [name for name in sys.modules if 'hal.flow' in name]"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
