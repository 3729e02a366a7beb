"""Test discovery on plugins that are built and installed, each in its own interpreter."""

import zipfile
from pathlib import PurePosixPath

import pytest

LIST = "import hal\nresult = {b.name: [b.state, b.reason] for b in hal.backends(probe=PROBE)}"


def error_of(spec):
    return f"""
import hal
try:
    hal.create_device({spec!r})
except hal.HalError as error:
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    result = [[type(link).__name__, str(link)] for link in chain]
"""


def test_the_core_alone(environment):
    assert environment.run(LIST.replace("PROBE", "True")) == {}
    assert environment.run(error_of("cpu")) == [
        [
            "BackendNotFoundError",
            (
                "asked for 'cpu'; installed: no backend at all; in a clone of hal: "
                "pip install ./hal_cpu"
            ),
        ]
    ]


def test_the_three_states(environment):
    installed = ("hal-acme", "hal-broken", "hal-missing", "hal-misspelt", "hal-cuda", "hal-hip")
    found = environment.run(LIST.replace("PROBE", "False"), *installed)
    assert {name: state for name, (state, _) in found.items()} == {
        "acme": "installed",
        "broken": "broken",
        "cuda": "installed",
        "hip": "installed",
        "missing": "installed",
        "misspelt": "broken",
    }
    assert found["broken"][1].startswith("ModuleNotFoundError: No module named")
    assert "unknown hook 'hal_backends'" in found["misspelt"][1]

    found = environment.run(LIST.replace("PROBE", "True"), *installed)
    assert found["acme"] == ["available", ""]
    assert found["missing"][0] == "unavailable"
    assert "libmissing-driver.so.1" in found["missing"][1]
    assert "MISSING_NO_DRIVER 35" in found["missing"][1]
    for name in ("cuda", "hip"):
        assert found[name][0] == "unavailable"
        assert "pip install" in found[name][1]  # the environment has no bindings


def test_the_three_errors(environment):
    chain = environment.run(error_of("cuda"), "hal-acme")
    assert chain == [
        [
            "BackendNotFoundError",
            "asked for 'cuda'; installed: acme; in a clone of hal: pip install ./hal_cuda",
        ]
    ]

    chain = environment.run(error_of("missing"), "hal-missing")
    assert [name for name, _ in chain] == ["BackendUnavailableError"] * 2 + ["OSError"]
    assert chain[0][1].startswith(
        "backend 'missing' (hal-missing 2.0.1) is installed but not available here: "
    )

    chain = environment.run(error_of("broken"), "hal-broken")
    assert [name for name, _ in chain] == ["PluginError", "ModuleNotFoundError"]
    assert chain[0][1].startswith("backend 'broken' (hal-broken 0.3.0) is installed but broken: ")


def test_listing_loads_no_vendor_library(environment):
    code = """
import hal
before = set(sys.modules)
hal.backends()
result = {
    "loaded": sorted(set(sys.modules) - before),
    "mapped": sorted({line.split("/")[-1].strip() for line in open("/proc/self/maps")}),
}
"""
    result = environment.run(code, "hal-acme", "hal-cpu", "hal-cuda", "hal-hip", "hal-missing")
    plugins = {"hal_acme", "hal_cpu", "hal_cuda", "hal_hip", "hal_missing"}
    by_package = {name.split(".")[0] for name in result["loaded"]}
    assert plugins <= by_package
    assert not by_package & {"numpy", "cuda", "hip", "torch", "multiprocessing", "asyncio"}
    assert "hal_acme._driver" not in result["loaded"]
    assert not [
        name
        for name in result["mapped"]
        if name.startswith(("libcuda", "libcudart", "libnvrtc", "libamdhip", "libhiprtc", "libhsa"))
    ]


def test_a_vendors_device(environment):
    code = """
import hal, numpy
with hal.create_device("acme:1?capacity=1048576") as device:
    x = device.upload(numpy.arange(1000, dtype=numpy.uint32))
    y = device.allocate(4000, dtype=numpy.uint32)
    ready = hal.create_semaphore()
    filled = device.queue.fill(y, 7, wait=[ready.at(1)])
    copied = device.queues.upload.copy(x, y, size=2000, wait=[filled])
    ready.signal(1)
    total = int(y.numpy(wait=[copied]).sum())
    try:
        device.allocate(2 << 20)
    except hal.errors.OutOfMemoryError as error:
        refused = [error.native_name, error.native_code]
result = [device.info.name, device.info.index, total, refused, [d.spec for d in hal.devices()]]
"""
    assert environment.run(code, "hal-acme") == [
        "Acme One",
        1,
        sum(range(500)) + 500 * 7,
        ["ACME_OUT_OF_MEMORY", 2],
        ["acme:0", "acme:1"],
    ]


def test_opening_a_device_imports_none_of_what_is_slow(environment):
    code = """
import hal, sys
hal.create_device("acme").close()
result = sorted({"importlib.metadata", "importlib.resources", "email"} & set(sys.modules))
"""
    assert environment.run(code, "hal-acme") == []


def test_a_vendors_events(environment):
    code = """
import ctypes, threading
from hal.native import MemoryType
from hal_acme.driver import AcmeDriver
driver = AcmeDriver()
first, second = (driver.open_device(index, {}) for index in range(2))
held, waiting = first.create_stream(), second.create_stream()
event, later = first.create_event(), second.create_event()
fresh = first.query_event(event)

gate = threading.Event()
gate_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda argument: gate.wait(10))
first.notify(held, ctypes.cast(gate_function, ctypes.c_void_p).value, 0)
first.record_event(event, held)
second.wait_event(waiting, event)     # captures the record above,
first.destroy_event(event)            # so that the event may go,
target = second.allocate(8, MemoryType.HOST)
second.fill(waiting, target, 0xABCD, 2, 4)
second.record_event(later, waiting)
before = second.query_event(later)
gate.set()
second.synchronize_stream(waiting)
filled = ctypes.string_at(target, 8).hex()
result = [fresh, before, second.query_event(later), filled]
second.free(target, MemoryType.HOST)
result.append(second.memory_info()[0] == second.memory_info()[1])
first.destroy_stream(held)
second.destroy_stream(waiting)
"""
    assert environment.run(code, "hal-acme") == [True, False, True, "cdab" * 4, True]


@pytest.mark.parametrize(
    ("distribution", "suffixes"),
    [
        ("hal-core", {".py", ".pyi", ".typed", ".h", ""}),  # <cmath> and others
        ("hal-cpu", {".py", ".typed", ".c", ".h"}),
        ("hal-cuda", {".py", ".typed"}),
        ("hal-hip", {".py", ".typed", ".h"}),
        ("hal-conformance", {".py", ".typed"}),
    ],
)
def test_a_wheel_holds_its_package(wheels, distribution, suffixes):
    with zipfile.ZipFile(wheels[distribution]) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert {PurePosixPath(name).suffix for name in files} == suffixes
    assert len({name.split("/")[0] for name in files}) == 1
