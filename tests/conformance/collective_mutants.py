"""List mutants of collectives: their order, their results, their failure.

Each is one mistake; `mutants.py` makes them, and says what they are for.
"""

# ruff: noqa: E501 - patches quote lines as they stand

from __future__ import annotations

__all__ = ["COLLECTIVES"]

RESULTS = "collectives/test_results.py::"
FAILURES = "collectives/test_failures.py::"
RECORDINGS = "collectives/test_recordings.py::"
GROUP = "hal.collectives.group"
EMBEDDED = "hal.collectives.embedded"
NUMERICS = "hal.collectives.numerics"
EXECUTIONS = "hal._commands.executions"
LAUNCHES = "hal._transfers.collectives"
CHECKS = "hal._transfers.collective_checks"

COLLECTIVES = (
    # Name, tests, patches
    (
        "the last rank is left out of a reduction",
        [f"{RESULTS}test_reductions_g2[2]", f"{RESULTS}test_many_elements_g2[3]"],
        (NUMERICS, "        for part in parts[1:]:\n", "        for part in parts[1:-1]:\n"),
    ),
    (
        "a reduction writes into the first rank's source",
        [f"{RESULTS}test_reductions_g2[2]"],
        (NUMERICS, "            result = result.copy()\n", "            pass\n"),
    ),
    (
        "bfloat16 is cut off, and not rounded",
        [f"{RESULTS}test_reductions_g2[3]", f"{RESULTS}test_rounding_g2[2]"],
        (NUMERICS, "(bits + 0x7FFF + (bits >> 16 & 1)) >> 16", "bits >> 16"),
    ),
    (
        "ranks are gathered in the opposite order",
        [f"{RESULTS}test_moves_g2[2]", f"{RESULTS}test_groups_are_split_g4[4]"],
        (
            EMBEDDED,
            "        whole = np.concatenate(parts)\n",
            "        whole = np.concatenate(parts[::-1])\n",
        ),
    ),
    (
        "a scatter gives every rank the first part",
        [f"{RESULTS}test_moves_g2[3]"],
        (EMBEDDED, 'rank * length if step.kind == "reduce_scatter" else 0', "0"),
    ),
    (
        "all broadcasts come from rank 0",
        [f"{RESULTS}test_moves_g2[2]", f"{RESULTS}test_a_batch_is_one_launch_g1[2]"],
        (
            EMBEDDED,
            "        data = _read(sources[step.root])\n",
            "        data = _read(sources[0] or sources[step.root])\n",
        ),
        (CHECKS, 'and (kind != "broadcast" or rank == other)', "and True"),
    ),
    (
        "messages are not numbered",
        [f"{RESULTS}test_messages_g2[2]"],
        (
            GROUP,
            "        return Step(step.kind, line[0], ",
            "        return Step(step.kind, 1 if step.kind in MESSAGES else line[0], ",
        ),
    ),
    (
        "a batch forgets the waits of its operations",
        ["collectives/test_failures.py::test_a_failed_wait_of_one_rank_fails_all_g3"],
        (
            LAUNCHES,
            "        made, waits, signals = self.seal(), self._waits, self._signals\n",
            "        made, waits, signals = self.seal(), (), self._signals\n",
        ),
    ),
    (
        "collectives do not wait for those on other queues",
        [f"{RESULTS}test_collectives_are_ordered_with_other_work_g1[2]"],
        (GROUP, "            also = (before.submission,)", "            also = ()"),
    ),
    (
        "operations on nothing never end",
        [f"{RESULTS}test_no_elements_order_and_signal_g1[2]"],
        (
            EMBEDDED,
            "    if dtype is None or not step.elements:\n        return\n",
            '    if not step.elements:\n        raise OperationError("nothing to do")\n',
        ),
    ),
    (
        "the key of a split is ignored",
        [f"{RESULTS}test_groups_are_split_g4[4]"],
        (
            EMBEDDED,
            "sorted((pair[1], rank) for rank, pair in table.items() if pair[0] == color)",
            "sorted((0, rank) for rank, pair in table.items() if pair[0] == color)",
        ),
    ),
    (
        "ranks may differ",
        [f"{FAILURES}test_ranks_that_differ_fail_g3"],
        (
            EMBEDDED,
            "            if _essence(theirs.step) != _essence(step):\n",
            "            if False:\n",
        ),
    ),
    (
        "no rank is named in a time-out",
        [f"{FAILURES}test_a_rank_that_does_not_come_fails_the_others_g3"],
        (
            EMBEDDED,
            "                missing = set(oldest.needed) - oldest.came.keys()\n",
            "                missing = set()\n",
        ),
    ),
    (
        "a group's time begins at the submission",
        [f"{FAILURES}test_the_time_of_a_wait_is_not_counted_g3"],
        (
            GROUP,
            "        launch.turn = self._turns\n",
            "        launch.turn = self._turns\n        launch.begun = time.monotonic()\n",
        ),
    ),
    (
        "a rank's failure is its own affair",
        [
            f"{FAILURES}test_a_failed_wait_of_one_rank_fails_all_g3",
            f"{FAILURES}test_a_cancelled_collective_fails_the_others_g3",
        ],
        (
            GROUP,
            "        if broken is None and failed is not None:\n",
            "        if False:\n",
        ),
    ),
    (
        "a new group keeps the old order",
        [f"{FAILURES}test_ranks_that_are_left_go_on_g3"],
        (
            EMBEDDED,
            "        return EmbeddedGroup(worlds[ranks[0]], ranks.index(self._rank))\n",
            "        return EmbeddedGroup(worlds[ranks[0]], sorted(ranks).index(self._rank))\n",
        ),
    ),
    (
        "a closed group is open",
        [f"{FAILURES}test_a_closed_group_is_refused_g3"],
        (
            GROUP,
            '        if self._closed:\n            raise ClosedError(f"{self._name} is closed; join a group again")\n',
            "        return\n",
        ),
    ),
    (
        "a rendezvous does not say who is missing",
        [f"{FAILURES}test_no_rendezvous_is_waited_for_without_end_g4"],
        (
            EMBEDDED,
            "                missing = sorted(set(ranks) - brought.keys())\n",
            "                missing = []\n",
        ),
    ),
    (
        "source and target of a collective may overlap",
        [f"{FAILURES}test_bad_arguments_are_refused_g1"],
        (
            CHECKS,
            "    if distance != in_place and -target < distance < source:\n",
            "    if False:\n",
        ),
    ),
    (
        "a collective keeps no buffer alive",
        [f"{FAILURES}test_buffers_live_until_the_end_q5"],
        (
            EMBEDDED,
            "        meeting.came[rank] = (work, part)\n",
            "        meeting.came[rank] = (work, part)\n        _kept.append(work)\n",
        ),
        (
            EMBEDDED,
            "_changed: Final = threading.Condition()\n",
            "_changed: Final = threading.Condition()\n_kept = []\n",
        ),
    ),
    (
        "a barrier is passed alone",
        [f"{FAILURES}test_a_barrier_waits_for_all_g1"],
        (
            EMBEDDED,
            "        if len(meeting.came) == len(needed):\n",
            '        if len(meeting.came) == len(needed) or step.kind == "barrier":\n',
        ),
        (
            EMBEDDED,
            "        works = [meeting.came[rank][0] for rank in meeting.needed]\n",
            "        works = [each for each, _ in meeting.came.values()]\n",
        ),
        (
            EMBEDDED,
            "            del self._meetings[key]\n",
            "            self._meetings.pop(key, None)\n",
        ),
    ),
    (
        "a batch that is left is submitted",
        [f"{FAILURES}test_a_batch_that_is_left_submits_nothing_g1"],
        (
            GROUP,
            "            if batch.launch is not None:\n                reason",
            "            if batch.launch is not None:\n                self._start(batch.launch)\n                reason",
        ),
    ),
    (
        "recorded collectives do not wait for those on other queues",
        [f"{RECORDINGS}test_executions_stand_in_the_order_of_the_group_g1"],
        (
            EXECUTIONS,
            "                    before = tuple(dict.fromkeys((*before, *also)))\n",
            "                    pass\n",
        ),
    ),
    (
        "a refused execution keeps its place in the group",
        [f"{RECORDINGS}test_a_refused_execution_changes_nothing_g1"],
        (
            EXECUTIONS,
            "                group.withdraw(launch, error)\n",
            "                pass\n",
        ),
    ),
    (
        "slots of a collective may overlap",
        [f"{RECORDINGS}test_slots_that_overlap_are_refused_g1"],
        (
            "hal._commands.collectives",
            "            if source and target and source.memory != target.memory:\n",
            "            if False:\n",
        ),
    ),
    (
        "a batch in a recording is cut",
        [f"{RECORDINGS}test_a_recorded_batch_is_one_launch_g1"],
        (
            "hal._commands.parts",
            "        goes_on = before is not None and launches[before] is launch\n",
            "        goes_on = before is not None and launches[before] is launch is None\n",
        ),
    ),
    (
        "a batch in a recording may be anywhere",
        [f"{RECORDINGS}test_bad_collectives_are_not_recorded_g1"],
        (
            "hal._commands.recorder",
            "        if self._launches[-1] is not launch or self._places[-1] != self._place:\n",
            "        if False:\n",
        ),
    ),
)
