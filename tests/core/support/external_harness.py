"""Help tests of streams of other libraries."""

import numpy as np

SIZE = 64


def zeros(device):
    return device.upload(np.zeros(SIZE, np.uint8))


def pretend(probe, monkeypatch, where):
    """Make a device CUDA's or ROCm's, as far as protocols go."""
    monkeypatch.setattr(probe, "dlpack_device", lambda memory: where)
