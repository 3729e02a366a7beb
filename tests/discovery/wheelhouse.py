"""Build the wheels of this repository and install them as a user does, without a network."""

import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

__all__ = ["PLUGINS", "ROOT", "THIRD_PARTY", "build_wheels", "create_environment"]

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "tests" / "plugins"
THIRD_PARTY = (*("hypothesis", "numpy", "pluggy", "pytest", "pytest-timeout", "rich", "typer"),)
"""What the core with its command and the suite need."""


def build_wheels(folder, *sources):
    """Build the distribution in each source folder; return the wheels by distribution."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    command += ["--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder, *sources]
    subprocess.run(command, check=True, timeout=300)
    return {path.name.split("-")[0].replace("_", "-"): path for path in folder.iterdir()}


def create_environment(home, *requirements):
    """Create an environment, install wheels into it, and return its folder of programs.

    Each requirement is a wheel's path, or text such as ``name[extra] @ file://...``. They are
    installed with their dependencies, so that what a distribution declares is what it needs.
    What is not ours is shared with this interpreter: no index is asked.
    """
    venv.create(home, with_pip=False, symlinks=True)
    programs = home / "bin"
    (site,) = home.glob("lib/python*/site-packages")
    for distribution in _installed(THIRD_PARTY):
        tops = {path.parts[0] for path in distribution.files} - {"..", "__pycache__"}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    install = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    install += ["--python", programs / "python", "install", "--quiet", "--no-index", "--no-compile"]
    subprocess.run([*install, *requirements], check=True, timeout=300)
    return programs


def _installed(names):
    """Return these distributions and all that they require, as they are installed here."""
    found = {}
    left = list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        needed = (line for line in found[name].requires or () if "extra ==" not in line)
        left += [re.match(r"[\w.-]+", line)[0] for line in needed]
    return found.values()
