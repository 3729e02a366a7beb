"""Recognise loops that GCC may vectorise wrongly.

GCC (seen with 12.2) turns conditional loads of neighbouring elements, such as
`x = c ? p[3 * i] : 0, y = c ? p[3 * i + 1] : 0`, into one group of masked vector loads, and gives
all vectors of the group the first one's mask, or forgets the order of the elements. A lone
conditional load is right, and so are several from different arrays. No option turns off the groups
alone, so what the compiler itself writes about its loops shows whether there may be one.
"""

from __future__ import annotations

import re
from typing import Final

DUMP: Final = "-fdump-tree-ifcvt"
"""The option that makes GCC write the loops that it is about to vectorise."""

_LOAD: Final = re.compile(r"= \.MASK_LOAD \(([^\s,]+),")
_DEFINITION: Final = re.compile(r"\s+(\S+) = (.+);$")
_PHI: Final = re.compile(r"\s*# (\S+) = PHI ")
_NAME: Final = r"([\w.]+)(?:\(D\))?"
_COPY: Final = re.compile(rf"(?:\([^()]+\) )?{_NAME}")
_SUM: Final = re.compile(rf"{_NAME} ([-+]) {_NAME}")
_PRODUCT: Final = re.compile(rf"{_NAME} (\*|<<) (\d+)")
_ANY: Final = "?"
_MOST: Final = 1000  # steps: an address in which one sum is used many times has any number of them


def may_be_grouped(dump: str) -> bool:
    """Return whether a block of a loop has two conditional loads that may be neighbours'."""
    for function in dump.split("\n;; Function "):
        if ".MASK_LOAD (" not in function:
            continue
        values: dict[str, str] = {}
        for line in function.splitlines():
            if phi := _PHI.match(line):
                values[phi[1]] = _ANY
            elif definition := _DEFINITION.match(line):
                values[definition[1]] = definition[2]
        for block in function.split("\n  <bb "):
            loads = [_summands(load[1], values) for load in _LOAD.finditer(block)]
            if len(loads) > len({frozenset(each.items()) for each in loads}):
                return True
            if len(loads[1:]) > 0 and any(_ANY in each or not each for each in loads):
                return True
    return False


def _summands(address: str, values: dict[str, str]) -> dict[str, int]:
    """Return how often an address contains each variable; constants do not count.

    Neighbours' differ by a constant. A pointer that goes with the loop may be any.
    """
    found: dict[str, int] = {}
    waiting = [(address.removesuffix("(D)"), 1)]
    steps = 0
    while waiting:
        name, times = waiting.pop()
        steps += 1
        if steps > _MOST:
            return {_ANY: 1}
        value = values.get(name, "")
        if name.isdecimal():
            continue
        if match := _PRODUCT.fullmatch(value):
            by = int(match[3])
            waiting.append((match[1], times * by if match[2] == "*" else times << by))
        elif match := _SUM.fullmatch(value):
            waiting += [(match[1], times), (match[3], -times if match[2] == "-" else times)]
        elif match := _COPY.fullmatch(value):
            waiting.append((match[1], times))
        else:
            is_any = "&" in (name[:1], value[:1]) or (value == _ANY and times == 1)
            name = _ANY if is_any else name
            found[name] = found.get(name, 0) + times
    return {name: times for name, times in found.items() if times}
