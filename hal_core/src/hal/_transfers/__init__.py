"""Copies and fills of every kind, as payloads of operations."""
