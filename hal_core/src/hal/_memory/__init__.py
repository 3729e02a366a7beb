"""A device's memory: allocation, caching, freeing, and the rights of a buffer."""
