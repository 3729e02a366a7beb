"""Sharing memory with numpy and with libraries that speak DLPack (M2)."""
