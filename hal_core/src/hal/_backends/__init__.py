"""Installed backends, device specifications, and drivers that are opened once."""
