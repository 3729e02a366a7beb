"""Run tinygrad 0.12.0's own tests of operators, of its JIT and of its batches on hal's CPU backend.

For `make check`, or by hand. It is the last release whose source distribution has these tests. pip
fetches it, and PyTorch, to which the tests compare, into a folder below .venv. Where it cannot,
this says so and succeeds. Arguments go to pytest; then what did not run is not compared with the
table.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv" / "tinygrad-0.12.0"
LIBRARIES, SOURCE = FOLDER / "libraries", FOLDER / "tinygrad-0.12.0"
FETCHED, RESULTS, CLANG = FOLDER / ".fetched", FOLDER / "results.xml", FOLDER / "clang"
FILES = [SOURCE / "test" / f"test_{name}.py" for name in ("ops", "jit", "graph")]
SKIPPED_BY_TINYGRAD = {
    "TestOps::test_large_bs_conv": "slow",
    "TestOps::test_large_ic_conv": "slow",
    "TestOps::test_sd_big_conv": "very slow",
    "TestOps::test_max_nan": "this test is broken #862",
    "TestOps::test_pow_int": "not supported",
    "TestOps::test_strided_conv2d_simple_vec": "DEVECTORIZE=0 only for LLVM",
    "TestOps::test_svd": "we have test_linalg, no need to test here",
    "TestJit::test_approx_jit_timeout": "its limit of time is for tinygrad's CPU device",
    "TestJit::test_jit_v_nojit_random_regen": "expected to fail: TODO: fix",
    **dict.fromkeys(
        (
            "TestMultioutputJit::test_jit_multioutput_mix",
            "TestMultioutputJit::test_jit_multioutput_norealize",
            "TestMultioutputJit::test_jit_multioutput_realize",
        ),
        "Pending multioutput implementation #3607",
    ),
}
"""The tests that tinygrad skips, or expects to fail, and its reasons. All others have to pass."""
NEED_CLANG = (
    "TestJit::test_jit_several_devs",
    "TestCopyInsideJit::test_copy_inside_jit",
    "TestJitPrune::test_prune_w_copy_correct",
    "TestJitPrune::test_prune_w_independent_copy_correct",
    "TestJitGraphSplit::test_jit_cpu_several",
    "TestJitGraphSplit::test_jit_cpu_simple",
    "TestJitGraphSplit::test_jit_multidev_copy",
)
"""The tests that use tinygrad's own CPU device beside hal's, which has no compiler but clang."""
ZIG = """\
#!/bin/sh
# The clang of the ziglang package, which neither takes a target of this form, nor leaves out the
# debugger's sections, whose relocations tinygrad's loader refuses.
for word; do
    shift
    case $word in --target=*) ;; *) set -- "$@" "$word" ;; esac
done
exec {python} -m ziglang cc --target={machine}-freestanding-none -g0 "$@"
"""


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def set_up():
    """Fetch the release and what its tests need; return whether all is there."""
    if FETCHED.exists():
        return True
    shutil.rmtree(FOLDER, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "--no-input"]
    archive = ["--no-deps", "--no-binary", ":all:", "tinygrad==0.12.0"]
    for command in (
        ["download", "--dest", FOLDER, *archive],
        ["install", "--no-compile", "--target", LIBRARIES, "torch==2.13.0"],
    ):
        if subprocess.run([*pip, *command], check=False).returncode != 0:
            return False
    with tarfile.open(f"{SOURCE}.tar.gz") as file:
        file.extractall(FOLDER, filter="data")
    FETCHED.touch()
    return True


def clang():
    """Return the command of a clang, or None."""
    if importlib.util.find_spec("ziglang") is None or shutil.which("clang"):
        return shutil.which("clang")
    CLANG.write_text(ZIG.format(python=sys.executable, machine=platform.machine()))
    CLANG.chmod(0o755)
    return str(CLANG)


def run(arguments, compiler):
    """Run pytest; return its status."""
    folders = (SOURCE, LIBRARIES, ROOT / "examples" / "tinygrad_backend", Path(__file__).parent)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "DEV": "HAL",
        "HAL_DEVICE": "cpu",
        "CACHELEVEL": "0",  # nothing in the user's cache of tinygrad's
        "OMP_NUM_THREADS": "1",  # PyTorch's: the processors have pytest's processes
        "CC": compiler or "clang",
    }
    pytest = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", SOURCE / "test"]
    pytest += ["-p", "ops_hal_0_12", "-p", "no:cacheprovider", "--junit-xml", RESULTS]
    return subprocess.run(
        [*pytest, *arguments], env=environment, cwd=FOLDER, check=False
    ).returncode


def results():
    """Return the number of the tests that passed, and the names of the others."""
    passed, others = 0, set()
    for case in ET.parse(RESULTS).iter("testcase"):
        if len(case) == 0:
            passed += 1
        else:
            others.add(f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}")
    return passed, others


def main():
    if not set_up():
        say("SKIPPED: pip cannot fetch tinygrad 0.12.0's sources or PyTorch, as it says above")
        return 0
    compiler = clang()
    if sys.argv[1:]:
        return run([*FILES, *sys.argv[1:]], compiler)
    left = [] if compiler else NEED_CLANG
    for test in left:
        say(f"SKIPPED: {test}: no clang for tinygrad's own CPU device: pip install ziglang")
    names = " or ".join(name.partition("::")[2] for name in left)
    RESULTS.unlink(missing_ok=True)
    status = run(
        [*FILES, "-q", "-n", "auto", "--maxprocesses", "8", "-k", f"not ({names})" if left else ""],
        compiler,
    )
    if status == 0:
        passed, others = results()
        say(f"tinygrad 0.12.0 on hal: {passed} of its tests passed, it skips {len(others)}")
        for test in sorted(others ^ SKIPPED_BY_TINYGRAD.keys()):
            say(f"{test}: {'not ' if test in others else ''}in SKIPPED_BY_TINYGRAD")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
