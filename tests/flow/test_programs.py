"""Programs: compiled without a device, for several targets, of several sources; loaded once."""

from __future__ import annotations

import gc
import importlib.util
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal import _registry
from hal.errors import (
    ArgumentTypeError,
    BackendNotFoundError,
    CompilationError,
    InvalidArgumentError,
    NotFoundError,
    OperationError,
    UnimplementedError,
)
from hal.native import CompiledImage, DeviceInfo, NativeCompiler
from hal.plugin import Backend
from hal_cpu.plugin import hal_backend as cpu_backend

TESTS = Path(__file__).parents[1]
SOURCE = """
struct Pair { int left; double right; };
__device__ int counter = 5;
__global__ void HAL_BLOCK(4) HAL_SHARED_MEMORY(64) scale(float a, const float *x, float *y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = a * x[threadIdx.x];
}
__global__ void count(int *out, Pair pair) { counter += pair.left; out[0] = counter; }
"""
SIGNATURES = {
    "scale": "(f32 a, const ptr x, ptr y, i32 n)",
    "count": "(ptr out, bytes[16] pair)",
}
PART = """
static __device__ int same(int x) {{ return x + {0}; }}
__device__ int own{0} = {0};
__global__ void HAL_BLOCK(4) k{0}(int *p) {{ p[threadIdx.x] = same(threadIdx.x) * 10 + own{0}; }}
"""
PARTS = {f"part{number}.cpp": PART.format(number) for number in (1, 2, 3)}


@pytest.fixture(scope="module")
def program():
    return hal.compile(SOURCE, target="cpu", filename="mine.cpp", defines={"N": 3})


def scaled(device, executable):
    """Return what the kernel `scale` makes of 0, 1, 2, 3."""
    x, y = device.upload(np.arange(4, dtype=np.float32)), device.upload(np.zeros(4, np.float32))
    device.queue.dispatch(executable["scale"], grid=1, args=(2.0, x, y, 4)).wait(LIMIT)
    return y.numpy().tolist()


def counted(device, executable, step=1):
    """Run `count`, whose variable keeps what it counts."""
    out = device.upload(np.zeros(1, np.int32))
    pair = np.zeros(1, np.dtype([("left", "i4"), ("right", "f8")], align=True))
    pair["left"] = step
    kernel = executable["count"]
    device.queue.dispatch(kernel, grid=1, block=1, args=(out, pair)).wait(LIMIT)
    return int(out.numpy()[0])


# What a program is


def test_compiling_needs_no_device(monkeypatch):
    def fail(*_):
        pytest.fail("a driver was opened")

    monkeypatch.setattr("hal._plugins.Plugin.driver", fail)
    made = hal.compile(SOURCE, target="cpu")
    assert made.entry_points == ("scale", "count")
    assert {name: str(each) for name, each in made.signatures.items()} == SIGNATURES
    assert made.targets == ("cpu:native",)


def test_a_program_says_what_it_is(program):
    (image,) = program.images
    assert image.image.startswith(b"\x7fELF")
    assert (image.name, image.log, program.log) == ("cpu:native", "", "")
    assert image.kernels["scale"].block == (4, 1, 1)
    assert image.kernels["scale"].shared_memory == 64
    assert image.kernels["count"].block is None
    assert image.properties["compiler"]
    assert program.metadata == {"filenames": "mine.cpp", "defines": "N=3", "options": ""}
    assert repr(program) == "<Program scale, count for cpu:native>"


def test_what_a_compiler_says_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HAL_CACHE_DIR", str(tmp_path))
    if "g++" not in hal.compile(SOURCE, target="cpu").images[0].properties["compiler"]:
        pytest.skip("the option is g++'s")
    option = {"cpu": ["-fopt-info-all-optall"]}
    first = hal.compile(SOURCE, target="cpu", options=option)
    assert "optimized" in first.log
    # From the cache too
    assert hal.compile(SOURCE, target="cpu", options=option).log == first.log


@pytest.mark.parametrize("way", ["bytes", "pickle", "file"])
def test_a_program_survives_a_journey(program, way, tmp_path):
    if way == "bytes":
        there = hal.Program.from_bytes(bytearray(program.to_bytes()))
    elif way == "pickle":
        there = pickle.loads(pickle.dumps(program))
    else:
        program.save(tmp_path / "mine.hal")
        assert [each.name for each in tmp_path.iterdir()] == ["mine.hal"]
        there = hal.Program.open(str(tmp_path / "mine.hal"))
    assert there.images == program.images
    assert (there.entry_points, there.metadata) == (program.entry_points, program.metadata)
    assert there.to_bytes() == program.to_bytes()


def test_damaged_programs_are_refused(program, device):
    content = program.to_bytes()
    middle = len(content) // 2
    damaged = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for wrong in (damaged, content[:-1], content[:20]):
        with pytest.raises(InvalidArgumentError, match="damaged or cut off"):
            hal.Program.from_bytes(wrong)
        with pytest.raises(InvalidArgumentError, match="damaged or cut off"):
            device.load(wrong)
    with pytest.raises(InvalidArgumentError, match="no bytes of a program"):
        hal.Program.from_bytes(program.images[0].image)
    with pytest.raises(ArgumentTypeError):
        hal.Program.from_bytes("text")


def test_a_program_in_another_process_runs(program, tmp_path):
    program.save(tmp_path / "mine.hal")
    script = """
    import hal, numpy as np
    device = hal.create_device("cpu")
    y = device.upload(np.zeros(4, np.float32))
    x = device.upload(np.ones(4, np.float32))
    scale = device.load("mine.hal")["scale"]
    device.queue.dispatch(scale, grid=1, args=(3.0, x, y, 4)).wait(10)
    print(y.numpy().tolist())
    """
    environment = {**os.environ, "HAL_CXX": "", "CXX": "", "HAL_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[3.0, 3.0, 3.0, 3.0]\n"), done.stderr


# Loading


def test_programs_their_bytes_and_their_images_load(program, device, tmp_path):
    program.save(tmp_path / "mine.hal")
    for what in (program, program.to_bytes(), tmp_path / "mine.hal", program.images[0].image):
        executable = device.load(what)
        assert list(executable) == ["scale", "count"]
        assert str(executable["scale"].signature) == SIGNATURES["scale"]
        assert scaled(device, executable) == [0, 2, 4, 6]


def test_a_program_is_loaded_once_on_each_device_and_never_when_compiled(open_probe, program):
    (first, one), (second, two) = open_probe(), open_probe()
    made = hal.compile(SOURCE, target=first)
    assert (one.calls["load_module"], two.calls["load_module"]) == (0, 0)
    loaded = first.load(made)
    assert first.load(made) is loaded
    assert (one.calls["load_module"], two.calls["load_module"]) == (1, 0)
    assert second.load(made) is not loaded
    assert (one.calls["load_module"], two.calls["load_module"]) == (1, 1)
    # One set of variables on each device
    assert [counted(first, first.load(made)) for _ in range(2)] == [6, 7]
    assert counted(second, second.load(made)) == 6
    # Another program, and an image, are loaded by themselves.
    assert counted(first, first.load(program)) == 6
    assert counted(first, first.load(made.images[0].image)) == 6
    assert one.calls["load_module"] == 3


def test_threads_that_load_at_once_load_once(open_probe, program):
    device, probe = open_probe()
    made = pickle.loads(pickle.dumps(program))
    begin, found = threading.Barrier(4), []

    def load():
        begin.wait(LIMIT)
        found.append(device.load(made))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
    assert probe.calls["load_module"] == 1


def test_a_program_that_is_gone_is_unloaded(open_probe, program):
    device, probe = open_probe()
    made = pickle.loads(pickle.dumps(program))
    kernel = device.load(made)["scale"]
    del made
    gc.collect()
    device.trim()
    assert probe.calls["unload_module"] == 0  # the kernel keeps it
    del kernel
    gc.collect()
    device.close()
    assert probe.calls["unload_module"] == 1


def test_given_signatures_load_by_themselves(program, device):
    other = device.load(program, signatures={"scale": "(f32, const ptr, ptr, u32 m)"})
    assert other is not device.load(program)
    assert str(other["scale"].signature) == "(f32 arg0, const ptr arg1, ptr arg2, u32 m)"
    assert str(device.load(program)["scale"].signature) == SIGNATURES["scale"]


def test_a_device_compiles_by_the_same_path(device, program):
    executable = device.compile(SOURCE, filename="mine.cpp", defines={"N": 3})
    assert executable.image == program.images[0].image
    assert device.load(program).image == program.images[0].image
    with pytest.raises(NotFoundError, match="scale, count"):
        device.load(program)["nothing"]


# Several targets


@pytest.fixture(scope="module")
def wide():
    """A program for several processors."""
    if os.uname().machine != "x86_64":
        pytest.skip("these levels are those of x86-64")
    return hal.compile(SOURCE, target=["cpu:x86-64", "cpu", "cpu:x86-64-v2"])


def changed(program, index, **properties):
    """Return a program of which one image wants something else of a processor."""
    images = list(program.images)
    images[index] = images[index]._replace(properties={**images[index].properties, **properties})
    return hal.Program(images, program.entry_points, program.metadata)


def test_the_best_image_is_chosen(wide, device):
    assert wide.targets == ("cpu:x86-64", "cpu:native", "cpu:x86-64-v2")
    assert wide.image_for(device).target == "native"
    assert scaled(device, device.load(wide)) == [0, 2, 4, 6]
    worse = changed(wide, 1, features="avx9000")
    assert worse.image_for(device).target == "x86-64-v2"
    assert device.load(worse).image == wide.images[2].image
    assert changed(worse, 2, machine="pdp11").image_for(device).target == "x86-64"


def test_a_program_that_fits_nowhere_is_refused_with_what_to_do(wide, open_probe):
    device, probe = open_probe()
    images = [
        wide.images[1]._replace(backend="cuda", target="sm_90"),
        wide.images[1]._replace(properties={"machine": "pdp11"}),
    ]
    with pytest.raises(
        OperationError, match=r"cuda:sm_90, cpu:native, .*runs on cpu:0 .*target='cpu:native'"
    ):
        device.load(hal.Program(images, ["scale"], {}))
    assert probe.calls["load_module"] == 0


class Slow(NativeCompiler):
    """Compile nothing, and let as many compile at once as it takes to go on."""

    def __init__(self, together):
        self.barrier = threading.Barrier(together)
        self.threads = set()
        self.linked = []

    def compile(self, request, target):
        if "broken" in request.source:
            message = f"{request.filename} does not compile"
            raise CompilationError(message, log="all of it")
        self.barrier.wait(LIMIT)
        self.threads.add(threading.get_ident())
        return CompiledImage(target, request.filename.encode(), f"{request.filename};")

    def link(self, parts, target):
        self.linked.append(len(parts))
        return CompiledImage(target, b"+".join(part.image for part in parts), "linked")


@pytest.fixture
def slow(monkeypatch):
    def install(together):
        compiler = Slow(together)
        monkeypatch.setattr(_registry, "compiler_of", lambda _: compiler)
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        return compiler

    return install


def test_targets_and_sources_are_compiled_side_by_side(slow):
    compiler = slow(6)
    made = hal.compile(PARTS, target=["a:1", "b:2"])
    assert len(compiler.threads) == 6
    assert compiler.linked == [3, 3]
    assert made.targets == ("a:1", "b:2")
    assert {each.image for each in made.images} == {b"part1.cpp+part2.cpp+part3.cpp"}
    log = "part1.cpp;part2.cpp;part3.cpp;linked"
    assert made.log == f"a:1:\n{log}\nb:2:\n{log}\n"
    # Nothing is known of what is no image, but the names in the sources.
    assert (made.entry_points, dict(made.signatures)) == (("k1", "k2", "k3"), {})


def test_the_first_that_fails_is_raised_with_its_target(slow):
    slow(1)
    sources = {"good.cpp": PART.format(1), "bad.cpp": f"// broken{PART.format(2)}"}
    with pytest.raises(CompilationError, match=r"^a:1: bad.cpp does not compile") as caught:
        hal.compile(sources, target=["a:1", "b:2"])
    assert caught.value.log == "all of it"


# Several sources


def test_several_sources_are_one_module_with_one_load(open_probe):
    device, probe = open_probe()
    made = hal.compile(PARTS, target="cpu")
    executable = device.load(made)
    assert probe.calls["load_module"] == 1
    assert list(executable) == ["k1", "k2", "k3"]
    out = device.upload(np.zeros(4, np.int32))
    for number in (1, 2, 3):
        device.queue.dispatch(executable[f"k{number}"], grid=1, args=(out,)).wait(LIMIT)
        assert out.numpy().tolist() == [(i + number) * 10 + number for i in range(4)]
        own = executable.global_variable(f"own{number}", dtype=np.int32)
        assert own.numpy() == [number]
    assert list(device.compile(PARTS)) == ["k1", "k2", "k3"]


def test_sources_call_each_others_functions(device):
    sources = {
        "user.cpp": "__device__ int twice(int x); __global__ void k(int *p) { *p = twice(21); }",
        "library.cpp": "__device__ int twice(int x) { return 2 * x; }",
    }
    out = device.upload(np.zeros(1, np.int32))
    kernel = device.compile(sources)["k"]
    device.queue.dispatch(kernel, grid=1, block=1, args=(out,)).wait(LIMIT)
    assert out.numpy() == [42]


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        (PARTS["part1.cpp"], PARTS["part1.cpp"], r"b.cpp:4: kernel 'k1': a.cpp defines it"),
        (
            "__device__ int f() { return 1; } __global__ void a() { f(); }",
            "__device__ int f() { return 2; } __global__ void b() { f(); }",
            r"cpu:native: b.cpp defines '_Z1fv', and a.cpp does already",
        ),
        (
            "__device__ int g(); __global__ void a(int *p) { *p = g(); }",
            "__global__ void b() { }",
            r"(?s)^cpu:native: .*cannot be linked:.*undefined.*g\(\)",
        ),
        ("__device__ int g();", "// nothing", r"no kernel is defined in a.cpp, b.cpp"),
    ],
    ids=["kernels", "functions", "missing", "empty"],
)
def test_sources_that_do_not_go_together(first, second, match, device):
    with pytest.raises((CompilationError, InvalidArgumentError), match=match):
        hal.compile({"a.cpp": first, "b.cpp": second}, target="cpu")
    with pytest.raises((CompilationError, InvalidArgumentError, OperationError)):
        device.compile({"a.cpp": first, "b.cpp": second})


def test_an_error_has_its_file_and_line():
    sources = {"good.cpp": PART.format(1), "bad.cpp": "\n__global__ void b(int *p) { *p = none; }"}
    with pytest.raises(CompilationError, match=r"cpu: bad.cpp does not compile:\nbad.cpp:2:34: "):
        hal.compile(sources, target="cpu")


# Wrong arguments


class _OnlyDevices:
    """A backend as it was before there was more to it."""

    def __init__(self):
        found = cpu_backend()
        self.record = Backend("cpu", found.summary, found.probe, found.open)


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"target": "nope"}, BackendNotFoundError, "asked for 'nope'; installed: "),
        ({"target": "cpu:6502"}, InvalidArgumentError, "cpu:6502: .*native"),
        ({"target": []}, InvalidArgumentError, "no target"),
        ({"target": ["cpu", "cpu"]}, InvalidArgumentError, "'cpu' is given twice"),
        ({"target": ["cpu", "cpu:native"]}, InvalidArgumentError, "the same: cpu:native"),
        ({"target": 3}, ArgumentTypeError, "or a device, not int"),
        ({"target": "cpu", "source": "int x;"}, InvalidArgumentError, "defines no kernel"),
        ({"target": "cpu", "source": {}}, InvalidArgumentError, "no source"),
        ({"target": "cpu", "source": 3}, ArgumentTypeError, "source"),
        ({"target": "cpu", "source": {"a": 3}}, ArgumentTypeError, "source"),
        ({"target": "cpu", "defines": ["N"]}, ArgumentTypeError, "defines"),
        ({"target": "cpu", "options": "-g"}, ArgumentTypeError, "options"),
        ({"target": "cpu", "options": {"cuda": []}}, InvalidArgumentError, "options for 'cuda'"),
    ],
)
def test_wrong_arguments(arguments, kind, match):
    with pytest.raises(kind, match=match):
        hal.compile(**{"source": SOURCE, **arguments})


def test_a_backend_that_compiles_on_devices_only(monkeypatch, program, device):
    plugin = {each.name: each for each in _registry._registry._search()}["cpu"]
    monkeypatch.setattr(plugin, "_backend", _OnlyDevices().record)
    monkeypatch.setattr(plugin, "_compiler", None)
    with pytest.raises(
        UnimplementedError, match=r"'cpu' .* nothing without a device; .*compile\(\)"
    ):
        hal.compile(SOURCE, target="cpu")
    assert scaled(device, device.compile(SOURCE)) == [0, 2, 4, 6]
    # Its images suit devices of their very architecture.
    renamed = program.images[0]._replace(target=device.info.architecture)
    assert scaled(device, device.load(hal.Program([renamed], ["scale"], {}))) == [0, 2, 4, 6]
    with pytest.raises(OperationError, match="none of them runs on cpu:0"):
        device.load(program)


# Other backends


def info(architecture, **properties):
    return DeviceInfo(0, "GPU", "U", architecture, 1, 1, 1, 1, 32, "driver", properties)


CUDA = ("sm_80", "sm_86", "sm_90", "sm_90a", "sm_100f", "compute_75", "compute_90", "compute_90a")
HIP = ("gfx942", "gfx942:xnack-", "gfx942:sramecc+:xnack-", "gfx90a")


@pytest.mark.parametrize(
    ("name", "targets", "device", "best_first"),
    [
        ("cuda", CUDA, info("sm_80"), ["sm_80", "compute_75"]),
        ("cuda", CUDA, info("sm_89"), ["sm_86", "sm_80", "compute_75"]),
        (
            "cuda",
            CUDA,
            info("sm_90"),
            ["sm_90a", "compute_90a", "sm_90", "compute_90", "compute_75"],
        ),
        ("cuda", CUDA, info("sm_103"), ["sm_100f", "compute_90", "compute_75"]),
        ("cuda", CUDA, info("sm_70"), []),
        (
            "hip",
            HIP,
            info("gfx942", compile_target="gfx942:sramecc+:xnack-"),
            ["gfx942:sramecc+:xnack-", "gfx942:xnack-", "gfx942"],
        ),
        ("hip", HIP, info("gfx942", compile_target="gfx942:sramecc+:xnack+"), ["gfx942"]),
        ("hip", HIP, info("gfx1100", compile_target="gfx1100"), []),
    ],
)
def test_what_suits_a_device(name, targets, device, best_first):
    pytest.importorskip({"cuda": "cuda.bindings", "hip": "rocm.bindings"}[name])
    compiler = _registry.compiler_of(name)
    ranks = {each: compiler.rank(CompiledImage(each, b""), device) for each in targets}
    found = sorted((each for each in targets if ranks[each]), key=ranks.get, reverse=True)
    assert found == best_first


@pytest.mark.parametrize("target", ["cuda", "cuda:gfx942", "hip", "hip:sm_90"])
def test_targets_of_gpus_are_named(target):
    pytest.importorskip("cuda.bindings" if target.startswith("cuda") else "rocm.bindings")
    with pytest.raises(
        (InvalidArgumentError, UnimplementedError), match=r"name a processor|NVRTC|as in"
    ):
        hal.compile(SOURCE, target=target)


def test_the_real_compiler_needs_no_driver(tmp_path):
    """NVRTC and nvJitLink, where they are installed."""
    pytest.importorskip("cuda.bindings")
    (tmp_path / "parts.py").write_text(f"SOURCE = {SOURCE!r}\nPARTS = {PARTS!r}\n")
    script = """
    import sys
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
        for name in ("nvrtc", "nvJitLink"):
            load_nvidia_dynamic_lib(name)
    except RuntimeError as error:
        sys.exit(f"not here: {error}")
    import hal
    from parts import PARTS, SOURCE
    made = hal.compile(SOURCE, target=["cuda:sm_90", "cuda:compute_80", "cpu"])
    print(made.targets, [each.image[:4] for each in made.images])
    for each in made.images:
        print({name: str(entry.signature) for name, entry in each.kernels.items()})
    linked = hal.compile(PARTS, target="cuda:sm_80")
    print(linked.targets, dict(linked.signatures).keys() == {"k1", "k2", "k3"})
    doubled = {"a.cpp": "__device__ int f() { return 1; } __global__ void a(int *p) { *p = f(); }"}
    doubled["b.cpp"] = doubled["a.cpp"].replace("void a", "void b")
    wrong = ((doubled, "cuda:sm_90"), (PARTS, "cuda:compute_90"), (SOURCE, "cuda:sm_12"))
    for source, target in wrong:
        try:
            hal.compile(source, target=target)
        except hal.HalError as error:
            print(type(error).__name__, str(error).splitlines()[0])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
            "HAL_CACHE_DIR": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.stderr.startswith("not here"):
        pytest.skip(
            "NVRTC or nvJitLink is not installed: pip install nvidia-cuda-nvrtc nvidia-nvjitlink"
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "('cuda:sm_90', 'cuda:compute_80', 'cpu:native') [b'\\x7fELF', b'//\\n/'"
    )
    assert lines[1:4] == [str(SIGNATURES)] * 3
    assert lines[4] == "('cuda:sm_80',) True"
    assert lines[5].startswith("CompilationError cuda:sm_90: b.cpp defines '_Z1fv', and a.cpp does")
    assert lines[6].startswith("InvalidArgumentError cuda:compute_90: several sources")
    assert lines[7].startswith("InvalidArgumentError cuda:sm_12: 'sm_12' is no target of NVRTC")


def _hip_harness():
    sys.path.insert(0, str(TESTS / "hip"))
    try:
        spec = importlib.util.spec_from_file_location(
            "flow_hip_harness", TESTS / "hip" / "hip_harness.py"
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(TESTS / "hip"))
    return module


def test_one_file_for_cpu_cuda_and_hip(tmp_path):
    """On software drivers: compiled once, loaded on five devices, which run it."""
    pytest.importorskip("cuda.bindings")
    pytest.importorskip("rocm.bindings")
    harness = _hip_harness()
    library = harness.gpusim.built()
    script = f"""
    import hal, numpy as np
    SOURCE = {SOURCE!r}
    made = hal.compile(SOURCE, target=["cpu", "cuda:sm_90", "hip:gfx90a:xnack-"])
    path = {str(tmp_path / "all.hal")!r}
    made.save(path)
    program = hal.Program.open(path)
    for name in ("cpu", "cuda:0", "hip:0", "hip:1", "cuda:1"):
        device = hal.create_device(name)
        kernel = device.load(program)["scale"]
        x = device.upload(np.arange(4, dtype=np.float32))
        y = device.upload(np.zeros(4, np.float32))
        device.queue.dispatch(kernel, grid=1, args=(2.0, x, y, 4)).wait(20)
        print(name, program.image_for(device).name, kernel.signature, y.numpy().tolist())
        device.close()
    """
    done = harness.run_python(
        tmp_path,
        script,
        ROCM_PATH=str(harness.rocm_folder()),
        LD_LIBRARY_PATH=str(library),
        LD_PRELOAD=f"{library}/libcuda.so.1:{library}/libnvrtc.so.13",
        **harness.variables(devices=2),
    )
    assert done.returncode == 0, done.stderr
    hip = "hip:gfx90a:xnack-"
    images = ("cpu:native", "cuda:sm_90", hip, hip, "cuda:sm_90")
    names = ("cpu", "cuda:0", "hip:0", "hip:1", "cuda:1")
    rest = f"{SIGNATURES['scale']} [0.0, 2.0, 4.0, 6.0]"
    assert done.stdout.splitlines() == [
        f"{name} {image} {rest}" for name, image in zip(names, images, strict=True)
    ]
