"""The compiler as a process: what hangs, is killed, is left, and what the system refuses."""

import errno
import itertools
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading

import pytest
from child_processes import output_of
from core_harness import Running, handled_by
from interrupts import Interrupts

import hal_cpu
from hal.errors import BackendUnavailableError, InvalidArgumentError, OperationError
from hal_cpu import _toolchain

SOURCE = "__global__ void kernel(int *p) { p[0] = 1; }\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return a function that makes a compiler whose runs are lines of shell."""

    def make(lines):
        real = _toolchain.find_compiler()
        path = tmp_path / f"odd-{real.family}"  # by its name zig is known
        version = " ".join(real.cxx)
        path.write_text(f'#!/bin/sh\ncase "$*" in *--version*) exec {version} "$@";; esac\n{lines}')
        path.chmod(0o755)
        monkeypatch.setenv("HAL_CXX", str(path))
        monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path / "cache"))

    return make


@pytest.fixture
def work(tmp_path, monkeypatch):
    """The folder in which compilers work."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_compiler_that_hangs_is_killed_with_what_it_started(lab, script, work, monkeypatch):
    # The child holds the pipe of the compiler's output open.
    script("sleep 1000 &\nwait\n")
    monkeypatch.setattr(_toolchain, "_TIME_LIMIT", 0.5)
    with pytest.raises(Exception, match="the compiler did not finish in 0 seconds, and was killed"):
        lab.image(SOURCE)
    assert not os.listdir(work)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError], ids=lambda each: each.__name__)
def test_a_compiler_that_hangs_can_be_interrupted_o3(lab, script, work, tmp_path, error):
    os.mkfifo(tmp_path / "started")
    script(f"echo > {tmp_path}/started\nsleep 1000 &\nwait\n")

    def handler(*_):
        raise error

    def interrupt():
        (tmp_path / "started").read_bytes()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    with handled_by(handler):
        interrupting = Running(interrupt)
        with pytest.raises(error):
            lab.image(SOURCE)
        interrupting.result()
    assert not os.listdir(work)


class _Interrupts(Interrupts):
    """Interrupts of the thread that runs a compiler, in all that it calls for that."""

    ours = (hal_cpu.__path__[0], subprocess.__file__, threading.__file__)


def test_an_interrupt_anywhere_in_a_run_leaves_no_compiler_o3():
    for number in itertools.count(1):
        living, errors = os.pipe()
        try:
            with _Interrupts(number) as interrupts:
                _toolchain._run(["sleep", "1000"], 1.0, errors)
        except subprocess.TimeoutExpired:
            break
        finally:
            os.close(errors)
            # Readable means that no process holds the other end any more.
            assert select.select([living], [], [], 0)[0], interrupts.places
            os.close(living)
    assert number > 4


KILLED = """
import os, signal
from hal_cpu import _toolchain
with _toolchain.work_directory() as path:
    (path / "image.so").write_bytes(b"half of it")
    print(path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(python, work):
    left = python(KILLED, TMPDIR=str(work))
    assert left.returncode == -signal.SIGKILL
    (other,) = [work / "hal-cpu-work-of-another-kind"]
    other.write_text("no folder")
    assert sorted(map(str, work.iterdir())) == sorted([left.stdout.strip(), str(other)])
    _toolchain._sweep.cache_clear()
    with _toolchain.work_directory() as mine:
        assert sorted(work.iterdir()) == sorted([mine, other])
        # It is in use: nobody else takes it for left behind.
        _toolchain._sweep.cache_clear()
        with _toolchain.work_directory() as second:
            assert sorted(work.iterdir()) == sorted([mine, second, other])
    assert list(work.iterdir()) == [other]


def test_what_the_compiler_keeps_meanwhile_is_in_that_folder(lab, script, work):
    script('case "$TMPDIR" in */hal-cpu-work-*) echo inside >&2;; esac\nexit 1\n')
    with pytest.raises(Exception, match="inside"):
        lab.image(SOURCE)


def test_compilers_ask_for_memory_in_large_pieces_unless_the_user_says_how(
    lab, script, work, monkeypatch
):
    script('echo "error: $GLIBC_TUNABLES" >&2\nexit 1\n')
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    with pytest.raises(Exception, match=r"glibc\.malloc\.top_pad=33554432"):
        lab.image(SOURCE)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    with pytest.raises(Exception, match=r"error: glibc\.malloc\.arena_max=1$"):
        lab.image(SOURCE)


# What the system refuses


def test_a_full_folder_is_named(lab, script, work):
    script(f'echo "error: closing x.s: {os.strerror(errno.ENOSPC)}"\nexit 1\n')
    with pytest.raises(
        OperationError, match=f"No space left on device: '{work}.*set TMPDIR"
    ) as caught:
        lab.image(SOURCE)
    assert caught.value.native_name == "ENOSPC"


def test_a_missing_folder_is_named(lab, script, work):
    script("exit 1\n")
    work.rmdir()
    with pytest.raises(OperationError, match=f"No such file or directory: '{work}.*set TMPDIR"):
        lab.image(SOURCE)


FILES = """
import os, resource
import hal
from hal.errors import BackendUnavailableError, OperationError
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
spare = int(os.environ["SPARE"])
class Full:
    def __enter__(self):
        self.files = []
        try:
            while True:
                self.files.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for file in self.files[:spare]:
            os.close(file)
    def __exit__(self, *_):
        for file in self.files[spare:]:
            os.close(file)
def attempt(what, function, kind):
    with Full():
        try:
            function()
        except kind as error:
            print(what, "Too many open files" in str(error))
        else:
            print(what, "went well")
    return function()
device = attempt("open", lambda: hal.create_device("cpu"), BackendUnavailableError)
source = f"__global__ void k(int *x) {{ x[0] = {os.getpid()}; }}"
attempt("compile", lambda: device.compile(source), (BackendUnavailableError, OperationError))
program = hal.compile(source, target="cpu")
attempt("load", lambda: device.load(program.images[0].image), OperationError)
"""


@pytest.mark.parametrize("spare", [0, 1, 4, 5])
def test_without_file_descriptors_the_cause_is_told(python, tmp_path, spare):
    done = python(FILES, SPARE=str(spare), HAL_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    said = [line.split(" ", 1)[1] for line in done.stdout.splitlines()]
    assert len(said) == 3
    assert set(said) <= {"True", "went well"}
    if spare == 0:
        assert said == ["True"] * 3


@pytest.mark.parametrize("environment", [{}, {"HOME": "/nonexistent"}], ids=["none", "no HOME"])
def test_an_empty_environment_is_enough(environment):
    program = (
        "import hal; hal.create_device('cpu').compile('__global__ void k(int *x) { x[0] = 1; }')"
    )
    if _toolchain.find_compiler().family == "zig":
        pytest.skip("zig wants a folder for its cache")
    environment["HAL_CXX"] = " ".join(_toolchain.find_compiler().cxx)
    output_of([sys.executable, "-c", program], env=environment)


def test_a_system_that_starts_nothing_is_no_missing_compiler(monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(_toolchain, "_run", refuse)
    _toolchain._find_compiler.cache_clear()
    with pytest.raises(BackendUnavailableError, match="cannot be looked for: Resource temporarily"):
        _toolchain.find_compiler()


# Options


@pytest.mark.parametrize("option", ["-o", "-o/tmp/elsewhere", "--output=x", "-c", "-S", "-E", "-M"])
def test_options_that_say_what_is_made_or_where_are_refused(lab, tmp_path, option):
    target = tmp_path / "elsewhere"
    with pytest.raises(InvalidArgumentError, match=f"the option '{option}' says what is made"):
        lab.image(SOURCE, options=(option, str(target)))
    assert not target.exists()


def test_an_image_of_the_address_sanitizer_does_not_end_the_process(lab):
    try:
        image = lab.image(SOURCE, options=("-fsanitize=address",))
    except Exception as error:  # noqa: BLE001 - not every compiler has its library
        pytest.skip(f"no AddressSanitizer here: {error}")
    with pytest.raises(OperationError, match=r"-fsanitize=address.*LD_PRELOAD"):
        lab.device.load_module(image)
