"""What `import hal` loads: every module more makes every program start later."""

import subprocess
import sys

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
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, timeout=300, text=True
    )
    loaded = set(done.stdout.split())
    assert {"hal", "hal.native", "pluggy"} <= loaded
    assert not loaded & LATER


def test_what_is_loaded_later_is_there():
    program = "import hal; assert hal.protocols.Device; assert not hasattr(hal, 'missing')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_the_version_is_that_of_the_installed_core():
    program = "import hal, importlib.metadata as m; assert hal.__version__ == m.version('hal-core')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_a_device_of_the_cpu_loads_nothing_that_compiles_kernels():
    program = (
        "import sys, hal; hal.create_device('cpu'); "
        "assert not {'hal_cpu._compile', 'hal_cpu._dialect', 'hal_cpu._regions'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
