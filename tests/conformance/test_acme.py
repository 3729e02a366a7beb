"""A vendor's whole way: install hal, the suite and a plugin, and be found conformant."""

import importlib.util
import json
import os

import pytest
from child_processes import run_command

pytest.importorskip("typer", reason="the cli extra is not installed")
pytest.importorskip("rich", reason="the cli extra is not installed")

if importlib.util.find_spec("hatchling") is None or importlib.util.find_spec("pip") is None:
    pytest.skip("wheels are built with hatchling and pip", allow_module_level=True)

from wheelhouse import PLUGINS, ROOT, build_wheels, create_environment


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Return the folder of programs of a new environment in which the three are installed."""
    folder = tmp_path_factory.mktemp("fresh")
    wheels = build_wheels(
        folder / "wheels", ROOT / "hal_core", ROOT / "conformance", PLUGINS / "acme"
    )
    core = f"hal-core[cli] @ {wheels['hal-core'].as_uri()}"
    return create_environment(
        folder / "environment", core, wheels["hal-conformance"], wheels["hal-acme"]
    )


def run(programs, *arguments, cwd):
    hidden = {"FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "PYTHONPATH", "PYTHONHOME"}
    rest = {key: value for key, value in os.environ.items() if key not in hidden}
    return run_command([programs / "hal", *arguments], cwd=cwd, env=rest)


def test_the_environment_holds_the_plugin_alone(fresh, tmp_path):
    done = run(fresh, "devices", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert [backend["name"] for backend in record["backends"]] == ["acme"]
    assert [device["spec"] for device in record["devices"]] == ["acme:0", "acme:1"]


def test_a_vendors_plugin_is_conformant(fresh, tmp_path):
    done = run(fresh, "conformance", "acme", "--report", "r.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1].split(maxsplit=1) == ["verdict", "conformant"]
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verdict"] == "conformant"
    assert report["complete"]
    assert report["problems"] == []
    assert report["features"]["supported"] == ["pageable_copies"]
    assert report["profile"] == {"unsupported": {}, "expected_failures": {}}
    # Whatever was not run belongs to a feature that acme does not declare.
    for test in report["tests"]:
        gated = test["reason"].startswith("the device does not have the feature ")
        assert test["status"] == ("unsupported" if gated else "passed"), test
    assert report["counts"]["passed"] > 900
    assert (tmp_path / "r.md").read_text().startswith("# Conformance of acme: conformant")
