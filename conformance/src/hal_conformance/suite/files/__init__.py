"""Files: ranges of them as the host side of reads and writes (Q4)."""
