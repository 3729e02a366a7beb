"""What `import hal` loads: every module more makes every program start later."""

import sys

from child_processes import output_of

PROGRAM = """
import sys, numpy
before = set(sys.modules)
import hal
print(*sorted(set(sys.modules) - before))
"""
LATER = {
    *("asyncio", "concurrent.futures", "difflib", "email", "hal.protocols", "hal.tickets"),
    *("hashlib", "importlib.metadata", "json", "multiprocessing", "numpy.typing", "pathlib"),
    *("socket", "subprocess", "sysconfig", "tempfile", "zipfile"),
}


def test_what_only_some_programs_need_is_loaded_when_it_is_used():
    loaded = set(output_of([sys.executable, "-c", PROGRAM]).split())
    assert {"hal", "hal.native", "pluggy"} <= loaded
    assert not loaded & LATER


COUNT = """
import re, sys, numpy
compiled = 0

def count(event, arguments):
    global compiled
    compiled += event == "compile" and str(arguments[1]).startswith("<")  # no module's source

sys.addaudithook(count)
import hal
print(compiled)
for name, module in sys.modules.items():
    if name.partition(".")[0] == "hal":
        print(*[f"{name}.{key}" for key, each in vars(module).items() if type(each) is re.Pattern])
"""


def test_importing_compiles_few_texts_and_no_pattern():
    # `typing` compiles the type of each field of a named tuple that is text, as all are after
    # `from __future__ import annotations`: modules with many fields do without.
    count, *patterns = output_of([sys.executable, "-c", COUNT]).split()
    assert int(count) <= 210
    assert not patterns


def test_what_is_loaded_later_is_there():
    program = "import hal; assert hal.protocols.Device; assert not hasattr(hal, 'missing')"
    output_of([sys.executable, "-c", program])


def test_the_version_is_that_of_the_installed_core():
    program = "import hal, importlib.metadata as m; assert hal.__version__ == m.version('hal-core')"
    output_of([sys.executable, "-c", program])


def test_a_device_of_the_cpu_loads_nothing_that_compiles_kernels():
    program = (
        "import sys, hal; hal.create_device('cpu'); "
        "assert not {'hal_cpu._compile', 'hal_cpu._dialect', 'hal_cpu._regions'} & set(sys.modules)"
    )
    output_of([sys.executable, "-c", program])
