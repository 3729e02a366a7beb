"""Buffers as users hold them, and as other libraries see them."""
