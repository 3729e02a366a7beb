"""Provide plugins in two ways: made up in this process, and installed from real wheels."""

import json
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pluggy
import pytest
from child_processes import output_of
from wheelhouse import PLUGINS, ROOT, build_wheels

from hal._backends.installed import announced
from hal._backends.registry import Registry
from hal.native import DeviceInfo, NativeDriver
from hal.plugin import ENTRY_POINT_GROUP, Backend, hookimpl

MEMBERS = ("hal_core", "hal_cpu", "hal_cuda", "hal_hip", "conformance")
NAMES = ("acme", "broken", "missing", "misspelt")


class FakeDriver(NativeDriver):
    """Describe devices that nobody opens."""

    def __init__(self, *uuids):
        self.infos = [describe(index, uuid) for index, uuid in enumerate(uuids)]

    def devices(self):
        return self.infos

    def open_device(self, index, parameters):
        raise NotImplementedError


def describe(index, uuid):
    return DeviceInfo(
        index=index,
        name="Fake",
        uuid=uuid,
        architecture="fake1",
        total_memory=1 << 20,
        compute_units=1,
        max_threads_per_block=1,
        max_shared_memory=0,
        warp_size=1,
        driver="fake 1",
    )


def backend(name, *, uuids=("FAKE-1",), probe=lambda: None, open_=None, native_api=1):
    """Return a record whose parts all work, but for those given."""
    driver = FakeDriver(*uuids)
    return Backend(
        name=name,
        summary=f"The {name}",
        probe=probe,
        open=open_ or (lambda: driver),
        native_api=native_api,
    )


class Plugins:
    """Collect made-up plugins, and make a registry of them."""

    def __init__(self, folder, monkeypatch):
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._entry_points = []

    def announce(self, name, value, distribution=None):
        """Add an entry point of a distribution that is recorded as an installer records it."""
        distribution = distribution or f"hal-{name}"
        info = self._folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text(f"[hal.backends]\n{name} = {value}\n")
        self._entry_points += announced(str(info), ENTRY_POINT_GROUP)

    def add(self, name, hook, distribution=None):
        """Add a plugin whose hook is the given function."""
        module = types.ModuleType(f"plugin_{len(self._entry_points)}_of_{name}")
        module.hal_backend = hookimpl(hook)
        self._monkeypatch.setitem(sys.modules, module.__name__, module)
        self.announce(name, module.__name__, distribution)

    def add_source(self, name, source):
        """Add a plugin that is a file with this text."""
        module = f"source_of_{name}"
        (self._folder / f"{module}.py").write_text(source)
        self._monkeypatch.syspath_prepend(str(self._folder))
        self._monkeypatch.delitem(sys.modules, module, raising=False)
        self.announce(name, module)

    def add_backend(self, name, **parts):
        """Add a plugin that works, but for the given parts of its record."""
        record = backend(name, **parts)
        self.add(name, lambda: record)

    def registry(self):
        return Registry(lambda: self._entry_points)

    record = staticmethod(backend)


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    return Plugins(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Build every member and every plugin offline; return the wheels by distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = [ROOT / name for name in MEMBERS]
    return build_wheels(folder, *sources, *(PLUGINS / name for name in NAMES))


class Environment:
    """Run code in interpreters that have exactly the distributions that a test names."""

    def __init__(self, wheels, folder):
        self._folders = {}
        for name, wheel in wheels.items():
            # Installing a pure wheel is unpacking it.
            self._folders[name] = folder / name
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder / name)
        self._libraries = folder / "libraries"
        self._libraries.mkdir()
        for module in (np, pluggy):
            site = Path(module.__file__).parents[1]
            for path in site.glob(f"{module.__name__}*"):
                (self._libraries / path.name).symlink_to(path)

    def run(self, code, *distributions):
        """Run `code` with hal-core and these installed; return what it assigned to `result`."""
        folders = [self._libraries, *(self._folders[name] for name in ("hal-core", *distributions))]
        prelude = f"import json, sys\nsys.path += {[str(folder) for folder in folders]}\n"
        ending = "\nprint(json.dumps(result))"
        # Without site, the packages of this interpreter are out of sight, and so are its plugins.
        command = [sys.executable, "-I", "-S", "-c", prelude + code + ending]
        return json.loads(output_of(command))


@pytest.fixture(scope="session")
def environment(wheels, tmp_path_factory):
    return Environment(wheels, tmp_path_factory.mktemp("environment"))
