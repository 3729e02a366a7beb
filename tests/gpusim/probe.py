"""Ask a CUDA driver what it does, in many small questions, and write down the answers.

    python3 probe.py --output answers.json [--only PREFIX ...] [--jobs N] [--verbose]

The same program runs on a GPU's driver and on gpusim; `compare.py` tells the
differences. It needs cuda-python and NVRTC. Questions run in a worker process,
one after another; one that may spoil its process gets a worker of its own, and
a worker that dies or hangs becomes an answer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

AREAS = (
    *("handles", "rules", "order", "memory", "pools", "kernels", "compilers", "graphs"),
    *("graph_updates", "contexts", "faults"),
)
SECONDS = 10.0
"""After which a question counts as hanging."""
READY = "ready"
"""What a worker says when it can be asked: how long its start takes is no answer."""


def _load() -> Any:
    """Import all questions; return the module that lists them."""
    lab = importlib.import_module("questions.lab")
    for area in AREAS:
        importlib.import_module(f"questions.{area}")
    return lab


def _plain(value: Any) -> Any:
    """Turn an answer into what JSON knows."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, str, float)) or value is None:
        return value
    if hasattr(value, "name"):
        return str(value.name)
    return int(value)


def work() -> None:
    """Answer questions from standard input, one name a line, until it ends."""
    lab = _load()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a kernel or a library prints is no answer
    print(READY, file=out, flush=True)
    for line in sys.stdin:
        name = line.strip()
        try:
            answer = _plain(lab.QUESTIONS[name]())
        except lab.Setup as error:
            answer = f"setup: {error}"
        except BaseException as error:  # noqa: BLE001 - an answer like another
            traceback.print_exc()
            answer = f"raises {type(error).__name__}: {str(error)[:200]}"
        print(json.dumps({"question": name, "answer": answer}), file=out, flush=True)
    out.flush()
    os._exit(0)  # objects of a lost context are not worth an orderly end


class Worker:
    """Run a worker process and ask it."""

    def __init__(self, *, verbose: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if verbose else subprocess.DEVNULL,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._lines.get()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, name: str, seconds: float) -> tuple[bool, Any]:
        """Return whether the worker lives on, and the answer."""
        assert self._process.stdin is not None
        try:
            print(name, file=self._process.stdin, flush=True)
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.close()
            return False, "hangs"
        except OSError:
            line = ""
        if line:
            return True, json.loads(line)["answer"]
        status = self._process.wait()
        self.close()
        return False, f"dies: {signal.Signals(-status).name if status < 0 else status}"

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def run(
    only: list[str], *, verbose: bool = False, jobs: int = 1, seconds: float = SECONDS
) -> dict[str, Any]:
    """Ask all questions, some at once if told so; return the answers, flat, by name.

    On a GPU one job only: what one process does to the device, another feels.
    """
    lab = _load()
    names = [name for name in lab.QUESTIONS if not only or name.startswith(tuple(only))]
    size = -(-len(names) // jobs) or 1
    parts = [names[start : start + size] for start in range(0, len(names), size)]
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(lambda part: _run(lab, part, verbose, seconds), parts))
    return {name: answer for part in found for name, answer in part.items()}


def _run(lab: Any, names: list[str], verbose: bool, seconds: float) -> dict[str, Any]:  # noqa: FBT001
    """Ask some questions one after another."""
    answers: dict[str, Any] = {}
    worker: Worker | None = None
    for name in names:
        if worker is not None and name in lab.ALONE:
            worker.close()
            worker = None
        if worker is None:
            worker = Worker(verbose=verbose)
        started = time.monotonic()
        alive, answer = worker.ask(name, max(lab.SLOW.get(name, 0.0), seconds))
        if verbose:
            took = time.monotonic() - started
            sys.stderr.write(f"{took:6.2f} s  {name}: {json.dumps(answer)}\n")
        if not alive or name in lab.ALONE or spoiled(answer):
            worker.close()
            worker = None
        if isinstance(answer, dict):
            answers.update({f"{name}: {key}": value for key, value in answer.items()})
        else:
            answers[name] = answer
    if worker is not None:
        worker.close()
    return answers


def spoiled(answer: Any) -> bool:
    """Return whether an answer says that its question did not end as it should."""
    text = json.dumps(answer)
    return any(
        word in text
        for word in ("raises ", "hangs", "setup: ", "ILLEGAL", "ASSERT", "LAUNCH_FAILED")
    )


def about() -> dict[str, str]:
    """Describe what was asked, and by what."""
    code = (
        "from cuda.bindings import driver as cu; import cuda.bindings as b; cu.cuInit(0); "
        "print(cu.cuDeviceGetName(128, 0)[1].split(bytes(1))[0].decode(), "
        "cu.cuDriverGetVersion()[1], "
        "cu.cuDeviceGetCount()[1], b.__version__, sep=chr(10))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    lines = result.stdout.splitlines()
    keys = ("device", "driver_version", "devices", "cuda_bindings")
    return {**dict(zip(keys, lines, strict=False)), "python": platform.python_version()}


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="which no question may take")
    parser.add_argument("--worker", action="store_true")
    given = parser.parse_args()
    if given.worker:
        work()
        return 0
    result = {
        "about": about(),
        "answers": run(given.only, verbose=given.verbose, jobs=given.jobs, seconds=given.seconds),
    }
    text = json.dumps(result, indent=1, sort_keys=False) + "\n"
    if given.output:
        given.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    sys.stderr.write(f"{len(result['answers'])} answers\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
