"""Programs: compiled without a device, and loaded once."""

import gc
import hashlib
import json
import os
import pickle
import sys
import textwrap
import threading

import pytest
from child_processes import output_of
from core_harness import LIMIT, collect_in_threads
from program_harness import SIGNATURES, SOURCE, counted, scaled

import hal
from hal._backends import registry
from hal._programs.program import MAGIC
from hal.errors import (
    ArgumentTypeError,
    BackendNotFoundError,
    InvalidArgumentError,
    NotFoundError,
    OperationError,
    UnimplementedError,
)
from hal.plugin import Backend
from hal_cpu.plugin import hal_backend as cpu_backend


@pytest.fixture(scope="module")
def program():
    return hal.compile(SOURCE, target="cpu", filename="mine.cpp", defines={"N": 3})


# What a program is


def test_compiling_needs_no_device(monkeypatch):
    def fail(*_):
        pytest.fail("a driver was opened")

    monkeypatch.setattr("hal._backends.plugins.Plugin.driver", fail)
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


def bytes_of(head, images=b""):
    """Return bytes of a program with a head as given: JSON of something, or bytes."""
    head = head if isinstance(head, bytes) else json.dumps(head).encode()
    body = len(head).to_bytes(8, "little") + head + images
    return MAGIC + hashlib.sha256(body).digest() + body


def heads():
    """Yield heads that are wrong each in one way, with the bytes of the images."""
    image = {
        "backend": "cpu", "target": "native", "size": 4, "log": "", "properties": {},
        "kernels": [["k", [["n", "int", 4, 4, False]], [4, 1, 1], 0]],
    }  # fmt: skip
    good = {"version": 1, "entry_points": ["k"], "metadata": {}, "images": [image]}
    yield "good", good, b"abcd"
    for name, wrong in {"not text": b"\xff\xfe", "no JSON": b"{", "list": [], "number": 5}.items():
        yield name, wrong, b""
    for name in good:
        yield f"no {name}", {key: value for key, value in good.items() if key != name}, b"abcd"
    for name, value in {
        "entry_points": "k", "metadata": {"defines": 5}, "images": [5],
    }.items():  # fmt: skip
        yield f"odd {name}", {**good, name: value}, b"abcd"
    for name, value in {
        "backend": 5, "target": None, "size": 1.5, "log": [], "properties": [], "kernels": [1],
    }.items():  # fmt: skip
        yield f"odd {name}", {**good, "images": [{**image, name: value}]}, b"abcd"
    for name, value in {
        "parameter": [["k", [["n", "int", 5, 4, False]], None, 0]],
        "parameter's name": [["k", [[7, "int", 4, 4, False]], None, 0]],
        "block": [["k", [], [4, 1], 0]],
        "shared memory": [["k", [], None, "0"]],
    }.items():
        yield f"odd {name}", {**good, "images": [{**image, "kernels": value}]}, b"abcd"
    for name, content in {"too few": b"abc", "too many": b"abcde"}.items():
        yield name, good, content
    yield "negative", {**good, "images": [{**image, "size": 8}, {**image, "size": -4}]}, b"abcd"


@pytest.mark.parametrize(
    ("head", "images"), [pytest.param(*rest, id=name) for name, *rest in heads() if name != "good"]
)
def test_bytes_that_hal_never_wrote_are_refused(head, images):
    with pytest.raises(InvalidArgumentError, match=r"not as hal writes them .*compile it again"):
        hal.Program.from_bytes(bytes_of(head, images))


def test_bytes_of_another_version_are_refused():
    (good,) = ((head, images) for name, head, images in heads() if name == "good")
    assert hal.Program.from_bytes(bytes_of(*good)).images[0].image == b"abcd"
    with pytest.raises(InvalidArgumentError, match="version 2, and this hal reads 1; compile it"):
        hal.Program.from_bytes(bytes_of({"version": 2}))


def test_a_program_does_not_change(program):
    for name in ("images", "entry_points", "metadata", "other"):
        with pytest.raises(AttributeError):
            setattr(program, name, ())
    with pytest.raises(TypeError):
        program.metadata["defines"] = ""


def test_an_image_is_for_a_device(program):
    with pytest.raises(ArgumentTypeError, match="image_for takes a device, not str"):
        program.image_for("cpu")


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
    command = [sys.executable, "-c", textwrap.dedent(script)]
    assert output_of(command, cwd=tmp_path, env=environment) == "[3.0, 3.0, 3.0, 3.0]\n"


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
    begin = threading.Barrier(4)

    def load():
        begin.wait(LIMIT)
        return device.load(made)

    found = collect_in_threads([load] * 4)
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


# Wrong arguments


class _OnlyLoads:
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


def test_a_backend_without_a_compiler(monkeypatch, program, device):
    plugin = {each.name: each for each in registry._registry._search()}["cpu"]
    monkeypatch.setattr(plugin, "_record", _OnlyLoads().record)
    monkeypatch.setattr(plugin, "_compiler", None)
    why = r"'cpu' .* has no compiler: its devices load images only"
    for target in ("cpu", device):
        with pytest.raises(UnimplementedError, match=why):
            hal.compile(SOURCE, target=target)
    told = rf"^cpu:0 compiles no kernel source \(.*{why}\); load an image with device.load\(\)$"
    with pytest.raises(UnimplementedError, match=told):
        device.compile(SOURCE)
    # Its images suit devices of their very architecture.
    renamed = program.images[0]._replace(target=device.info.architecture)
    assert scaled(device, device.load(hal.Program([renamed], ["scale"], {}))) == [0, 2, 4, 6]
    with pytest.raises(OperationError, match="none of them runs on cpu:0"):
        device.load(program)
