"""Keep wrong copies of the core and of the reference backend, and run the suite on them.

A mutant is one or a few textual patches that make one mistake, and the tests of
the suite that must fail for it. The patches are applied as the modules are
imported, in a child process and in those that it starts; no file is changed.

    python tests/conformance/mutants.py NAME [TEST...]   tests of the suite on one mutant, or on
                                                         "all"; by default those named for it

The suite as a whole is run on them by `matrix.py`, which keeps in `caught.json`
which tests notice which mutants.
"""

# ruff: noqa: E501, T201 - patches quote lines as they stand; the script prints

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from coarse import COARSE
from flow_mutants import FLOW
from host_mutants import HOST

from hal_conformance.child import command, environment

SUITE = Path(importlib.util.find_spec("hal_conformance").origin).parent / "suite"
WORKERS = 2
SECONDS = 90.0
"""What the run of one mutant may take; one that takes more has died."""
INTERNAL_ERROR = 3
"""What pytest exits with if it breaks off by a mistake of its own, or of a plugin."""

SITE = '''
"""Patch modules as they are imported; Python imports this file by itself."""

import importlib.machinery
import json
import os
import sys

with open(os.environ["HAL_MUTANT"], encoding="utf-8") as file:
    PATCHES = json.load(file)


class Loader(importlib.machinery.SourceFileLoader):
    """Compile a patched text, past the cache of compiled modules."""

    def get_code(self, fullname):
        text = self.get_data(self.path).decode()
        for module, old, new in PATCHES:
            if module == fullname:
                assert text.count(old) == 1, (module, old)
                text = text.replace(old, new)
        return compile(text, self.path, "exec", dont_inherit=True)


class Finder:
    """Find the modules that are to be patched where they are found without this."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in {module for module, _, _ in PATCHES}:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        spec.loader = Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, Finder)
'''


class PatchError(Exception):
    """Report a patch that does not apply any more."""


@dataclass(frozen=True)
class Patch:
    """Replace `old`, which must occur exactly once in a module's file, by `new`."""

    module: str
    old: str
    new: str

    def check(self):
        """Raise unless it applies."""
        path = find_source(self.module)
        times = path.read_text(encoding="utf-8").count(self.old)
        if times != 1:
            message = f"{self.old!r} occurs {times} times in {path.name}, not once: mend the mutant"
            raise PatchError(message)


@functools.cache
def find_source(module):
    """Return where a module's file is."""
    return Path(importlib.util.find_spec(module).origin)


@dataclass(frozen=True)
class Mutant:
    """Say which mistake is made, and which tests must fail for it: files, or tests in them."""

    name: str
    tests: tuple
    patches: tuple
    mode: str = "auto"


@dataclass(frozen=True)
class Outcome:
    """Say what a run found.

    Attributes
    ----------
    statuses
        Of each test that was run, by id; none if the process died.
    died
        How the process ended, if that was before it could report.
    """

    statuses: dict
    died: str
    seconds: float
    output: str

    def failed(self):
        """Return the ids of the tests that failed."""
        return [name for name, status in self.statuses.items() if status == "failed"]

    def missed(self, tests):
        """Return those of `tests`, which may have several cases, of which no case failed."""
        failed = self.failed()
        return [
            test
            for test in ([] if self.died else tests)
            if not any(
                name == test or name.startswith((f"{test}[", f"{test}::")) for name in failed
            )
        ]


HASTE = (
    # What a mutant never does is waited for less long.
    Patch("hal_conformance.suite.support", "LIMIT: Final = 10.0", "LIMIT: Final = 2.0"),
    Patch("hal_conformance.session", "TIME_LIMIT: Final = 30", "TIME_LIMIT: Final = 9"),
    Patch("hal_conformance.bench", "_SECONDS: Final = 5.0", "_SECONDS: Final = 0.5"),
)


@contextlib.contextmanager
def patched(patches):
    """Give the environment variables of a process, and of its children, that has the patches."""
    for patch in patches:
        patch.check()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(SITE, encoding="utf-8")
        chosen = Path(folder, "patches.json")
        texts = [(patch.module, patch.old, patch.new) for patch in patches]
        chosen.write_text(json.dumps(texts), encoding="utf-8")
        path = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        yield {"HAL_MUTANT": str(chosen), "PYTHONPATH": os.pathsep.join(path)}


def run(patches, tests, mode="auto", seconds=SECONDS, *, is_first=True):
    """Run tests of the suite on the reference backend with patches; return the `Outcome`."""
    with patched(patches) as variables, tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        arguments = [*(str(SUITE / test) for test in tests), "--hal-backend", "cpu", "--tb=line"]
        arguments += ["--hal-mode", mode, "--hal-report", str(report)]
        begin = time.monotonic()
        died = output = ""
        try:
            done = subprocess.run(
                command(arguments),
                env=environment() | variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
            output = done.stdout.decode(errors="replace")
            if done.returncode < 0:
                died = f"the suite's process was ended by signal {-done.returncode}"
            elif done.returncode == INTERNAL_ERROR and is_first:
                # pytest itself broke off. If chance had a part in it, it does not do so twice.
                return run(patches, tests, mode, seconds, is_first=False)
            elif done.returncode > 1 or not report.exists():
                # No such test, a module that cannot be imported: that is no mistake found.
                message = f"pytest exited with {done.returncode}\n{output}"
                raise RuntimeError(message)
        except subprocess.TimeoutExpired as error:
            died = f"the suite's process did not end within {seconds:g} seconds"
            output = (error.stdout or b"").decode(errors="replace")
        seconds = time.monotonic() - begin
        if died:
            return Outcome({}, died, seconds, output)
        found = json.loads(report.read_text(encoding="utf-8"))["tests"]
    statuses = {test["id"]: test["status"] for test in found if test["status"] != "not_run"}
    return Outcome(statuses, "", seconds, output)


def run_mutant(mutant):
    """Run a mutant's tests on it."""
    return run((*mutant.patches, *HASTE), mutant.tests, mutant.mode)


def plant(name, tests, *patches, mode="auto"):
    """Return a mutant; patches are given as plain tuples."""
    return Mutant(name, tuple(tests), tuple(Patch(*patch) for patch in patches), mode)


CPU = "hal_cpu.device"

# The tests that must fail for several
OTHER_QUEUE = (
    "semaphores/test_visibility.py::test_a_seen_value_means_that_other_queues_work_is_done_s7"
)
WRITTEN = "semaphores/test_visibility.py::test_a_seen_value_means_that_memory_is_written_s7"
RUNNING = "kernels/test_running.py::"
UNENDED = "queues/test_lifetimes.py::test_buffers_of_unended_work_are_kept_q5"
MODEL = "model/test_machine.py::test_random_programs_against_a_model_s5"

MUTANTS = (
    # The native device
    plant(
        "it drops a wait of a stream",
        [OTHER_QUEUE, MODEL],
        (CPU, "if self._completed[word] < count and word != stream << 4:", "if False:"),
    ),
    plant(
        "a query runs ahead of the work",
        [f"{RUNNING}test_values_of_running_work_are_not_seen_s7"],
        (
            CPU,
            "        if self._completed[word] < count:\n            return False\n        if self._fence",
            "        if self._fence",
        ),
    ),
    plant(
        "a fill is rounded down",
        ["queues/test_transfers.py::test_fill_of_a_range_q4"],
        (
            CPU,
            "_driver.FILL, address, pattern, width, count)",
            "_driver.FILL, address, pattern, width, count & ~3 or count)",
        ),
    ),
    plant(
        "a fill knows bytes only",
        ["queues/test_transfers.py::test_fill_of_a_whole_buffer_q4"],
        (
            CPU,
            "_driver.FILL, address, pattern, width, count)",
            "_driver.FILL, address, pattern & 0xFF, 1, width * count)",
        ),
    ),
    plant(
        "a copy is a byte short",
        ["queues/test_transfers.py::test_copy_of_a_whole_buffer_q4", MODEL],
        (
            CPU,
            (
                '        """Enqueue a copy."""\n'
                "        _pack_three(self._mail, stream << 6, _driver.COPY, target, source, size)"
            ),
            (
                '        """Enqueue a copy."""\n'
                "        _pack_three(self._mail, stream << 6, _driver.COPY, target, source, size - (size > 1))"
            ),
        ),
    ),
    plant(
        "a grid runs in one dimension",
        ["kernels/test_dispatch.py::test_every_block_of_a_grid_runs_c5"],
        (CPU, "            *grid,\n", "            grid[0],\n            1,\n            1,\n"),
    ),
    plant(
        "dynamic shared memory is left out",
        ["kernels/test_dispatch.py::test_dynamic_shared_memory_c5"],
        (
            CPU,
            "            *block,\n            shared_memory,\n        )\n        if error := self._enqueue(stream):\n            self._check(error)\n\n    def launch_indirect",
            "            *block,\n            0,\n        )\n        if error := self._enqueue(stream):\n            self._check(error)\n\n    def launch_indirect",
        ),
    ),
    # Semaphores
    plant(
        "a value goes back",
        ["semaphores/test_reserve.py::test_host_signal_above_a_running_calls_value_stands_s1"],
        (
            "hal._timeline",
            "if value < self._value or self._failure is not None:",
            "if self._failure is not None:",
        ),
    ),
    plant(
        "it signals twice",
        ["semaphores/test_values.py::test_polling_reaches_each_value_and_not_more_s1"],
        (
            "hal._ring",
            "                semaphore._advance(value, work)\n",
            (
                "                semaphore._advance(value, work)\n"
                "                semaphore._advance(value + 1, work)\n"
            ),
        ),
    ),
    plant(
        "a signal comes when the work is issued",
        [WRITTEN, f"{RUNNING}test_values_of_running_work_are_not_seen_s7"],
        (
            "hal._stream",
            "semaphore._publish(value, operation, work)",
            "semaphore._advance(value, work)",
        ),
    ),
    plant(
        "a value is reserved at retirement",
        [f"{RUNNING}test_running_work_has_reserved_its_value_s1"],
        ("hal._stream", "                semaphore._reserved = value\n", "                pass\n"),
    ),
    plant(
        "a used-up value is taken again",
        ["semaphores/test_values.py::test_host_signal_not_above_the_value_is_refused_s1"],
        (
            "hal._semaphore",
            "                if value <= self._reserved:",
            "                if value < self._reserved:",
        ),
    ),
    plant(
        "a failure spares reached values",
        ["semaphores/test_failure.py::test_failure_is_retroactive_s4"],
        (
            "hal._semaphore",
            "if self._failure is None and self._value >= value:\n            return\n        _wait",
            "if self._value >= value:\n            return\n        _wait",
        ),
    ),
    plant(
        "the first failure is replaced",
        ["semaphores/test_failure.py::test_the_first_failure_wins_s4"],
        (
            "hal._timeline",
            "        if self._failure is not None:\n            return\n        self._failure = error",
            "        self._failure = error",
        ),
    ),
    plant(
        "one exception is raised for all",
        ["semaphores/test_failure.py::test_what_is_raised_is_fresh_s4"],
        (
            "hal._failure",
            "    copy.__cause__ = error\n    return copy",
            "    return error if isinstance(error, HalError) else copy",
        ),
    ),
    plant(
        "a kept failure keeps its frames",
        ["semaphores/test_failure.py::test_a_kept_failure_keeps_no_frames_s4"],
        ("hal._failure", "        link.__traceback__ = None\n", ""),
    ),
    plant(
        "a callback is called inline",
        ["semaphores/test_callbacks.py::test_a_callback_is_never_inline_s8[before]"],
        (
            "hal._semaphore",
            (
                "        _progress.dispatcher.append(self._run, self._semaphore._failure)\n"
                "        work.append((_timeline.CALLBACK, None))"
            ),
            (
                "        run, failure = self._run, self._semaphore._failure\n"
                "        inline = type('Inline', (), {'open': lambda _: run(failure)})\n"
                "        work.append((_timeline.WAKE, inline()))"
            ),
        ),
    ),
    plant(
        "a callback comes twice",
        ["semaphores/test_callbacks.py::test_a_callback_comes_once_s8"],
        (
            "hal._semaphore",
            "            function, self._function = self._function, None",
            "            function = self._function",
        ),
        (
            "hal._semaphore",
            "        _progress.dispatcher.append(self._run, self._semaphore._failure)\n",
            (
                "        _progress.dispatcher.append(self._run, self._semaphore._failure)\n"
                "        _progress.dispatcher.append(self._run, self._semaphore._failure)\n"
            ),
        ),
    ),
    plant(
        "a cancelled callback comes",
        ["semaphores/test_callbacks.py::test_cancelling_takes_a_callback_back_s8"],
        (
            "hal._semaphore",
            (
                "            found = self._semaphore._forget(self._value, self)\n"
                "            self._function = None if found else self._function\n"
            ),
            "            found = True\n",
        ),
    ),
    # Waits
    plant(
        "a time-out is ignored",
        ["semaphores/test_waits.py::test_unreached_values_time_out_s6[0.02]"],
        (
            "hal._wait",
            "            self._deadline = _sync.monotonic() + timeout\n",
            "            pass\n",
        ),
    ),
    plant(
        "a time-out comes early",
        ["semaphores/test_waits.py::test_the_time_limit_is_kept_s6"],
        (
            "hal._wait",
            "            self._deadline = _sync.monotonic() + timeout\n",
            "            self._deadline = _sync.monotonic() + timeout / 2\n",
        ),
    ),
    plant(
        "wait_any returns the wrong index",
        ["semaphores/test_waits.py::test_wait_any_says_which_s6"],
        (
            "hal._wait",
            "                self._check_failures()\n                return index\n",
            "                self._check_failures()\n                return len(self._groups) - 1 - index\n",
        ),
    ),
    plant(
        "wait_any overlooks a failure",
        ["semaphores/test_waits.py::test_a_failure_in_the_set_ends_every_wait_s6[wait_any-1]"],
        (
            "hal._wait",
            "        for entries in self._groups:\n            _check_failures(entries)",
            "        return",
        ),
    ),
    plant(
        "a wait for all ends with the first",
        ["semaphores/test_waits.py::test_wait_all_needs_all_s6"],
        ("hal._wait", "                entries.pop()\n", "                entries.clear()\n"),
    ),
    plant(
        "a fence keeps the lowest value",
        ["semaphores/test_fences.py::test_the_highest_value_of_a_semaphore_counts_s6"],
        (
            "hal._fence",
            "            if value > highest.get(semaphore, -1):",
            "            if value < highest.get(semaphore, 2**63):",
        ),
    ),
    plant(
        "nobody retires for a poller",
        ["semaphores/test_values.py::test_polling_reaches_each_value_and_not_more_s1"],
        (
            "hal._semaphore",
            "        if self._value < value and self._points and self._failure is None:\n            _harvest(self)\n",
            "",
        ),
    ),
    # Submission and order
    plant(
        "a signal wakes its own queue only",
        ["queues/test_batches.py::test_a_diamond_s2"],
        (
            "hal._progress",
            (
                "                        for operation, index in released:\n"
                "                            operation._queue._release(operation, index, work)"
            ),
            (
                "                        first = released[0][0]._queue if released else None\n"
                "                        for operation, index in released:\n"
                "                            if operation._queue is first:\n"
                "                                first._release(operation, index, work)"
            ),
        ),
    ),
    plant(
        "a signal wakes no callback",
        ["semaphores/test_callbacks.py::test_callbacks_come_in_order_s8"],
        (
            "hal._timeline",
            "        if self._reached:\n            self._reached.take(value, work)",
            "        pass",
        ),
    ),
    plant(
        "a submission blocks on its waits",
        ["queues/test_submission.py::test_every_operation_returns_while_its_wait_is_open_q1[fill]"],
        (
            "hal._stream",
            "(self, kind, payload, waits, signals, is_host)\n        work: Work = []\n",
            (
                "(self, kind, payload, waits, signals, is_host)\n        work: Work = []\n"
                "        for semaphore, value in waits:\n"
                "            semaphore.wait(value)\n"
            ),
        ),
    ),
    plant(
        "a transfer waits for its stream",
        [
            "queues/test_held.py::test_a_copy_returns_while_its_stream_is_held_q1",
            "queues/test_held.py::test_host_arrays_are_copied_while_their_stream_is_held_q1",
            "queues/test_held.py::test_recorded_copies_return_while_their_stream_is_held_q1",
        ],
        (
            "hal_cpu.device",
            "def copy(self, stream: int, target: int, source: int, size: int) -> None:\n",
            (
                "def copy(self, stream: int, target: int, source: int, size: int) -> None:\n"
                "        self.synchronize_stream(stream)\n"
            ),
        ),
        (
            "hal_cpu.device",
            "def copy_from_host(self, stream: int, target: int, source: int, size: int) -> None:\n",
            (
                "def copy_from_host(self, stream: int, target: int, source: int, size: int) -> None:\n"
                "        self.synchronize_stream(stream)\n"
            ),
        ),
        # The kernel gives up sooner.
        ("hal_conformance.suite.queues.test_held", "TURNS = 1 << 28", "TURNS = 1 << 21"),
    ),
    plant(
        "an ordered queue keeps no order",
        ["queues/test_order.py::test_an_open_wait_holds_up_what_is_behind_q2", MODEL],
        (
            "hal._queue",
            "super().__init__(context, name, ordered=ordered",
            "super().__init__(context, name, ordered=False",
        ),
        ("hal._stream", "        return self._ordered\n", "        return True\n"),
    ),
    plant(
        "device work overtakes a call",
        ["queues/test_submission.py::test_every_operation_returns_while_its_queue_is_held_q1"],
        ("hal._stream", "                    and not (self._ordered and self._hosts)\n", ""),
    ),
    plant(
        "an unordered queue keeps an order",
        ["queues/test_order.py::test_an_unordered_queue_overtakes_q2[fill]"],
        (
            "hal._queue",
            "super().__init__(context, name, ordered=ordered",
            "super().__init__(context, name, ordered=True",
        ),
    ),
    plant(
        "an ordered queue hands a failure on",
        ["queues/test_order.py::test_order_inherits_no_failure_q2"],
        (
            "hal._stream",
            "                backlog.popleft()\n                continue\n            if operation._unresolved:",
            (
                "                backlog.popleft()\n"
                "                if self._ordered and operation._state == FAILED and backlog:\n"
                "                    self._end(backlog[0], FAILED, operation._error, work)\n"
                "                continue\n            if operation._unresolved:"
            ),
        ),
    ),
    plant(
        "a limit of operations in flight is ignored",
        [f"{RUNNING}test_no_more_is_in_flight_than_allowed_q1"],
        ("hal._stream", "                    and len(self._ring) < self._limit\n", ""),
        ("hal._stream", "if not operation._is_host and len(ring) >= self._limit:", "if False:"),
    ),
    # Failure
    plant(
        "it fails too much: what an operation has waited for",
        ["failure/test_propagation.py::test_one_failed_wait_of_many_is_enough_s5", MODEL],
        (
            "hal._stream",
            "        operation._error = keep(error)\n        for timepoint in operation._signals:\n",
            (
                "        operation._error = keep(error)\n"
                "        for timepoint in (*operation._signals, *operation._waits):\n"
            ),
        ),
    ),
    plant(
        "it fails too much: everything that waits in an unordered queue",
        [
            "failure/test_propagation.py::test_failures_of_many_threads_s5",
            "failure/test_propagation.py::test_a_failure_runs_down_a_chain_s5",
        ],
        (
            "hal._stream",
            "        self._pending.pop(operation, None)\n\n    def _in_use",
            (
                "        self._pending.pop(operation, None)\n"
                "        for other in list(self._pending):\n"
                "            self._end(other, state, error, work)\n\n    def _in_use"
            ),
        ),
    ),
    plant(
        "it fails too little: the first signal alone",
        ["queues/test_host_calls.py::test_a_raising_call_fails_its_signals_q4[no wait-OSError]"],
        (
            "hal._host_operations",
            "            for timepoint in operation._signals:\n                semaphore =",
            "            for timepoint in operation._signals[:1]:\n                semaphore =",
        ),
    ),
    plant(
        "it fails too little: a failed wait lets an operation run",
        ["failure/test_propagation.py::test_a_failed_wait_fails_the_operation_s5", MODEL],
        (
            "hal._stream",
            (
                "        if timeline._failure is not None:\n"
                "            self._end(operation, FAILED, timeline._failure, work)\n"
                "        elif self._resolve"
            ),
            (
                "        if timeline._failure is not None:\n"
                "            operation._waits = ()\n"
                "            operation._unresolved = 0\n"
                "            work.append((ISSUE, self))\n"
                "        elif self._resolve"
            ),
        ),
    ),
    plant(
        "a close fails no signal",
        ["queues/test_close.py::test_close_cancels_what_is_not_issued_q6[queue-fill]"],
        (
            "hal._stream",
            "            self._end(operation, state, error, work)\n        self._backlog.clear()\n        return len",
            (
                "            operation._signals = ()\n"
                "            self._end(operation, state, error, work)\n"
                "        self._backlog.clear()\n        return len"
            ),
        ),
    ),
    plant(
        "a deferred call ends at the first of its waits",
        ["queues/test_host_calls.py::test_a_call_ends_with_all_that_it_returns_q4"],
        (
            "hal._host_operations",
            "                if operation._unresolved:\n                    return\n",
            "",
        ),
    ),
    # Lifetimes
    plant(
        "memory is freed early",
        ["queues/test_lifetimes.py::test_targets_of_unended_work_are_kept_q5"],
        ("hal._transfers", "width, length // width), storage\n", "width, length // width), None\n"),
    ),
    plant(
        "a copy does not keep its source",
        [UNENDED],
        (
            "hal._transfers",
            "resources = (target_storage, source_storage, host)",
            "resources = (target_storage, host)",
        ),
    ),
    plant(
        "a host array is not kept",
        ["queues/test_lifetimes.py::test_host_arrays_of_unended_work_are_kept_q5"],
        (
            "hal._transfers",
            "resources = (target_storage, source_storage, host)",
            "resources = (target_storage, source_storage)",
        ),
    ),
    plant(
        "an update is taken when it runs",
        ["queues/test_transfers.py::test_update_takes_its_bytes_during_the_call_q4", MODEL],
        (
            "hal._transfers",
            "    return _from_host(device, storage, start, np.array(host, copy=True))\n\n\ndef _put",
            "    return _from_host(device, storage, start, host)\n\n\ndef _put",
        ),
    ),
    plant(
        "ended work keeps its buffers",
        ["queues/test_lifetimes.py::test_ended_work_keeps_nothing_q5"],
        (
            "hal._ring",
            "        operation._function = operation._resources = None\n",
            "        operation._function = None\n",
        ),
    ),
    plant(
        "a view does not keep its memory",
        ["memory/test_buffers.py::test_a_view_keeps_its_memory_m2"],
        (
            "hal._memory",
            "        self._storage = storage\n        self.__array_interface__",
            "        self._storage = None\n        self.__array_interface__",
        ),
    ),
    # Memory
    plant(
        "a read ignores its offset",
        ["queues/test_transfers.py::test_read_from_an_offset_q4"],
        (
            "hal._transfers",
            'start, length = check_range(buffer, offset, host.size, "read")',
            'start, length = check_range(buffer, 0, host.size, "read")',
        ),
    ),
    plant(
        "a subspan's offset counts twice",
        ["memory/test_buffers.py::test_a_subspan_of_a_subspan_m2"],
        ("hal._buffer", "        offset += self._offset\n", "        offset += 2 * self._offset\n"),
    ),
    plant(
        "numpy() loses the type",
        ["memory/test_buffers.py::test_upload_keeps_type_and_shape_m1"],
        (
            "hal._buffer",
            "wait=wait).wait(timeout)\n        return array",
            "wait=wait).wait(timeout)\n        return array.view(np.uint8)",
        ),
    ),
    plant(
        "statistics forget a free",
        ["memory/test_buffers.py::test_statistics_count_allocations_m1"],
        (
            "hal._allocator",
            "            if ticket is None:\n                cached += block.size",
            "            if ticket is None:\n                now += block.size",
        ),
    ),
    # Kernels
    plant(
        "an empty grid is launched",
        ["kernels/test_dispatch.py::test_an_empty_grid_does_nothing_and_signals_c5"],
        (
            "hal._dispatch",
            "    elif not all(blocks):\n        return _transfers.NOTHING, False\n",
            "    else:\n        where = tuple(max(each, 1) for each in blocks)\n",
        ),
    ),
    plant(
        "two dispatches share their arguments",
        ["kernels/test_dispatch.py::test_pending_dispatches_have_arguments_of_their_own_c5"],
        (
            "hal._signature",
            "        storage = self._storage_type()\n",
            "        storage = self._plans.setdefault((), self._storage_type())\n",
        ),
    ),
    plant(
        "arguments are swapped",
        ["kernels/test_dispatch.py::test_constants_arrive_in_their_order_c5"],
        (
            "hal._signature",
            "        values: list[Any] = [*arguments]\n",
            "        values: list[Any] = [*arguments]\n        if len(values) > 3:\n            values[-1], values[-2] = values[-2], values[-1]\n",
        ),
    ),
    # Command buffers
    plant(
        "a barrier is lost",
        # Two commands that nothing orders may still run in order; of many, some do not.
        ["command_buffers/test_order.py::test_a_barrier_orders_all_with_all_c2"],
        (
            "hal._lowering",
            "        self.wait(self.join())\n        self._last = None",
            "        self.join()",
        ),
    ),
    plant(
        "a wait for an event is lost",
        [
            "command_buffers/test_order.py::test_an_event_is_a_barrier_in_two_halves_c2",
            "command_buffers/test_order.py::test_a_wait_for_several_events_c2",
        ],
        ("hal._commands", "            self._order.wait(event._join)", "            pass"),
    ),
    plant(
        "a write does not wait for readers",
        ["command_buffers/test_order.py::test_hazards_order_what_touches_the_same_bytes_c2"],
        ("hal._hazards", "if writes and segment.readers:", "if False:"),
    ),
    plant(
        "two commands are swapped",
        [
            "command_buffers/test_order.py::test_a_barrier_orders_a_write_before_a_read_c2",
            "command_buffers/test_order.py::test_a_chain_of_copies_c2",
        ],
        (
            "hal._program",
            (
                "            for function, node in zip(self._functions, nodes, strict=True):\n"
                "                function(stream, *node)"
            ),
            (
                "            calls = list(zip(self._functions, nodes, strict=True))\n"
                "            for function, node in (*calls[1:2], *calls[:1], *calls[2:]):\n"
                "                function(stream, *node)"
            ),
        ),
    ),
    plant(
        "only the first binding is updated",
        ["command_buffers/test_slots.py::test_each_execution_binds_its_own_c3"],
        (
            "hal._instances",
            "            if old == address:\n                continue\n",
            "            if old == address or (changed and old is not None):\n                continue\n",
        ),
    ),
    plant(
        "a graph keeps its old table",
        [
            "command_buffers/test_slots.py::test_each_execution_binds_its_own_c3",
            "command_buffers/test_slots.py::test_one_slot_of_several_is_bound_anew_c3",
        ],
        ("hal._program", "elif instance.replica.table != addresses:", "elif False:"),
    ),
    plant(
        "a binding's offset is ignored",
        ["command_buffers/test_slots.py::test_subspans_are_bound_c3", MODEL],
        (
            "hal._instances",
            "(*node[:field], address + offset, *node[field + 1 :])",
            "(*node[:field], address, *node[field + 1 :])",
        ),
    ),
    plant(
        "a one-shot recording is executed twice",
        ["command_buffers/test_one_shot.py::test_one_shot_runs_once_c1"],
        (
            "hal._recording",
            "                self._runs.pop()  #",
            "                self._runs[-1]  #",
        ),
    ),
    plant(
        "a refused execution uses up a one-shot recording",
        ["command_buffers/test_one_shot.py::test_a_one_shot_outlives_a_refused_submission_c1"],
        ("hal._recording", "            self._runs.append(None)\n", "            pass\n"),
    ),
    plant(
        "a recording takes an update when it runs",
        ["command_buffers/test_transfers.py::test_update_takes_its_bytes_while_recording_c1"],
        (
            "hal._transfers",
            "        copied = np.array(host, copy=True)\n        return copied.ctypes.data, copied\n",
            "        return host.ctypes.data, host\n",
        ),
    ),
    plant(
        "a recording does not keep its buffers",
        ["command_buffers/test_recording.py::test_what_is_recorded_is_kept_c1"],
        ("hal._recording", "        self._resources.append(command.resources)\n", ""),
    ),
    plant(
        "an execution does not keep its table",
        ["command_buffers/test_slots.py::test_the_table_is_kept_until_it_has_run_c3"],
        ("hal._program", "            resources = (self, storages)\n", ""),
    ),
    plant(
        "a recorded copy ignores its offset",
        ["command_buffers/test_transfers.py::test_copy_classes_of_size_and_alignment_c1"],
        (
            "hal._recorded",
            "check_range(read.thing, source_offset, size",
            "check_range(read.thing, 0, size",
        ),
    ),
    # Allocation in the order of a queue, and files
    plant(
        "an alloca knows no order",
        ["memory/test_alloca.py::test_a_use_that_is_issued_before_fails_alone_m3"],
        (
            "hal._alloca",
            "        storage = heap.reserve(need, index)\n",
            "        storage = heap.reserve(need, index)\n        if storage._ticket is None:\n            heap.grow(storage, need, index)\n        storage.publish()\n",
        ),
    ),
    plant(
        "a dealloca frees at once",
        ["memory/test_dealloca.py::test_a_dealloca_keeps_the_memory_until_it_has_run_m3"],
        (
            "hal._alloca",
            "payload = (None, (), storage)",
            "payload = _transfers.NOTHING",
        ),
    ),
    plant(
        "a deallocated buffer stays usable",
        ["memory/test_dealloca.py::test_a_dealloca_keeps_the_memory_until_it_has_run_m3"],
        ("hal._alloca", "            part._end()\n", "            pass\n"),
    ),
    plant(
        "a short file passes",
        ["files/test_files.py::test_what_goes_wrong_fails_the_operation_q4[a short file]"],
        (
            "hal._files",
            '            raise self._failure(f"the file has {status.st_size} bytes")',
            "            return",
        ),
        (
            "hal._files",
            '                raise self._failure(f"the file ends at {at + done}")',
            "                return",
        ),
    ),
    plant(
        "a file's offset is ignored",
        ["files/test_files.py::test_a_range_of_a_file_into_a_range_of_a_buffer_q4"],
        (
            "hal._files",
            "at, done = self._file._offset + position, 0\n        while done < len(memory):\n            try:\n                count = os.preadv",
            "at, done = position, 0\n        while done < len(memory):\n            try:\n                count = os.preadv",
        ),
    ),
    plant(
        "a file is cut off before it is written",
        ["files/test_files.py::test_a_range_of_a_buffer_into_a_range_of_a_file_q4"],
        ("hal._files", "os.O_CREAT", "os.O_CREAT | os.O_TRUNC"),
    ),
    # Those that many tests notice
    *(plant(name, tests, *patches) for name, tests, *patches in (*COARSE, *HOST, *FLOW)),
)


def find(name):
    """Return the mutant of a name."""
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def main(arguments):
    """Run the script; see above."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("tests", metavar="TEST", nargs="*")
    options = parser.parse_args(arguments)
    mutants = MUTANTS if options.name == "all" else [find(options.name)]

    def one(mutant):
        return mutant, run((*mutant.patches, *HASTE), options.tests or mutant.tests, mutant.mode)

    with ThreadPoolExecutor(WORKERS) as pool:
        for mutant, outcome in pool.map(one, mutants):
            failed = sorted({name.partition("[")[0] for name in outcome.failed()})
            found = outcome.died or f"{len(outcome.failed())} of {len(outcome.statuses)} failed"
            print(f"{mutant.name}: {found}, {outcome.seconds:.1f} s", *failed, sep="\n    ")


if __name__ == "__main__":
    main(sys.argv[1:])
