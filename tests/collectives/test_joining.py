"""Groups by what launched the ranks, by what is given, and by providers that are plugins (G4)."""

import copy
import errno
import gc
import os
import signal
import threading
import weakref
from functools import partial
from importlib import metadata

import numpy as np
import pytest
from core_harness import Running, collect_in_threads, handled_by, wait_until

import hal
import hal.collectives
from hal.collectives import embedded, plugins
from hal.collectives.embedded import PROVIDER
from hal.errors import (
    BackendNotFoundError,
    BackendUnavailableError,
    CollectiveError,
    InvalidArgumentError,
    PluginError,
    RendezvousError,
)
from hal.plugin import hookimpl

LIMIT = 20.0


@pytest.fixture
def device():
    with hal.create_device("cpu") as made:
        yield made


@pytest.fixture
def entries(monkeypatch):
    """Entry points of providers, which a test adds."""
    added = []
    monkeypatch.setattr(metadata, "entry_points", lambda group: added)
    plugins._load.cache_clear()
    yield added
    plugins._load.cache_clear()


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, (0, 1, None, None, "alone")),
        (
            {
                "RANK": "3",
                "WORLD_SIZE": "8",
                "LOCAL_RANK": "1",
                "MASTER_ADDR": "node-1",
                "MASTER_PORT": "29500",
                "PMI_RANK": "0",
                "PMI_SIZE": "2",
            },
            (3, 8, 1, "tcp://node-1:29500", "torchrun"),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, None, None, "mpi")),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            },
            (1, 4, 0, None, "mpi"),
        ),
        # A batch script, which srun has not started, is alone.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1, None, None, "alone")),
        (
            {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0"},
            (2, 4, 0, None, "slurm"),
        ),
    ],
)
def test_the_environment_gives_the_place_g4(variables, place):
    assert hal.collectives.find_place(variables) == hal.collectives.Place(*place)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "", "WORLD_SIZE": "1"},
    ],
)
def test_an_environment_that_makes_no_sense_is_refused_g4(variables):
    with pytest.raises(InvalidArgumentError, match="in the environment"):
        hal.collectives.find_place(variables)


def test_a_process_alone_is_a_group_g4(device, monkeypatch):
    for name in ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with hal.collectives.join(device, provider="embedded") as group:
        assert (group.rank, group.size, group.provider) == (0, 1, "embedded")
        buffer = device.upload(np.arange(4))
        device.queue.all_reduce(buffer, group=group).wait(LIMIT)
        assert buffer.numpy().tolist() == [0, 1, 2, 3]
    assert group.closed


@pytest.mark.parametrize(("rank", "size"), [(0, None), (2, 2), (-1, 2), (0, 0)])
def test_places_that_make_no_sense_are_refused_g4(device, rank, size):
    with pytest.raises(InvalidArgumentError):
        hal.collectives.join(device, rank=rank, size=size, rendezvous="x", timeout=0.1)


def test_ranks_that_do_not_agree_on_their_number_g4(device):
    def join(place, size):
        with pytest.raises((InvalidArgumentError, RendezvousError)):
            hal.collectives.join(place, rank=size - 2, size=size, rendezvous="odd", timeout=0.3)

    with hal.create_device("cpu") as second:
        collect_in_threads([partial(join, device, 2), partial(join, second, 3)])


def test_a_rank_comes_once_g4(device):
    join = partial(hal.collectives.join, size=2, rendezvous="twice", timeout=LIMIT)
    first = Running(partial(join, device, rank=0))
    wait_until(lambda: embedded._tables.get(("join", "twice", "world")))
    with pytest.raises(InvalidArgumentError, match="rank 0 of world is taken"):
        join(device, rank=0)
    with hal.create_device("cpu") as second:
        for each in (join(second, rank=1), first.result()):  # who came first has lost nothing
            each.close()


def test_a_join_that_a_ctrl_c_ended_can_be_made_again_g4(device):
    main = threading.main_thread().ident
    timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))

    def join_meanwhile():
        timer.start()
        hal.collectives.join(device, rank=0, size=2, rendezvous="again", timeout=LIMIT)

    # A run of the tests that was started in the background ignores Ctrl-C.
    with handled_by(signal.default_int_handler, signal.SIGINT):
        with pytest.raises(KeyboardInterrupt):
            join_meanwhile()
        timer.join()
    join = partial(hal.collectives.join, size=2, rendezvous="again", timeout=LIMIT)
    with hal.create_device("cpu") as second:
        joined = collect_in_threads([partial(join, device, rank=0), partial(join, second, rank=1)])
        assert [each.rank for each in joined] == [0, 1]
        for each in joined:
            each.close()


class Entry:
    """An entry point."""

    def __init__(self, name, loaded):
        self.name, self.value, self._loaded = name, f"x.{name}", loaded

    def load(self):
        if isinstance(self._loaded, BaseException):
            raise self._loaded
        return self._loaded


class Plugin:
    """A plugin with one provider."""

    def __init__(self, record):
        self._record = record

    @hookimpl
    def hal_collectives(self):
        return self._record


def provider(name, reason="", **fields):
    return hal.native_collectives.Provider(
        name, name, lambda _: reason, PROVIDER.join, **{"priority": 5, **fields}
    )


def test_the_best_provider_that_suits_is_taken_g4(device, entries):
    entries += [
        Entry("good", Plugin(provider("good", priority=7))),
        Entry("lacking", Plugin(provider("lacking", "its library is missing", priority=9))),
        Entry("other", Plugin(provider("other", priority=9, backends=("cuda",)))),
        Entry("torn", ImportError("torn")),
    ]
    assert hal.collectives.providers() == ("embedded", "good", "lacking", "other", "torn")
    with hal.collectives.join(device, rank=0, size=1, rendezvous="a") as group:
        assert group.provider == "good"
    with pytest.raises(BackendUnavailableError, match="its library is missing"):
        hal.collectives.join(device, provider="lacking")
    with pytest.raises(BackendUnavailableError, match="streams of cuda, not of cpu"):
        hal.collectives.join(device, provider="other")
    with pytest.raises(PluginError, match="torn"):
        hal.collectives.join(device, provider="torn")
    with pytest.raises(BackendNotFoundError, match="embedded, good"):
        hal.collectives.join(device, provider="nothing")


def test_without_a_provider_each_one_says_why_g4(device, entries):
    entries += [Entry("bad", Plugin(object())), Entry("lacking", Plugin(provider("lacking", "no")))]
    with pytest.raises(BackendUnavailableError) as caught:
        hal.collectives.join(device, rank=0, size=2, rendezvous="file:///x", timeout=0.1)
    text = str(caught.value)
    assert "embedded: " in text
    assert "lacking: no" in text
    assert "bad: hal_collectives of x.bad returned" in text


def test_a_process_that_has_nothing_left_does_not_break_a_provider_g4(device, entries):
    """What it has too many of is soon given back; until then it is said."""
    full = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    class Late(Entry):
        def load(self):
            if full:
                raise full[0]
            return Plugin(provider("late"))

    entries += [Late("late", None), Entry("ended", SystemExit("no"))]
    with pytest.raises(BackendUnavailableError, match=r"late.* not available now.*Too many open"):
        hal.collectives.join(device)
    full.clear()
    with hal.collectives.join(device, provider="late"):
        pass
    with pytest.raises(PluginError, match="SystemExit: no"):
        hal.collectives.join(device, provider="ended")


def test_groups_of_two_names_meet_in_one_place_g4(device):
    """Ranks of two groups made one of both, whichever threads came first."""
    with hal.create_device("cpu") as second:
        join = partial(hal.collectives.join, size=2, rendezvous="place", timeout=LIMIT)
        calls = [
            partial(join, each, rank=rank, name=name)
            for name in ("one", "two")
            for rank, each in enumerate((device, second))
        ]
        joined = collect_in_threads([calls[0], calls[3], calls[1], calls[2]])
        joined.sort(key=lambda each: each.name)  # as both devices' queues run them
        buffers = [each.device.upload(np.array([each.name == "two"], int)) for each in joined]
        for each, buffer in zip(joined, buffers, strict=True):
            each.device.queue.all_reduce(buffer, group=each)
        for each, buffer in zip(joined, buffers, strict=True):
            assert buffer.numpy(timeout=LIMIT) == [2 * (each.name == "two")]
            each.close()


def test_a_group_is_not_copied_q6(device):
    """A copy would have numbers of its own, and break the group."""
    with hal.collectives.join_all([device])[0] as group, pytest.raises(TypeError, match="a Group"):
        copy.copy(group)


def test_what_is_noted_at_an_error_stays_there_s4(device):
    """S4: each error that a broken group raises is fresh."""
    with hal.collectives.join_all([device])[0] as group:
        group._break(CollectiveError("broken"))
        group._broken.add_note("from hal")
        for _ in range(2):
            error = group.error
            assert error.__notes__ == ["from hal"]
            error.add_note("mine")


def test_a_group_in_a_dropped_program_leaves_nothing_g3(device):
    """A group that nobody closes is collected once its work has ended."""
    group = hal.collectives.join_all([device])[0]
    buffer = device.upload(np.ones(4))
    device.queue.all_reduce(buffer, group=group).wait(LIMIT)
    while group.look():
        pass
    dropped = weakref.ref(group)
    del group
    deadline = threading.Event()
    for _ in range(1000):
        gc.collect()
        if dropped() is None:
            break
        deadline.wait(0.01)
    assert dropped() is None
