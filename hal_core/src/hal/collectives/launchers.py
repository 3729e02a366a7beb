"""Where a process stands among those that a launcher has started, as its environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hal.arguments import as_mapping, as_text, number_of, shown
from hal.errors import InvalidArgumentError
from hal.native_collectives import Place


def find_place(environment: Mapping[str, str] | None = None) -> Place:
    """Return the place that the environment gives, by default this process's; else one alone.

    Known are torchrun and what sets the same variables (Ray Train, Kubernetes' operators), MPI's
    launchers (mpiexec of MPICH, Intel MPI and Open MPI), and Slurm's srun. Raises
    `InvalidArgumentError` for variables that make no sense.
    """
    given: Mapping[str, str] = os.environ
    if environment is not None:
        given = as_mapping(environment, "find_place: environment is a mapping of texts")
    for launcher, rank, size, local in _VARIABLES:
        if rank in given and size in given:
            number, count = _number(given, rank), _number(given, size)
            if number >= count:
                message = f"{rank}={number} and {size}={count} in the environment: no such rank"
                raise InvalidArgumentError(message)
            its_local = _number(given, local) if given.get(local) else None
            rendezvous = None
            if given.get("MASTER_ADDR") and given.get("MASTER_PORT"):
                port = _number(given, "MASTER_PORT")
                rendezvous = f"tcp://{given['MASTER_ADDR']}:{port}"
            return Place(number, count, its_local, rendezvous, launcher)
    return Place(0, 1)


_VARIABLES = (
    # Launcher, rank, size, rank on the host; the innermost launcher first
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    # srun sets the number of tasks of its step; a batch script has none.
    ("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def _number(given: Mapping[str, str], name: str) -> int:
    number = number_of(as_text(given[name], f"{name} in the environment is a text"))
    if number < 0:
        raise InvalidArgumentError(f"{name}={shown(given[name])} in the environment is no number")
    return number
