"""Check what devices do together; the parts of `multi_gpu.py`, but for its rates.

What is expected is made by numpy, on the host.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from multi_gpu_findings import LIMIT, Findings, Settings

import hal
from hal.errors import InvalidArgumentError
from hal.flow import Flow, TrackedBuffer

__all__ = ["hops", "merging", "programs", "training", "transfers"]

SIZES = (0, 1, 3, 4097, 64 << 10, (64 << 10) + 1, 16 << 20, 256 << 20)
QUICK_SIZES = (0, 1, 3, 4097, 64 << 10, (1 << 20) + 1)
LARGE = (4 << 30) + 4097
GUARD = 64
"""Bytes behind a target that nobody may write."""
POISON = 0xA5
PIECE = 64 << 20
HOPS = 1000
WORDS = 1000
ROUNDING = 1e-4
"""How far two losses may be apart, whose sums were made in another order."""
ENOUGH = 0.95
"""Which part of the held-out digits has to be right."""

SOURCE = r"""
__global__ void HAL_BLOCK(64) follow(const int *theirs, int *ours, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) ours[i] = theirs[i] + 1;
}
__global__ void HAL_BLOCK(64) step(int *ours, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) ours[i] += 1;
}
__global__ void HAL_BLOCK(64) merge(const int *theirs, int *ours, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) ours[i] += theirs[i];
}
"""
TELLING = r"""
__global__ void HAL_BLOCK(4) tell(const int *x, int *y, int device) {
  int i = threadIdx.x;
  y[i] = 10 * x[i] + device;
  HAL_TRACE(y[i]);
  if (x[i] % 2) printf("device %d: x[%d] is %d\n", device, i, x[i]);
}
"""


def transfers(devices: Sequence[hal.Device], settings: Settings, found: Findings) -> None:
    """Move bytes between devices, directly and through the host, and to the cpu and back."""
    sizes = QUICK_SIZES if settings.quick else SIZES
    count = len(devices)
    ring = [(index, (index + 1) % count) for index in range(count)]
    # Bytes that nobody can change, so that the flow does not copy them.
    data = np.frombuffer(np.random.default_rng(7).bytes(sizes[-1] + 4096), np.uint8)
    for way, peers in (("direct", True), ("staged", False)):
        with Flow(*devices, peers=peers) as flow:
            for number, (a, b) in enumerate(ring):
                is_direct = peers and devices[a].can_access(devices[b])
                start, right = time.perf_counter(), True
                for size in sizes:
                    bytes_ = data[number : number + size]
                    if not _arrives(flow, bytes_, devices[a], devices[b]):
                        found.problems.append(f"{way}, {a} to {b}: {size} bytes arrive changed")
                        right = False
                seconds = time.perf_counter() - start
                found.row(
                    way=way if is_direct == peers else f"{way}, no peer access",
                    source=str(a),
                    target=str(b),
                    sizes=len(sizes),
                    right=right,
                    seconds=seconds,
                )
    for a, b in ring:
        wrong = [n for n in sizes[1:] if not _is_pinned_for(devices[a], devices[b], data[:n])]
        found.expect(not wrong, f"device {b}'s pinned memory: {wrong} bytes of {a} arrive changed")
        found.row(
            way="the other's pinned memory",
            source=str(a),
            target=str(b),
            sizes=len(sizes) - 1,
            right=not wrong,
        )
    if settings.backend != "cpu":
        with hal.create_device("cpu") as host, Flow(devices[0], host) as flow:
            for source, target in ((devices[0], host), (host, devices[0])):
                wrong = [n for n in sizes if not _arrives(flow, data[7 : 7 + n], source, target)]
                found.expect(not wrong, f"{source.name} to {target.name}: {wrong} arrive changed")
                found.row(
                    way="between backends",
                    source=source.name,
                    target=target.name,
                    sizes=len(sizes),
                    right=not wrong,
                )
    if settings.large:
        _large(devices, found)


def _large(devices: Sequence[hal.Device], found: Findings) -> None:
    """Move more than 4 GiB, where there is room for it."""
    free = [heap.free for each in devices[:2] for heap in each.heaps if heap.memory == "device"]
    if any(each is not None and each < 3 * LARGE for each in free):
        found.row(way="large", right=f"left out: {free} bytes are free")
        return
    data = np.arange(LARGE // 4 + 1, dtype=np.uint32).view(np.uint8)[:LARGE]
    for way, peers in (("direct", True), ("staged", False)):
        with Flow(*devices[:2], peers=peers) as flow:
            right = _arrives(flow, data, *devices[:2])
            found.expect(right, f"{way}: {LARGE} bytes arrive changed")
            found.row(way=f"{way}, {LARGE} bytes", source="0", target="1", sizes=1, right=right)


def _arrives(flow: Flow, data: np.ndarray, source: hal.Device, target: hal.Device) -> bool:
    """Send bytes there, to an old buffer and a new one; return whether they are what is there."""
    sent = flow.from_host(data, source)
    room = flow.allocate(data.size + GUARD, device=target)
    flow.fill(room, POISON)
    flow.device_to_device(sent, room)
    new = flow.device_to_device(sent, target)
    old = room.numpy(timeout=LIMIT)
    is_right = _same(old[: data.size], data) and (old[data.size :] == POISON).all()
    del old
    is_right = bool(is_right) and _same(new.numpy(timeout=LIMIT), data)
    for buffer in (sent, room, new):
        buffer.close()
    return is_right


def _is_pinned_for(device: hal.Device, other: hal.Device, data: np.ndarray) -> bool:
    """Move bytes between a device and another's pinned memory, by every way; look at them."""
    queue, size = device.queue, data.size
    inner = device.allocate(size)
    pinned = [other.allocate(size, memory="host") for _ in range(4)]
    arrays = [each.map() for each in pinned]
    arrays[0][:] = data
    ends = [
        queue.write(inner, arrays[0]),
        queue.read(inner, arrays[1]),
        queue.fill(inner, POISON),
        queue.copy(pinned[1], inner),
        queue.copy(inner, pinned[2]),
        other.queue.copy(pinned[2], inner, wait=queue.fill(inner, POISON)),
    ]
    ends.append(queue.read(inner, arrays[3], wait=ends))
    hal.wait_all(ends, LIMIT)
    return all(_same(each, data) for each in arrays)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether the bytes are the same, piece by piece, for little memory."""
    return one.shape == other.shape and all(
        np.array_equal(one[place : place + PIECE], other[place : place + PIECE])
        for place in range(0, one.size, PIECE)
    )


def hops(devices: Sequence[hal.Device], settings: Settings, found: Findings) -> None:
    """Hand numbers round the devices, each of which adds one; nobody waits but at the end."""
    count = HOPS // 10 if settings.quick else HOPS
    kernels = [device.compile(SOURCE) for device in devices]
    ring = list(itertools.pairwise([*devices, devices[0]]))
    is_linked = all(b.can_access(a) and a.can_access(b) for a, b in ring)
    ways: list[tuple[str, Callable[[], np.ndarray]]] = []
    if is_linked:
        ways += [
            ("semaphore, read in place", lambda: _in_place(devices, kernels, count)),
            ("semaphore, copied", lambda: _copied(devices, kernels, count)),
            ("flow, peers", lambda: _tracked(devices, kernels, count, peers=True)),
        ]
    ways.append(("flow, staged", lambda: _tracked(devices, kernels, count, peers=False)))
    expected = np.arange(WORDS) + count
    for way, run in ways:
        run()  # what is made once is not counted
        start = time.perf_counter()
        numbers = run()
        seconds = time.perf_counter() - start
        right = found.expect(np.array_equal(numbers, expected), f"{way}: the numbers are wrong")
        found.row(way=way, hops=count, right=right, us_per_hop=1e6 * seconds / count)


_GRID = -(-WORDS // 64)


def _in_place(
    devices: Sequence[hal.Device], programs: Sequence[hal.Executable], count: int
) -> np.ndarray:
    """Have each device's kernel read the memory of the one before it."""
    for ours, theirs in zip(devices, [devices[-1], *devices[:-1]], strict=True):
        ours.enable_access(theirs)
    buffers = [device.upload(np.arange(WORDS, dtype=np.int32)) for device in devices]
    turn = hal.create_semaphore(name="turn")
    kernels = [program["follow"] for program in programs]
    for hop in range(count):
        at = hop % len(devices)
        devices[at].queue.dispatch(
            kernels[at],
            grid=_GRID,
            args=(buffers[at - 1], buffers[at], WORDS),
            wait=turn.at(hop),
            signal=turn.at(hop + 1),
        )
    turn.wait(count, timeout=LIMIT)
    return buffers[(count - 1) % len(devices)].numpy()


def _copied(
    devices: Sequence[hal.Device], programs: Sequence[hal.Executable], count: int
) -> np.ndarray:
    """Copy to each device what the one before it has."""
    buffers = [device.upload(np.arange(WORDS, dtype=np.int32)) for device in devices]
    turn = hal.create_semaphore(name="turn")
    kernels = [program["step"] for program in programs]
    for hop in range(count):
        at = hop % len(devices)
        queue = devices[at].queue
        queue.copy(buffers[at - 1], buffers[at], wait=turn.at(hop))
        queue.dispatch(kernels[at], grid=_GRID, args=(buffers[at], WORDS), signal=turn.at(hop + 1))
    turn.wait(count, timeout=LIMIT)
    return buffers[(count - 1) % len(devices)].numpy()


def _tracked(
    devices: Sequence[hal.Device], programs: Sequence[hal.Executable], count: int, *, peers: bool
) -> np.ndarray:
    """Do as `_copied` does, and leave all waits to a flow."""
    with Flow(*devices, peers=peers) as flow:
        buffers = [flow.from_host(np.arange(WORDS, dtype=np.int32), each) for each in devices]
        kernels = [program["step"] for program in programs]
        for hop in range(count):
            at = hop % len(devices)
            flow.device_to_device(buffers[at - 1], buffers[at])
            flow.dispatch(kernels[at], grid=_GRID, args=(buffers[at], WORDS))
        return buffers[(count - 1) % len(devices)].numpy(timeout=LIMIT)


def merging(devices: Sequence[hal.Device], settings: Settings, found: Findings) -> None:
    """Add what every device has on the first one, and change it there at once, round by round."""
    rounds = 5 if settings.quick else 50
    for size, mode, peers in itertools.product(
        (WORDS, 300 * WORDS + 1), ("streaming", "copy"), (True, False)
    ):
        start = time.perf_counter()
        with Flow(*devices, peers=peers) as flow:
            total, expected, modes = _merged(flow, devices, size, mode, rounds)
            right = np.array_equal(total.numpy(timeout=LIMIT), expected)
        seconds = time.perf_counter() - start
        what = f"{mode}{'' if peers else ', no peers'}, {size} numbers"
        found.expect(right, f"{what}: the sums are wrong")
        found.expect(mode == "streaming" or modes == {"copy"}, f"{what}: {modes}")
        found.row(
            mode=mode,
            peers=peers,
            numbers=size,
            became=" ".join(sorted(modes)),
            right=right,
            us_per_merge=1e6 * seconds / (rounds * (len(devices) - 1)),
        )
    with Flow(*devices) as flow:
        one, other = (flow.from_host(np.zeros(8, np.int32), devices[1]) for _ in range(2))
        merge = flow.merge_buffer(devices[0])
        merge.load(one)
        with contextlib.suppress(InvalidArgumentError):
            merge.expect(other)
            found.problems.append("a merge buffer was taken for another one's")


def _merged(
    flow: Flow, devices: Sequence[hal.Device], size: int, mode: str, rounds: int
) -> tuple[TrackedBuffer, np.ndarray, set[str]]:
    """Submit the merges; return the sum, what it has to be, and what the modes became."""
    kernel = devices[0].compile(SOURCE)["merge"]
    first = np.arange(size, dtype=np.int32)
    total = flow.from_host(first, devices[0])
    parts = [flow.allocate(4 * size, dtype=np.int32, device=each) for each in devices]
    expected = first.astype(np.int64)
    merge = flow.merge_buffer(devices[0])
    modes: set[str] = set()
    for turn in range(rounds):
        for index, part in enumerate(parts[1:], 1):
            numbers = index * first + turn
            flow.write(part, numbers)
            merge.load(part, mode)
            modes.add(merge.mode)
            if mode == "copy":
                flow.fill(part, np.int32(-1))  # after the load has read it
            flow.dispatch(kernel, grid=-(-size // 64), args=(merge.expect(part), total, size))
            if mode == "streaming":
                flow.fill(part, np.int32(-1))  # after the kernel has read it
            expected = expected + numbers
    return total, expected, modes


def training(devices: Sequence[hal.Device], settings: Settings, found: Findings) -> None:
    """Train a network on one device, two, and all of them; the losses are the same."""
    # Here, because scikit-learn and Pillow may be missing.
    from digits.training import KINDS, Training, load_digits  # noqa: PLC0415

    digits, epochs = load_digits(), 8 if settings.quick else 30
    drawn: dict[str, np.ndarray] = {}
    for count, mode in _trainings(len(devices)):
        with Training(devices[:count], digits, mode=mode) as trained:
            start = time.perf_counter()
            curve = trained.run(epochs)
            seconds = time.perf_counter() - start
            accuracy, networks = trained.accuracy(), trained.networks()
            if count == len(devices) and mode == "streaming":
                looks = (trained.observe(3) for _ in range(2 if settings.quick else 10))
                found.drawn["steps"] = min(looks, key=lambda each: each.worst_resolution)
                found.drawn["kinds"] = KINDS
        name = "one device" if count == 1 else f"{count} devices, {mode}"
        drawn[name] = curve
        apart = float(np.abs(curve - next(iter(drawn.values()))).max())
        found.expect(apart <= ROUNDING, f"{name}: the losses are {apart:.1e} apart")
        found.expect(accuracy > ENOUGH, f"{name}: {100 * accuracy:.1f} % are right")
        found.expect(
            all(np.array_equal(each, networks[0]) for each in networks), f"{name}: replicas differ"
        )
        found.row(
            devices=count,
            mode=mode,
            steps=len(curve),
            us_per_step=1e6 * seconds / len(curve),
            apart=apart,
            percent_right=100 * accuracy,
        )
    found.drawn["losses"] = drawn


def _trainings(count: int) -> Iterator[tuple[int, str]]:
    for used in sorted({1, 2, count}):
        yield used, "streaming"
    yield count, "copy"


def programs(devices: Sequence[hal.Device], settings: Settings, found: Findings) -> None:
    """Compile once, save, and load on every device, whose kernels print and are traced."""
    target = settings.target or devices[0]
    made = hal.compile(TELLING, target=target, trace="threadIdx.x == 2")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tell.hal"
        made.save(path)
        program = hal.Program.open(path)
    x = np.array([3, 4, 5, 6], np.int32)
    runs = []
    for number, device in enumerate(devices):
        kernel = device.load(program)["tell"]
        source, target_ = device.upload(x), device.upload(np.zeros(4, np.int32))
        output = hal.Output(device)
        run = device.queue.dispatch(kernel, grid=1, args=(source, target_, number, output))
        runs.append((number, device, target_, output, run))
    for number, device, result, output, run in runs:
        run.wait(LIMIT)
        numbers = result.numpy().tolist()
        printed = sorted(str(output.read(wait=run, timeout=LIMIT)).splitlines())
        right = numbers == [10 * int(each) + number for each in x] and printed == [
            f"device {number}: x[0] is 3",
            f"device {number}: x[2] is 5",
            f"y[i] = {50 + number}",
        ]
        found.expect(right, f"device {number}: {numbers}, {printed}")
        found.row(
            device=number,
            image=program.image_for(device).name,
            numbers=str(numbers),
            printed=len(printed),
            right=right,
        )
