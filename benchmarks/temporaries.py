"""Make the sequences of temporaries that allocators are compared by.

A sequence is a list of steps in the order in which a program submits them: allocate a
temporary on a queue, touch it there, give it back there, let a queue wait for all that
another one has been given. It says what must be ordered, and no more: a wait stands only
where a temporary crosses to another queue. Every allocator does the same steps.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

__all__ = [
    "AFTER",
    "ALLOCATE",
    "FREE",
    "SEQUENCES",
    "TOUCH",
    "Step",
    "live_bytes",
    "random_steps",
]

ALLOCATE: Final = "allocate"
TOUCH: Final = "touch"
FREE: Final = "free"
AFTER: Final = "after"

SMALLEST: Final = 256
LARGEST: Final = 64 << 20
_LIVE: Final = 64
"""Temporaries of the random sequence that live at once, at the most."""
_LONGEST: Final = 256
"""The longest life there, in allocations made meanwhile."""
_PAIRS: Final = 500
_CROSSING: Final = 0.25
"""What part of them is used on a second queue there."""

_LAYERS: Final = 12
_WIDTH: Final = 768
_HEADS: Final = 12
_BATCH: Final = 2
_HALVES: Final = (1, 2)
"""The queues that compute half of the heads each."""
_LENGTHS: Final = (1024, 896, 1024, 640)
"""Tokens of the batches, in turn: programs meet sequences of many lengths."""
_PICTURES: Final = ((3840, 2160), (3000, 2000), (4032, 3024))
_LEVELS: Final = 7


class Step(NamedTuple):
    """One thing that a program submits.

    Attributes
    ----------
    act
        ``"allocate"``, ``"touch"``, ``"free"`` or ``"after"``.
    queue
        Where.
    tensor
        Which temporary; for ``"after"`` the queue that is waited for.
    size
        Bytes to allocate, or to touch.
    source
        Which temporary the bytes are copied from; None is a fill.
    """

    act: str
    queue: int
    tensor: int
    size: int = 0
    source: int | None = None


class _Tape:
    """Write steps down, with a wait wherever a temporary crosses to a queue that has not seen it.

    Queues are numbered as if there were enough; with fewer, several numbers mean one.
    """

    def __init__(self, queues: int, scale: int) -> None:
        self.steps: list[Step] = []
        self.queues = queues
        self._scale = scale
        self._counts = [0] * queues
        self._seen = [[0] * queues for _ in range(queues)]
        self._sizes: dict[int, int] = {}
        self._written: dict[int, tuple[int, int]] = {}  # by which queue, at which place in it
        self._used: dict[int, dict[int, int]] = {}  # the last place in each queue
        self._made = 0

    def new(self, queue: int, size: int, *sources: int) -> int:
        """Allocate a temporary and fill it, or copy to it from the first source; return it."""
        queue %= self.queues
        tensor = self._made
        self._made += 1
        self._sizes[tensor] = max(SMALLEST, size // self._scale)
        self.steps.append(Step(ALLOCATE, queue, tensor, self._sizes[tensor]))
        self._note(queue, tensor)
        self.write(queue, tensor, *sources)
        return tensor

    def write(self, queue: int, target: int, *sources: int) -> None:
        """Write a temporary; all sources are read."""
        queue %= self.queues
        for source in sources:
            self._wait(queue, dict([self._written[source]]))
        self._wait(queue, self._used[target])
        size = min(self._sizes[each] for each in (target, *sources[:1]))
        self.steps.append(Step(TOUCH, queue, target, size, sources[0] if sources else None))
        self._note(queue, target, *sources)
        self._written[target] = (queue, self._counts[queue])

    def free(self, queue: int, *tensors: int) -> None:
        """Give temporaries back, after every use of theirs."""
        queue %= self.queues
        for tensor in tensors:
            self._wait(queue, self._used.pop(tensor))
            del self._sizes[tensor], self._written[tensor]
            self.steps.append(Step(FREE, queue, tensor))
            self._counts[queue] += 1

    def _note(self, queue: int, *tensors: int) -> None:
        self._counts[queue] += 1
        for tensor in tensors:
            self._used.setdefault(tensor, {})[queue] = self._counts[queue]

    def _wait(self, queue: int, places: Mapping[int, int]) -> None:
        for other, place in places.items():
            if other != queue and self._seen[queue][other] < place:
                self.steps.append(Step(AFTER, queue, other))
                theirs = self._seen[other][:]
                theirs[other] = self._counts[other]
                self._seen[queue] = [*map(max, self._seen[queue], theirs)]


class _Transformer:
    """Write down a training step of a small language model, in half precision.

    Activations live until the backward pass. With three queues two of them compute half of the
    heads each, one of them the weights' gradients too, and the other copies those.
    """

    def __init__(self, tape: _Tape, length: int) -> None:
        self._tape = tape
        tokens = 2 * _BATCH * length  # bytes of one half-precision value of each
        self._state = tokens * _WIDTH
        self._scores = _HEADS * tokens * length // len(_HALVES)  # of half of the heads
        self._sums = 4 * tokens

    def run(self) -> None:
        """Go forward and back through all layers."""
        new, free = self._tape.new, self._tape.free
        current = new(0, self._state)
        saved = []
        for _ in range(_LAYERS):
            saved.append(self._forward(current))
            current = new(0, self._state, saved[-1].active, saved[-1].middle)
        gradient = new(0, self._state, current)
        free(0, current)
        while saved:
            gradient = self._backward(gradient, saved.pop())
        free(0, gradient)

    def _forward(self, current: int) -> _Activations:
        new, free, state = self._tape.new, self._tape.free, self._state
        norm, moments = new(0, state, current), new(0, self._sums, current)
        qkv = new(0, 3 * state, norm)
        softmaxes, contexts = [], []
        for half in _HALVES:
            scores = new(half, self._scores, qkv)
            softmaxes.append(new(half, self._scores, scores))
            free(half, scores)
            contexts.append(new(half, state // 2, softmaxes[-1], qkv))
        joined = new(0, state, *contexts)
        free(0, *contexts)
        middle = new(0, state, joined, current)
        norm2, moments2 = new(0, state, middle), new(0, self._sums, middle)
        hidden = new(0, 4 * state, norm2)
        active = new(0, 4 * state, hidden)
        return _Activations(
            *(current, norm, moments, qkv, tuple(softmaxes), joined),
            *(middle, norm2, moments2, hidden, active),
        )

    def _backward(self, gradient: int, saved: _Activations) -> int:
        """Return the gradient of the layer's input; gives back all else."""
        new, free, state = self._tape.new, self._tape.free, self._state
        of_active = new(0, 4 * state, gradient, saved.active)
        self._reduce(4 * _WIDTH, saved.active, gradient)
        of_hidden = new(0, 4 * state, of_active, saved.hidden)
        free(0, of_active, saved.active, saved.hidden)
        self._reduce(4 * _WIDTH, saved.norm2, of_hidden)
        of_norm = new(0, state, of_hidden, saved.norm2, saved.moments2)
        free(0, of_hidden, saved.norm2, saved.moments2)
        of_middle = new(0, state, of_norm, gradient, saved.middle)
        free(0, of_norm, gradient, saved.middle)
        of_joined = new(0, state, of_middle, saved.joined)
        free(0, saved.joined)
        parts = []
        for half, softmax in zip(_HALVES, saved.softmaxes, strict=True):
            of_softmax = new(half, self._scores, of_joined, softmax)
            of_scores = new(half, self._scores, of_softmax)
            free(half, of_softmax, softmax)
            parts.append(new(half, 3 * state // 2, of_scores, saved.qkv))
            free(half, of_scores)
        of_qkv = new(0, 3 * state, *parts)
        free(0, of_joined, *parts)
        self._reduce(3 * _WIDTH, of_qkv, saved.norm)
        of_norm = new(0, state, of_qkv, saved.norm, saved.moments)
        free(0, of_qkv, saved.qkv, saved.norm, saved.moments)
        of_input = new(0, state, of_norm, of_middle, saved.current)
        free(0, of_norm, of_middle, saved.current)
        return of_input

    def _reduce(self, columns: int, *sources: int) -> None:
        """Compute a weight's gradient, and copy it to where others would take it from."""
        size = 2 * _WIDTH * columns
        gradient = self._tape.new(1, size, *sources)
        bucket = self._tape.new(2, size, gradient)
        self._tape.free(2, gradient, bucket)


class _Activations(NamedTuple):
    """What a layer keeps for its backward pass."""

    current: int
    norm: int
    moments: int
    qkv: int
    softmaxes: tuple[int, ...]
    joined: int
    middle: int
    norm2: int
    moments2: int
    hidden: int
    active: int


def _transformer(number: int, queues: int, scale: int) -> list[Step]:
    tape = _Tape(queues, scale)
    _Transformer(tape, _LENGTHS[number % len(_LENGTHS)]).run()
    return tape.steps


def _pyramid(number: int, queues: int, scale: int) -> list[Step]:
    """Return a picture taken apart into levels of half the size, and put together again.

    Each of three channels has a queue of its own.
    """
    width, height = _PICTURES[number % len(_PICTURES)]
    tape = _Tape(queues, scale)
    new, free = tape.new, tape.free
    whole = 4 * width * height
    channels = [new(channel, whole) for channel in range(3)]
    differences: list[list[int]] = []
    for level in range(_LEVELS):
        size, half = whole >> 2 * level, whole >> 2 * (level + 1)
        differences.append([])
        for channel, current in enumerate(channels):
            across = new(channel, size, current)
            blurred = new(channel, size, across)
            free(channel, across)
            small = new(channel, half, blurred)
            free(channel, blurred)
            back = new(channel, size, small)
            differences[-1].append(new(channel, size, current, back))
            free(channel, back, current)
            channels[channel] = small
    for level in reversed(range(_LEVELS)):
        size = whole >> 2 * level
        for channel, current in enumerate(channels):
            back = new(channel, size, current)
            free(channel, current)
            channels[channel] = new(channel, size, back, differences[level][channel])
            free(channel, back, differences[level][channel])
    merged = new(0, 3 * whole, *channels)
    free(0, *channels, merged)
    return tape.steps


class _Random:
    """Write down random sizes and lives, both log-uniform."""

    def __init__(self, tape: _Tape, seed: int) -> None:
        self._tape = tape
        self._random = random.Random(seed)  # noqa: S311 - sizes are no secrets
        self._living: list[tuple[int, int, int]] = []  # its end, the temporary, its queue
        self._clock = 0

    def go_on(self, pairs: int) -> None:
        """Allocate so many temporaries, and give back those that end meanwhile."""
        tape, living, choice = self._tape, self._living, self._random
        for _ in range(pairs):
            self._clock += 1
            while living and (living[0][0] <= self._clock or len(living) == _LIVE):
                self._end_one()
            queue = choice.randrange(tape.queues)
            tensor = tape.new(queue, self._log_uniform(SMALLEST, LARGEST))
            if choice.random() < _CROSSING:
                queue = choice.randrange(tape.queues)
                tape.write(queue, tensor)
            heapq.heappush(living, (self._clock + self._log_uniform(1, _LONGEST), tensor, queue))

    def end(self) -> None:
        """Give all back."""
        while self._living:
            self._end_one()

    def _end_one(self) -> None:
        _, tensor, queue = heapq.heappop(self._living)
        self._tape.free(queue, tensor)

    def _log_uniform(self, least: int, greatest: int) -> int:
        return int(math.exp(self._random.uniform(math.log(least), math.log(greatest))))


def _random(number: int, queues: int, scale: int) -> list[Step]:
    tape = _Tape(queues, scale)
    scattered = _Random(tape, number)
    scattered.go_on(_PAIRS)
    scattered.end()
    return tape.steps


def random_steps(queues: int, scale: int) -> Iterator[list[Step]]:
    """Yield the steps of the random sequence without end, 500 allocations at a time.

    What one part leaves alive a later one gives back.
    """
    tape = _Tape(queues, scale)
    scattered = _Random(tape, 0)
    while True:
        scattered.go_on(_PAIRS)
        yield tape.steps
        tape.steps = []


SEQUENCES: Final[Mapping[str, Callable[[int, int, int], list[Step]]]] = {
    "transformer": _transformer,
    "pyramid": _pyramid,
    "random": _random,
}
"""By name, what makes the steps of one pass: of its number, how many queues, and by what to
divide all sizes. Nothing is left alive at the end of a pass."""


def live_bytes(steps: Sequence[Step], before: dict[int, int] | None = None) -> list[int]:
    """Return the bytes that live after each step, in the order of the program.

    `before` has the sizes of what lives already; it is kept up to date.
    """
    sizes = {} if before is None else before
    now = sum(sizes.values())
    found = []
    for step in steps:
        if step.act == ALLOCATE:
            sizes[step.tensor] = step.size
            now += step.size
        elif step.act == FREE:
            now -= sizes.pop(step.tensor)
        found.append(now)
    return found
