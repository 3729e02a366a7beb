"""Collectives of hal over MPI."""
