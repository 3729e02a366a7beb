"""Test random programs against plain models."""
