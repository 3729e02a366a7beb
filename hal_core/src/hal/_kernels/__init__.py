"""Loaded code and its launches."""
