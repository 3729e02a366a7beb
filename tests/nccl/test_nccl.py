"""Collectives over a library with NCCL's interface, on the software drivers (G1 to G4)."""

import importlib.util
import json
import os
import re
import sys
import threading
from pathlib import Path

import nccl_harness
import pytest
from child_processes import output_of

import hal
from hal.errors import CollectiveError, InvalidArgumentError, OutOfMemoryError, RendezvousError
from hal.native_collectives import Join, Place
from hal_nccl import group as nccl_group
from hal_nccl.rendezvous import exchange_of

built = pytest.mark.skipif(
    importlib.util.find_spec("hal._speedups") is None, reason="the C extension is not built"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("nccl")


@pytest.mark.parametrize("provider", ["nccl", "rccl"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_results_on_streams_g2(folder, provider, size):
    """Every program of the suite's, against numpy."""
    assert "done" in nccl_harness.run(folder, provider, "results", str(size))


@pytest.mark.parametrize("provider", ["nccl", "rccl"])
@pytest.mark.parametrize("case", ["late", "errors"])
def test_failures_on_streams_g3(folder, provider, case):
    """Time-outs and the library's errors end the group, and nothing else."""
    assert "done" in nccl_harness.run(folder, provider, case)


def test_ranks_meet_in_each_way_g4(folder, tmp_path):
    assert "done" in nccl_harness.run(folder, "nccl", "meeting", str(tmp_path))


def test_threads_that_meet_again_get_a_new_identity_g4():
    """With the identity of the group before, rank 1 would wait for ever."""
    place = Place(0, 2, rendezvous="again", launcher="given")
    meet = exchange_of(Join(None, place, "world", 1, None))
    for identity in (b"first", b"second"):
        with pytest.raises(RendezvousError, match="did not come"):
            meet("world", 1, bytes, 0.01)
        assert meet("world", 0, lambda made=identity: made, 1) == identity
        assert meet("world", 1, bytes, 1) == identity


class Interrupted:
    """A library in whose question for failures a signal handler runs, once."""

    name, all_to_all = "nccl", ""

    def __init__(self):
        self.calls, self.handler = [], None

    def failure(self, comm):
        self.calls.append("asked")
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()
        self.calls.append("answered")

    def call(self, function, *arguments):
        self.calls.append(function)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_signal_handler_may_ask_a_group_for_its_error_g3(monkeypatch, breaks):
    """If that breaks the group, the library ends it once it has answered the other question."""
    monkeypatch.setattr(nccl_group, "_ABORT_SECONDS", 0.1)
    library, aborted = Interrupted(), CollectiveError("broken")
    with hal.create_device("cpu") as device:
        request = Join(device, Place(0, 1), "world", 1, lambda: None)
        group = nccl_group.NcclGroup(library, request, None, 1, "world", 0, 1)

        def handler():
            group.failure()
            if breaks:
                group.abort(aborted)

        library.handler = handler
        asking = threading.Thread(target=group.failure, daemon=True)
        asking.start()
        asking.join(10)
        assert not asking.is_alive()
        group.close(10)
    for thread in threading.enumerate():
        if thread.name == "hal-nccl world":
            thread.join(10)
    twice = ["asked", "asked", "answered", "answered"]
    assert library.calls == [*twice, "ncclCommAbort" if breaks else "ncclCommDestroy"]


class Late:
    """A library whose communicator comes when the test lets it."""

    def __init__(self):
        self.may_come, self.aborted = threading.Event(), []

    def unique_id(self):
        return b"identity"

    def init(self, *_):
        assert self.may_come.wait(10)
        return 7

    def abort(self, comm):
        self.aborted.append(comm)


@pytest.mark.parametrize("error", [RendezvousError, KeyboardInterrupt])
def test_a_communicator_that_comes_when_nobody_waits_is_aborted_g4(monkeypatch, error):
    """After the time-out, or a Ctrl-C. The other ranks would have it for ever, and wait for us."""
    library = Late()
    request = Join(None, Place(0, 1), "late", 1, lambda: None)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        if error is KeyboardInterrupt:
            during.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(error):
            nccl_group._make(library, request, exchange_of(request), "late", 0, 1, 0.01)
    library.may_come.set()
    for thread in threading.enumerate():
        if thread.name == "hal-nccl late":
            thread.join(10)
    assert library.aborted == [7]


class Full:
    """A device without memory."""

    def upload(self, _):
        raise OutOfMemoryError("tested")


def test_a_communicator_is_aborted_where_its_group_finds_no_memory_g4():
    library = Late()
    library.may_come.set()
    library.call = lambda function, comm: library.aborted.append((function, comm))
    request = Join(Full(), Place(0, 1), "full", 1, lambda: None)
    with pytest.raises(OutOfMemoryError, match="tested"):
        nccl_group._make(library, request, exchange_of(request), "full", 0, 1, 10)
    assert library.aborted == [("ncclCommAbort", 7)]


@pytest.mark.parametrize(
    ("address", "launcher", "told"),
    [
        ("tcp://host:70", "given", "host:70"),
        ("tcp://host:70", "torchrun", "host:71"),  # at the other its own store listens
        ("tcp://[::1]:70", "given", "[::1]:70"),
    ],
)
def test_the_library_is_told_the_address_g4(monkeypatch, address, launcher, told):
    """While it makes the identity, and on rank 0 the group; what was there comes back."""
    monkeypatch.setenv("NCCL_COMM_ID", "before")

    def seen():
        return os.environ["NCCL_COMM_ID"].encode()

    place = Place(0, 2, rendezvous=address, launcher=launcher)
    meet = exchange_of(Join(None, place, "world", 1, None))
    assert meet("world", 1, seen, 1) == told.encode()
    for rank, expected in ((0, told), (1, "before")):
        with meet.listening("world", rank, 1):
            assert seen() == expected.encode()
    with meet.listening("world", 0, 1):
        other = Place(1, 2, rendezvous="tcp://other:70", launcher="given")
        with pytest.raises(RendezvousError, match="another group"):
            exchange_of(Join(None, other, "other", 1, None))("other", 1, seen, 0.01)
    assert seen() == b"before"


@pytest.mark.parametrize(
    "address",
    [
        *(
            "tcp://host:abc",
            "tcp://host:99999",
            "tcp://host:0",
            "tcp://:70",
            "tcp://[::1",
            "tcp://",
        ),
        *("file://folder/name", "file://", "http://host:70"),
    ],
)
def test_an_address_that_is_none_is_refused_g4(address):
    """G4: ``file://folder/name`` was ``/name``."""
    with pytest.raises(
        InvalidArgumentError, match=re.escape(f"{address!r} is not tcp://HOST:PORT")
    ):
        exchange_of(Join(None, Place(0, 2, rendezvous=address), "world", 1, None))


MEETS_OVER_MPI = """
import sys
import hal
from hal.errors import CollectiveError, OutOfMemoryError, RendezvousError
from hal.native_collectives import Join, Place
from hal_nccl import group as nccl_group
from hal_nccl.rendezvous import exchange_of
from mpi4py import MPI
rank, found = MPI.COMM_WORLD.Get_rank(), []
world = exchange_of(Join(None, Place(rank, 3, launcher="mpi"), "world", 20, None))
made = (lambda: bytes([rank]))
found.append(world("world", rank, made, 20)[0])
if rank != 1:  # the others go on in another order
    left = world.among((2, 0))
    found.append(left("world/1", (2, 0).index(rank), made, 20)[0])
elif rank == 1:
    for late, which in ((world.among((0, 1)), 1), (world.among(None), 0)):
        try:
            late("world/2", which, made, 0.2)
        except RendezvousError as error:
            found.append(str(error))
MPI.COMM_WORLD.Barrier()
assert found[0] == 0 and found[1:] == [2] or rank == 1, found
assert rank != 1 or ("did not come" in found[1] and "give join() a rendezvous" in found[2]), found
sys.stdout.write("done ")
"""


def test_ranks_meet_over_mpi_g4():
    """Those that are left, too; a rank that does not come is given up (G3)."""
    mpiexec = Path(sys.executable).parent / "mpiexec"
    command = [mpiexec, "-n", "3", sys.executable, "-c", MEETS_OVER_MPI]
    assert output_of(command, timeout=60).count("done") == 3


def test_the_measurements_of_hardware_run(folder, tmp_path):
    """Small, with the ranks as threads: every part finds numbers for every side."""
    script = Path(__file__).parents[2] / "hardware" / "collectives.py"
    path = tmp_path / "found.json"
    nccl_harness.run_script(folder, "nccl", script, "--threads", "--quick", "--json", path)
    found = json.loads(path.read_text())
    assert {row["kind"] for row in found["rates"]} >= {"all_reduce", "all_to_all"}
    assert all({"hal", "raw"} <= set(row["sides"]) for row in found["rates"][:3])
    assert all(row["hal"] > 0 and row["by hand"] > 0 for row in found["overlap"])
    assert set(found["semaphore"]) == {"one process", "one process, shareable", "two processes"}


@built
@pytest.mark.parametrize("provider", ["nccl", "rccl"])
@pytest.mark.parametrize("case", ["direct", "errors", "late"])
def test_with_the_extension_g3(folder, provider, case):
    assert "done" in nccl_harness.run(folder, provider, case, speedups="require")


@built
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_the_extension_does_the_same_g1(folder, seed):
    both = [
        nccl_harness.run(folder, "nccl", "same", seed, speedups=how) for how in ("0", "require")
    ]
    assert both[0] == both[1]
