"""Where bytes live: allocate, cache, free, and what may be done with them."""
