"""What `make test` runs and what `make check` adds, and how processes share them (pytest-xdist).

The tests' own processes run the plain Python engine, whose lines many of them watch or replace.
What is to run with the C extension asks for it, with ``HAL_SPEEDUPS=require``, in a process of
its own.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

os.environ.setdefault("HAL_SPEEDUPS", "0")  # before anything imports hal


class Multiplied(NamedTuple):
    """The kind of cases that a test multiplies, and those of them that stay in `make test`."""

    kind: str
    stays: int | tuple[str, ...] = 0
    """Every n-th case of each test, from the first on; or these cases; or none."""


INTERRUPTS = "interrupts at every call"
WHOLE = "runs of the conformance suite"
REFUSED = "runs of the suite that must not begin"
SUITE = "conformance/test_suite.py::"
PROFILES = "conformance/test_profiles.py::"
MEMORY = "core/memory/test_memory_interrupts.py::"
BOTH = "test_random_kernels_do_the_same_in_both_ways"
BUILD, BUILDS = "speedups/test_build.py::", "builds of the C extension"
NCCL, GROUPS = "nccl/test_nccl.py::", "groups on the software drivers"
CACHE = "core/memory/test_allocator.py::"
CHECK = {
    "conformance/test_acme.py": Multiplied(WHOLE),
    "conformance/test_core_mutants.py": Multiplied("mutants", 10),
    "conformance/test_mutants.py": Multiplied("mutants", 48),
    "conformance/test_mutants.py::test_the_true_backend_passes": Multiplied("mutants"),
    f"{PROFILES}test_a_key_that_matches_nothing_fails_the_run": Multiplied(REFUSED, 2),
    f"{SUITE}test_an_unavailable_backend_is_not_run": Multiplied(REFUSED, ("unavailable",)),
    f"{SUITE}test_the_plain_engine_is_conformant": Multiplied(WHOLE),
    f"{CACHE}test_ctrl_c_anywhere_in_an_allocation_from_the_cache_m1": Multiplied(INTERRUPTS),
    "core/commands/test_command_model.py": Multiplied("random programs", 8),
    "core/devices/test_process_end.py": Multiplied("ends of a process", 2),
    "core/memory/test_memory_faults.py": Multiplied("native calls that fail in turn", 8),
    f"{MEMORY}test_a_handler_asks_for_statistics_in_the_middle_of_others_o3": Multiplied(
        INTERRUPTS
    ),
    f"{MEMORY}test_two_ctrl_c_lose_no_memory_o3": Multiplied(INTERRUPTS),
    "core/base/test_odd_input.py": Multiplied("odd arguments", 8),
    "core/engine/test_handlers.py": Multiplied(INTERRUPTS, 4),
    "core/engine/test_recovery.py": Multiplied(INTERRUPTS, 4),
    "collectives/test_interrupts.py": Multiplied(INTERRUPTS, 3),
    f"cpu/test_inlined.py::{BOTH}": Multiplied("random programs", ("1",)),
    f"cpu/test_regions.py::{BOTH}": Multiplied("random programs", 4),
    f"cpu/test_reworded.py::{BOTH}": Multiplied("random programs", 4),
    "cpu/test_runtime_c.py": Multiplied("builds of the CPU's runtime", ("plain", "ucontext")),
    "flow/test_delayed_programs.py::test_on_the_software_driver": Multiplied(
        "random programs", ("cuda-free",)
    ),
    "gpusim/test_conformance.py": Multiplied(WHOLE, ("cuda, stream, seed 1",)),
    "gpusim/test_captures.py": Multiplied("modes of a capture", ("global",)),
    "gpusim/test_every_call.py": Multiplied("native calls that fail in turn", 32),
    "flow/test_multi_gpu.py::test_every_part_passes": Multiplied("backends", ("cuda",)),
    "gpusim/test_semaphores_in_memory.py": Multiplied("backends and engines", 2),
    "gpusim/test_probe.py": Multiplied("questions to the software driver"),
    "gpusim/test_mixed.py": Multiplied("schedules of several devices", 3),
    "gpusim/test_odd_input.py": Multiplied("odd arguments", 5),
    "gpusim/test_short_memory.py": Multiplied("random programs", 3),
    "gpusim/test_stream_memory.py": Multiplied("schedules of programs short of memory", 16),
    "collectives/test_launched_examples.py::test_training_by_threads_g2": Multiplied(
        "numbers of ranks"
    ),
    "collectives/test_launched_examples.py::test_training_by_mpiexec_g2": Multiplied(
        "numbers of ranks", ("2",)
    ),
    "mpi/test_mpi.py": Multiplied("launches of MPI", 2),
    "mpi/test_mpi.py::test_results_over_mpi_g2": Multiplied("launches of MPI", ("C-4", "Python-3")),
    "mpi/test_mpi.py::test_a_killed_rank_fails_the_others_in_time_over_mpi_g3": Multiplied(
        "launches of MPI"
    ),
    "mpi/test_mpi.py::test_mpiexec_ends_all_ranks_with_one_that_is_killed_g3": Multiplied(
        "launches of MPI"
    ),
    "mpi/test_mpi.py::test_groups_that_all_ranks_have_closed_leave_no_communicator_g4": Multiplied(
        "launches of MPI"
    ),
    f"{NCCL}test_results_on_streams_g2": Multiplied(GROUPS, ("3-nccl", "4-rccl")),
    f"{NCCL}test_failures_on_streams_g3": Multiplied(GROUPS, ("late-nccl", "errors-rccl")),
    f"{NCCL}test_with_the_extension_g3": Multiplied(
        GROUPS, ("direct-nccl", "direct-rccl", "errors-nccl", "late-rccl")
    ),
    f"{NCCL}test_the_extension_does_the_same_g1": Multiplied("random programs", 3),
    "schedules/test_cases.py": Multiplied("cases of which many schedules are tried", 24),
    "schedules/test_mutants.py": Multiplied("mutants", 13),
    "schedules/test_reduction.py": Multiplied("random programs", 4),
    f"{BUILD}test_sources_that_do_not_compile_are_loud_and_no_obstacle": Multiplied(BUILDS),
    f"{BUILD}test_an_editable_installation_has_it_beside_the_modules": Multiplied(BUILDS),
    f"{BUILD}test_a_source_distribution_has_all_that_the_extension_needs": Multiplied(BUILDS),
    "speedups/test_same_as_python.py": Multiplied("random programs", 10),
    "speedups/test_other_tests.py": Multiplied("folders of tests with the C extension"),
}
"""What multiplies, that is, does the same to many cases: whole files, or single tests of a file.
What does not stay in `make test` has the mark `check`, and `make check` runs it."""

LONGEST = ("conformance/test_suite.py", "gpusim/test_conformance.py", "conformance/test_acme.py")
"""What is handed out first, so that no process is left alone with it at the end."""
APART = {
    "conformance/test_core_mutants.py",
    "conformance/test_mutants.py",
    "gpusim/test_conformance.py",
    "gpusim/test_every_call.py",
    "gpusim/test_mixed.py",
    "gpusim/test_odd_input.py",
    "schedules/test_cases.py",
    "schedules/test_mutants.py",
    "speedups/test_other_tests.py",
    "speedups/test_same_as_python.py",
}
"""Files whose tests are long and share nothing: each may run in another process. The tests of any
other file run in one, so that what they share is made once."""

added: Counter[str] = Counter()
"""The tests that this run leaves to `make check`, by kind."""


def pytest_configure(config):
    """Build the C extension again if its sources have changed since."""
    core = Path(__file__).parents[1] / "hal_core"
    name = f"_speedups{sysconfig.get_config_var('EXT_SUFFIX')}"  # this interpreter's
    built = [path.stat().st_mtime for path in core.glob(f"src/hal/{name}")]
    sources = [path.stat().st_mtime for path in core.glob("speedups/*")]
    if built and min(built) < max(sources) and not hasattr(config, "workerinput"):
        command = [sys.executable, str(core / "hatch_build.py")]
        subprocess.run(command, env=os.environ | {"HAL_SPEEDUPS": ""}, check=True, timeout=600)


def file_of(nodeid):
    """Return the path of a test's file below this folder."""
    return nodeid.partition("::")[0].removeprefix("tests/")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what is left to `make check`, and put the longest first and the finest last."""
    seen = Counter()
    for item in items:
        file = file_of(item.nodeid)
        test, _, case = item.name.removesuffix("]").partition("[")
        multiplied = CHECK.get(f"{file}::{test}") or CHECK.get(file)
        if multiplied is None:
            continue
        kind, stays = multiplied
        if isinstance(stays, tuple):
            is_left = case not in stays
        else:
            is_left = stays == 0 or seen[file, test] % stays > 0
        seen[file, test] += 1
        if is_left:
            item.add_marker(pytest.mark.check)
            added[kind] += 1
    last = len(LONGEST)
    order = {file: number for number, file in enumerate(LONGEST)} | {
        file: last + 1 for file in APART if file not in LONGEST
    }
    items.sort(key=lambda item: order.get(file_of(item.nodeid), last))


def pytest_collection_finish():
    """Spare the collector what pytest knows of the tests; many of them ask for a collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers():
    """Have one process more than processors: at any time some test waits."""
    return (yield) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hand out whole files, the tests of `APART` one by one, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - only where it is installed

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = file_of(nodeid)
            return nodeid if file in APART else file

    config.option.loadscopereorder = False
    return Files(config, log)


def pytest_sessionfinish(session):
    """Tell the process that reports what this one knows of `make check`."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["added"] = dict(added)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Keep what one process knows; all have collected the same."""
    added.update(getattr(node, "workeroutput", {}).get("added", {}) if not added else {})


def pytest_terminal_summary(terminalreporter, config):
    """Print what `make check` adds to this run."""
    if added and config.option.markexpr == "not check":
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(added.items()))
        terminalreporter.write_line(f"make check adds {added.total()} tests: {kinds}")


@pytest.fixture
def plain_terminal(monkeypatch):
    """Keep out of the environment what makes texts colored or wide."""
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TERMINAL_WIDTH"):
        monkeypatch.delenv(name, raising=False)
