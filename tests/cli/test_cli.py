"""The command line: what it prints, where, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from child_processes import run_command

pytest.importorskip("typer", reason="the cli extra is not installed")
pytest.importorskip("rich", reason="the cli extra is not installed")

from rich.console import Console

import hal
from hal._cli import devices as devices_command
from hal._cli.app import run
from hal.native import DeviceInfo

COMMANDS = ("bench", "conformance", "demo", "devices", "doctor")
TIME_LIMIT = 300


pytestmark = pytest.mark.usefixtures("plain_terminal")


def hal_process(code: str) -> subprocess.CompletedProcess[str]:
    return run_command([sys.executable, "-c", code])


def info(**changes: object) -> DeviceInfo:
    fields = {
        "index": 1,
        "name": "Acme [One]",
        "uuid": "acme-0001",
        "architecture": "acme1",
        "total_memory": 3 << 30,
        "compute_units": 7,
        "max_threads_per_block": 1024,
        "max_shared_memory": 1 << 16,
        "warp_size": 32,
        "driver": "acme 1.2",
        "properties": {"fans": 2},
    }
    return DeviceInfo(**(fields | changes))


@pytest.fixture
def acme(monkeypatch):
    """Three backends in three states, one device, whatever is installed here."""
    backends = (
        hal.BackendStatus("acme", "available", "", "Acme's accelerators", "hal-acme", "1.2.3"),
        hal.BackendStatus("beta", "unavailable", "no libbeta.so\nhere", "Beta", "hal-beta", "2.0"),
        hal.BackendStatus("broke", "broken", "ImportError: [nope]", "", "", ""),
    )
    monkeypatch.setattr(hal, "backends", lambda *, probe=False: backends)
    monkeypatch.setattr(hal, "devices", lambda: (hal.DeviceDescription("acme", info()),))
    return backends


def test_help_names_the_commands(capsys):
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for command in COMMANDS:
        assert command in out
    assert "\x1b[" not in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(capsys, command):
    assert run([command, "--help"]) == 0
    assert "Usage: hal " + command in capsys.readouterr().out


def test_version(capsys):
    assert run(["--version"]) == 0
    name, version = capsys.readouterr().out.split()
    assert name == "hal"
    assert version[0].isdigit()


@pytest.mark.parametrize("arguments", [["demmo"], ["devices", "--jason"], ["demo", "--slots", "0"]])
def test_a_wrong_command_line_exits_with_2(capsys, arguments):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_devices_lists_every_backend_with_state_and_reason(capsys, acme):
    assert run(["devices"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b[" not in captured.out
    lines = captured.out.splitlines()

    def line_of(text: str) -> str:
        return next(line for line in lines if text in line)

    assert line_of("acme ").split(None, 1) == ["acme", "available, hal-acme 1.2.3"]
    assert lines[lines.index(line_of("beta ")) + 1].strip() == "no libbeta.so here"
    assert lines[lines.index(line_of("broke ")) + 1].strip() == "ImportError: [nope]"
    assert line_of("acme:1") == "acme:1  Acme [One], acme1, 7 units, 3.0 GiB"
    assert line_of("driver").split() == ["driver", "acme", "1.2"]
    assert line_of("UUID").split() == ["UUID", "acme-0001"]


def test_devices_can_be_copied_from_a_narrow_terminal(capsys, acme, monkeypatch):
    """Nothing is cut off or folded into columns: the terminal breaks its lines itself."""
    run(["devices"])
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(devices_command, "console", lambda: Console(width=30, highlight=False))
    assert run(["devices"]) == 0
    assert capsys.readouterr().out == wide


def test_devices_as_json(capsys, acme):
    assert run(["devices", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [backend["state"] for backend in record["backends"]] == [
        "available",
        "unavailable",
        "broken",
    ]
    assert record["backends"][1]["reason"] == "no libbeta.so\nhere"
    (device,) = record["devices"]
    assert device["spec"] == "acme:1"
    assert device["backend"] == "acme"
    assert device["total_memory"] == 3 << 30
    assert device["properties"] == {"fans": 2}


def test_devices_of_this_machine(capsys):
    assert run(["devices", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {backend["name"] for backend in record["backends"]} == {
        backend.name for backend in hal.backends()
    }
    assert [device["spec"] for device in record["devices"]] == [
        device.spec for device in hal.devices()
    ]


def test_without_any_backend(capsys, monkeypatch):
    monkeypatch.setattr(hal, "backends", lambda *, probe=False: ())
    monkeypatch.setattr(hal, "devices", lambda: ())
    assert run(["devices"]) == 0
    out = capsys.readouterr().out
    assert "No backend is installed" in out
    assert "No device." in out


@pytest.mark.parametrize(
    ("missing", "command", "words"),
    [
        (("typer",), (), ['pip install "./hal_core[cli]"']),
        (("scipy", "PIL"), ("demo",), ["Pillow, scipy", "[cli,demo]"]),
    ],
)
def test_a_missing_extra_is_told_with_the_pip_command(missing, command, words):
    result = hal_process(
        f"import sys; sys.modules |= dict.fromkeys({missing})\n"
        f"sys.argv = ['hal', *{command}]\n"
        "from hal._cli import main; raise SystemExit(main())"
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert all(each in result.stderr for each in words)


def test_ctrl_c_exits_with_130(monkeypatch):
    def interrupted(*, probe: bool = False) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hal, "backends", interrupted)
    assert run(["devices"]) in {1, 130}


def test_the_command_line_needs_no_demo_library():
    result = hal_process(
        "import sys\n"
        "for name in ('PIL', 'scipy', 'skimage'): sys.modules[name] = None\n"
        "sys.argv = ['hal', 'devices']\n"
        "from hal._cli import main; raise SystemExit(main())"
    )
    assert result.returncode == 0, result.stderr


# Standard output that cannot be written

WAYS = pytest.mark.parametrize(
    "arguments", [("devices",), ("devices", "--json"), ("--help",), ("--version",)]
)


def run_hal(arguments, redirections, **options):
    """Run ``hal`` as a shell does that redirects it."""
    command = f'exec "$0" "$@" {redirections}'
    program = "import sys; from hal._cli import main; sys.exit(main())"
    return subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, "-c", program, *arguments],
        stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        text=True,
        timeout=TIME_LIMIT,
        check=False,
        **options,
    )


@WAYS
@pytest.mark.parametrize(
    ("redirection", "reason"),
    [
        (">&-", "standard output is closed"),
        (">/dev/full", "standard output cannot be written: No space left on device"),
    ],
)
def test_output_that_cannot_be_written_is_one_line_and_2(arguments, redirection, reason):
    done = run_hal(arguments, redirection)
    assert (done.returncode, done.stderr) == (2, f"hal: {reason}\n")


@WAYS
def test_a_reader_that_has_gone_is_told_as_shells_do(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run_hal(arguments, "", stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("redirection", [">&- 2>&-", ">/dev/full 2>/dev/full"])
def test_errors_that_nobody_can_read_change_no_exit_status(redirection):
    assert run_hal(("devices",), redirection).returncode == 2


def test_errors_that_nobody_reads_end_nothing():
    done = run_hal(("doctor", "--json", "cpu"), "2>&-", stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert json.loads(done.stdout)["passed"]
