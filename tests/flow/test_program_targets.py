"""Programs for several targets, of several sources, and for other backends."""

import os
import sys
import textwrap
import threading

import gpusim
import numpy as np
import pytest
from child_processes import run_alone, run_command
from core_harness import LIMIT
from program_harness import PART, PARTS, SIGNATURES, SOURCE, scaled

import hal
from hal._backends import registry
from hal._programs import requests
from hal.errors import CompilationError, InvalidArgumentError, OperationError, UnimplementedError
from hal.native import CompiledImage, DeviceInfo, NativeCompiler

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


def test_what_to_do_needs_no_compiler(wide, device, monkeypatch):
    """The vendor's library may be missing where a program is only loaded."""

    class Missing(NativeCompiler):
        compile = None

        def target_of(self, info):
            message = "there is no compiler"
            raise UnimplementedError(message)

        def rank(self, image, info):
            return 0

    monkeypatch.setattr(registry, "compiler_of", lambda _: Missing())
    with pytest.raises(OperationError, match=f"target='cpu:{device.info.architecture}'"):
        device.load(wide)


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
        monkeypatch.setattr(registry, "compiler_of", lambda _: compiler)
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        return compiler

    return install


def test_targets_and_sources_are_compiled_side_by_side(slow, monkeypatch):
    compiler, read = slow(6), []
    read_source = requests.read_source
    monkeypatch.setattr(
        requests, "read_source", lambda *a, **named: read.append(a) or read_source(*a, **named)
    )
    made = hal.compile(PARTS, target=["a:1", "b:2"])
    assert len(compiler.threads) == 6
    assert compiler.linked == [3, 3]
    assert len(read) == 3  # once for all targets
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


# Other backends


def info(architecture, **properties):
    return DeviceInfo(0, "GPU", "U", architecture, 1, 1, 1, 1, 32, "driver", properties)


CUDA = (
    *("sm_80", "sm_86", "sm_90", "sm_90a", "sm_100f"),
    *("compute_75", "compute_90", "compute_90a", "compute_100f"),
)
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
        ("cuda", CUDA, info("sm_103"), ["sm_100f", "compute_100f", "compute_90", "compute_75"]),
        ("cuda", CUDA, info("sm_120"), ["compute_90", "compute_75"]),
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
    compiler = registry.compiler_of(name)
    ranks = {each: compiler.rank(CompiledImage(each, b""), device) for each in targets}
    found = sorted((each for each in targets if ranks[each]), key=ranks.get, reverse=True)
    assert found == best_first


@pytest.mark.parametrize("target", ["cuda", "cuda:gfx942", "hip", "hip:avx2"])
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
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        "HAL_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = run_command(command, cwd=tmp_path, env=environment)
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


def test_one_file_for_cpu_cuda_and_hip(tmp_path):
    """On software drivers: compiled once, or of images, loaded on five devices, which run it."""
    pytest.importorskip("cuda.bindings")
    pytest.importorskip("rocm.bindings")
    library = gpusim.built()
    script = f"""
    import hal, numpy as np
    SOURCE = {SOURCE!r}
    made = hal.compile(SOURCE, target=["cpu", "cuda:sm_90", "hip:gfx90a:xnack-"])
    path = {str(tmp_path / "all.hal")!r}
    made.save(path)
    opened = hal.Program.open(path)
    # As if other compilers had made the images
    foreign = hal.Program.from_images({{each.name: each.image for each in opened.images}})
    foreign.save(path)
    for name in ("cpu", "cuda:0", "hip:0", "hip:1", "cuda:1"):
        device = hal.create_device(name)
        program, kernel = opened, device.load(opened)["scale"]
        if name[-1] != "0":
            program, kernel = foreign, device.load(path)["scale"]
        x = device.upload(np.arange(4, dtype=np.float32))
        y = device.upload(np.zeros(4, np.float32))
        device.queue.dispatch(kernel, grid=1, args=(2.0, x, y, 4)).wait(20)
        print(name, program.image_for(device).name, kernel.signature, y.numpy().tolist())
        device.close()
    """
    done = run_alone(
        tmp_path,
        script,
        ROCM_PATH=str(gpusim.rocm_folder()),
        LD_LIBRARY_PATH=str(library),
        LD_PRELOAD=f"{library}/libcuda.so.1:{library}/libnvrtc.so.13",
        **gpusim.variables(devices=2),
    )
    assert done.returncode == 0, done.stderr
    hip = "hip:gfx90a:xnack-"
    images = ("cpu:native", "cuda:sm_90", hip, hip, "cuda:sm_90")
    names = ("cpu", "cuda:0", "hip:0", "hip:1", "cuda:1")
    rest = f"{SIGNATURES['scale']} [0.0, 2.0, 4.0, 6.0]"
    assert done.stdout.splitlines() == [
        f"{name} {image} {rest}" for name, image in zip(names, images, strict=True)
    ]
