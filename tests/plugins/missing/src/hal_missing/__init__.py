"""A plugin whose driver library is not on this machine."""
