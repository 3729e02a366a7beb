"""Collectives over MPI: several processes of this host, which mpiexec starts (G1 to G4)."""

import importlib.util
import json
import shutil
import sys
import threading
import types
import uuid
from pathlib import Path

import pytest
from child_processes import run_command

from hal.errors import CollectiveError
from hal_conformance.ranks import PROGRAMS

EXTENSION = "hal._speedups"
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
FAILURES = Path(__file__).with_name("ranks_that_fail.py")
LIMIT = 60.0
ALONE = "-disable-auto-cleanup"
SHELL = ("sh", "-c", 'trap "" USR1 TERM; "$@"; true', "sh")
"""Stands between a rank and mpiexec, and keeps from it the signals of one that ends badly."""


@pytest.fixture(autouse=True, params=["C", "Python"])
def engine(request, monkeypatch):
    """With the C extension, whose operations run on streams, and without."""
    if request.param == "C" and not importlib.util.find_spec(EXTENSION):
        pytest.skip("the C extension is not built")
    monkeypatch.setenv("HAL_SPEEDUPS", "require" if request.param == "C" else "0")
    return request.param


def start(size, *command, options=()):
    """Run a program on so many ranks, and return how it ended."""
    assert MPIEXEC, "no mpiexec beside the interpreter: pip install mpich mpi4py"
    return run_command([MPIEXEC, *options, "-n", size, *command], timeout=LIMIT)


def told(done, size):
    """Return what so many ranks have printed, by rank."""
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == size, done.stdout + done.stderr
    return {each["rank"]: each for each in found}


def launch(size, *command):
    """Run a program of Python's on so many ranks, and return what each has printed."""
    return told(start(size, sys.executable, *command), size)


def fail(case, size, seconds=30.0):
    return launch(size, FAILURES, case, seconds)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_results_over_mpi_g2(size):
    """Every program of the suite's, on each rank, against numpy."""
    found = launch(size, "-m", "hal_conformance.ranks", "--provider", "mpi")
    assert found[0]["programs"] == dict.fromkeys(PROGRAMS)
    assert all(each["programs"] == found[0]["programs"] for each in found.values())


def test_small_and_large_operations_over_mpi_g2(engine):
    """With the C extension on streams, without a thread of Python's."""
    for each in launch(3, FAILURES, "streams", LIMIT).values():
        assert each["wrong"] == []
        assert each["threads"] == ([] if engine == "C" else ["hal-mpi tested"])


@pytest.mark.parametrize("engine", ["C"], indirect=True)
@pytest.mark.parametrize(("case", "memories"), [("shared", 3), ("by_messages", 0)])
def test_ranks_of_one_host_share_memory_or_none_does_g4(case, memories):
    """If one rank gets no memory all send messages, as ranks of several hosts do."""
    for each in fail(case, 3, LIMIT).values():
        assert each["wrong"] == []
        assert each["memories"] == memories


@pytest.mark.parametrize("engine", ["C"], indirect=True)
def test_a_rank_whose_system_refuses_to_map_memory_has_all_send_messages_g4():
    """Whichever of its steps the system refuses: the others would wait for it in MPI."""
    found = fail("few_files", 2)
    assert found[0]["found"] == found[1]["found"]
    memories, errors = zip(*found[0]["found"], strict=True)
    assert set(errors) == {None}
    assert (memories[0], memories[-1], {*memories}) == (0, 2, {0, 2})


def test_reductions_over_mpi_are_numpys_where_mpis_differ_g2():
    """MPI keeps or drops a NaN as the ranks come; Open MPI's small sums do not wrap around."""
    for each in fail("numbers", 2).values():
        assert each["wrong"] == []


def test_one_rank_has_a_batch_of_what_the_others_submit_by_itself_over_mpi_g2():
    for each in fail("batches", 3).values():
        assert each["wrong"] == []


@pytest.mark.parametrize("engine", ["C"], indirect=True)
def test_ranks_with_and_without_the_extension_over_mpi_g4():
    """All of them take the way that each of them knows."""
    run = 'test "$PMI_RANK" = 0 || export HAL_SPEEDUPS=0; exec "$@"'
    command = ["sh", "-c", run, "sh", sys.executable, FAILURES, "streams", LIMIT]
    for each in told(start(2, *command), 2).values():
        assert each["wrong"] == []
        assert each["threads"] == ["hal-mpi tested"]


@pytest.mark.parametrize("engine", ["C"], indirect=True)
def test_a_rank_that_hangs_while_data_moves_holds_up_no_stream_g3():
    """Without the extension a thread of Python's hangs."""
    found = told(start(2, *SHELL, sys.executable, FAILURES, "hang", 2.0, options=[ALONE]), 2)
    for each in found.values():
        assert each["error"] == "CollectiveTimeoutError", each
        assert each["goes on"]


@pytest.mark.parametrize("engine", ["C"], indirect=True)
def test_a_rank_that_comes_back_writes_to_no_buffer_g3():
    """Rank 1 gives its data after the time-out; the memory that it has moved from is kept.

    Also when its buffer and its device are closed.
    """
    for each in fail("asleep", 2, 2.0).values():
        assert each["error"] == "CollectiveTimeoutError"
        assert (each["changed"], each["kept"], each["not freed"]) == (0, 1, 1)


@pytest.mark.parametrize("engine", ["C"], indirect=True)
def test_what_comes_once_a_failure_is_told_here_is_written_to_no_buffer_g3():
    """The stream has taken back what it would receive before anybody hears of the failure."""
    found = fail("late_data", 2, 2.0)[0]
    assert found["error"] == "CollectiveTimeoutError"
    assert found["changed"] == 0


def test_a_message_that_comes_late_is_written_to_no_buffer_over_mpi_g3():
    found = fail("late_message", 2, 2.0)[0]
    assert found["error"] == "CollectiveTimeoutError"
    assert found["changed"] == 0


def test_memory_of_messages_that_do_not_come_is_kept_over_mpi_g3():
    found = fail("receives", 2, 2.0)[0]
    assert found["error"] == "CollectiveTimeoutError"
    assert found["kept"] == [True, True]


@pytest.mark.parametrize("engine", ["C"], indirect=True)
def test_a_call_that_mpi_refuses_on_a_stream_fails_all_ranks_g3():
    found = told(start(2, *SHELL, sys.executable, FAILURES, "refuse", 30.0, options=[ALONE]), 2)
    for each in found.values():
        assert each["error"] == "CollectiveError", each
        assert each["ranks"] == [1]
        assert "MPI failed with -1 on rank 1" in each["text"]
        assert each["goes on"]


def test_mpi_is_taken_where_mpiexec_has_started_the_ranks_g4():
    found = launch(2, "-m", "hal_conformance.ranks", "moves")
    assert {each["provider"] for each in found.values()} == {"mpi"}


@pytest.mark.parametrize(
    ("case", "size", "told"),
    [
        ("size", 3, {0: "all_reduce #1 of 8 float32, sum", 2: "all_reduce #1 of 9 float32, sum"}),
        ("dtype", 2, {0: "all_reduce #1 of 8 float32, sum", 1: "all_reduce #1 of 8 int32, sum"}),
        ("kind", 2, {0: "barrier #1", 1: "all_reduce #1 of 8 float32, sum"}),
    ],
)
def test_ranks_that_differ_fail_over_mpi_g3(case, size, told):
    """On every rank, before data has moved."""
    for each in fail(case, size).values():
        assert each["error"] == "CollectiveMismatchError"
        for rank, words in told.items():
            assert f"rank {rank}: {words}" in each["text"]


def test_a_message_of_another_size_fails_both_ends_over_mpi_g3():
    found = fail("message", 2)
    assert [found[rank]["error"] for rank in (0, 1)] == ["CollectiveMismatchError"] * 2
    assert "send of 4 float64" in found[0]["text"]


def test_a_late_rank_fails_the_others_in_time_over_mpi_g3():
    """The error names it and what it did last; the others make a new group, and it learns of it."""
    found = fail("late", 3, 2.0)
    for rank in (0, 2):
        each = found[rank]
        assert each["error"] == "CollectiveTimeoutError", each
        assert each["ranks"] == [1]
        assert each["records"]["1"][-1] == "all_reduce #1 of 8 float32, sum"
        assert each["records"][str(rank)][-1] == "all_reduce #2 of 8 float32, sum"
        assert each["goes on"]
    assert found[0]["rebuilt"] == [1, 2, 2.0]
    assert found[2]["rebuilt"] == [0, 2, 2.0]
    assert found[1]["error"] == "CollectiveTimeoutError"
    assert found[1]["goes on"]


def test_a_wait_that_is_given_up_leaves_its_operation_to_the_stream_g3():
    """The thread that waits runs the operation, as far as it can in its time."""
    found = fail("patience", 2)
    assert found[0]["late"] == 15
    assert found[0]["wrong"] == found[1]["wrong"] == []


@pytest.mark.parametrize("case", ["unheard", "taken", "small"])
def test_a_late_rank_learns_of_the_failure_first_over_mpi_g3(case):
    """Though the others' data is there: else it moved data alone, and MPI would not end."""
    for each in fail(case, 2, 2.0).values():
        assert each["error"] == "CollectiveTimeoutError", each


def test_a_rank_that_splits_too_late_is_told_so_and_may_come_again_over_mpi_g4():
    """It would wait in MPI for good for those that have given up."""
    found = fail("late_split", 2)
    assert found[0]["tries"][0] == [1]
    for each in found.values():
        assert each["tries"][-1] == 2
        assert each["error"] is None


def test_a_rank_that_hangs_while_a_group_is_made_is_given_up_over_mpi_g4():
    run = [*SHELL, sys.executable, FAILURES, "unmade", 30.0]
    for rank, each in told(start(2, *run, options=[ALONE]), 2).items():
        assert f"rank {rank} waited 1 s for the others to make tested/1" in each["text"]
        assert each["next"] is None


@pytest.mark.parametrize("engine", ["C"], indirect=True)
def test_records_are_read_whole_while_operations_run_on_the_stream_g3():
    """Also where the next operations take the places of the oldest ones."""
    assert [each["wrong"] for each in fail("records", 2, LIMIT).values()] == [[], []]


def test_an_idle_rank_hears_of_a_failure_when_it_asks_over_mpi_g3():
    assert all("broken on purpose" in each["text"] for each in fail("idle", 2).values())


def test_numbers_at_odd_addresses_are_reduced_over_mpi_g2():
    assert [each["found"] for each in fail("odd_address", 2).values()] == [[1.5, 1.5]] * 2


def test_a_signal_handler_may_ask_for_errors_at_every_place_over_mpi_g3():
    for each in fail("handlers", 2).values():
        assert each["hits"]
        assert each["error"] is None


def test_a_failure_of_mpi_fails_its_group_and_no_other_g3():
    """It does not end the thread that watches over all groups."""
    for each in fail("raises", 2).values():
        assert "MPI is broken on purpose" in each["text"]
        assert each["next"] is None


def test_what_is_told_of_a_failure_is_short_g3():
    """MPI sends that by itself: a longer one holds up who takes it until its sender goes on."""
    group = pytest.importorskip("hal_mpi.group")
    steps = tuple(f"all_reduce #{number} of 1000000 float32, sum" for number in range(16))
    error = CollectiveError("x" * 100_000, ranks=(700,), records=dict.fromkeys(range(1000), steps))
    message = group._message_of(error)
    assert len(json.dumps(message)) <= 4000
    assert [*message["records"]][:3] == ["700", "0", "1"]
    assert message["records"]["700"] == [*steps[-3:]]


@pytest.mark.parametrize("engine", ["C"], indirect=True)
def test_a_forked_child_drops_a_group_over_mpi_g1():
    for each in fail("forked", 2).values():
        assert (each["status"], each["error"]) == (0, None)


@pytest.mark.parametrize("engine", ["Python"], indirect=True)
def test_a_signal_handler_may_join_in_the_middle_of_a_join_over_mpi_g4(monkeypatch):
    """A lock that the interrupted call had in its hands would be waited for in vain."""
    mpi = pytest.importorskip("hal_mpi._mpi")
    found, begin = [], threading.Thread.start
    there = {"THREAD_MULTIPLE": 3, "Query_thread": lambda: 3, "COMM_WORLD": "world"}
    monkeypatch.setattr(mpi, "MPI", types.SimpleNamespace(**there))
    monkeypatch.setattr(mpi, "_initialise", lambda: None)

    def join():
        found.append(mpi.world("tested", 0, 10))

    def interrupted(thread):
        if thread.name == "hal-mpi start" and not found:
            monkeypatch.setattr(threading.Thread, "start", begin)
            join()
        begin(thread)

    joining = threading.Thread(target=join, daemon=True)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    joining.start()
    joining.join(10)
    assert found == ["world"] * 2


def ranks_left(mark):
    """Return the processes that have a text among their arguments."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return [line for line in lines if mark.encode() in line]


def test_a_rank_that_never_joins_is_given_up_over_mpi_g4():
    """MPI itself would wait for it for good, and keep the interpreter from all other threads."""
    done = start(3, *SHELL, sys.executable, FAILURES, "absent", 2.0, options=[ALONE])
    for rank, each in told(done, 2).items():
        assert each["error"] == "RendezvousError"
        assert f"rank {rank} waited 2 s for all ranks of tested to come" in each["text"]


def test_a_killed_rank_fails_the_others_in_time_over_mpi_g3():
    """With who and what; they go on without it."""
    mark = str(uuid.uuid4())
    run = [*SHELL, sys.executable, FAILURES, "killed", 2.0, mark]
    found = told(start(3, *run, options=[ALONE]), 2)
    for rank, place in ((0, 0), (2, 1)):
        each = found[rank]
        assert each["error"] == "CollectiveTimeoutError", each
        assert each["ranks"] == [1]
        assert each["records"]["1"][-1] == "all_reduce #1 of 8 float32, sum"
        assert each["seconds"] < 20
        assert each["rebuilt"] == [place, 2, 2.0]
    assert not ranks_left(mark)


def test_mpiexec_ends_all_ranks_with_one_that_is_killed_g3():
    """MPICH's own way: its ranks get no time to see an error, and none is left behind."""
    mark = str(uuid.uuid4())
    done = start(3, sys.executable, FAILURES, "killed", 30.0, mark)
    assert done.returncode == 9
    assert not ranks_left(mark)


def test_a_failed_wait_of_one_rank_fails_all_over_mpi_g3():
    found = fail("wait", 2)
    assert found[0]["error"] == "OperationError"
    assert found[1]["error"] == "CollectiveError"
    assert found[1]["ranks"] == [0]
    assert "broken on purpose" in found[1]["text"]


@pytest.mark.parametrize("engine", ["C"], indirect=True)
def test_groups_that_all_ranks_have_closed_leave_no_communicator_g4():
    for each in fail("many", 2).values():
        assert "close groups on all ranks" in each["text"]
        assert each["error"] is None


@pytest.mark.parametrize("size", [2, 3, 4])
def test_failed_groups_that_all_ranks_have_closed_leave_no_communicator_g4(size):
    """Messages they left in MPI are received, and exchanges that some have begun are completed."""
    for each in fail("broken", size).values():
        assert each["left"] == 0
        assert each["errors"] != ["None"]
        assert each["error"] is None


def test_who_closes_its_group_is_not_waited_for_over_mpi_g3():
    found = fail("close", 2)
    assert found[1]["error"] == "CollectiveError"
    assert found[1]["ranks"] == [0]
