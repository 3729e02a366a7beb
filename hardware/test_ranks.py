"""Ranks on GPUs of their own, over the real NCCL: results, failures, launchers, shared semaphores.

    [HAL_GPUS=4] python -m pytest hardware/test_ranks.py

The GPUs are ``cuda:0`` and ``cuda:1``, and further ones if ``HAL_GPUS`` says so: training, the
layer and the suite's programs run on all of them. Needs torchrun, and mpiexec with mpi4py.
"""

import importlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import hal
import hal.collectives
from hal.errors import ProcessLostError

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
LIMIT = 60
GPUS = int(os.environ.get("HAL_GPUS", "2"))
PROGRAM = """
import json, os, signal, sys, time
import numpy as np, hal, hal.collectives
what, rank, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
device = hal.create_device(f"cuda:{rank}")
group = hal.collectives.join(device, rank=rank, size=2, rendezvous=place, timeout=4)
whole = device.upload(np.ones(1 << 20, np.float32))
device.queue.all_reduce(whole, group=group).wait(30)
found = {}

def failure_of(submit):
    begin = time.monotonic()
    try:
        submit().wait(30)
    except hal.errors.CollectiveError as error:
        found.update(error=type(error).__name__, words=str(error), after=time.monotonic() - begin)

def reduce(buffer=whole):
    return device.queue.all_reduce(buffer, group=group)

if what == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if what == "killed" or (what == "hung" and rank == 0):
    failure_of(reduce)
elif what == "hung":
    time.sleep(8)  # longer than the other's time-out
elif what == "size":
    failure_of(lambda: reduce(whole[: 1 << (20 - 4 * rank)]))
    if not found:  # the smaller one may end well; then the next one fails
        failure_of(reduce)
elif what == "kind":
    failure_of(lambda: reduce() if rank else device.queue.group_barrier(group=group))
    if not found:
        failure_of(reduce)
device.queue.fill(whole, 1.0 + rank).wait(30)
left = [0] if what == "killed" else [1, 0]
again = group.rebuild(left, timeout=30)
device.queue.all_reduce(whole, group=again).wait(30)
found["sum"] = float(whole.numpy()[-1])
again.close(), group.close(), device.close()
print(json.dumps(found))
"""
TURNS = """
import pickle, sys, time, hal, numpy as np
device = hal.create_device(sys.argv[2])
turn = device.open(pickle.loads(bytes.fromhex(sys.argv[1])))
mine = device.zeros(64, np.float32)
for hop in range(1, 40, 2):
    device.queue.fill(mine, float(hop), wait=turn.at(hop), signal=turn.at(hop + 1))
turn.wait(40, 30)
print("done", flush=True)
device.queue.fill(mine, 0.0, wait=turn.at(1000))
time.sleep(60)
"""


def environment(rank=None, port=None, size=2):
    """Return this process's environment, of a rank as torchrun sets it."""
    given = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        given[name] = "1"  # Open MPI asks for both where root starts ranks
    if rank is not None:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
        given |= {name: str(value) for name, value in place.items()}
        given["MASTER_ADDR"] = "127.0.0.1"
    return given


def together(commands, environments=None, limit=LIMIT, statuses=None):
    """Run commands at once; return what they have printed."""
    environments = environments or [environment()] * len(commands)
    running = [
        subprocess.Popen(
            [*map(str, command)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for command, env in zip(commands, environments, strict=True)
    ]
    deadline = time.monotonic() + limit
    told = []
    try:
        told += [each.communicate(timeout=max(deadline - time.monotonic(), 1)) for each in running]
    finally:
        for each in running:
            each.kill()
    codes = [each.returncode for each in running]
    assert codes == (statuses or [0] * len(commands)), [
        each[-3000:] for pair in told for each in pair
    ]
    return [output for output, _ in told]


def loop(port, *command, size=2):
    """Run a command as some ranks, by a plain loop of processes."""
    return together([command] * size, [environment(rank, port, size) for rank in range(size)])


def python(*arguments):
    return [sys.executable, *arguments]


TWICE = """
import sys, hal, hal.collectives
device = hal.create_device("cuda:0")
place = {}
if len(sys.argv) > 1:
    place = dict(rank=int(sys.argv[1]), size=2, rendezvous=sys.argv[2])
try:
    hal.collectives.join(device, timeout=30, **place)
except hal.errors.InvalidArgumentError as error:
    print(error)
"""


def records_of(texts):
    """Return the JSON that was printed; NCCL may print lines of its own."""
    lines = [line for text in texts for line in text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture(scope="module")
def alone():
    """The losses of one rank on one GPU."""
    (found,) = records_of(together([python(EXAMPLES / "data_parallel.py", "--device", "cuda")]))
    assert found["losses"][-1] < found["losses"][0] / 4
    return found["losses"]


def mpiexec():
    found = shutil.which("mpiexec") or os.environ.get("MPIEXEC")
    assert found, "no mpiexec: pip install mpich mpi4py"
    return [found, "-n", GPUS]


LAUNCHERS = {
    "torchrun": lambda *command: together(
        [
            python(
                *("-m", "torch.distributed.run", "--master-port", 29611, "--nproc-per-node", GPUS),
                *command,
            )
        ]
    ),
    "mpiexec": lambda *command: together([[*mpiexec(), *python(*command)]]),
    "loop": lambda *command: loop(29621, *python(*command), size=GPUS),
}


@pytest.mark.parametrize("launcher", [*LAUNCHERS, "threads"])
def test_training_has_the_losses_of_one_rank_g2(alone, launcher):
    command = (EXAMPLES / "data_parallel.py", "--device", "cuda")
    if launcher == "threads":
        texts = together([python(*command, "--threads", GPUS)])
    else:
        texts = LAUNCHERS[launcher](*command)
    (found,) = records_of(texts)
    assert (found["ranks"], found["provider"]) == (GPUS, "nccl")
    assert np.allclose(found["losses"], alone, rtol=1e-4)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_layer_over_the_gpus_g2(launcher):
    lines = "".join(LAUNCHERS[launcher](EXAMPLES / "tensor_parallel.py", "cuda")).splitlines()
    expected = [f"rank {rank} of {GPUS} (nccl)" for rank in range(GPUS)]
    assert sorted(line[:18] for line in lines) == expected


@pytest.mark.parametrize("size", [1, GPUS])
def test_programs_of_processes_g2(size):
    """Every program of the suite's ranks."""
    texts = together(
        [
            python("-m", "hal_conformance.ranks", "--device", f"cuda:{rank}", "--provider", "nccl")
            for rank in range(size)
        ],
        [environment(rank, 29631, size) if size > 1 else environment() for rank in range(size)],
    )
    records = records_of(texts)
    assert len(records) == size
    for found in records:
        assert (found["size"], found["provider"]) == (size, "nccl")
        assert not any(found["programs"].values()), found


@pytest.mark.parametrize("case", [("results", "1"), ("results", str(GPUS)), ("meeting",)])
def test_programs_of_threads_g2(tmp_path, case):
    """Those, and each way to meet, with the ranks as threads of one process."""
    provider = importlib.import_module("hal_nccl.provider")
    env = environment() | {"HAL_NCCL_LIBRARY": provider.find_library(provider.NCCL)}
    more = [tmp_path] if case == ("meeting",) else []
    script = ROOT / "tests" / "nccl" / "ranks_in_threads.py"
    (text,) = together([python(script, "nccl", *case, *more)], [env])
    assert "done" in text


@pytest.mark.parametrize("way", ["address", "file"])
def test_two_processes_with_one_gpu_meet_and_are_refused_g4(tmp_path, way):
    """They have met by then: it is the library that compares their GPUs."""
    if way == "address":
        told = loop(29641, *python("-c", TWICE))
    else:
        place = f"file://{tmp_path}/id"
        told = together([python("-c", TWICE, rank, place) for rank in range(2)])
    assert all("a device is in the group twice" in each for each in told), told


@pytest.mark.parametrize("what", ["killed", "hung", "size", "kind"])
def test_a_failing_rank_is_bounded_g3(tmp_path, what):
    """G3: told within the time-out; the device goes on, and the group is built again."""
    commands = [python("-c", PROGRAM, what, rank, f"file://{tmp_path}/id") for rank in range(2)]
    statuses = [0, -signal.SIGKILL] if what == "killed" else None
    found = records_of(together(commands, statuses=statuses))
    print(json.dumps(found, indent=1))  # noqa: T201 - read by those who run it
    first = found[0]
    assert first["error"].startswith("Collective"), found
    assert first["after"] < 4 + 6, found
    assert "all_reduce #" in first["words"] or "barrier #" in first["words"]
    assert [each["sum"] for each in found] == ([1.0] if what == "killed" else [3.0, 3.0])


@contextmanager
def other(turn):
    """Run the other process of a shared semaphore."""
    count = sum(each.backend == "cuda" for each in hal.devices())
    spec = f"cuda:{min(count - 1, 1)}"
    command = python("-c", TURNS, pickle.dumps(turn.share()).hex(), spec)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def test_two_processes_take_turns_on_two_gpus_s1():
    """S1, S4: a semaphore orders the work of both; the death of one is told within a second."""
    with hal.create_device("cuda:0") as device:
        turn = hal.create_semaphore(shareable=True)
        mine = device.zeros(64, np.float32)
        with other(turn) as child:
            for hop in range(0, 40, 2):
                device.queue.fill(mine, float(hop), wait=turn.at(hop), signal=turn.at(hop + 1))
            turn.wait(40, LIMIT)
            assert child.stdout.readline() == "done\n"
            waiting = device.queue.fill(mine, 0.0, wait=turn.at(1000))
            killed = time.monotonic()
            child.kill()
            with pytest.raises(ProcessLostError):
                waiting.wait(LIMIT)
            assert time.monotonic() - killed < 2
        device.queue.fill(mine, 5.0).wait(LIMIT)
        assert (mine.numpy() == 5).all()
