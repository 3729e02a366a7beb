"""Find the plugins that installed distributions announce.

`importlib.metadata` would do it, but takes 30 ms to import, six times what opening a device takes.
So the files that installers write are read here, and only what is unusual is left to it:
archives on the path, eggs, and finders of others.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from typing import Any, Final, NamedTuple

from hal.handlers import own

_RECORDS: Final = (".dist-info", ".egg-info")
"""How the names of the folders end in which installers record distributions."""


class PluginEntry(NamedTuple):
    """A line of a distribution's ``entry_points.txt``."""

    name: str
    """What stands before the equals sign: the plugin's name."""
    value: str
    """What stands behind it: ``"module:attribute"``, or a module alone."""
    distribution: str
    """The distribution's name, with hyphens; empty if nobody knows it."""
    version: str
    """The distribution's version. Both are from the name of its record: no file has to be read for
    an error that names them, which may be due to a lack of file descriptors."""

    def load(self) -> Any:  # noqa: ANN401 - the core checks it
        """Import the module, and return what the value names."""
        module, _, names = self.value.partition("[")[0].partition(":")  # without extras
        found: Any = importlib.import_module(module.strip())
        for name in filter(None, names.strip().split(".")):
            found = getattr(found, name)
        return found


def entry_points(group: str) -> list[PluginEntry]:
    """Return what the distributions on `sys.path` announce in a group.

    Of two distributions of one name the first counts, which is the one that imports would find.
    Raises `OSError` if a folder cannot be read.
    """
    records = _records()
    if records is None:
        from importlib import metadata  # noqa: PLC0415 - what this module avoids

        found = metadata.entry_points(group=group)
        by = [(each.dist.name, each.dist.version) if each.dist else ("", "") for each in found]
        return [PluginEntry(each.name, each.value, *of) for each, of in zip(found, by, strict=True)]
    return [each for record in records for each in announced(record, group)]


def _records() -> list[str] | None:
    """Return the folders with distributions' records; None if there may be others elsewhere."""
    others = (each for each in sys.meta_path if each is not PathFinder)
    if any(hasattr(each, "find_distributions") for each in others):
        return None
    records: dict[str, str] = {}
    for path in sys.path:
        if not isinstance(path, str):
            continue  # as imports do
        try:
            names = os.listdir(path or os.curdir)
        except own(FileNotFoundError, PermissionError):
            continue
        except own(NotADirectoryError):
            return None
        if path.endswith(".egg"):
            return None
        for name in names:
            if name.endswith(_RECORDS):
                distribution = name.rpartition(".")[0].partition("-")[0].replace(".", "_").lower()
                records.setdefault(distribution, f"{path or os.curdir}/{name}")
    return list(records.values())


def announced(record: str, group: str) -> Iterator[PluginEntry]:
    """Yield what one distribution announces in a group."""
    path = f"{record}/entry_points.txt"
    if not os.access(path, os.F_OK):
        return  # as most: an error for each would take longer than all that is read
    try:
        with open(path, "rb", 0) as file:
            content = file.read()
    except own(FileNotFoundError, NotADirectoryError, PermissionError):
        return
    if group.encode() not in content:
        return  # as most: they are not worth reading line by line
    distribution, _, rest = os.path.basename(record).rpartition(".")[0].partition("-")
    distribution, version = distribution.replace("_", "-"), rest.partition("-")[0]
    section = ""
    for line in map(str.strip, content.decode().splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
        elif section == group and not line.startswith("#"):
            name, equals, value = line.partition("=")
            if equals:
                yield PluginEntry(name.strip(), value.strip(), distribution, version)
