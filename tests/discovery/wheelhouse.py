"""Build the wheels of this repository as an installer does, without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["PLUGINS", "ROOT", "build_wheels"]

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "tests" / "plugins"


def build_wheels(folder, *sources):
    """Build the distribution in each source folder; return the wheels by distribution."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    command += ["--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder, *sources]
    subprocess.run(command, check=True, timeout=50)
    return {path.name.split("-")[0].replace("_", "-"): path for path in folder.iterdir()}
