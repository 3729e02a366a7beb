"""Record once, run often."""
