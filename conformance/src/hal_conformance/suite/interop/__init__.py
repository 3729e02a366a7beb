"""Sharing memory with numpy and with whoever speaks DLPack (M2)."""
