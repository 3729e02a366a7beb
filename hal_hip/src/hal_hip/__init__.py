"""Be the HIP backend of hal; in this version, its registration only."""
