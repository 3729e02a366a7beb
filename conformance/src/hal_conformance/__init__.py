"""Be the conformance suite of hal; in this version, its registration only."""
