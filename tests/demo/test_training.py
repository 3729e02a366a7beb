"""The training on several devices: as on one, as numpy says, and good enough."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from child_processes import output_of, run_command

pytest.importorskip("PIL", reason="the demo extra is not installed")

from PIL import Image

import hal
from digits import curves
from digits.network import CLASSES, HIDDEN, INPUTS, Replica, initial
from digits.training import KINDS, Training, load_digits
from hal.errors import InvalidArgumentError
from hal.flow import virtual_devices

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "training.py"
EPOCHS = 12
FAR = 1e-4


@pytest.fixture(scope="module")
def digits():
    return load_digits()


@pytest.fixture
def devices():
    """Open virtual devices, as many as are asked for."""
    opened = []

    def opening(count):
        opened.extend(virtual_devices("cpu", count))
        return opened[-count:]

    yield opening
    for device in opened:
        assert device.close(10) == ()


@pytest.fixture(scope="module")
def alone(digits):
    """The losses of a single device."""
    with hal.create_device("cpu") as device, Training([device], digits) as training:
        return training.run(EPOCHS)


def oracle(digits, epochs, batch=128, rate=0.1, momentum=0.9):
    """Train in double precision, with matrices."""
    network = initial(0).astype(np.float64)
    places = np.cumsum([INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES])
    velocity, chance, losses = np.zeros_like(network), np.random.default_rng(0), []
    for _ in range(epochs):
        order = chance.permutation(len(digits.images))
        for first in range(0, len(order) - batch + 1, batch):
            rows = order[first : first + batch]
            w1, b1, w2, b2 = np.split(network, places)
            w1, w2 = w1.reshape(INPUTS, HIDDEN), w2.reshape(HIDDEN, CLASSES)
            images, labels = digits.images[rows], digits.labels[rows]
            activity = np.maximum(images @ w1 + b1, 0)
            scores = np.exp(activity @ w2 + b2)
            chances = scores / scores.sum(1, keepdims=True)
            losses.append(-np.log(chances[np.arange(batch), labels]).mean())
            errors = (chances - np.eye(CLASSES)[labels]) / batch
            blame = (errors @ w2.T) * (activity > 0)
            parts = (images.T @ blame, blame.sum(0), activity.T @ errors, errors.sum(0))
            velocity = momentum * velocity - rate * np.concatenate([part.ravel() for part in parts])
            network = network + velocity
    return np.array(losses)


def test_the_losses_of_one_device_are_numpys(digits, alone):
    expected = oracle(digits, EPOCHS)
    assert len(alone) == len(expected) == EPOCHS * 11
    assert np.abs(alone - expected).max() < FAR
    assert expected[0] > 2
    assert expected[-1] < 0.2


@pytest.mark.parametrize(
    ("count", "mode", "peers"),
    [(2, "streaming", True), (4, "streaming", True), (4, "copy", True), (3, "streaming", False)],
)
def test_the_losses_of_several_devices_are_those_of_one(digits, alone, devices, count, mode, peers):
    with Training(devices(count), digits, mode=mode, peers=peers) as training:
        curve = training.run(EPOCHS)
        networks = training.networks()
        assert training.accuracy() > 0.95
        modes = {training.flow.merge_buffer(device).mode for device in training.flow.devices[1:]}
    assert np.abs(curve - alone).max() < FAR
    assert len(networks) == count
    assert all((network == networks[0]).all() for network in networks)
    assert modes == {"streaming" if mode == "streaming" and peers else "copy"}


def test_a_replica_that_is_not_merged_shows(digits, alone, devices, monkeypatch):
    monkeypatch.setattr(Replica, "merge", lambda self: None)
    with Training(devices(2), digits) as training:
        assert np.abs(training.run(1) - alone[:11]).max() > 100 * FAR


def test_what_it_cannot_do_is_refused(digits, devices):
    (one,) = devices(1)
    with pytest.raises(InvalidArgumentError, match="virtual devices"):
        Training([one, one], digits)
    with pytest.raises(InvalidArgumentError, match="copy, streaming"):
        Training([one], digits, mode="neither")
    with Training([one], digits) as training, pytest.raises(InvalidArgumentError, match="1 epoch"):
        training.run(0)
    for batch in (0, 1438):
        with pytest.raises(InvalidArgumentError, match="a batch has from 1 rows"):
            Training([one], digits, batch=batch)


def test_the_pictures_show_every_queue_that_worked(digits, devices):
    with Training(devices(2), digits, mode="copy") as training:
        seen = training.observe(2)
        assert not np.isnan(training.networks()[0]).any()
    stages = {operation.stage for operation in seen.operations}
    assert {f"cpu:0/virtual {each}" for each in ("0 compute", "1 compute", "0 upload")} <= stages
    assert {KINDS[operation.tile] for operation in seen.operations} == set(KINDS)
    picture = curves.draw_steps(seen, KINDS, title="title", subtitle="subtitle")
    assert picture.size == (1800, 186 + 50 * len(stages) + 130)
    shown = {color for _, color in picture.getcolors(1 << 20)}
    assert set(curves._COLORS[: len(KINDS)]) <= shown
    with Training(devices(2), digits) as training:
        picture = curves.draw_steps(training.observe(2), KINDS, title="title", subtitle="subtitle")
    shown = {color for _, color in picture.getcolors(1 << 20)}
    assert curves._COLORS[KINDS.index("bring")] not in shown  # merged in place
    losses = curves.draw_loss(
        {"one": np.array([2.0, 1.0, 0.1]), "two": np.array([2.0, 1.0, 0.1])},
        title="title",
        subtitle="subtitle",
    )
    assert losses.size[0] == 1800
    assert curves._COLORS[1] in {color for _, color in losses.getcolors(1 << 20)}


def test_the_example_writes_both_pictures(tmp_path):
    arguments = ["--virtual", "2", "--mode", "copy", "-o", tmp_path / "new"]
    assert "2 virtual devices: 9" in output_of([sys.executable, EXAMPLE, *arguments])
    for name in ("training-loss.png", "training-timeline.png"):
        with Image.open(tmp_path / "new" / name) as image:
            assert image.size[0] == 1800


def test_an_example_that_learns_too_little_ends_in_a_sentence(tmp_path):
    arguments = ["--virtual", "1", "--epochs", "1", "-o", tmp_path]
    done = run_command([sys.executable, EXAMPLE, *arguments])
    assert done.returncode == 1
    assert re.fullmatch(r"training: \d\d\.\d % of the held-out digits are right, .*\n", done.stderr)
