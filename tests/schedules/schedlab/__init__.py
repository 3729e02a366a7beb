"""Drive every interleaving of the core: see tests/schedules/README.md."""
