"""Command buffers: recorded once, executed as often as wanted (C1 to C4)."""
