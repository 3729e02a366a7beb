"""Values, operations, issue, retire, wait: the design's section 5. No buffer here."""
