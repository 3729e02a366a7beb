"""Build graphs on a native CPU device."""

import ctypes

from native_lab import packed

from hal.native import IndirectLaunchNode, LaunchNode

SOURCE = """
__global__ void mix(unsigned *target, const unsigned *source, unsigned value, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) target[i] = target[i] * 3u + source[i] + value;
}
__global__ void count(unsigned *counter) { atomicAdd(counter, 1u); }
__global__ void meet(unsigned *mine, unsigned *theirs, unsigned *met) {
  atomicExch(mine, 1u);
  long long left = 2000000000;
  while (atomicAdd(theirs, 0u) == 0 && left > 0) left--;
  *met = left > 0;
}
__global__ void where(unsigned long long *seen) {
  // A variable of a thread's own has another address in each thread.
  static thread_local int own;
  seen[blockIdx.x] = (unsigned long long)&own;
  for (volatile int i = 0; i < 20000; i++) {}
}
__global__ void sum(unsigned *target, unsigned value) { *target += value; }
"""


class Graphs:
    """Build graphs on one device, and give them back at the end."""

    def __init__(self, lab):
        self.lab = lab
        self.device = lab.device
        self.stream = lab.stream()
        module = lab.build(SOURCE)
        self.functions = {
            name: lab.device.get_function(module, name)
            for name in ("mix", "count", "meet", "where", "sum")
        }
        self._instances = []

    def node(self, name, grid, *arguments, block=1, counts=None):
        """Return a launch, and what its parameters need to live."""
        function, (address, kept) = self.functions[name], packed(arguments)
        if counts is not None:
            return IndirectLaunchNode(function, counts, (block, 1, 1), 0, address), kept
        return LaunchNode(function, (grid, 1, 1), (block, 1, 1), 0, address), kept

    def instance(self, nodes, dependencies):
        """Return an instance of a graph that is gone; nodes may come with what they need."""
        kept = [node for node in nodes if type(node) is tuple]
        plain = [node[0] if type(node) is tuple else node for node in nodes]
        graph = self.device.create_graph(plain, dependencies)
        instance = self.device.instantiate_graph(graph)
        self.device.destroy_graph(graph)
        self._instances.append(instance)
        for _, (values, pointers) in kept:
            ctypes.memset(ctypes.byref(pointers), 0xEE, ctypes.sizeof(pointers))
            for value in values:
                ctypes.memset(ctypes.byref(value), 0xEE, ctypes.sizeof(value))
        return instance

    def launch(self, instance, times=1):
        for _ in range(times):
            self.device.launch_graph(self.stream, instance)

    def run(self, nodes, dependencies, times=1):
        instance = self.instance(nodes, dependencies)
        self.launch(instance, times)
        self.lab.finish(self.stream)
        return instance

    def close(self):
        self.lab.finish()
        for instance in self._instances:
            self.device.destroy_graph_instance(instance)


def at(array, index=0):
    return array.ctypes.data + index * array.itemsize
