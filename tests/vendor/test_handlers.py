"""A signal handler may use a device in the middle of any call of its own thread (O3)."""

import importlib

from interrupts import nest_everywhere

from hal.native import FillNode


def test_a_call_that_interrupts_another_waits_for_nothing_o3(vendor, device, image, shared):
    """Nor is anything destroyed twice or left over, which the software driver tells."""
    module = device.load_module(image)
    function = device.get_function(module, "add")

    def act():
        graph = device.create_graph([FillNode(shared, 1, 1, 64)], [[]])
        instances = [device.instantiate_graph(graph) for _ in range(2)]
        device.destroy_graph(graph)
        for each in instances:
            device.destroy_graph_instance(each)
        device.allow_shared_memory(function, 1024)

    nest_everywhere(importlib.import_module(f"hal_{vendor.name}"), act)
    device.unload_module(module)
