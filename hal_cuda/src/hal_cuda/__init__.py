"""Be the CUDA backend of hal; in this version, its registration only."""
