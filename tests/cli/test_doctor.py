"""``hal doctor``: what it finds, what it says to do, and how it exits."""

import json

import pytest

pytest.importorskip("typer", reason="the cli extra is not installed")
pytest.importorskip("rich", reason="the cli extra is not installed")

import hal
from hal._base import speedups
from hal._cli import device_checks
from hal._cli.app import run
from hal.native import DeviceInfo

pytestmark = pytest.mark.usefixtures("plain_terminal")


def outcomes(spec="cpu"):
    return {outcome.check: outcome for outcome in device_checks.examine(spec)}


def statuses(spec="cpu"):
    return {name: outcome.status for name, outcome in outcomes(spec).items()}


def test_a_healthy_device_passes_every_check(capsys):
    assert run(["doctor", "cpu"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b[" not in captured.out
    lines = captured.out.splitlines()
    found = {line.split()[0]: line.split()[1] for line in lines if line.startswith("  ")}
    assert list(found) == ["open", "fill", "copy", "wait", "kernel", "graph", "close"]
    assert set(found.values()) == {"passed"}
    assert lines[-1] == "passed: 1 device checked"


def test_as_json(capsys):
    assert run(["doctor", "cpu:0", "cpu", "cpu", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["passed"] is True
    assert [device["device"] for device in record["devices"]] == ["cpu:0", "cpu"]
    for device in record["devices"]:
        assert device["name"] == hal.devices()[0].info.name
        assert [check["check"] for check in device["checks"]][1:-1] == list(device_checks.CHECKS)
        for check in device["checks"]:
            assert set(check) == {"check", "status", "seconds", "reason", "next_step"}
            assert check["status"] == "passed"


def test_the_engine_is_told_with_the_reason(capsys, monkeypatch):
    monkeypatch.setattr(speedups, "engine", lambda: "plain Python; no [compiler] here")
    assert run(["doctor", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "engine: plain Python; no [compiler] here"
    assert run(["doctor", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "plain Python; no [compiler] here"


def no_operation(queue, *_, wait=(), signal=(), **__):
    return queue.barrier(wait=wait, signal=signal)


def waits_for_nothing(fill):
    def broken(queue, buffer, value, *, wait=(), signal=()):
        submission = fill(queue, buffer, value, signal=signal)
        submission.wait(10)
        return submission

    return broken


@pytest.mark.parametrize(
    ("method", "broken", "check"),
    [
        ("fill", lambda fill: lambda *a, **k: fill(a[0], a[1], b"\x01\x02\x03\x05", **k), "fill"),
        ("copy", lambda _: no_operation, "copy"),
        ("read", lambda _: no_operation, "copy"),
        ("fill", waits_for_nothing, "wait"),
        ("dispatch", lambda _: no_operation, "kernel"),
        ("execute", lambda _: no_operation, "graph"),
    ],
)
def test_each_check_finds_what_it_is_there_for(monkeypatch, method, broken, check):
    monkeypatch.setattr(hal.Queue, method, broken(getattr(hal.Queue, method)))
    found = outcomes()
    assert found[check].status == "failed"
    assert check in found[check].reason
    assert "hal conformance cpu" in found[check].next_step
    assert found["close"].status == "passed"  # the others were made all the same
    assert len(found) == len(device_checks.CHECKS) + 2


def test_a_device_that_does_not_answer_is_not_asked_again(monkeypatch):
    never = hal.create_semaphore()
    copy = hal.Queue.copy

    def held(queue, source, target, *, wait=()):
        monkeypatch.setattr(device_checks, "LIMIT", 0.05)  # what came before had its time
        return copy(queue, source, target, wait=[*wait, never.at(1)])

    monkeypatch.setattr(hal.Queue, "copy", held)
    found = outcomes()
    assert found["fill"].status == "passed"
    assert found["copy"].status == "failed"
    assert "other work holds the device" in found["copy"].next_step
    for name in ("wait", "kernel", "graph"):
        assert found[name].status == "skipped"
        assert found[name].reason == "the device does not answer"
    assert "close" not in found


def test_a_device_without_a_call_table_is_told_of(monkeypatch):
    assert "calls" not in outcomes()
    monkeypatch.setattr("hal_cpu.device.CpuDevice.call_table", lambda _: None)
    found = outcomes()
    assert (found["calls"].status, found["close"].status) == ("absent", "passed")
    assert "call table" in found["calls"].reason


def test_what_a_device_leaves_out_is_no_failure(monkeypatch):
    monkeypatch.setattr(hal.Device, "features", frozenset())
    found = statuses()
    assert found["kernel"] == found["graph"] == "absent"
    assert set(found.values()) == {"passed", "absent"}


@pytest.mark.parametrize(
    ("error", "reason", "step"),
    [
        (hal.errors.CompilationError("no\nlist of includes"), "no list of includes", "compiler"),
        (hal.errors.OutOfMemoryError("all used"), "all used", "memory"),
        (
            hal.errors.OperationError("refused", native_name="ACME_E7", native_code=7),
            "refused (ACME_E7)",
            "hal conformance cpu",
        ),
        (hal.errors.InvalidArgumentError("not mine"), "not mine", "hal conformance cpu"),
        (RuntimeError("a bug"), "RuntimeError: a bug", "hal conformance cpu"),
        (KeyError("x"), "KeyError: 'x'", "hal conformance cpu"),
    ],
)
def test_a_failure_is_told_with_the_next_step(monkeypatch, capsys, error, reason, step):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(hal.Device, "compile", fail)
    assert run(["doctor", "cpu"]) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    (index,) = (i for i, line in enumerate(lines) if line.startswith("  kernel failed"))
    assert lines[index].endswith(reason)
    assert lines[index + 1].split()[0] == "next:"
    assert step in lines[index + 1]
    assert lines[-1] == "failed: cpu"
    assert "Traceback" not in out


@pytest.fixture
def installed(monkeypatch):
    """Describe what is installed, whatever is."""

    def prepare(*backends, devices=()):
        made = tuple(
            hal.BackendStatus(name, state, reason, "", f"hal-{name}", "1.0")
            for name, state, reason in backends
        )
        monkeypatch.setattr(hal, "backends", lambda *, probe=False: made)
        monkeypatch.setattr(hal, "devices", lambda: tuple(devices))

    return prepare


def description(backend):
    return hal.DeviceDescription(
        backend, DeviceInfo(0, "One", "one", "one1", 1 << 30, 1, 1, 0, 1, "one 1")
    )


def test_an_unavailable_backend_is_told_and_no_failure(capsys, installed):
    installed(
        ("cpu", "available", ""),
        ("beta", "unavailable", "no [libbeta]\nhere"),
        devices=[description("cpu")],
    )
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "beta unavailable: no [libbeta] here" in out
    assert out.splitlines()[-1] == "passed: 1 device checked"


def test_a_broken_plugin_is_a_failure(capsys, installed):
    backends = (("broke", "broken", "ImportError: [nope]"), ("cpu", "available", ""))
    installed(*backends, devices=[description("cpu")])
    assert run(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("broke broken: ImportError: [nope]")
    assert "pip uninstall hal-broke" in lines[at + 1]
    assert lines[-1] == "failed: broke"
    assert run(["doctor", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["passed"] is False
    assert record["backends"][0]["state"] == "broken"
    assert run(["doctor", "cpu"]) == 0  # what was not asked for is not judged


def test_a_backend_that_is_here_and_does_not_open_is_a_failure(capsys, installed, monkeypatch):
    def refuse(spec):
        message = "the driver lists nothing"
        raise hal.errors.BackendUnavailableError(message)

    installed(("acme", "available", ""))
    monkeypatch.setattr(hal, "create_device", refuse)
    assert run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "the driver lists nothing" in out
    assert "failed: acme" in out


def test_an_unavailable_device_that_was_asked_for_is_a_failure(capsys, monkeypatch):
    def refuse(spec):
        message = "no libacme"
        raise hal.errors.BackendUnavailableError(message)

    monkeypatch.setattr(hal, "create_device", refuse)
    assert run(["doctor", "acme"]) == 1
    assert "no libacme" in capsys.readouterr().out


@pytest.mark.parametrize("spec", ["no-such-backend", "cpu:99", "cpu?x", "cpu?no_such=1"])
def test_a_device_that_nobody_knows_is_the_users_mistake(capsys, spec):
    assert run(["doctor", spec]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("hal: ")
    assert captured.err.count("\n") == 1


def test_with_nothing_installed_it_says_what_to_install(capsys, installed):
    installed()
    assert run(["doctor"]) == 0
    assert "pip install ./hal_cpu" in capsys.readouterr().out


def test_it_does_not_say_to_install_what_is_installed(capsys, installed):
    installed(("cpu", "unavailable", "no compiler; pip install ziglang"))
    assert run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "cpu unavailable: no compiler; pip install ziglang" in lines
    assert lines[-1] == "No device."
