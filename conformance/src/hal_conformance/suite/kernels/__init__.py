"""Test kernels from portable source: compiling, launching, arguments (C5)."""
