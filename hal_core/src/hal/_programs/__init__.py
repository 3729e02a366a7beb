"""Compilation without a device: source in, compiled program with its kernels' signatures out."""
