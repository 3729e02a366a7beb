"""Run the C tests of the runtime, plain and under the sanitizers."""

import shutil
from importlib import resources
from pathlib import Path

import pytest
from child_processes import output_of, run_command

FLAGS = {
    "plain": ["-O2"],
    "ucontext": ["-O2", "-DHAL_CPU_UCONTEXT"],  # for other processors than x86-64 and aarch64
    "address": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-g", "-fsanitize=thread"],
}


@pytest.mark.parametrize("mode", FLAGS)
def test_runtime(mode, tmp_path):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc here; the sanitizers' flags are gcc's")
    base = [compiler, "-std=gnu11", "-pthread", *FLAGS[mode]]
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    if run_command([*base, probe, "-o", tmp_path / "probe"]).returncode != 0:
        pytest.skip(f"gcc has no library for {' '.join(FLAGS[mode])}")
    program = tmp_path / "runtime_test"
    base += ["-Wall", "-Wextra", "-Werror", f"-I{resources.files('hal_cpu')}"]
    output_of([*base, Path(__file__).with_name("runtime_test.c"), "-o", program])
    result = run_command([program])
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")
