"""Collectives of hal over NCCL, and over RCCL, which has the same interface."""
