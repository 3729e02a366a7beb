"""Loaded code, its kernels and their launches."""
