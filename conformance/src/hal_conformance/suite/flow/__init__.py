"""Test the flow layer on the device: tracked buffers, transfers, virtual devices, merge buffers."""
