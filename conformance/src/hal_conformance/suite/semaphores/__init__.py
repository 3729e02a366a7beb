"""Test timeline semaphores and fences (S1 to S4, S6 to S9)."""
