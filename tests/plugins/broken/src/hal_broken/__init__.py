"""Be a plugin whose import fails."""
