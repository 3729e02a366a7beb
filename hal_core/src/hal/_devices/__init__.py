"""The faces that make everything else, and how they end with the process."""
