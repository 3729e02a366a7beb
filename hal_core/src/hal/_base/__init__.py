"""The parts that know no device: locks, threads, kept errors, checks, process identity."""
