"""Test devices: what is found, opened, declared and refused."""
