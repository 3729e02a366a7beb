"""What torchrun and Ray start, where they are installed; they are too large to be required."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from child_processes import output_of

EXAMPLES = Path(__file__).parents[2] / "examples"
PLACES = """
import hal, hal.collectives, json, pathlib, sys
place = hal.collectives.find_place()
with hal.create_device("cpu") as device:
    try:
        hal.collectives.join(device, timeout=60)
    except hal.errors.BackendUnavailableError as error:
        path = pathlib.Path(sys.argv[1], f"rank {place.rank}")
        path.write_text(json.dumps([place, str(error)]))
"""
ACTORS = """
import sys, threading, json, ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)

@ray.remote
class Actor:
    def train(self, folder, count):
        sys.path.insert(0, folder)
        import data_parallel, hal, hal.collectives
        found = [None] * count
        def run(rank):
            with (
                hal.create_device("cpu") as device,
                hal.collectives.join(device, rank=rank, size=count, rendezvous="ray") as group,
            ):
                found[rank] = data_parallel.train(group, 1)
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        return found[0]

actor = Actor.remote()
print(json.dumps([ray.get(actor.train.remote(sys.argv[1], count)) for count in (1, 2)]))
"""


def run(home, *command):
    """Run a program, in a home of its own for what Ray leaves there; return what it has printed."""
    environment = os.environ | {"HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
    return output_of([sys.executable, *command], env=environment)


def needs(module):
    found = importlib.util.find_spec(module)
    return pytest.mark.skipif(found is None, reason=f"{module} is not installed")


def torchrun(home, count, *program):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count)
    return run(home, *launcher, *program)


@needs("torch")
def test_training_by_torchrun_g4(tmp_path):
    found = json.loads(torchrun(tmp_path, 1, EXAMPLES / "data_parallel.py"))
    assert found["losses"][-1] < found["losses"][0] / 4


@needs("torch")
def test_processes_of_torchrun_know_their_places_g4(tmp_path):
    """Several on cpu are told what each provider needs: only those of mpiexec meet there."""
    program = tmp_path / "places.py"
    program.write_text(PLACES)
    torchrun(tmp_path, 2, program, tmp_path)
    for rank in range(2):
        place, error = json.loads((tmp_path / f"rank {rank}").read_text())
        assert place[:3] == [rank, 2, rank]
        assert place[3].startswith("tcp://")
        assert place[4] == "torchrun"
        assert "not started by mpiexec" in error


@needs("ray")
def test_training_by_the_threads_of_a_ray_actor_g2(tmp_path):
    program = tmp_path / "actors.py"
    program.write_text(ACTORS)
    alone, two = json.loads(run(tmp_path, program, EXAMPLES))
    assert np.allclose(two, alone, rtol=1e-4)
