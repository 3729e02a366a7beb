"""Import private copies of the core, with the scheduler in place of `hal._sync`.

A copy can have textual patches (mutants), statement points (a switch point
before each statement) and tracked attributes (fingerprints, and switch points
before unlocked accesses). The real `hal` of the process is not touched.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import collections
import enum
import functools
import importlib
import importlib.abc
import importlib.util
import itertools
import os
import sys
import types
import weakref
from dataclasses import dataclass
from pathlib import Path

from schedlab import sync
from schedlab.threads import Cell, next_serial, restart_serials

ROOT = Path(__file__).resolve().parents[3]
SOURCE = Path(os.environ.get("HAL_SCHEDULES_SOURCE") or ROOT / "hal_core" / "src")
"""Where the core's source lies; another tree can be examined through the variable."""

_SYNC_NAMES = (
    "Doorbell",
    "Gate",
    "Lock",
    "get_ident",
    "monotonic",
    "nap",
    "start_thread",
    "yield_thread",
)


@dataclass(frozen=True)
class Patch:
    """Replace `old`, which must occur exactly once in a module's file, by `new`."""

    module: str  # "_stream", or "errors"
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
        if short == "_sync":
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
        return _compile(text, str(file), self.lines and short not in ("_sync", "errors", "native"))


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


_MUTABLE = (list, dict, set, collections.deque)


_ALIASED_LISTS = {"Replica.nodes"}
"""Lists that a thread goes through, under no lock, by another name than the attribute's."""


class _Touched:
    """Note who touches a container of the core: threads keep aliases of these."""

    def __new__(cls, *_, **__):
        self = super().__new__(cls)
        self.cell = Cell()
        self.tracked = None
        return self

    def touch(self, *, write):
        s = sync.ACTIVE
        tracked = self.tracked
        if s is None or s.dead or tracked is None or not tracked.core.tracking or s.quiet:
            return
        if tracked.racy and s.timeline_lock.owner is not s.current:
            s.shared_access("race")
        if write:
            s.note_write(self.cell)
        else:
            s.note_read(self.cell)
        tracked.learn(s, self, write=write)


def _touching(kind, name, write):
    inner = getattr(kind, name)

    def method(self, *arguments):
        self.touch(write=write)
        return inner(self, *arguments)

    return method


class TrackedDeque(_Touched, collections.deque):
    """Be a deque of the core."""


class TrackedList(_Touched, list):
    """Be a list of the core that threads keep aliases of."""

    def __iter__(self):
        for position in range(len(self)):
            yield self[position]


for _kind, _tracked in ((collections.deque, TrackedDeque), (list, TrackedList)):
    for _name in ("append", "appendleft", "extend", "pop", "popleft", "clear", "remove",
                  "__setitem__", "__delitem__"):  # fmt: skip
        if hasattr(_kind, _name):
            setattr(_tracked, _name, _touching(_kind, _name, write=True))
    for _name in ("__len__", "__iter__", "__getitem__", "__contains__", "__bool__"):
        if hasattr(_kind, _name) and _name not in vars(_tracked):
            setattr(_tracked, _name, _touching(_kind, _name, write=False))


class Tracked:
    """Stand for an attribute of a class of the core, and note who touches it."""

    __slots__ = ("attribute", "core", "get", "label", "put", "racy", "remove")

    def __init__(self, core, label, attribute, get, put, remove):
        self.core = core
        self.label = label
        self.attribute = attribute
        self.get = get
        self.put = put
        self.remove = remove
        self.racy = False

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        s = sync.ACTIVE
        if s is None or s.dead or not self.core.tracking or s.quiet:
            return self.get(instance)
        if self.racy and s.timeline_lock.owner is not s.current:
            s.shared_access("race")
        value = self.get(instance)
        self.note(s, instance, write=type(value) in _MUTABLE)
        return value

    def __set__(self, instance, value):
        s = sync.ACTIVE
        if s is not None and not s.dead and self.core.tracking:
            if s.quiet:
                # Its number must be the same in every run, whoever touches it first later.
                self.core.cells.setdefault((id(instance), self.attribute), Cell())
            else:
                if self.racy and s.timeline_lock.owner is not s.current:
                    s.shared_access("race")
                self.note(s, instance, write=True)
        if type(value) is collections.deque:
            value = TrackedDeque(value)
            value.tracked = self
        elif self.label in _ALIASED_LISTS:
            value = TrackedList(value)
            value.tracked = self
        self.put(instance, value)

    def __delete__(self, instance):
        self.remove(instance)

    def note(self, s, instance, *, write):
        core = self.core
        key = (id(instance), self.attribute)
        cell = core.cells.get(key)
        if cell is None:
            cell = core.cells[key] = Cell()
        if write:
            s.note_write(cell)
        else:
            s.note_read(cell)
        if core.learning is not None:
            self.learn(s, instance, write=write)

    def learn(self, s, instance, *, write):
        learning = self.core.learning
        if learning is None or s.quiet or s.no_points:
            return
        log = learning.get((id(instance), self.attribute))
        me = s.current.number
        if log is None:
            # The instance is kept, so that its address names no other one.
            learning[id(instance), self.attribute] = [self.label, me, False, False, instance]
            return
        if log[1] == me:
            return  # nobody else has touched it yet
        log[1] = None
        log[2] |= write
        log[3] |= s.timeline_lock.owner is not s.current


class Core:
    """Hold one private copy: its modules by their short names, `hal` for the package.

    `core.errors`, `core._stream`, `core.hal` ... are modules. `reset` brings
    every module, class and module-level object back to the state after import.
    """

    def __init__(self, modules, package, *, track):
        self.modules = modules
        self.package = package
        self.cells = {}
        self.learning = None
        self.tracking = False
        self.tracked = {}
        for name, module in modules.items():
            setattr(self, name[len(package) + 1 :].replace(".", "__") or "hal", module)
        for cls in self.classes():
            if cls.__hash__ is object.__hash__ and "_id" in vars(cls):
                # Sets of queues must not be iterated in the order of addresses.
                cls.__hash__ = _hash_by_id
        if track:
            self._track()
            self._track_deques()
        self.baton_callback = None
        self._watch_baton()
        self.returned_callback = None
        self._watch_cache()
        lifecycle = modules.get(package + "._lifecycle")
        if lifecycle is not None:
            # A copy's devices are no devices of this process.
            atexit.unregister(lifecycle._close_all)
        self._snapshot = _take_snapshot(modules, package)

    def reset(self):
        """Undo what runs have done to module-level state."""
        self.tracking = False
        self.baton_callback = self.returned_callback = None  # they held the last run's world
        for _ in range(2):  # what the first turn drops may be finalised into it
            self.cells.clear()
            # In the first run the copy was just loaded, which has counted things.
            restart_serials(1000)
            for restore in self._snapshot:
                restore()

    def classes(self):
        """Return every class that a module of the copy defines."""
        found = []
        for name, module in self.modules.items():
            found.extend(
                value
                for value in vars(module).values()
                if isinstance(value, type) and value.__module__ == name
            )
        return found

    def _track(self):
        for cls in self.classes():
            if issubclass(cls, (BaseException, enum.Enum, tuple)) or getattr(
                getattr(cls, "__dataclass_params__", None), "frozen", False
            ):
                continue
            for name, value in list(vars(cls).items()):
                if isinstance(value, types.MemberDescriptorType):
                    tracked = Tracked(
                        self, f"{cls.__name__}.{name}", name,
                        value.__get__, value.__set__, value.__delete__,
                    )  # fmt: skip
                    setattr(cls, name, tracked)
                    self.tracked[tracked.label] = tracked
            if "__slots__" not in vars(cls) and "__init__" in vars(cls):
                for name in _assigned_in(cls):
                    if name not in vars(cls):
                        tracked = Tracked(self, f"{cls.__name__}.{name}", name, *_in_dict(name))
                        setattr(cls, name, tracked)
                        self.tracked[tracked.label] = tracked

    def watch_baton(self, callback):
        """Have ``callback(queue, value)`` called whenever a thread takes or drops a baton."""
        self.baton_callback = callback

    def _watch_baton(self):
        cls = next((cls for cls in self.classes() if "_issuing" in vars(cls)), None)
        if cls is None:
            return
        inner = vars(cls)["_issuing"]
        core = self

        class Baton:
            """Be the attribute `_issuing`, watched."""

            def __get__(self, instance, owner=None):
                return self if instance is None else inner.__get__(instance, owner)

            def __set__(self, instance, value):
                inner.__set__(instance, value)
                if core.baton_callback is not None:
                    core.baton_callback(instance, value)

        cls._issuing = Baton()

    def _watch_cache(self):
        """Have ``returned_callback(allocator, block)`` called before memory goes into the cache."""
        module = self.modules.get(self.package + "._allocator")
        if module is None:
            return
        core, inner = self, module.Allocator._put_back

        def put_back(allocator, block, size):
            if core.returned_callback is not None:
                core.returned_callback(allocator, block)
            inner(allocator, block, size)

        module.Allocator._put_back = put_back

    def learnt_races(self):
        """Return the labels of attributes that threads touched without the lock.

        Of the accesses seen while `learning` was a dictionary, and once a
        second thread had touched an object: an attribute counts if it was
        changed, and touched without the timeline lock.
        """
        return {
            label
            for label, _, changed, unlocked, _ in self.learning.values()
            if changed and unlocked
        }

    def _track_deques(self):
        """Replace the deques of objects that were made during import."""
        for name, module in self.modules.items():
            for value in list(vars(module).values()):
                if type(value).__module__ != name:
                    continue
                for tracked in self.tracked.values():
                    if tracked.label.startswith(type(value).__name__ + "."):
                        held = getattr(value, tracked.attribute, None)
                        if type(held) is collections.deque:
                            setattr(value, tracked.attribute, held)

    def set_races(self, labels):
        """Put a switch point before every unlocked access of these attributes."""
        for label, tracked in self.tracked.items():
            tracked.racy = label in labels


def _hash_by_id(self):
    return hash(self._id)


def _assigned_in(cls):
    code = cls.__init__.__code__
    return [name for name in code.co_names if name.startswith("_") and not name.startswith("__")]


def _in_dict(name):
    def get(instance):
        try:
            return vars(instance)[name]
        except KeyError:
            raise AttributeError(name) from None

    def put(instance, value):
        vars(instance)[name] = value

    def remove(instance):
        del vars(instance)[name]

    return get, put, remove


def _take_snapshot(modules, package):
    """Return functions that each bring one object back to its present state."""
    restores = []
    known = set()

    def visit(value):
        if id(value) in known:
            return
        kind = type(value)
        if isinstance(value, (sync.Lock, sync.Doorbell)):
            known.add(id(value))
            free = value.free

            def restore(lock=value, free=free):
                lock.free = free
                lock.owner = None
                lock.w = lock.r = 0
                lock.serial = next_serial()

            def restore_bell(bell=value, free=free):
                bell.free = free
                bell.w = bell.r = 0
                bell.serial = next_serial()

            restores.append(restore if isinstance(value, sync.Lock) else restore_bell)
        elif kind in (list, set, collections.deque, TrackedDeque):
            known.add(id(value))
            items = list(value)

            def restore_items(value=value, items=items):
                if isinstance(value, TrackedDeque):
                    value.cell = Cell()
                if len(value) != len(items) or list(value) != items:
                    value.clear()
                    (value.update if isinstance(value, set) else value.extend)(items)

            restores.append(restore_items)
            for item in items:
                visit(item)
        elif kind is weakref.WeakSet:
            known.add(id(value))
            restores.append(value.clear)
        elif kind is dict:
            known.add(id(value))
            visit_mapping(value)
        elif (kind.__module__ == package or kind.__module__.startswith(package + ".")) and not (
            isinstance(value, (type, enum.Enum))
            or getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
        ):
            known.add(id(value))
            saved = {}
            for cls in kind.__mro__:
                slots = vars(cls).get("__slots__", ())
                for name in (slots,) if isinstance(slots, str) else slots:
                    if name not in ("__weakref__", "__dict__") and hasattr(value, name):
                        saved[name] = getattr(value, name)
            if hasattr(value, "__dict__"):
                saved.update(vars(value))

            def restore_object(value=value, saved=saved):
                for name, item in saved.items():
                    setattr(value, name, fresh(item))

            restores.append(restore_object)
            for item in saved.values():
                visit(item)

    counters = {}

    def fresh(item):
        """Return a counter anew, as it was, and anything else as it is."""
        if not isinstance(item, itertools.count):
            return item
        if id(item) not in counters:
            # Looking at a counter uses it up: from here on only those made of it are used.
            first = next(item)
            counters[id(item)] = (item, first, next(item) - first)
        return itertools.count(*counters[id(item)][1:])

    def visit_mapping(mapping):
        saved = dict(mapping)

        def restore(mapping=mapping, saved=saved):
            for name in mapping.keys() - saved.keys():
                del mapping[name]
            for name, item in saved.items():
                if mapping.get(name) is not item or isinstance(item, itertools.count):
                    mapping[name] = fresh(item)

        restores.append(restore)
        for item in saved.values():
            visit(item)

    for name, module in modules.items():
        if name == package + "._sync":
            continue
        space = vars(module)
        mutable = {key: value for key, value in space.items() if not key.startswith("__")}
        _snapshot_names(space, mutable, restores, fresh)
        for value in mutable.values():
            visit(value)
        for cls in [v for v in mutable.values() if isinstance(v, type) and v.__module__ == name]:
            for value in vars(cls).values():
                if type(value) in (list, dict, set, collections.deque):
                    visit(value)
    return restores


def _snapshot_names(space, saved, restores, fresh):
    counters = {key for key, value in saved.items() if isinstance(value, itertools.count)}

    def restore():
        for key, value in saved.items():
            if space.get(key) is not value:
                space[key] = value
        for key in counters:
            space[key] = fresh(saved[key])

    restores.append(restore)


_cache = {}


def load_core(patches=(), *, track=False, lines=False, package="hal", root=None, extra=()):
    """Return a private copy of the core; the same one for the same arguments.

    `extra` names further modules to load, such as ``"_queue"``. Raises
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
    wait = modules.get(prefix + "_wait")
    if wait is not None:
        # A poll after a nap is a poll as any other, and dozens of them are as many schedules.
        wait._NAP_SECONDS = wait._POLL_SECONDS
    return Core(modules, package, track=track)
