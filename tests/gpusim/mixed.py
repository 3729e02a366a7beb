"""Use several devices in one process, of one backend and of three, on gpusim.

    python tests/gpusim/mixed.py CASE SEED BACKEND...

The environment has to be that of `suite_runs.environment` for these backends. The
cases are the functions of `CASES`; the seed chooses the order of the hops.
"""

import os
import random
import sys
from ctypes import CDLL, RTLD_GLOBAL

import gpusim
import numpy as np

import hal
from hal.errors import DeviceLostError, HalError, SemaphoreFailedError
from hal.flow import virtual_devices

LIMIT = 20.0
SIZE = 3000
HOPS = 40
LOST = 719
SOURCE = """
__global__ void add(const int *from, int *to, int value, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i] * 3 + value;
}
"""


class Place:
    """Hold a device with two buffers of numbers and the kernel."""

    def __init__(self, name):
        self.device = hal.create_device(name)
        self.kernel = self.device.compile(SOURCE)["add"]
        assert str(self.kernel.signature) == "(const i32* from, i32* to, i32 value, i32 n)"
        self.numbers, self.spare = (self.device.upload(np.zeros(SIZE, np.int32)) for _ in range(2))

    def step(self, value, **order):
        """Enqueue three times the numbers plus a value, and return what ends it."""
        arguments = (self.numbers, self.spare, value, SIZE)
        queue = self.device.queue
        queue.dispatch(self.kernel, grid=12, block=256, args=arguments, wait=order["wait"])
        return queue.copy(self.spare, self.numbers, signal=order["signal"])

    def read(self):
        """Return the numbers."""
        return self.numbers.numpy(timeout=LIMIT)


def open_all(names):
    """Open each device by name."""
    return [Place(name) for name in names]


def close_all(places):
    """Close the devices, and see that nothing had to be abandoned."""
    for place in places:
        assert place.device.close(LIMIT) == ()


def expect(kind, submission):
    """See that an operation has failed in this way."""
    try:
        submission.wait(LIMIT)
    except HalError as error:
        found = error
    else:
        found = None
    assert type(found) is kind, found
    assert submission.done


def driver(backend):
    """Return the driver in software of a backend."""
    path = os.environ["GPUSIM_SHOWN"]
    if backend == "cuda":
        path = os.environ["LD_PRELOAD"].split(":")[0]
    return gpusim.Simulator(CDLL(path, RTLD_GLOBAL))


def relay(chance, *names):
    """Numbers go from device to device through the host's memory, and only semaphores order it."""
    places = open_all(names)
    shared = np.zeros(SIZE, np.int32)
    views = [place.device.import_array(shared) for place in places]
    turn = hal.create_semaphore()
    expected = np.arange(SIZE, dtype=np.int32)
    shared[:] = expected
    begun = last = None
    value = 1
    for _ in range(HOPS):
        k = chance.randrange(len(places))
        place, view, queues = places[k], views[k], places[k].device.queues
        into = queues.upload.copy(view, place.numbers, wait=[turn.at(value)])
        begun = begun or into
        added = chance.randrange(100)
        place.step(added, wait=[into], signal=[turn.at(value + 1)])
        value += 2
        last = queues.download.copy(
            place.numbers, view, wait=[turn.at(value - 1)], signal=[turn.at(value)]
        )
        expected = expected * 3 + added
        if chance.random() < 0.3:  # the host takes its turn, too
            queue = chance.choice(places).device.queue
            last = queue.call(
                lambda: np.add(shared, 7, out=shared),
                wait=[turn.at(value)],
                signal=[turn.at(value + 1)],
            )
            value += 1
            expected = expected + 7
    assert not begun.done
    turn.signal(1)
    turn.wait(value, LIMIT)
    last.wait(LIMIT)
    assert np.array_equal(shared, expected)
    # What the last device of each kind holds is its own affair: all have ended.
    for place in places:
        place.device.wait_idle(LIMIT)
    del views, view
    close_all(places)


def fan(chance, *names):
    """In each round everybody takes a neighbour's numbers of the round before, and waits for all.

    The numbers pass through two halves of the host's memory in turn: who runs ahead of a
    round overwrites what another one has still to take.
    """
    places = open_all(names)
    count = len(places)
    rows = np.arange(2 * count * SIZE, dtype=np.int32).reshape(2, count, SIZE)
    expected = rows[1].copy()  # what the first round takes
    views = [place.device.import_array(rows) for place in places]
    semaphores = [hal.create_semaphore() for _ in places]
    rounds = 12
    for number in range(1, rounds + 1):
        everybody = [semaphore.at(number) for semaphore in semaphores]
        take, give = number % 2, 1 - number % 2
        for k in chance.sample(range(count), count):
            place, view = places[k], views[k]
            taken = place.device.queues.upload.copy(
                view,
                place.numbers,
                source_offset=4 * SIZE * (take * count + (k + 1) % count),
                size=4 * SIZE,
                wait=everybody,
            )
            stepped = place.step(number, wait=[taken], signal=[])
            place.device.queues.download.copy(
                place.numbers,
                view,
                target_offset=4 * SIZE * (give * count + k),
                size=4 * SIZE,
                wait=[stepped],
                signal=[semaphores[k].at(number + 1)],
            )
        expected = np.roll(expected, -1, axis=0) * 3 + number
    for semaphore in semaphores:
        semaphore.signal(1)
    hal.wait_all([semaphore.at(rounds + 1) for semaphore in semaphores], timeout=LIMIT)
    assert np.array_equal(rows[1 - rounds % 2], expected)
    for place in places:
        place.device.wait_idle(LIMIT)
    del views, view
    close_all(places)


def failures(chance, *names):
    """An operation that fails fails what waits for it on every device, and nothing else (S5)."""
    places = open_all(names)
    for culprit in places:
        gate, bad = hal.create_semaphore(), hal.create_semaphore()

        def refuse():
            raise OSError("refused")

        wrong = culprit.device.queue.call(refuse, wait=[gate.at(1)], signal=[bad.at(1)])
        doomed = [p.device.queue.fill(p.numbers, 1, wait=[bad.at(1)]) for p in places]
        unrelated = [p.device.queues.upload.fill(p.spare, 2, wait=[gate.at(1)]) for p in places]
        gate.signal(1)
        hal.wait_all(unrelated, timeout=LIMIT)
        for each in (wrong, *doomed):
            expect(SemaphoreFailedError, each)
        for place in places:
            assert not place.device.lost
            assert set(place.spare.numpy(timeout=LIMIT).tolist()) == {2}
    close_all(places)


def losses(chance, *names):
    """A lost device takes its own work along, and what waits for that; the others go on (S5)."""
    sims = {backend: driver(backend) for backend in ("cuda", "hip")}
    places = open_all(names)
    by_backend = {place.device.name.partition(":")[0]: place for place in places}
    for backend, sim in sims.items():
        victim = by_backend[backend]
        others = [place for place in places if place is not victim and not place.device.lost]
        gate, first, last = (hal.create_semaphore() for _ in range(3))
        own = victim.step(1, wait=[gate.at(1)], signal=[first.at(1)])
        doomed = [p.device.queue.fill(p.numbers, 1, wait=[first.at(1)]) for p in others]
        fine = [p.device.queues.upload.fill(p.spare, 2, wait=[gate.at(1)]) for p in others]
        sim.lose_device(victim.device.info.index, LOST)
        gate.signal(1)
        for each in (own, *doomed):
            expect(DeviceLostError, each)
        assert victim.device.lost
        hal.wait_all(fine, timeout=LIMIT)
        for place in others:
            assert not place.device.lost
            place.device.queue.fill(place.numbers, 4, signal=[last.at(1)]).wait(LIMIT)
            assert set(place.read().tolist()) == {4}
            last = hal.create_semaphore()
    for place in places:
        try:
            place.device.close(LIMIT)
        except HalError as error:
            raise AssertionError(f"{place.device.name}: close raised {error!r}") from error


def virtual(chance, backend):
    """Lose the hardware of virtual devices: when one learns of it, so have the others."""
    sim = driver(backend)
    devices = virtual_devices(backend, 3)
    gate, promised = hal.create_semaphore(), hal.create_semaphore()
    chance.shuffle(ordered := list(devices))
    first, *others = ordered
    buffer = first.device.allocate(4)
    held = [each.device.queue.barrier(wait=gate.at(1)) for each in others]
    others[0].device.queues.upload.barrier(wait=gate.at(1), signal=promised.at(1))
    with hal.create_device("cpu") as host:
        behind = host.queue.barrier(wait=held[1])
        sim.lose_device(first.device.info.index, LOST)
        expect(DeviceLostError, first.device.queue.fill(buffer, 0))
        for each in (*held, behind):
            assert each.state == "failed", each
            expect(DeviceLostError, each)
        assert host.queue.barrier(wait=promised.at(1)).state == "failed"
        assert first.name in str(others[0].device.loss)
        assert all(each.lost and not each.gave_up for each in devices)
        host.queue.barrier().wait(LIMIT)
    for each in devices:
        each.close(LIMIT)


CASES = {each.__name__: each for each in (relay, fan, failures, losses, virtual)}


def main(case, seed, *names):
    """Run one case."""
    CASES[case](random.Random(int(seed)), *names)
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
