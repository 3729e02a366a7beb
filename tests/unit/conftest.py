"""Make the harnesses importable; the test run imports files one by one, not as a package."""

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
