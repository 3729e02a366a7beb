"""Train a network on handwritten digits, on several devices at once; draw what happened."""

# ruff: noqa: T201 - an example shows and checks what it found

import argparse
import contextlib
import tempfile
import time
from pathlib import Path

import numpy as np

import hal
from digits import curves
from digits.training import KINDS, Training, load_digits
from hal.demo.picture import save_image
from hal.flow import virtual_devices

ROUNDING = 1e-4
"""How far two losses may be apart, whose sums were made in another order."""

ENOUGH = 0.95
"""Which part of the held-out digits has to be right."""


def main() -> None:
    """Train on one device, and then on all of them; compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="cpu", help="such as cuda:0,cuda:1 (default: cpu)")
    parser.add_argument("--virtual", type=int, help="virtual devices on the first one (cpu: 4)")
    parser.add_argument("--mode", choices=("streaming", "copy"), default="streaming")
    parser.add_argument("--no-peers", action="store_true", help="send all through the host")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("-o", "--output", type=Path, help="a folder for the pictures")
    options = parser.parse_args()
    folder = options.output or Path(tempfile.mkdtemp(prefix="hal-training-"))
    folder.mkdir(parents=True, exist_ok=True)

    specs = options.devices.split(",")
    count = (4 if specs == ["cpu"] else 1) if options.virtual is None else options.virtual
    digits = load_digits()
    with (
        hal.create_device(specs[0]) as device,
        Training([device], digits, batch=options.batch) as training,
    ):
        expected = training.run(options.epochs)
        print(f"one device, {device.info.name}: {100 * training.accuracy():.1f} % right")

    with contextlib.ExitStack() as stack:
        if len(specs) > 1 and options.virtual is None:
            opened = [stack.enter_context(hal.create_device(spec)) for spec in specs]
            what = f"{len(opened)} devices"
        else:
            opened = [stack.enter_context(each) for each in virtual_devices(specs[0], count)]
            what = f"{count} virtual devices"
        training = stack.enter_context(
            Training(
                opened,
                digits,
                batch=options.batch,
                mode=options.mode,
                peers=not options.no_peers,
            )
        )
        start = time.perf_counter()
        curve = training.run(options.epochs)
        seconds = time.perf_counter() - start
        right = training.accuracy()
        networks = training.networks()
        # The one of which the host saw most: a busy machine takes the processor from it.
        seen = min((training.observe(3) for _ in range(10)), key=lambda one: one.worst_resolution)

    apart = float(np.abs(curve - expected).max())
    print(f"{what}: {100 * right:.1f} % right, {len(curve)} steps in {seconds:.2f} s")
    print(f"the losses are {apart:.1e} apart at most")
    subtitle = (
        f"{len(curve)} steps of {options.batch} rows, merged by {options.mode}; {100 * right:.1f}"
        f" % of the held-out digits are right; the losses are {apart:.1e} apart at most"
    )
    losses = curves.draw_loss(
        {"one device": expected, what: curve}, title=f"Digits on {what}", subtitle=subtitle
    )
    save_image(losses, folder / "training-loss.png")
    steps = curves.draw_steps(
        seen,
        KINDS,
        title=f"Three steps on {what}",
        subtitle="a gradient on each device, merged into the first, from which all learn",
    )
    save_image(steps, folder / "training-timeline.png")
    print(f"pictures: {folder}")

    far = max(float(np.abs(network - networks[0]).max()) for network in networks)
    for is_right, complaint in (
        (far <= ROUNDING, f"the replicas are {far:.1e} apart, more than two backends round"),
        (apart <= ROUNDING, f"the losses are {apart:.1e} apart, more than they may be rounded"),
        (
            right > ENOUGH,
            f"{100 * right:.1f} % of the held-out digits are right, and that is too few",
        ),
    ):
        if not is_right:
            raise SystemExit(f"training: {complaint}")


if __name__ == "__main__":
    main()
