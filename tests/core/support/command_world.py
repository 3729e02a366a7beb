"""Devices, kernels and memory on which random command buffers run."""

import random
from contextlib import nullcontext

import byte_model
from core_harness import LIMIT, open_native

SOURCE = """
__device__ static void delay(int turns) {
  if (threadIdx.x == 0) for (volatile int turn = 0; turn < turns; ++turn) {}
}

__device__ static int first() {
  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  return block * blockDim.x * blockDim.y * blockDim.z + thread;
}

__device__ static int step() {
  return gridDim.x * gridDim.y * gridDim.z * blockDim.x * blockDim.y * blockDim.z;
}

__global__ void mix(unsigned char *x, const unsigned char *y, int n, unsigned key, int turns) {
  delay(turns);
  for (int i = first(); i < n; i += step()) x[i] = 3 * x[i] + y[i] + key + i;
}

__global__ void scramble(unsigned *x, int n, unsigned key, int turns) {
  delay(turns);
  for (int i = first(); i < n; i += step())
    x[i] = (x[i] << 7 | x[i] >> 25) ^ (key + 2654435761u * i);
}

__global__ void reverse(const unsigned char *source, unsigned char *target, int n, int turns) {
  delay(turns);
  for (int i = first(); i < n; i += step()) target[i] = source[n - 1 - i];
}

__global__ void set_grid(unsigned *counts, unsigned x, unsigned y, unsigned z, int turns) {
  delay(turns);
  if (first() == 0) { counts[0] = x; counts[1] = y; counts[2] = z; }
}

__global__ void mark(unsigned char *out, int n, unsigned key, int turns) {
  delay(turns);
  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0 && block < n) out[block] = key + 7 * block;
}
"""

# Memory: four allocations that programs use directly, one of them by two buffers that overlap
# and one for grids; and a pool for the binding tables, the last of it for grids.
SIZES = [128, 128, 192, 48] + [160] * 5 + [96] * 2
DIRECT = [(0, 0, 128), (1, 0, 128), (2, 0, 128), (2, 64, 128), (3, 0, 48)]
GRIDS = 4  # the direct buffer that only holds grids
POOL, GRID_POOL = range(4, 9), range(9, 11)
SLOT_SIZE, SLOTS = 96, 3
GRID_SLOT, GRID_SLOT_SIZE = -1 - SLOTS, 48


class Latest:
    """A native device whose graphs run one node after another, each as early as allowed."""

    def __init__(self, native):
        self._native = native
        self._places = {}  # graph, then instance -> place of each node

    def __getattr__(self, name):
        return getattr(self._native, name)

    def create_graph(self, nodes, dependencies):
        """Put the last node whose dependencies have run next, and let it depend on the one before.

        A node is wanted as soon as the lowest one that it can overtake: so the nodes are placed
        from the last on, each with what it depends on before it.
        """
        places, order = {}, []
        for last in reversed(range(len(nodes))):
            stack = [last]
            while stack:
                number = stack[-1]
                missing = [each for each in dependencies[number] if each not in places]
                if number in places or not missing:
                    stack.pop()
                    if number not in places:
                        places[number] = len(order)
                        order.append(number)
                else:
                    stack.extend(missing)
        chain = [[index - 1] if index else [] for index in range(len(order))]
        graph = self._native.create_graph([nodes[number] for number in order], chain)
        self._places["graph", graph] = places
        return graph

    def instantiate_graph(self, graph):
        instance = self._native.instantiate_graph(graph)
        self._places["instance", instance] = self._places["graph", graph]
        return instance

    def update_graph(self, instance, index, node):
        self._native.update_graph(instance, self._places["instance", instance][index], node)


class World:
    """Hold a device, its kernels, and the memory that programs work on."""

    def __init__(self, device):
        self.device = device
        program = device.compile(SOURCE, filename="model.cpp")
        self.kernels = {name: program[name] for name in byte_model.KERNELS}
        self.memory = [device.allocate(size) for size in SIZES]
        self.direct = [self.memory[each].subspan(base, size) for each, base, size in DIRECT]
        self.queues = [
            device.queues.compute,
            device.queues.upload,
            device.create_queue(),
            device.create_queue(ordered=False),
        ]

    def start(self, contents):
        for buffer, content in zip(self.memory, contents, strict=True):
            self.device.queue.update(buffer, content)
        self.device.queue.barrier().wait(LIMIT)

    def result(self):
        self.device.wait_idle(LIMIT)
        return [bytearray(buffer.numpy(timeout=LIMIT).tobytes()) for buffer in self.memory]

    def bindings(self, table):
        return [self.memory[each].subspan(base, size) for each, base, size in table]

    def record(self, program, *, hazards="manual", mode="auto", pick=None):
        """Record a program of the model's; with `pick`, a `Random`, for queues that that picks."""
        slots = [("u1", SLOT_SIZE)] * SLOTS + [("u1", GRID_SLOT_SIZE)]
        commands = self.device.record(slots=slots, hazards=hazards, command_buffer=mode)
        places = dict(enumerate(self.direct)) | {
            -1 - index: slot for index, slot in enumerate(commands.slots)
        }
        events = {}
        with commands:
            for kind, *given in program:
                where = pick.choice([None, *self.queues]) if pick else None
                with commands.on(where) if where else nullcontext():
                    self._record(commands, places, events, kind, given)
        return commands

    def _record(self, commands, places, events, kind, given):
        if kind == "fill":
            place, offset, pattern, count = given
            size = len(pattern) * count
            commands.fill(places[place], pattern, offset=offset, size=size)
        elif kind == "update":
            commands.update(places[given[0]], given[2], offset=given[1])
        elif kind == "copy":
            source, source_offset, target, offset, size = given
            commands.copy(
                places[source],
                places[target],
                source_offset=source_offset,
                target_offset=offset,
                size=size,
            )
        elif kind == "barrier":
            commands.barrier()
        elif kind == "signal":
            events[given[0]] = commands.create_event()
            commands.signal_event(events[given[0]])
        elif kind == "wait":
            commands.wait_events(events[given[0]])
        else:
            self._launch(commands, places, kind, *given)

    def _launch(self, commands, places, kind, name, grid, block, arguments, turns):
        values = [
            places[each[0]].subspan(each[1], each[2]) if isinstance(each, tuple) else each
            for each in arguments
        ]
        if kind == "indirect":
            grid = places[grid[0]].subspan(grid[1], 12)
        commands.dispatch(self.kernels[name], grid=grid, block=block, args=[*values, turns])


def contents(seed):
    """Return what the memory holds at first: random bytes, and small grids."""
    source = random.Random(seed)
    found = []
    for index, size in enumerate(SIZES):
        content = bytearray(source.randbytes(size))
        if index == 3 or index in GRID_POOL:
            content = bytearray(
                b"".join(source.choice([0, 1, 2]).to_bytes(4, "little") for _ in range(size // 4))
            )
        found.append(content)
    return found


class NotIndirect:
    """A native device that cannot read a grid from memory: the core's host operation does."""

    def __init__(self, native):
        self._native = native
        self.features = native.features - {"indirect_dispatch"}

    def __getattr__(self, name):
        return getattr(self._native, name)


KINDS = {
    "plain": lambda: open_native().open_device(0, {"threads": "4"}),
    "seeded": lambda: open_native().open_device(0, {"threads": "1", "graph_seed": "7"}),
    "latest": lambda: Latest(open_native().open_device(0, {})),
    "not indirect": lambda: NotIndirect(open_native().open_device(0, {})),
}
