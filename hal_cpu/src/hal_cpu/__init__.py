"""The reference backend of hal: streams, memory and kernels on the processor."""
