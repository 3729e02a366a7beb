"""Bring the modules, classes and objects of a copy of the core back to a former state."""

import collections
import enum
import itertools
import weakref

from schedlab import sync
from schedlab.threads import Cell, next_serial
from schedlab.tracking import TrackedDeque


def take_snapshot(modules, package):
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
        if name == package + "._base.sync":
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
