"""Import private copies of the core, with the scheduler in place of `hal._base.sync`.

A copy can have textual patches (mutants), statement points (a switch point
before each statement) and tracked attributes (fingerprints, and switch points
before unlocked accesses). The real `hal` of the process is not touched.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.abc
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from schedlab import sync
from schedlab.core_copy import Core

ROOT = Path(__file__).resolve().parents[3]
SOURCE = Path(os.environ.get("HAL_SCHEDULES_SOURCE") or ROOT / "hal_core" / "src")
"""Where the core's source lies; another tree can be examined through the variable."""

os.environ["HAL_SPEEDUPS"] = "0"  # a copy is Python: the C extension knows the real hal alone

_SYNC_NAMES = (
    "Doorbell",
    "LeafLock",
    "Lock",
    "Mark",
    "OwnedLock",
    "get_ident",
    "monotonic",
    "nap",
    "start_thread",
    "yield_thread",
)


@dataclass(frozen=True)
class Patch:
    """Replace `old`, which must occur exactly once in a module's file, by `new`."""

    module: str  # "_engine.backlog", or "errors"
    old: str
    new: str


class PatchError(Exception):
    """Report a patch that does not apply."""


class _Source(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find and load the modules of one private copy."""

    def __init__(self, package, root, patches, sync_names, lines, private_builtins):
        self.package = package
        self.root = root
        self.patches = list(patches)
        self.applied = set()
        self.sync_names = sync_names
        self.lines = lines
        self.builtins = private_builtins

    def path_of(self, name):
        base = self.root.joinpath(*name.split("."))
        if (base / "__init__.py").exists():
            return base / "__init__.py", True
        return base.with_suffix(".py"), False

    def find_spec(self, name, path=None, target=None):
        if name != self.package and not name.startswith(self.package + "."):
            return None
        file, is_package = self.path_of(name)
        if not file.exists():
            return None
        return importlib.util.spec_from_file_location(
            name,
            file,
            loader=self,
            submodule_search_locations=[str(file.parent)] if is_package else None,
        )

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__dict__["__builtins__"] = self.builtins
        name = module.__name__
        short = name[len(self.package) + 1 :]
        if short == "_base.sync":
            # Types and constants of the real one may be imported too; what acts is ours.
            exec(self.code(name, short), module.__dict__)
            for attribute in self.sync_names:
                setattr(module, attribute, getattr(sync, attribute))
            if hasattr(module, "LockType"):
                module.LockType = sync.Lock
            return
        exec(self.code(name, short), module.__dict__)

    def code(self, name, short):
        file, _ = self.path_of(name)
        text = file.read_text(encoding="utf-8")
        for index, patch in enumerate(self.patches):
            if patch.module == short:
                if text.count(patch.old) != 1:
                    times = text.count(patch.old)
                    message = f"{patch.old!r} occurs {times} times in {file.name}, not once"
                    raise PatchError(message)
                text = text.replace(patch.old, patch.new)
                self.applied.add(index)
        return _compile(
            text,
            str(file),
            self.lines and short not in ("_base.sync", "errors", "native", "native_types"),
        )


@functools.lru_cache(maxsize=512)
def _compile(text, filename, lines):
    tree = ast.parse(text, filename)
    if lines:
        tree = ast.fix_missing_locations(_Points().visit(tree))
    return compile(tree, filename, "exec", dont_inherit=True)


class _Points(ast.NodeTransformer):
    """Call ``__point__()`` before every statement of every function.

    An augmented assignment to an attribute is split into its read and its
    write: that is what the interpreter does.
    """

    def visit_FunctionDef(self, node):
        node.body = self.block(node.body)
        return node

    def block(self, statements):
        result = []
        for statement in statements:
            for field in ("body", "orelse", "finalbody"):
                inner = getattr(statement, field, None)
                if inner and isinstance(inner, list) and isinstance(inner[0], ast.stmt):
                    setattr(statement, field, self.block(inner))
            for handler in getattr(statement, "handlers", ()):
                handler.body = self.block(handler.body)
            if not isinstance(statement, (ast.Nonlocal, ast.Global, ast.Pass)) and not (
                isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            ):
                result.append(self.point(statement))
            if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Attribute):
                result.extend(self.split(statement))
            else:
                result.append(statement)
        return result

    @staticmethod
    def point(at):
        call = ast.Expr(ast.Call(ast.Name("__point__", ast.Load()), [], []))
        return ast.copy_location(call, at)

    def split(self, node):
        target = node.target
        read = ast.Assign(
            [ast.Name("__read__", ast.Store())],
            ast.BinOp(ast.Attribute(target.value, target.attr, ast.Load()), node.op, node.value),
        )
        write = ast.Assign([target], ast.Name("__read__", ast.Load()))
        return [ast.copy_location(read, node), self.point(node), ast.copy_location(write, node)]


def _point():
    s = sync.ACTIVE
    if s is not None:
        s.shared_access("line")


_cache = {}


def load_core(patches=(), *, track=False, lines=False, package="hal", root=None, extra=()):
    """Return a private copy of the core; the same one for the same arguments.

    `extra` names further modules to load, such as ``"_devices.queue"``. Raises
    `PatchError` unless every patch applies.
    """
    key = (tuple(patches), track, lines, package, root, tuple(extra))
    core = _cache.get(key)
    if core is None:
        core = _cache[key] = _load(*key)
    return core


def _load(patches, track, lines, package, root, extra):
    prefix = package + "."

    def is_ours(name):
        return name == package or name.startswith(prefix)

    modules = {}
    swapped = []

    def private_import(name, space=None, names=None, wanted=(), level=0):
        if swapped or not is_ours(name):
            return importlib.__import__(name, space, names, wanted, level)
        # An import inside a function, long after loading, must get the private copy.
        real = {key: value for key, value in sys.modules.items() if is_ours(key)}
        for key in real:
            del sys.modules[key]
        sys.modules.update(modules)
        sys.meta_path.insert(0, source)
        swapped.append(True)
        try:
            return importlib.__import__(name, space, names, wanted, level)
        finally:
            swapped.pop()
            sys.meta_path.remove(source)
            for key in [key for key in sys.modules if is_ours(key)]:
                modules[key] = sys.modules.pop(key)
            sys.modules.update(real)

    private = dict(vars(builtins), __import__=private_import, __point__=_point)
    source = _Source(package, root or SOURCE, patches, _SYNC_NAMES, lines, private)
    for name in (package, *(prefix + short for short in extra)):
        private_import(name, None, None, ("*",))
    missing = [patch for index, patch in enumerate(patches) if index not in source.applied]
    if missing:
        message = f"these modules were not loaded: {[patch.module for patch in missing]}"
        raise PatchError(message)
    wait = modules.get(prefix + "_engine.waiting")
    if wait is not None:
        # A poll after a nap is a poll as any other, and dozens of them are as many schedules.
        wait._ASK_SECONDS = wait.POLL_SECONDS
        # One that asks before it registers asks once, so that what comes after is tried too.
        assert callable(wait._limit)  # else nothing would be replaced
        wait._limit = lambda _: 0.0
    return Core(modules, package, track=track)
