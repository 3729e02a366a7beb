"""The oracle of programs short of memory accepts what a runtime may do, and nothing else.

A small runtime of ints, of which one operation at a time goes on, chosen at random,
stands for hal.
"""

import random

import pytest

from hal_conformance.suite.model.shortage import Judge, Operation, Piece

ROOM = 4
PROGRAMS = 400


class Program:
    """Operations at random, of one size, on two ordered queues and one without an order."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.size = self.random.choice((1, 2, 3))
        self.operations = []
        self.pieces = []
        self.piece_of = {}  # of uses and deallocas
        self.gives = {}  # what a dealloca gives back
        self.born = {}  # of allocas
        last = {}
        open_pieces = []
        for number in range(self.random.randrange(3, 20)):
            queue = self.random.randrange(3)
            step = Operation(number, last.get(queue) if queue < 2 else None)
            if self.operations and self.random.random() < 0.3:
                step.waits.append(self.random.choice(self.operations))
            step.is_late = self.random.random() < 0.05
            kind = self.random.choice(("alloca", "alloca", "use", "dealloca", "execute", "barrier"))
            if kind in {"use", "dealloca"} and open_pieces:
                piece = self.random.choice(open_pieces)
                step.waits.append(piece.allocation)
                piece.uses.append(step)
                self.piece_of[step] = piece
                if kind == "dealloca":
                    piece.given = True
                    self.gives[step] = piece
                    open_pieces.remove(piece)
            elif kind in {"alloca", "execute"}:
                step.units = self.size
                if kind == "alloca":
                    self.pieces.append(Piece(step))
                    self.born[step] = self.pieces[-1]
                    open_pieces.append(self.pieces[-1])
            self.operations.append(step)
            last[queue] = step

    def run(self, *, room=ROOM, eager=False, holds=False, forgets=False):
        """Run it; the wrong ways are: to fail while others run, to reserve early, to forget."""
        ended, held, waiting = set(), {}, list(self.operations)
        late = False
        while waiting:
            able, starved = [], []
            for step in waiting:
                if any(each.has_failed and each in ended for each in step.waits):
                    able.append(step)
                    continue
                if (step.is_late and not late) or not ended.issuperset(step.waits):
                    continue
                previous = step.previous
                while previous is not None and previous in ended:
                    previous = previous.previous
                if previous is not None:
                    continue
                if step.units and sum(held.values()) + step.units > room:
                    starved.append(step)
                else:
                    able.append(step)
            if eager and starved and self.random.random() < 0.5:
                step = self.random.choice(starved)
                step.has_failed = True
            elif able:
                step = self.random.choice(able)
                piece = self.piece_of.get(step)
                step.has_failed = any(each.has_failed for each in step.waits) or (
                    piece is not None and step not in self.gives and piece.allocation.has_failed
                )
            elif not late and (not starved or self.random.random() < 0.5):
                late = True
                continue
            else:
                step = self.random.choice(starved)
                step.has_failed = True
            waiting.remove(step)
            ended.add(step)
            if step in self.born and not step.has_failed:
                held[self.born[step]] = 0 if forgets else step.units
            for piece in list(held):
                if piece.given and ended.issuperset(piece.uses) and not holds:
                    del held[piece]
        for step in self.operations:
            step.place()
        return Judge(self.operations, self.pieces, ROOM, together=True)


def test_what_may_happen_is_accepted():
    failures = 0
    for seed in range(PROGRAMS):
        program = Program(seed)
        judge = program.run()
        assert not judge.too_little(), seed
        assert not judge.too_much(), seed
        failures += any(step.has_failed for step in program.operations)
    assert failures > PROGRAMS // 4


@pytest.mark.parametrize(
    ("how", "least"), [({"eager": True}, 20), ({"holds": True}, 20), ({"room": 3}, 20)]
)
def test_a_runtime_that_fails_too_early_is_found(how, least):
    """One that does not wait for what runs; that gives nothing back; that has less room."""
    found = sum(bool(Program(seed).run(**how).too_little()) for seed in range(PROGRAMS))
    assert found > least


@pytest.mark.parametrize("how", [{"forgets": True}, {"room": 6}])
def test_a_runtime_that_gives_too_much_is_found(how):
    """One that counts nothing; that has more than it may."""
    found = sum(bool(Program(seed).run(**how).too_much()) for seed in range(PROGRAMS))
    assert found > 20
