"""Test queues and what is submitted to them (Q1 to Q6)."""
