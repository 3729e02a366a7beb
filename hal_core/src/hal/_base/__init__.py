"""What knows no device: locks, threads, kept errors, checks, what one process owns."""
