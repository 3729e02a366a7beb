"""Test the scheduler and the exploration themselves, on toys with known answers."""

import gc
from math import comb

import pytest
from schedlab import scheduler, sync
from schedlab.choices import NondeterminismError, ScheduleError, decode, encode
from schedlab.explore import Follow, check, explore, reduce, replay, run_once, search, shrink


class Toy:
    """A case made of functions that share `self.state`."""

    def __init__(self, *threads, setup=None, after=None, name="toy"):
        self.threads = threads
        self.setup = setup
        self.after = after
        self.name = name

    def run(self, scheduler):
        state = {"scheduler": scheduler}
        if self.setup:
            self.setup(state)
        threads = [
            scheduler.spawn(lambda body=body: body(state), f"t{number}")
            for number, body in enumerate(self.threads, 1)
        ]
        scheduler.join(*threads)
        if self.after:
            self.after(state)


def make_locks(state):
    state["a"], state["b"] = sync.Lock(), sync.Lock()
    state["count"] = 0


def takes(lock, times):
    def body(state):
        for _ in range(times):
            with state[lock]:
                pass

    return body


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 1), (2, 3), (3, 3), (5, 4)])
def test_the_count_of_schedules_is_the_combinatorial_one(m, n):
    """Threads of m and n switch points have m+1 and n+1 pieces to interleave."""
    report = explore(Toy(takes("a", m), takes("b", n), setup=make_locks), prune=False)
    assert report.complete
    assert report.schedules == comb(m + n + 2, n + 1)


def test_preemption_bounds():
    """With no preemption the threads only take turns where one ends: 2 orders."""
    case = Toy(takes("a", 4), takes("a", 4), setup=make_locks)
    counts = [explore(case, bound=bound, prune=False).schedules for bound in (0, 1, 2, 3, None)]
    assert counts[0] == 2
    assert counts == sorted(counts)
    assert counts[1] == 2 + 2 * 4  # the first to run may be interrupted at each of its points
    assert counts[-1] == comb(10, 5)


def lost_update(state):
    with state["a"]:
        count = state["count"]
    with state["a"]:
        state["count"] = count + 1


def both_counted(state):
    assert state["count"] == 2, f"an update was lost: {state['count']}"


def test_finds_a_lost_update_and_replays_it_exactly():
    case = Toy(lost_update, lost_update, setup=make_locks, after=both_counted, name="lost update")
    report = explore(case)
    assert report.failure is not None
    assert "an update was lost" in str(report.failure)
    small = shrink(case, report.failure)
    text = encode(small.choices)
    with pytest.raises(ScheduleError, match="an update was lost") as caught:
        replay(case, text)
    assert caught.value.choices == decode(text) or encode(caught.value.choices) == text
    assert "takes" in str(caught.value)  # the trace
    with pytest.raises(ScheduleError, match="an update was lost"):
        check(report, case)
    found = search(case, range(50))
    assert found.failure is not None
    with pytest.raises(ScheduleError, match="an update was lost"):
        replay(case, encode(found.failure.choices))


def test_finds_a_dead_lock_and_names_the_holders():
    def one(state):
        with state["a"], state["b"]:
            pass

    def other(state):
        with state["b"], state["a"]:
            pass

    def named(state):
        make_locks(state)
        state["scheduler"].names[id(state["a"])] = "lock a"
        state["scheduler"].names[id(state["b"])] = "lock b"

    report = explore(Toy(one, other, setup=named))
    assert report.failure.kind == "deadlock"
    text = str(report.failure)
    assert "t1: acquire lock b; holds lock a" in text
    assert "t2: acquire lock a; holds lock b" in text
    assert "in other" in text  # the stacks


def sleeper(timeout):
    def body(state):
        with state["a"]:
            ready = state["count"]
        while not ready:
            if timeout is None:
                state["bell"].wait(3600.0)
            else:
                state["bell"].wait(timeout)
            ready = state["count"]

    return body


def rings_early(state):
    """Ring before the condition holds: the sleeper may look in between and sleep on."""
    state["bell"].ring()
    with state["a"]:
        state["count"] = 1


def rings_late(state):
    with state["a"]:
        state["count"] = 1
    state["bell"].ring()


def make_bell(state):
    make_locks(state)
    state["bell"] = sync.Doorbell()


def none_expired(state):
    assert not state["scheduler"].saved, state["scheduler"].saved


def test_finds_a_lost_wake_up_behind_a_safety_net():
    case = Toy(sleeper(0.05), rings_early, setup=make_bell, after=none_expired)
    assert "has ended only as the sleep of t1" in str(explore(case).failure)
    case = Toy(sleeper(0.05), rings_late, setup=make_bell, after=none_expired)
    report = explore(case)
    assert report.failure is None
    assert report.complete


def test_a_timed_sleep_expires_only_when_nobody_can_go_on():
    def waits(state):
        state["locked"].acquire()
        assert state["locked"].acquire(timeout=5.0) is False
        assert sync.monotonic() >= 1005.0

    def works(state):
        for _ in range(3):
            with state["b"]:
                assert sync.monotonic() < 1005.0

    def setup(state):
        make_locks(state)
        state["locked"] = sync.Lock()

    report = explore(Toy(waits, works, setup=setup))
    assert report.failure is None
    assert report.complete


def test_a_poll_loop_ends_and_the_others_move():
    def polls(state):
        while not state["count"]:
            sync.yield_thread()

    def sets(state):
        for _ in range(3):
            with state["a"]:
                pass
        state["count"] = 1

    for threads in ((polls, sets), (sets, polls), (polls, polls, sets)):
        report = explore(Toy(*threads, setup=make_locks), bound=1, budget=20000)
        assert report.failure is None
        assert report.complete


def test_a_poll_loop_that_nobody_ends_is_a_failure():
    def polls(state):
        while not state["count"]:
            sync.yield_thread()

    report = explore(Toy(polls, setup=make_locks), budget=10, step_limit=500)
    assert report.failure.kind == "livelock"


def test_an_exception_of_a_thread_fails_the_run():
    def breaks(state):
        message = "broken"
        raise ValueError(message)

    report = explore(Toy(breaks, setup=make_locks))
    assert report.failure.kind == "exception"
    assert "ValueError: broken" in str(report.failure)


def test_a_thread_that_ends_with_a_lock_fails_the_run():
    def named(state):
        make_locks(state)
        state["scheduler"].names[id(state["a"])] = "lock a"

    report = explore(Toy(lambda state: state["a"].acquire(), setup=named))
    assert report.failure.kind == "held"


def test_a_case_that_is_not_deterministic_is_reported():
    runs = []

    def body(state):
        runs.append(1)
        state["scheduler"].choose(2 + (len(runs) > 1), "what")

    with pytest.raises(NondeterminismError):
        explore(Toy(body), prune=False)


def test_finalisers_must_not_lock():
    def body(state):
        s = state["scheduler"]
        s.timeline_lock = state["a"]

        def finaliser():
            s.on_acquired = None
            s.finalising = True
            with state["b"]:
                pass
            s.finalising = False

        s.on_acquired = finaliser
        with state["a"]:
            pass
        s.point("after")

    assert explore(Toy(body, setup=make_locks)).failure.kind == "I10"


def test_the_text_of_choices():
    for choices in ([], [1], [0, 0, 1], [0] * 12 + [3, 40, 0, 1], [35, 36]):
        assert decode(encode(choices)) == choices
    assert encode([0, 1, 0, 0]) == "01"


def test_runs_leave_nothing_behind():
    case = Toy(lost_update, lost_update, setup=make_locks)
    run_once(case, Follow())
    gc.collect()
    before = len(gc.get_objects())
    explore(case)
    gc.collect()
    assert len(gc.get_objects()) - before < 50
    assert scheduler._leaked == []


def test_a_loop_without_a_switch_point_is_ended(monkeypatch):
    monkeypatch.setattr("schedlab.explore.HANG_SECONDS", 0.2)

    def loops(state):
        while not state["count"]:
            pass

    assert explore(Toy(loops, setup=make_locks)).failure.kind == "hang"


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (4, 4), (6, 5)])
def test_reduction_runs_one_schedule_for_each_order_of_the_critical_sections(m, n):
    same = reduce(Toy(takes("a", m), takes("a", n), setup=make_locks))
    assert same.complete
    assert same.schedules == comb(m + n, n)
    apart = reduce(Toy(takes("a", m), takes("b", n), setup=make_locks))
    assert apart.complete
    assert apart.schedules == 1
