"""The CUDA backend of hal: NVIDIA GPUs through the driver's API."""
