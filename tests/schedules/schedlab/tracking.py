"""Attributes and containers of the core that note who touches them."""

import collections

from schedlab import sync
from schedlab.threads import Cell

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
    """A deque of the core."""


class TrackedList(_Touched, list):
    """A list of the core that threads keep aliases of."""

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
                # Its number must be the same in every run, whichever thread touches it first later.
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


def assigned_in(cls):
    code = cls.__init__.__code__
    return [name for name in code.co_names if name.startswith("_") and not name.startswith("__")]


def in_dict(name):
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
