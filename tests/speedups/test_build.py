"""The core's C extension: built with the wheel where that is possible, and left out where not."""

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from wheelhouse import ROOT

if importlib.util.find_spec("hatchling") is None:
    pytest.skip("wheels are built with hatchling", allow_module_level=True)

CORE = ROOT / "hal_core"
LIMIT = 300
"""Seconds for what takes some."""
STRICT = {"HAL_SPEEDUPS": "require", "CFLAGS": "-Wall -Wextra -Werror"}
QUICK = {"HAL_SPEEDUPS": "require", "CFLAGS": "-Wall -Wextra -Werror -O1"}
NOT_BUILT = "hal-core: the plain engine is installed, without its C extension: "
TELL = """
from hal._base import speedups
print(speedups.module is not None, speedups.engine())
"""

can_build = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang")))
    or not Path(sysconfig.get_path("include"), "Python.h").exists()
    or bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="takes a C compiler, Python's headers (python3-dev) and a Python with its lock",
)


def run(command, cwd, **variables):
    """Run a command with these variables; one without a value is removed."""
    unset = {"CC": None, "CFLAGS": None, "HAL_SPEEDUPS": None, "PYTHONPATH": None}
    wanted = os.environ | unset | variables
    return subprocess.run(
        command,
        cwd=cwd,
        env={name: value for name, value in wanted.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def build(source, folder, target="wheel", **variables):
    """Build a distribution of the core; return its path, or None, and what was said."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder]
    done = run(command, source, **variables)
    built = next(folder.iterdir(), None)
    assert (done.returncode == 0) == (built is not None), done.stdout
    return built, done.stdout


def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def extensions(wheel):
    return [name for name in names(wheel) if name.endswith(".so")]


def tell(wheel, folder, **variables):
    """Unpack a wheel, import hal from it, and return what it says of its engine."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return run([sys.executable, "-W", "error", "-c", TELL], folder, **variables)


@pytest.fixture
def copy(tmp_path):
    """A copy of the core, without what was built in it."""
    built = shutil.ignore_patterns("*.so", "__pycache__")
    return Path(shutil.copytree(CORE, tmp_path / "hal_core", ignore=built))


@can_build
def test_a_wheel_has_the_extension_for_this_interpreter(tmp_path):
    before = set(CORE.rglob("*"))
    wheel, _ = build(CORE, tmp_path / "wheels", **QUICK)
    assert extensions(wheel) == [f"hal/_speedups{sysconfig.get_config_var('EXT_SUFFIX')}"]
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{version}-{version}-" in wheel.name
    assert {
        path for path in set(CORE.rglob("*")) - before if "__pycache__" not in str(path)
    } == set()
    told = tell(wheel, tmp_path / "site", HAL_SPEEDUPS="require")
    assert told.stdout == "True with its C extension\n"
    told = tell(wheel, tmp_path / "site", HAL_SPEEDUPS="0")
    assert told.stdout.startswith("False plain Python; HAL_SPEEDUPS=0 in the environment")


@can_build
def test_a_source_distribution_has_all_that_the_extension_needs(tmp_path):
    sdist, _ = build(CORE, tmp_path / "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("hal_core-*")
    assert not list(source.rglob("*.so"))
    wheel, _ = build(source, tmp_path / "wheels", **STRICT)
    assert len(extensions(wheel)) == 1


@can_build
def test_an_editable_installation_has_it_beside_the_modules(copy, tmp_path):
    wheel, _ = build(copy, tmp_path / "wheels", "wheel:editable", **QUICK)
    assert wheel.name.endswith("-none-any.whl")
    assert extensions(wheel) == []
    (built,) = copy.rglob("*.so")
    assert built.parent == copy / "src" / "hal"
    told = run([sys.executable, "-c", TELL], tmp_path, PYTHONPATH=str(copy / "src"))
    assert told.stdout == "True with its C extension\n"
    with (copy / "speedups" / "module.c").open("a") as file:
        file.write("\n/* a later version */\n")
    told = run([sys.executable, "-c", TELL], tmp_path, PYTHONPATH=str(copy / "src"))
    assert told.stdout.count("RuntimeWarning: the C extension was built from other sources") == 1
    assert "False plain Python; the C extension was built from other sources" in told.stdout
    built.unlink()
    done = run([sys.executable, copy / "hatch_build.py"], tmp_path, **QUICK)
    assert done.returncode == 0
    assert built.exists()
    standard, _ = build(copy, tmp_path / "standard", HAL_SPEEDUPS="0")
    assert extensions(standard) == []  # what lies beside the modules is not taken along


def without_compilers(folder):
    """Return variables for a machine that has none, whatever this one has."""
    hidden = folder / "hidden" / "ziglang"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()
    return {"PATH": "", "PYTHONPATH": str(hidden.parent)}


def test_without_a_compiler_the_wheel_is_the_pure_one_and_says_so(tmp_path):
    variables = without_compilers(tmp_path)
    wheel, said = build(CORE, tmp_path / "wheels", **variables)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert extensions(wheel) == []
    (line,) = (line for line in said.splitlines() if line.startswith(NOT_BUILT))
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert "no C compiler was found" in line or "Python.h" in line
    told = tell(wheel, tmp_path / "site")
    assert told.stdout.startswith("False plain Python; ")
    told = tell(wheel, tmp_path / "site", HAL_SPEEDUPS="require")
    assert told.returncode == 1
    assert "ImportError: HAL_SPEEDUPS=require: " in told.stdout


def test_without_a_compiler_who_requires_it_gets_an_error(tmp_path):
    variables = without_compilers(tmp_path)
    wheel, said = build(CORE, tmp_path / "wheels", HAL_SPEEDUPS="require", **variables)
    assert wheel is None
    assert "NotBuiltError: " in said


@can_build
def test_sources_that_do_not_compile_are_loud_and_no_obstacle(copy, tmp_path):
    with (copy / "speedups" / "module.c").open("a") as file:
        file.write("\n#error planted\n")
    quick = QUICK | {"HAL_SPEEDUPS": None}
    wheel, said = build(copy, tmp_path / "wheels", **quick)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "#error planted" in said
    assert "module.c" in said
    assert NOT_BUILT in said
    wheel, said = build(copy, tmp_path / "required", **QUICK)
    assert wheel is None
    assert "#error planted" in said
    done = run([sys.executable, copy / "hatch_build.py"], tmp_path, **quick)
    assert done.returncode == 1
    assert "hal-core: not built: " in done.stdout


@pytest.fixture
def hook(monkeypatch):
    """The functions of the hook, in this process."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("HAL_SPEEDUPS", raising=False)
    return runpy.run_path(str(CORE / "hatch_build.py"))


def test_a_free_threaded_python_gets_the_plain_engine(hook, monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED")
    with pytest.raises(hook["NotBuiltError"], match="free-threaded"):
        hook["build"](tmp_path)


def test_without_pythons_headers_the_reason_names_them(hook, monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(hook["NotBuiltError"], match=r"\(Python\.h\) are not in"):
        hook["build"](tmp_path)


def test_a_compiler_that_does_not_run_is_named(hook, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(hook["NotBuiltError"], match="'no-such-compiler -m64'"):
        hook["find_compiler"]()
