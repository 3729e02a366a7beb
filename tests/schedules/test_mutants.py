"""Plant bugs in copies of the core; each must be caught by the case that is named for it."""

import sys
from dataclasses import dataclass

import pytest
from schedlab.cases import S1, S2, T1, T2, VARIANTS, Makes
from schedlab.catalogue import BY_HAND, find, names
from schedlab.explore import deepen, search
from schedlab.loader import load_core
from schedlab.planted import MUTANTS
from schedlab.program_case import ProgramCase
from schedlab.programs import Op, Program
from schedlab.world import World

pytestmark = pytest.mark.timeout(7200)  # they count schedules, however long these take

FEW = 100
"""Schedules in order that are tried first, and then as many drawn by a seed: most mutants are found
by either, and some by the seeds alone, or thousands of schedules earlier."""
RUNS = 5000
"""Schedules in order within which the case of a mutant must find it, where those did not."""

ONE, TWO = Makes("one"), Makes("two")


def program(name, variant, before, threads):
    """Return a program that stands in no table: it is here for a mutant."""
    return Program(name, threads, before, queues=VARIANTS[variant], buffers=("w", "x", "y", "z"))


PROGRAMS = {
    each.name: each
    for each in (
        program(
            "two releases",
            "one",
            (ONE.b(wait=(S1, T1), signal=(T2,)),),
            ((("signal", "s", 1),), (("signal", "t", 1), ("wait", "t", 2))),
        ),
        program(
            "two signals refused",
            "one",
            (),
            ((ONE.a(signal=(S1, T1), refused=True),), (("wait", "t", 1),)),
        ),
        Program(
            "held in pieces",
            ((("any", (T1, S1)),), (("signal", "s", 1),)),
            constants=(("_engine.waiting", "_HOLD", 1),),
        ),
        program(
            "second wait",
            "two",
            (),
            (
                (TWO.a(), ("submit", Op("e", "q", (), (S2,), target="w", value=5))),
                (
                    TWO.b(),
                    ("submit", Op("d", "r", (S2,), (T2,), target="z", source="w")),
                    ("wait", "t", 2),
                ),
            ),
        ),
    )
}


@dataclass
class PolledCase:
    """Poll once when the device has finished: the poller itself must retire."""

    patches: tuple = ()
    name: str = "polled"

    def load(self):
        """Return the copy of the core."""
        return load_core(self.patches, track=False)

    def run(self, scheduler):
        """Submit, let the device finish, poll."""
        world = World(self.load(), scheduler)
        world.build(program(self.name, "one", (), ((ONE.a(),),)))
        world.monitored = True
        world.act(ONE.a())
        world.settle()
        scheduler.quiet = True
        if not world.semaphores["s"].poll(1):
            scheduler.fail("stale", "the work has finished, and poll says that it has not")
        world.close()


@dataclass
class FinalisedCase:
    """Run a buffer's finaliser while the timeline lock is held, as the collector may."""

    patches: tuple = ()
    name: str = "finalised"

    def load(self):
        """Return the copy of the core."""
        return load_core(self.patches, track=False)

    def run(self, scheduler):
        """Finalise inside of the lock of a submission."""
        core = self.load()
        world = World(core, scheduler)
        world.build(program(self.name, "one", (), ((ONE.a(),),)))
        world.monitored = True
        storage = next(iter(world.devices.values())).allocate(8)._storage
        finalise = type(storage).__del__

        def collect():
            scheduler.finalising = True
            try:
                finalise(storage)
            finally:
                scheduler.finalising = False

        scheduler.on_acquired = collect
        world.act(ONE.a())
        scheduler.on_acquired = None
        world.settle()
        world.close()


def case_of(mutant, patches):
    """Return the mutant's case on a core with `patches`."""
    if mutant.case == "polled":
        return PolledCase(patches)
    if mutant.case == "finalised":
        return FinalisedCase(patches)
    settings = {"patches": patches, "track": not mutant.lines}
    if mutant.lines:
        settings["lines"] = True
    if mutant.case in PROGRAMS:
        return ProgramCase(PROGRAMS[mutant.case], **settings)
    return find(mutant.case, **settings)


def look(mutant, patches, runs=RUNS):
    """Explore the mutant's case, or search it where threads may switch at every line."""
    case = case_of(mutant, patches)
    case.load()  # here a patch that does not apply is an error, and no failure that was found
    if mutant.lines:
        return search(case, range(runs))
    report = deepen(case, bounds=(1,), budget=FEW)
    if report.failure is None:
        report = search(case, range(FEW))
    if report.failure is None:
        report = deepen(case, bounds=(1, None), budget=runs)
    return report


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_caught(mutant, monkeypatch):
    """The planted bug is found."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # what it breaks is no news
    report = look(mutant, mutant.patches)
    assert report.failure is not None, str(report)


@pytest.mark.parametrize("name", sorted({m.case for m in MUTANTS} - {*names(), *BY_HAND}))
def test_the_true_core_passes(name):
    """Catchers of mutants that are in no table of cases pass on the true core."""
    mutant = next(mutant for mutant in MUTANTS if mutant.case == name)
    report = look(mutant, (), 500)
    assert report.failure is None, str(report.failure)
    assert report.schedules
