"""List bugs to plant in copies of the core, each with the case that must find it.

A mutant is a few textual patches. A patch that no longer applies is an error,
so that a mutant cannot rot into a copy of the true core.
"""

from __future__ import annotations

from schedlab.planted.failures import FAILURES
from schedlab.planted.memory import MEMORY
from schedlab.planted.order import ORDER
from schedlab.planted.recordings import RECORDINGS
from schedlab.planted.waits import WAITS

MUTANTS = (*ORDER, *WAITS, *FAILURES, *RECORDINGS, *MEMORY)
