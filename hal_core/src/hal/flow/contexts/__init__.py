"""Contexts: named memory of a device, and routines that are linked with it."""
