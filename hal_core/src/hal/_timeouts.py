"""Check the time-outs that users give (rule S6); `hal.arguments` has the check."""

from __future__ import annotations

from hal.arguments import as_seconds as check_timeout

__all__ = ["check_timeout"]
