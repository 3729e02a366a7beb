"""Executables: what is known of their kernels, and their variables (C5)."""
