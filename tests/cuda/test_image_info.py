"""What PTX and cubins say of themselves and of their kernels, without a driver (C5)."""

import contextlib
import struct

import pytest
from cuda_harness import fatbin
from damage import damaged

import hal
from hal.errors import HalError, InvalidArgumentError, NotFoundError

PTX = b"""
// .entry none(
.version 8.0
.target sm_90a, debug /* .entry nor this */
.address_size 64
.visible .entry scale(
    .param .u64 .ptr .global .align 4 scale_param_0,
    .param .f32 scale_param_1, .param .align 8 .b8 scale_param_2[24]
)
.maxntid 16, 8
{ ret; }
.func helper(.param .b32 x) { ret; }
.weak .entry _Z4tmplIfEvPT_(.param .u64 _Z4tmplIfEvPT__param_0) .reqntid 32 { ret; }
.entry none() { ret; }
.entry odd(.param .texref t) { ret; }
.entry cut(.param .align 4) { ret; }
"""


def attribute(code, *words):
    return struct.pack(f"<BBH{len(words)}I", 4, code, 4 * len(words), *words)


def parameter(place, size):
    return struct.pack("<BBHIHHI", 4, 0x17, 12, 0, place, 0, size << 18 | 0x1F000)


def cubin(kernels):
    """Return a cubin of functions with attributes, as NVIDIA's compilers lay it out."""
    names, symbols, infos = b"\0", b"", []
    for index, (name, (attributes, other)) in enumerate(kernels.items()):
        symbols += struct.pack("<IBBHQQ", len(names), 0x12, other, 3 + 2 * index, 0, 64)
        names += name.encode() + b"\0"
        infos += [b"code", attributes]
    sections, body, at = b"", b"", 64 + 64 * (3 + len(infos))
    rows = [(0, b"", 0, 0), (3, names, 0, 0), (2, symbols, 1, 0)]
    for index, content in enumerate(infos):
        kind, info = (0x70000000, 2 + index) if index % 2 else (1, 0)
        rows.append((kind, content, 2, info))
    for kind, content, link, info in rows:
        start = at + len(body)
        sections += struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, start, len(content), link, info, 0, 0)
        body += content
    head = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
    sizes = (64, 56, 0, 64, len(rows), 0)
    flags = 0x06000004 | 90 << 8
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64, flags, *sizes)
    return head + sections + body


BARRIERS = struct.pack("<BBH", 2, 0x4C, 1)  # an attribute whose value stands in its head
CUBIN = cubin(
    {
        "scale": (parameter(1, 4) + BARRIERS + parameter(0, 8) + attribute(5, 128, 1, 1), 0x10),
        "_Z5otherv": (attribute(0x10, 8, 4, 1), 0x10),
        "wide": (parameter(0, 8) + attribute(0x45, 1, 2, 3), 0x10),
        "helper": (b"", 0),
    }
)


def told(program):
    (image,) = program.images
    return {name: (str(each.signature), each.block) for name, each in image.kernels.items()}


def test_ptx_lists_its_kernels_c5(vendor):
    program = hal.Program.from_images(PTX)
    assert program.targets == ("cuda:compute_90a",)
    assert told(program) == {
        "scale": ("(ptr arg0, any[4] arg1, any[24] arg2)", None),
        "tmpl": ("(any[8] arg0)", (32, 1, 1)),
        "none": ("()", None),
        "odd": ("None", None),
        "cut": ("None", None),
    }


def test_a_cubin_lists_its_kernels_c5(vendor):
    program = hal.Program.from_images(CUBIN)
    assert program.targets == ("cuda:sm_90",)
    assert told(program) == {
        "scale": ("(any[8] arg0, any[4] arg1)", None),
        "other": ("()", (8, 4, 1)),
        "wide": ("None", None),
    }


def test_one_program_for_several_gpus_c5(vendor):
    images = {"cuda:sm_90a": CUBIN, "cuda:compute_90a": PTX, "cuda:sm_80": fatbin((1, 80), (2, 80))}
    described = {"scale": {"signature": "(f32* x, f32 a, bytes[24] r)"}}
    with pytest.raises(InvalidArgumentError, match=r"cuda:sm_90a: kernel 'scale' has 2 parameters"):
        hal.Program.from_images(images, kernels=described)
    program = hal.Program.from_images(images)
    assert program.targets == tuple(images)
    assert program.images[2].kernels is None  # the driver tells
    assert hal.Program.from_bytes(program.to_bytes()).to_bytes() == program.to_bytes()


@pytest.mark.parametrize(
    ("image", "target", "message"),
    [
        (CUBIN, "cuda:sm_80", "a cubin for sm_90, so its target is 'sm_90', not 'sm_80'"),
        (PTX, "cuda:sm_90a", "so its target is 'compute_90a', not 'sm_90a'"),
        (CUBIN, "cuda:gfx942", "'gfx942' is no target of the cuda backend"),
        (fatbin((1, 80)), "cuda", "which says no target; write 'sm_90' for"),
        (fatbin((1, 80)), "", "is for the cuda backend, but .* says no target"),
        (CUBIN[:200], "", "no installed backend takes"),
        (CUBIN, "cpu", "and this image is for an NVIDIA GPU"),
    ],
    ids=["number", "kind", "words", "none", "nothing", "damaged", "backend"],
)
def test_a_target_that_does_not_fit_is_refused_c5(vendor, image, target, message):
    with pytest.raises(InvalidArgumentError, match=message):
        hal.Program.from_images({target: image} if target else image)


@pytest.mark.parametrize(
    ("image", "kernels", "kind", "message"),
    [
        (PTX, {"helper": {}}, NotFoundError, "'helper'; there are: scale, tmpl, none, odd, cut"),
        (CUBIN, {"helper": {}}, NotFoundError, "'helper'; there are: scale, other, wide"),
        (CUBIN, {"scale": {"block": (16, 16)}}, InvalidArgumentError, "blocks of 128 threads at"),
        (PTX, {"scale": {"block": (16, 16)}}, InvalidArgumentError, "blocks of 128 threads at"),
        (PTX, {"tmpl": {"block": 64}}, InvalidArgumentError, r"block of \(32, 1, 1\) alone"),
        (
            PTX,
            {"scale": {"signature": "(u64 x, f32 a, bytes[24] r)"}},
            InvalidArgumentError,
            "'x' is a pointer in the image",
        ),
    ],
    ids=["function of PTX", "function of a cubin", "threads", "threads of PTX", "block", "pointer"],
)
def test_descriptions_that_contradict_are_refused_c5(vendor, image, kernels, kind, message):
    with pytest.raises(kind, match=message):
        hal.Program.from_images(image, kernels=kernels)


@pytest.mark.parametrize(
    "bad",
    [b"/*" * 200_000, b".entry a " * 200_000, b".entry a(" * 200_000],
    ids=["comments", "kernels", "parameters"],
)
def test_reading_ptx_takes_time_as_its_size_c5(vendor, bad):
    """Text that is made to do harm: with a pattern that looks ahead without a limit, hours."""
    assert hal.Program.from_images(b".version 8.0\n.target sm_80\n" + bad).images[0].kernels == {}


@pytest.mark.parametrize("image", [PTX, CUBIN], ids=["PTX", "cubin"])
def test_damaged_images_are_read_or_refused_c5(vendor, image):
    for seed in range(1000):
        with contextlib.suppress(HalError):
            hal.Program.from_images(damaged(image, seed))
