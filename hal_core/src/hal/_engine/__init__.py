"""Timelines, operations, issue, retirement and waiting: the design's section 5. Knows no buffer."""
