"""Command buffers: recorded once, run often."""
