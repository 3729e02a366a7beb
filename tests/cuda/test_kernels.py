"""Kernels: what the driver knows of them, how they are launched, and in graphs."""

import ctypes

import numpy as np
import pytest
from compile_requests import compiled, request

from hal.errors import NotFoundError
from hal.native import FillNode, LaunchNode

SOURCE = """
struct Pair { int a; double b; };
__device__ int offset = 100;
__global__ void add(int value, int *out, Pair pair) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = value + offset + pair.a + (int)pair.b + i;
}
__global__ void nothing() {}
__global__ void shared(int *out, int n) {
  extern __shared__ int memory[];
  __shared__ int fixed[64];
  for (int i = threadIdx.x; i < n; i += blockDim.x) memory[i] = i;
  fixed[threadIdx.x % 64] = 1;
  __syncthreads();
  if (threadIdx.x == 0) out[0] = memory[n - 1] + fixed[0];
}
"""


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))


@pytest.fixture
def program(lab):
    lab.device.bind()
    module = lab.load(compiled(lab.device, request(SOURCE)))
    return lambda name: lab.device.get_function(module, name)


def test_what_the_driver_knows_of_a_kernel_c5(lab, program):
    info = lab.device.function_info(program("add"))
    assert info.parameter_sizes == (4, 8, 16)
    assert info.max_threads_per_block >= 64
    assert info.static_shared_memory == 0
    assert lab.device.function_info(program("nothing")).parameter_sizes == ()
    assert lab.device.function_info(program("shared")).static_shared_memory == 256


def test_names_that_are_not_there_c5(lab, program):
    with pytest.raises(NotFoundError, match=r"'sub'; it has: .*add.*nothing"):
        program("sub")
    module = lab.device.load_module(compiled(lab.device, request(SOURCE)))
    with pytest.raises(NotFoundError, match="no variable 'other'"):
        lab.device.get_global(module, "other")
    address, size = lab.device.get_global(module, "offset")
    assert address
    assert size == 4
    lab.device.unload_module(module)


@pytest.mark.parametrize("count", [16, 12288, 20000])
def test_more_shared_memory_is_asked_for_c5(lab, program, simulator, count):
    """Beyond 48 KiB, what the kernel declares itself counted; once, and for larger wishes again."""
    out, stream, function = lab.array(np.zeros(1, np.int32)), lab.stream(), program("shared")
    lab.device.bind()
    before = simulator.calls("cuFuncSetAttribute")
    for _ in range(3):
        lab.device.allow_shared_memory(function, 4 * count)
        at = lab.parameters(out, ctypes.c_int(count))
        lab.device.launch(stream, function, (1, 1, 1), (64, 1, 1), 4 * count, at)
    lab.finish()
    assert out.tolist() == [count]
    assert simulator.calls("cuFuncSetAttribute") - before == (4 * count > 49152 - 256)
    if count == 20000:
        lab.device.allow_shared_memory(function, 4 * count + 64)
        lab.device.allow_shared_memory(function, 4 * count)
        at = lab.parameters(out, ctypes.c_int(count))
        lab.device.launch(stream, function, (1, 1, 1), (64, 1, 1), 4 * count + 64, at)
        lab.device.launch(stream, function, (1, 1, 1), (64, 1, 1), 4 * count, at)
        lab.finish()
        assert simulator.calls("cuFuncSetAttribute") - before == 2


def test_launches_in_a_graph_have_arguments_of_their_own_c4(lab, program):
    """Copied when a node is made or changed, whatever becomes of the memory."""
    out, stream = lab.array(np.zeros(128, np.int32)), lab.stream()
    lab.device.bind()
    values = [ctypes.c_int(n) for n in range(4)]
    pair = Pair(0, 0.0)
    blocks = [lab.parameters(value, out[32 * n :], pair) for n, value in enumerate(values)]
    function = program("add")
    nodes = [LaunchNode(function, (1, 1, 1), (32, 1, 1), 0, at) for at in blocks]
    graph = lab.device.create_graph(
        [*nodes, FillNode(out.ctypes.data, 0, 4, 1)], [(), (), (), (), (0,)]
    )
    for value in values:
        value.value = 1000
    instance = lab.device.instantiate_graph(graph)
    lab.device.launch_graph(stream, instance)
    lab.finish()
    wanted = [100 + n + i for n in range(4) for i in range(32)]
    assert out.tolist() == [0, *wanted[1:]]
    for turn in (7, 8):
        values[2].value = turn
        node = LaunchNode(function, (1, 1, 1), (turn, 1, 1), 0, blocks[2])
        lab.device.update_graph(instance, 2, node)
        values[2].value = 1000
        out[:] = 0
        lab.device.launch_graph(stream, instance)
        lab.finish()
        wanted[64:96] = [100 + turn + i for i in range(turn)] + [0] * (32 - turn)
        assert out.tolist() == [0, *wanted[1:]]
    lab.device.destroy_graph_instance(instance)
    lab.device.destroy_graph(graph)


def test_more_shared_memory_in_a_graph_c4(lab, program):
    out, stream = lab.array(np.zeros(1, np.int32)), lab.stream()
    lab.device.bind()
    function, at = program("shared"), lab.parameters(out, ctypes.c_int(14000))
    lab.device.allow_shared_memory(function, 56000)
    node = LaunchNode(function, (1, 1, 1), (64, 1, 1), 56000, at)
    graph = lab.device.create_graph([node], [()])
    instance = lab.device.instantiate_graph(graph)
    lab.device.launch_graph(stream, instance)
    lab.finish()
    assert out.tolist() == [14000]
    lab.device.destroy_graph(graph)
    lab.device.destroy_graph_instance(instance)


def test_functions_are_forgotten_with_their_module(lab):
    device = lab.device
    image = compiled(device, request(SOURCE))
    known = len(device._kernels), len(device._shared)
    for _ in range(3):
        module = device.load_module(image)
        assert device.get_function(module, "add") == device.get_function(module, "add")
        device.get_function(module, "nothing")
        device.unload_module(module)
    assert (len(device._kernels), len(device._shared)) == known
