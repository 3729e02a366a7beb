"""Hold one private copy of the core: watch it, and reset it between runs."""

import atexit
import collections
import enum
import types

from schedlab.snapshot import take_snapshot
from schedlab.threads import restart_serials
from schedlab.tracking import Tracked, assigned_in, in_dict


class Core:
    """Hold one private copy: its modules by the last parts of their names, `hal` for the package.

    `core.errors`, `core.stream`, `core.hal` ... are modules. `reset` brings
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
            setattr(self, name.rpartition(".")[2] or "hal", module)
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
        self.contexts = {}  # of the heaps' books, by their ids
        self._watch_cache()
        lifecycle = modules.get(package + "._devices.lifecycle")
        if lifecycle is not None:
            # A copy's devices are no devices of this process.
            atexit.unregister(lifecycle.close_all)
        self._snapshot = take_snapshot(modules, package)

    def reset(self):
        """Undo what runs have done to module-level state."""
        self.tracking = False
        self.baton_callback = self.returned_callback = None  # they held the last run's world
        for _ in range(2):  # what the first turn drops may be finalised into it
            self.cells.clear()
            self.contexts.clear()
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
                for name in assigned_in(cls):
                    if name not in vars(cls):
                        tracked = Tracked(self, f"{cls.__name__}.{name}", name, *in_dict(name))
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
            """The attribute `_issuing`, watched."""

            def __get__(self, instance, owner=None):
                return self if instance is None else inner.__get__(instance, owner)

            def __set__(self, instance, value):
                inner.__set__(instance, value)
                if core.baton_callback is not None:
                    core.baton_callback(instance, value)

        cls._issuing = Baton()

    def _watch_cache(self):
        """Have ``returned_callback(context, block)`` called before memory goes into the cache."""
        module = self.modules.get(self.package + "._memory.heap")
        if module is None:
            return
        core, heap, books = self, module.Heap, module.Books
        make, inner = heap.__init__, books.put_back

        def make_heap(made, context, *settings):
            make(made, context, *settings)
            core.contexts[id(made.books)] = context

        def put_back(made, lease):
            if core.returned_callback is not None:
                core.returned_callback(core.contexts[id(made)], lease.block)
            inner(made, lease)

        heap.__init__, books.put_back = make_heap, put_back

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
