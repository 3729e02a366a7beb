"""``hal bench``: what it measures, in which units, and where it writes."""

import contextlib
import itertools
import json
import os
import pty
import subprocess
import sys
import threading

import pytest

pytest.importorskip("typer", reason="the cli extra is not installed")
pytest.importorskip("rich", reason="the cli extra is not installed")

import hal
from hal._base import speedups
from hal._cli import measure as measure_module
from hal._cli.app import run

NAMES = [
    "submit",
    "chain of 1000, a step",
    "round trip",
    "host signal, work, host wait",
    "write 1 MiB",
    "read 1 MiB",
    "copy 1 MiB",
    "fill 1 MiB",
]


@pytest.fixture(autouse=True)
def _small(monkeypatch, plain_terminal):
    monkeypatch.setattr(measure_module, "_LARGEST", 1 << 20)


def test_the_table(capsys):
    assert run(["bench", "--seconds", "0"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b[" not in captured.out
    first, engine, *lines = captured.out.splitlines()
    assert engine == f"engine: {speedups.engine()}"
    assert first.startswith(f"cpu:0 {hal.devices()[0].info.name}")
    for name in NAMES:
        (line,) = (line for line in lines if line.strip().startswith(name))
        median, low, high, unit, samples = line.split()[-5:]
        assert 0 < float(low) <= float(median) <= float(high)
        assert unit == ("GB/s" if name.endswith("MiB") else "us")
        assert int(samples) >= 5


def test_units_and_divisors_by_a_clock_that_ticks_once_a_look(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(measure_module, "_clock", lambda: float(next(ticks)))
    with hal.create_device("cpu") as device:
        rows = [take() for _, take in measure_module.measure(device, 0.0)]
    found = {row.name: row.median for row in rows}
    one_second = {"submit": 1e6 / 50, "chain of 1000, a step": 1e6 / 1000}
    one_second |= dict.fromkeys(NAMES[2:4], 1e6)
    one_second |= dict.fromkeys(NAMES[4:], (1 << 20) / 1e9)
    assert found == pytest.approx(one_second)
    assert {row.samples for row in rows} == {5}


def test_as_json(capsys):
    assert run(["bench", "--device", "cpu:0", "--seconds", "0", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["device"] == "cpu:0"
    assert record["hal"] == hal.__version__
    assert [row["name"] for row in record["rows"]] == NAMES
    assert record["engine"] == speedups.engine()
    assert set(record["rows"][0]) == {"name", "unit", "median", "low", "high", "samples"}


@pytest.mark.parametrize(
    "arguments", [["--device", "no-such-backend"], ["--device", "cpu:99"], ["--seconds", "-1"]]
)
def test_a_mistake_exits_with_2(capsys, arguments):
    assert run(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


PROGRAM = """
import sys
from hal._cli import main, measure
measure._LARGEST = 4096
sys.argv = ["hal", "bench", "--seconds", "0"]
raise SystemExit(main())
"""


def read_all(terminal, into):
    """Take in what comes until the other end is closed, which is an error of Linux's."""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 1 << 12):
            into.append(data)


def test_a_terminal_gets_a_bar_and_the_table_stays_plain():
    ours, theirs = pty.openpty()
    shown = []
    reader = threading.Thread(target=read_all, args=(ours, shown), daemon=True)
    reader.start()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"TERM": "xterm", "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        os.close(theirs)
        reader.join(10)
        os.close(ours)
    bar = b"".join(shown).decode()
    assert done.returncode == 0, bar
    assert "\x1b[" not in done.stdout
    assert "4096 B" in done.stdout
    assert "/8" in bar
    assert "\x1b[" in bar
