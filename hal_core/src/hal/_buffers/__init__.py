"""What users hold of memory, and how other libraries see it."""
