"""Damage bytes, the same for the same seed."""

import random


def damaged(content, seed):
    """Return a copy with some bytes changed, left out or replaced, most of them near the start."""
    choose, copy = random.Random(seed), bytearray(content)
    for _ in range(choose.choice((1, 2, 5, 20))):
        if not copy:
            break
        end = len(copy) if choose.random() < 0.5 else min(len(copy), 400)
        at = choose.randrange(end)
        kind = choose.random()
        if kind < 0.6:
            copy[at] = choose.choice((0, 1, 127, 255, choose.randrange(256)))
        elif kind < 0.8:
            del copy[at : at + choose.randrange(1, 200)]
        else:
            copy[at : at + 8] = choose.randbytes(8)
    return bytes(copy)
