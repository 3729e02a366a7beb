"""Test discovery on plugins made up in this process."""

import contextlib
import errno
import gc
import itertools
import os
import signal
import threading
import weakref

import pytest
from core_harness import Running, collect_in_threads, handled_by
from interrupts import Interrupts, Nested

import hal
from hal._backends import registry as _registry
from hal.errors import (
    ArgumentTypeError,
    BackendNotFoundError,
    BackendUnavailableError,
    DeviceLostError,
    InvalidArgumentError,
    NotFoundError,
    OperationError,
    PluginError,
)
from hal.native import DeviceInfo, NativeDriver


def states(registry, *, probe=False):
    return {status.name: status.state for status in registry.backends(probe=probe)}


def the_status(registry, *, probe=False):
    (status,) = registry.backends(probe=probe)
    return status


def test_no_plugin_is_an_empty_list(plugins):
    registry = plugins.registry()
    assert registry.backends(probe=True) == ()
    assert registry.devices() == ()


def test_a_status_tells_what_was_installed(plugins):
    plugins.add_backend("one")
    status = the_status(plugins.registry())
    assert (status.name, status.state, status.reason) == ("one", "installed", "")
    assert (status.summary, status.distribution, status.version) == ("The one", "hal-one", "1.2")


def test_a_process_that_has_nothing_left_does_not_break_a_plugin(plugins):
    full = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def probe():
        if full:
            raise full[0]

    plugins.add_backend("one", probe=probe)
    registry = plugins.registry()
    with pytest.raises(BackendUnavailableError, match=r"not available now: .*Too many open files"):
        registry.resolve("one", {})
    full.clear()
    assert the_status(registry, probe=True).state == "available"


def test_a_process_that_has_nothing_left_is_listed_as_such(plugins):
    """Listing raises for no backend, also if it cannot be loaded now."""
    record, full = plugins.record("one"), [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def hook():
        if full:
            raise full[0]
        return record

    plugins.add("one", hook)
    registry = plugins.registry()
    status = the_status(registry)
    assert (status.state, status.summary) == ("unavailable", "")
    assert "Too many open files" in status.reason
    full.clear()
    assert the_status(registry).state == "installed"


def test_a_ctrl_c_anywhere_leaves_a_plugin_that_can_be_opened_o3(plugins):
    """O3: after one at the beginning of a load the thread could not load that plugin any more."""
    plugins.add_backend("one")
    for number in itertools.count(1):
        registry = plugins.registry()
        with Interrupts(number) as interrupted:
            registry.resolve("one", {})
        assert registry.resolve("one", {}).device_index == 0, interrupted.places
        if not interrupted.places:
            break
    assert number > 10


def test_a_handler_anywhere_may_ask_for_the_plugin_that_is_being_opened_o3(plugins):
    """O3: as the lock had just been taken it waited for its own thread."""
    plugins.add_backend("one")
    registries = []

    def act():
        registries.append(registry := registries[-1] if len(registries) % 2 else plugins.registry())
        with contextlib.suppress(PluginError):
            registry.resolve("one", {})

    for number in itertools.count(1):
        registries.clear()
        with Nested(number, hal, act) as nested:
            act()
        assert registries[0].resolve("one", {}).device_index == 0
        if not nested.places:
            break
    assert number > 10


def test_what_a_signals_handler_raises_is_not_the_plugins_o3(plugins):
    def handler(*_):
        raise TimeoutError

    plugins.add_backend("one", probe=lambda: signal.raise_signal(signal.SIGALRM))
    registry = plugins.registry()
    with handled_by(handler), pytest.raises(TimeoutError):
        registry.resolve("one", {})


def test_listing_does_not_probe(plugins):
    calls = []
    plugins.add_backend("one", probe=lambda: calls.append("probe"))
    registry = plugins.registry()
    registry.backends(probe=False)
    assert calls == []
    assert the_status(registry, probe=True).state == "available"
    assert calls == ["probe"]


def test_a_plugin_is_loaded_when_it_is_asked_for(plugins):
    loaded = []
    records = {name: plugins.record(name) for name in ("one", "two")}
    for name, record in records.items():
        plugins.add(name, lambda record=record: loaded.append(record.name) or record)
    registry = plugins.registry()
    registry.resolve("one", {})
    assert loaded == ["one"]
    registry.backends(probe=False)
    assert loaded == ["one", "two"]


def test_backends_are_sorted(plugins):
    for name in ("b", "c", "a"):
        plugins.add_backend(name)
    assert list(states(plugins.registry())) == ["a", "b", "c"]


BROKEN_SOURCES = {
    "import": ("import a_module_that_nobody_has", "ModuleNotFoundError: No module named"),
    "syntax": ("def (:", "SyntaxError: "),
    "exit": ("import sys\nsys.exit(3)", "SystemExit: 3"),
    "no_hook": ("hal_backend = 1", "has no function hal_backend marked with hal.plugin.hookimpl"),
    "unmarked": ("def hal_backend(): return None", "has no function hal_backend marked"),
    "misspelt": (
        "from hal.plugin import hookimpl\n@hookimpl\ndef hal_backends(): return []",
        "unknown hook 'hal_backends'",
    ),
    "hook_raises": (
        "from hal.plugin import hookimpl\n@hookimpl\ndef hal_backend(): raise OSError('no disk')",
        "OSError: no disk",
    ),
}


@pytest.mark.parametrize("fault", BROKEN_SOURCES)
def test_a_broken_plugin_is_listed_and_hides_no_other(plugins, fault):
    source, reason = BROKEN_SOURCES[fault]
    plugins.add_source("bad", source)
    plugins.add_backend("good")
    registry = plugins.registry()
    assert states(registry, probe=True) == {"bad": "broken", "good": "available"}
    assert reason in registry.backends(probe=False)[0].reason
    assert [device.spec for device in registry.devices()] == ["good:0"]
    with pytest.raises(PluginError, match=r"backend 'bad' \(hal-bad 1.2\) is installed but broken"):
        registry.resolve("bad", {})


def test_a_hook_that_returns_no_record(plugins):
    plugins.add("bad", lambda: "a string")
    assert "returned str, not a hal.plugin.Backend" in the_status(plugins.registry()).reason


def test_a_record_with_another_name(plugins):
    record = plugins.record("worse")
    plugins.add("bad", lambda: record)
    reason = the_status(plugins.registry()).reason
    assert "entry point is called 'bad'" in reason
    assert "record 'worse'" in reason


@pytest.mark.parametrize(("version", "upgrade"), [(2, "hal-core"), (0, "hal-old")])
def test_a_native_api_of_another_version(plugins, version, upgrade):
    plugins.add_backend("old", native_api=version)
    with pytest.raises(PluginError, match=f"version {version} of hal.native.* version 1") as caught:
        plugins.registry().resolve("old", {})
    assert str(caught.value).endswith(f"upgrade {upgrade}")


def test_two_plugins_of_one_name_are_both_refused(plugins):
    for distribution in ("vendor-two", "vendor-one"):
        record = plugins.record("same")
        plugins.add("same", lambda record=record: record, distribution)
    plugins.add_backend("other")
    registry = plugins.registry()
    refused = [status for status in registry.backends(probe=True) if status.state == "broken"]
    assert sorted(status.distribution for status in refused) == ["vendor-one", "vendor-two"]
    assert {s.reason for s in refused} == {
        "vendor-one and vendor-two both provide 'same'; uninstall one of them"
    }
    with pytest.raises(PluginError, match="vendor-one and vendor-two both"):
        registry.resolve("same", {})
    assert registry.resolve("other", {}).device_index == 0


def test_a_broken_plugin_raises_from_its_cause_each_time(plugins):
    plugins.add_source("bad", "import a_module_that_nobody_has")
    registry = plugins.registry()
    for _ in range(2):
        with pytest.raises(PluginError) as caught:
            registry.resolve("bad", {})
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)
        assert "source_of_bad.py" in "".join(caught.value.__cause__.__notes__)


def test_a_kept_failure_keeps_no_frames_alive(plugins):
    class Big:
        pass

    def first_call(registry):
        big = Big()
        registry.backends(probe=False)
        return weakref.ref(big)

    plugins.add_source("bad", "try:\n    import no_such_a\nexcept ImportError:\n    1 / 0")
    registry = plugins.registry()
    reference = first_call(registry)
    gc.collect()
    assert the_status(registry).state == "broken"
    assert reference() is None


def test_an_unavailable_backend(plugins):
    def probe():
        message = "no device"
        raise BackendUnavailableError(message, native_name="ERROR_NO_DEVICE", native_code=100)

    plugins.add_backend("here")
    plugins.add_backend("away", probe=probe)
    registry = plugins.registry()
    away, _ = registry.backends(probe=True)
    assert (away.state, away.reason) == ("unavailable", "no device (ERROR_NO_DEVICE 100)")
    assert [device.backend for device in registry.devices()] == ["here"]
    with pytest.raises(BackendUnavailableError, match="not available here: no device") as caught:
        registry.resolve("away", {})
    assert caught.value.native_name == "ERROR_NO_DEVICE"
    assert caught.value.native_code == 100
    assert str(caught.value.__cause__) == "no device"


def test_a_vendors_error_while_listing_devices_is_no_fault_of_the_plugin(plugins):
    def probe():
        raise OperationError("no", native_name="ERROR_UNKNOWN", native_code=999)

    plugins.add_backend("away", probe=probe)
    assert the_status(plugins.registry(), probe=True).state == "unavailable"


def test_a_device_that_cannot_be_opened_is_unavailable_with_the_reason(plugins, monkeypatch):
    class Driver(NativeDriver):
        def devices(self):
            return [DeviceInfo(0, "Fake", "FAKE", "fake1", 1 << 20, 1, 1, 0, 1, "fake 1")]

        def open_device(self, index, parameters):
            raise DeviceLostError("it is gone", native_name="ERROR_GONE", native_code=46)

    plugins.add_backend("one", open_=Driver)
    monkeypatch.setattr(_registry, "resolve", plugins.registry().resolve)
    with pytest.raises(
        BackendUnavailableError, match="one:0 cannot be opened: it is gone"
    ) as caught:
        hal.create_device("one")
    assert (caught.value.native_name, caught.value.native_code) == ("ERROR_GONE", 46)


def test_a_device_whose_opening_has_a_bug_is_the_plugins_fault(plugins, monkeypatch):
    class Driver(NativeDriver):
        def devices(self):
            return [DeviceInfo(0, "Fake", "FAKE", "fake1", 1 << 20, 1, 1, 0, 1, "fake 1")]

        def open_device(self, index, parameters):
            raise KeyError("bug")

    plugins.add_backend("one", open_=Driver)
    monkeypatch.setattr(_registry, "resolve", plugins.registry().resolve)
    with pytest.raises(PluginError, match=r"one:0 cannot be opened: .*KeyError\('bug'\)") as caught:
        hal.create_device("one")
    assert isinstance(caught.value.__cause__, KeyError)


def test_parameters_that_a_backend_does_not_have_are_refused():
    with pytest.raises(
        InvalidArgumentError,
        match=r"^cpu devices have no parameter 'thread'; they have: threads, .*, memory_limit",
    ):
        hal.create_device("cpu?thread=2")


def test_a_backend_without_parameters_of_its_own(plugins, monkeypatch):
    plugins.add_backend("one")
    monkeypatch.setattr(_registry, "resolve", plugins.registry().resolve)
    with pytest.raises(
        InvalidArgumentError, match=r"no parameter 'colour'; they have: command_buffer,"
    ):
        hal.create_device("one?colour=red")


def test_a_probe_that_has_a_bug(plugins):
    plugins.add_backend("bad", probe=[].pop)
    registry = plugins.registry()
    status = the_status(registry, probe=True)
    assert (status.state, status.reason) == ("broken", "IndexError: pop from empty list")
    with pytest.raises(PluginError) as caught:
        registry.resolve("bad", {})
    assert isinstance(caught.value.__cause__, IndexError)


def test_a_driver_of_the_wrong_type(plugins):
    plugins.add_backend("bad", open_=lambda: "driver")
    with pytest.raises(PluginError, match=r"open\(\) returned str, not a hal.native.NativeDriver"):
        plugins.registry().resolve("bad", {})


def test_a_failed_probe_is_asked_again(plugins):
    driver_is_here = False

    def probe():
        if not driver_is_here:
            raise BackendUnavailableError

    plugins.add_backend("late", probe=probe)
    registry = plugins.registry()
    assert states(registry, probe=True) == {"late": "unavailable"}
    driver_is_here = True
    assert states(registry, probe=True) == {"late": "available"}


def test_a_driver_is_opened_once_by_many_threads(plugins):
    drivers = []
    record = plugins.record("one")
    start = threading.Barrier(4)

    def open_():
        drivers.append(record.open())
        return drivers[-1]

    plugins.add_backend("one", open_=open_)
    registry = plugins.registry()

    def work():
        start.wait(10)
        return registry.resolve("one", {}).driver

    results = collect_in_threads([work] * 4)
    assert len(drivers) == 1
    assert results == drivers * 4


def test_a_slow_backend_holds_up_no_other(plugins):
    opening, go_on = threading.Event(), threading.Event()

    def probe():
        opening.set()
        assert go_on.wait(10)

    plugins.add_backend("slow", probe=probe)
    plugins.add_backend("fast")
    registry = plugins.registry()
    slow = Running(registry.resolve, "slow", {})
    assert opening.wait(10)
    assert registry.resolve("fast", {}).device_index == 0
    go_on.set()
    slow.result()


def test_a_plugin_that_asks_for_itself_while_it_opens(plugins):
    plugins.add_backend("loop", probe=lambda: registry.resolve("loop", {}))
    registry = plugins.registry()
    with pytest.raises(PluginError, match="asked for itself while it was being opened"):
        registry.resolve("loop", {})


def test_a_plugin_that_asks_for_backends_while_it_is_loaded(plugins):
    def hook():
        registry.backends(probe=False)

    plugins.add("loop", hook)
    plugins.add_backend("good")
    registry = plugins.registry()
    assert states(registry) == {"good": "installed", "loop": "broken"}
    assert "while it was being loaded" in registry.backends(probe=False)[1].reason


def test_a_backend_may_open_another_while_it_opens(plugins):
    plugins.add_backend("inner")
    plugins.add_backend("outer", probe=lambda: registry.resolve("inner", {}))
    registry = plugins.registry()
    assert registry.resolve("outer", {}).device_index == 0


@pytest.mark.parametrize(
    ("spec", "keywords", "index", "parameters"),
    [
        ("one", {}, 0, {}),
        ("one:1", {}, 1, {}),
        ("one?a=b", {}, 0, {"a": "b"}),
        ("one:1?a=b&c=", {}, 1, {"a": "b", "c": ""}),
        ("one?path=/a:b=c?d", {}, 0, {"path": "/a:b=c?d"}),
        ("one?a=b&c=d", {"a": "x", "n": 4}, 0, {"a": "x", "c": "d", "n": "4"}),
        ("one", {"on": True, "off": False}, 0, {"on": "true", "off": "false"}),
        ("one", {"half": 0.5}, 0, {"half": "0.5"}),
        ("FAKE-22aa", {}, 1, {}),
        ("fake-22AA?a=b", {}, 1, {"a": "b"}),
        ("0000:65:00.0", {}, 2, {}),
    ],
)
def test_specifications(plugins, spec, keywords, index, parameters):
    plugins.add_backend("one", uuids=("FAKE-11aa", "FAKE-22aa", "0000:65:00.0"))
    target = plugins.registry().resolve(spec, keywords)
    assert (target.backend.name, target.device_index) == ("one", index)
    assert target.parameters == parameters
    assert target.driver.devices()[index].index == index


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("one:", "'' in the device specification 'one:' is no device index"),
        ("one:x", "'x' in the device specification"),
        ("one:-1", "'-1' in the device specification"),
        ("one:1:2", "'1:2' in the device specification"),
        ("one?a", "'a' in the device specification 'one\\?a' is not key=value"),
        ("one?=b", "'=b' in the device"),
        ("one?a=b&", "'' in the device"),
        ("one?a=1&a=2", "'a' is given twice"),
    ],
)
def test_malformed_specifications(plugins, spec, message):
    plugins.add_backend("one")
    with pytest.raises(InvalidArgumentError, match=message):
        plugins.registry().resolve(spec, {})


def test_specifications_of_the_wrong_type(plugins):
    plugins.add_backend("one")
    with pytest.raises(ArgumentTypeError, match="is a string such as 'cpu'"):
        plugins.registry().resolve(0, {})
    with pytest.raises(ArgumentTypeError, match="'a' must be a string, a number or a boolean"):
        plugins.registry().resolve("one", {"a": None})


@pytest.mark.parametrize(
    ("count", "message"), [(1, "has 1 device: one:0"), (2, "has 2 devices: one:0, one:1")]
)
def test_an_index_out_of_range(plugins, count, message):
    plugins.add_backend("one", uuids=[f"FAKE-{number}" for number in range(count)])
    with pytest.raises(NotFoundError, match=f"asked for 'one:2'; backend 'one' {message}"):
        plugins.registry().resolve("one:2", {})


def test_a_backend_without_devices(plugins):
    plugins.add_backend("one", uuids=())
    with pytest.raises(BackendUnavailableError, match="is installed, but has no device here"):
        plugins.registry().resolve("one", {})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cuda", "asked for 'cuda'; installed: one; in a clone of hal: pip install ./hal_cuda"),
        ("hip:1", "asked for 'hip'; installed: one; in a clone of hal: pip install ./hal_hip"),
        ("vulkan", "asked for 'vulkan'; installed: one"),
        ("onne", "asked for 'onne'; installed: one; did you mean 'one'?"),
        ("CUDA", "asked for 'CUDA'; installed: one; did you mean 'cuda'?"),
        ("", "asked for ''; installed: one"),
        ("GPU-7f", "asked for 'GPU-7f'; installed: one; no available device has this UUID"),
    ],
)
def test_a_backend_that_is_not_installed(plugins, spec, message):
    plugins.add_backend("one")
    with pytest.raises(BackendNotFoundError) as caught:
        plugins.registry().resolve(spec, {})
    assert str(caught.value) == message


def test_a_name_that_is_not_installed_opens_no_driver(plugins):
    calls = []
    plugins.add_backend("one", probe=lambda: calls.append("probe"))
    with pytest.raises(BackendNotFoundError):
        plugins.registry().resolve("other:1", {})
    assert calls == []


def test_nothing_installed_at_all(plugins):
    with pytest.raises(
        BackendNotFoundError, match="no backend at all; in a clone of hal: pip inst"
    ):
        plugins.registry().resolve("acme", {})


def test_a_device_that_two_backends_offer(plugins):
    plugins.add_backend("one", uuids=("GPU-1",))
    plugins.add_backend("two", uuids=("GPU-0", "GPU-1"))
    with pytest.raises(InvalidArgumentError, match="'GPU-1', which is both one:0 and two:1; ask"):
        plugins.registry().resolve("GPU-1", {})
