"""Test how failures spread, and what they leave alone (S5)."""
