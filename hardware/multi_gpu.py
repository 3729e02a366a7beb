"""Show that several devices work together: ``python hardware/multi_gpu.py --devices 4``.

Transfers, waits across devices, merge buffers, the rate of copies between
peers, training, and programs: the *parts*, each on devices of its own, so that
one which fails does not end the others. Prints how far it is and a table,
and writes all numbers as JSON and a picture. The exit status is 1 if anything
was not as it has to be. Where the backend has fewer devices than are asked
for, they are virtual.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from multi_gpu_findings import Findings, Settings
from multi_gpu_parts import hops, merging, programs, training, transfers
from multi_gpu_rates import rates

import hal
from hal.flow import virtual_devices

SECONDS = 480
"""After so long it ends, and shows where it hung."""

PARTS = {
    "transfers": transfers,
    "hops": hops,
    "merging": merging,
    "rates": rates,
    "training": training,
    "programs": programs,
}


@contextlib.contextmanager
def opened(backend: str, count: int) -> Iterator[list[hal.Device]]:
    """Open devices; virtual ones where there are fewer; close them."""
    with contextlib.ExitStack() as stack:
        if count_of(backend) >= count:
            names = [f"{backend}:{index}" for index in range(count)]
            yield [stack.enter_context(hal.create_device(name)) for name in names]
        else:
            virtual = [stack.enter_context(each) for each in virtual_devices(backend, count)]
            yield [each.device for each in virtual]


def count_of(backend: str) -> int:
    """Return how many devices of a backend there are."""
    return sum(each.backend == backend for each in hal.devices())


def run_part(name: str, settings: Settings) -> Findings:
    """Run a part on new devices; what it raises is among its problems."""
    found = Findings(name)
    start = time.perf_counter()
    try:
        with opened(settings.backend, settings.devices) as devices:
            PARTS[name](devices, settings, found)
    except Exception as error:  # noqa: BLE001 - the other parts go on
        found.problems.append(f"{type(error).__name__}: {error}")
        traceback.print_exc()
    found.seconds = time.perf_counter() - start
    return found


def machine(settings: Settings) -> dict[str, object]:
    """Return what this ran on."""
    infos = [each.info for each in hal.devices() if each.backend == settings.backend]
    return {
        "devices": [info.name for info in infos[: settings.devices]],
        "virtual": len(infos) < settings.devices,
        "driver": infos[0].driver if infos else "",
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Show that several devices work together.")
    parser.add_argument("--backend", default="cuda", help="cuda, hip or cpu")
    parser.add_argument("--devices", type=int, default=2, help="how many, 2 or more")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts")
    parser.add_argument("--large", action="store_true", help="a transfer beyond 4 GiB, too")
    parser.add_argument("--quick", action="store_true", help="small and few, as a test of this")
    parser.add_argument("--target", help="as for hal.compile; the first device's unless given")
    parser.add_argument("--json", type=Path, help="where the numbers are written")
    parser.add_argument("--picture", type=Path, help="where the picture is written")
    options = parser.parse_args(arguments)
    if options.devices < 2:
        parser.error("--devices is 2 or more")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit status."""
    options = parse(arguments)
    sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))  # what it trains
    settings = Settings(
        options.backend, options.devices, options.quick, options.large, options.target
    )
    start = time.perf_counter()
    parts: list[Findings] = []
    problems: list[str] = []
    record: dict[str, object] = {}
    for name in options.only:
        print(f"[{time.perf_counter() - start:6.1f} s] {name}", flush=True)  # noqa: T201
        parts.append(run_part(name, settings))
        problems += [f"{name}: {problem}" for problem in parts[-1].problems]
        record = {
            "machine": machine(settings),
            "settings": asdict(settings),
            "passed": not problems and len(parts) == len(options.only),
            "seconds": round(time.perf_counter() - start, 1),
            "parts": {part.name: part.record() for part in parts},
        }
        if options.json:  # each time: one of the next may end the process
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for part in parts:
        print(f"\n{part.table()}")  # noqa: T201
    if options.picture:
        import multi_gpu_picture  # noqa: PLC0415 - Pillow may be missing

        multi_gpu_picture.draw(parts, record, options.picture)
    print(f"\n{'FAILED' if problems else 'passed'} in {record['seconds']} s")  # noqa: T201
    for problem in problems:
        print(f"  {problem}")  # noqa: T201
    return 1 if problems else 0


if __name__ == "__main__":
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    sys.exit(main())
