"""Test buffers: sizes, ranges, host access and lifetimes (M1, M2, Q5)."""
