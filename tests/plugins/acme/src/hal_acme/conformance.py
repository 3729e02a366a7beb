"""What the conformance suite is to know of this backend; nothing else imports this module.

The suite is no dependency of the plugin: it finds the profile where both are installed.
"""

from __future__ import annotations

from typing import Final

from hal_conformance import Profile

__all__ = ["profile"]

profile: Final = Profile()
"""Nothing is unsupported and nothing is expected to fail, so that the verdict can be conformant."""
