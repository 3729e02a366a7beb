"""Code objects: what their metadata say, which of a bundle is taken, what is refused."""

import contextlib
import struct

import pytest
from code_objects import argument, bundle_of, code_object, kernel, note, pack, pack_short
from compile_requests import compiled, request
from damage import damaged

import hal
from hal.errors import HalError, InvalidArgumentError, NotFoundError, OperationError

TARGET = "gfx90a:sramecc+:xnack-"


@pytest.fixture
def read(vendor):
    from hal_hip import _image  # noqa: PLC0415 - imports the bindings' package

    return _image.read


@pytest.mark.parametrize("packer", [pack, pack_short])
def test_parameters_come_from_the_metadata_c5(read, packer):
    image = code_object(kernel("saxpy", 4, 8, 8, 4), kernel("_Z4fillPii", 8, 4), packer=packer)
    found = read(image, TARGET)
    assert found.contents == "a code object for gfx90a"
    assert found.content == image
    assert {name: each.parameter_sizes for name, each in found.kernels.items()} == {
        "saxpy": (4, 8, 8, 4),
        "_Z4fillPii": (8, 4),
    }
    assert found.kernels["saxpy"].max_threads == 256
    assert found.kernels["saxpy"].shared_memory == 1024


def test_a_program_reads_them_c5(vendor):
    arguments = [
        {**argument(4), ".name": "a"},
        {**argument(8, "global_buffer"), ".name": "x", ".access": "read_only"},
        {**argument(8, "global_buffer"), ".name": "y.coerce"},
        argument(8, "hidden_global_offset_x"),
    ]
    more = {".args": arguments, ".reqd_workgroup_size": [64, 2, 1]}
    image = code_object(kernel("_Z5saxpyfPKfPf", **more), target="gfx90a:xnack-")
    program = hal.Program.from_images(image)
    assert program.targets == ("hip:gfx90a:xnack-",)
    assert str(program.signatures["saxpy"]) == "(any[4] a, const ptr x, ptr arg2)"
    assert program.images[0].kernels["saxpy"].block == (64, 2, 1)
    assert hal.Program.from_bytes(program.to_bytes()).to_bytes() == program.to_bytes()
    bundle = bundle_of({"hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-": image})
    assert hal.Program.from_images({"hip:gfx90a:xnack-": bundle}).entry_points == ("saxpy",)


@pytest.mark.parametrize(
    ("image", "target", "told"),
    [
        (code_object(kernel("f")), "hip:gfx942", "for gfx90a, so its target is 'gfx90a', not"),
        (code_object(kernel("f")), "hip:sm90", "'sm90' is no target of the hip backend"),
        (bundle_of({}), "hip", "a bundle for no GPU, which says no target; name the processor"),
        (code_object(kernel("f"))[:150], "", "no installed backend takes"),
        (code_object(machine=62), "hip", "an ELF file for x86_64"),
    ],
    ids=["processor", "words", "none", "damaged", "machine"],
)
def test_a_target_that_does_not_fit_is_refused_c5(vendor, image, target, told):
    with pytest.raises(InvalidArgumentError, match=told):
        hal.Program.from_images({target: image} if target else image)


def test_other_notes_are_passed_over(read):
    others = note(b"GNU\0", 3, bytes(20)) + note(b"AMDGPU\0", 7, b"abc") + note(b"", 1, b"")
    image = code_object(kernel("one"), extra=others)
    assert list(read(image, TARGET).kernels) == ["one"]


def test_a_kernel_without_parameters_has_none_c5(read):
    bare = kernel("bare")
    del bare[".args"]
    image = code_object(kernel("none"), bare)
    sizes = [each.parameter_sizes for each in read(image, TARGET).kernels.values()]
    assert sizes == [(), ()]


def entry(target):
    return f"hipv4-amdgcn-amd-amdhsa--{target}"


def test_the_device_gets_its_own_part_of_a_bundle(read):
    parts = {
        "host-x86_64-unknown-linux--": b"",
        entry("gfx1100"): code_object(kernel("b", 4), target="gfx1100"),
        entry("gfx90a:xnack+"): code_object(kernel("c", 8), target="gfx90a:xnack+"),
        entry("gfx90a:xnack-"): code_object(kernel("d", 8, 8), target="gfx90a:xnack-"),
    }
    found = read(bundle_of(parts), TARGET)
    assert found.content == parts[entry("gfx90a:xnack-")]
    assert list(found.kernels) == ["d"]
    assert found.contents == "a bundle for gfx1100, gfx90a:xnack+, gfx90a:xnack-"
    assert read(bundle_of(parts), "gfx1100").content == parts[entry("gfx1100")]


def test_a_part_for_a_family_is_left_to_the_runtime(read):
    image = bundle_of({entry("gfx9-generic"): code_object(kernel("a"))})
    found = read(image, TARGET)
    assert found.content == image
    assert found.contents == "a bundle for gfx9-generic"


def test_the_names_of_older_bundles_are_known(read):
    inner = code_object(kernel("a", 4))
    assert read(bundle_of({"hip-amdgcn-amd-amdhsa--gfx90a": inner}), TARGET).content == inner


def test_a_compressed_bundle_is_left_to_the_runtime(read):
    assert read(b"CCOB" + bytes(100), TARGET).contents == "a compressed bundle"


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (b"", "empty"),
        (b"nonsense", "none of these"),
        (bytes(4096), "none of these"),
        (b".version 8.0\n.target sm_90\n", "PTX"),
        (b"BC\xc0\xde" + bytes(20), "bitcode"),
        (b"__global__ void f() {}", "source"),
        (b"\x7fELF\x01\x01" + bytes(60), "32-bit"),
        (b"\x7fELF\x02\x01", "damaged"),
    ],
)
def test_what_is_no_image_is_refused_c5(read, image, says):
    with pytest.raises(OperationError, match=says):
        read(image, TARGET)


def test_a_cut_off_image_never_reaches_the_runtime(read):
    image = code_object(kernel("saxpy", 4, 8, 8, 4), kernel("fill", 8, 4))
    for length in range(8, len(image) - 3):  # the last bytes may be padding
        try:
            found = read(image[:length], TARGET)
        except OperationError:
            continue
        raise AssertionError((length, found))


def test_a_damaged_bundle_is_refused(read):
    image = bundle_of({entry("gfx90a"): code_object(kernel("a"))})
    huge = image[:24] + struct.pack("<Q", 2**60) + image[32:]
    others = code_object(kernel("a"), target="gfx1100")
    cut = bundle_of({entry("gfx90a"): code_object(kernel("a")), entry("gfx1100"): others})[:-8]
    for broken in (image[:40], image[:-8], huge, image[:24], cut):
        with pytest.raises(OperationError, match="damaged"):
            read(broken, TARGET)


@pytest.mark.parametrize(
    "metadata",
    [
        *(b"", b"\xd9", b"\xd9\x05abc", b"\x91", b"\x81\x01", b"\xc1", b"\xcf\x01"),
        b"\x91" * 5000,  # nested
        b"\xdd\xff\xff\xff\xff",  # a list of four thousand million
        b"\x81\xc1\x01",
        b"\x81\x90\x01",  # a list for a key
        b"\xa2\xff\xfe",  # no UTF-8
        pack({"amdhsa.kernels": [1]}),
        pack({"amdhsa.kernels": ["x"]}),
        pack({"amdhsa.kernels": [{}]}),
        pack({"amdhsa.kernels": [kernel("a", 4) | {".args": [3]}]}),
        pack({"amdhsa.kernels": [kernel("a", 4) | {".group_segment_fixed_size": float("inf")}]}),
    ],
)
def test_damaged_metadata_are_refused(read, metadata):
    with pytest.raises(OperationError, match="this image is a damaged one"):
        read(code_object(packer=lambda _: metadata), TARGET)


def test_what_stands_behind_the_metadata_is_passed_over(read):
    image = code_object(kernel("one", 4), packer=lambda value: pack(value) + b"\0\0")
    assert list(read(image, TARGET).kernels) == ["one"]


@pytest.mark.parametrize("packer", [pack, pack_short])
def test_no_damaged_byte_escapes_as_another_error(read, packer):
    image = code_object(kernel("saxpy", 4, 8), packer=packer)
    bundle = bundle_of({entry("gfx90a"): image, entry("gfx1100"): b""})
    for whole in (image, bundle):
        for at in range(len(whole)):
            for value in (0, 0x7F, 0x91, 0xC1, 0xDD, 0xFF):
                damaged = bytearray(whole)
                damaged[at] = value
                with contextlib.suppress(OperationError):
                    read(bytes(damaged), TARGET)


def test_an_image_for_another_device_is_refused_by_name_c5(device):
    with pytest.raises(OperationError, match=r"a code object for gfx1100.*gfx90a") as caught:
        device.load_module(code_object(kernel("a"), target="gfx1100"))
    assert caught.value.native_code == 209


def test_kernels_are_found_by_their_plain_name_c5(device, image):
    module = device.load_module(image)
    function = device.get_function(module, "add")
    assert function == device.get_function(module, "add")
    assert device.function_info(function).max_threads_per_block == 1024
    device.unload_module(module)


def test_kernels_of_cpp_are_found_by_the_name_in_the_source_c5(device):
    """What the runtime knows as ``_Z3sumPj``; the image lists its names as AMD's do."""
    names = ["_Z3sumPj", "_Z5twicei", "_Z5twicef", "plain"]
    source = "\n".join(f'extern "C" __global__ void {name}(int *p) {{ *p = 1; }}' for name in names)
    module = device.load_module(compiled(device, request(source)))
    loaded = device._modules[module][0]
    content = loaded._image.content
    kernels = read_kernels(code_object(*(kernel(name, 8) for name in names)))
    loaded._image = type(loaded._image)(content, "by hand", kernels)
    functions = {name: device.get_function(module, name) for name in ("sum", "_Z3sumPj", "plain")}
    assert functions["sum"] == functions["_Z3sumPj"] != functions["plain"]
    assert device.function_info(functions["sum"]).parameter_sizes == (8,)
    with pytest.raises(NotFoundError, match=r"2 kernels 'twice'; name one: _Z5twicei, _Z5twicef"):
        device.get_function(module, "twice")
    with pytest.raises(NotFoundError, match=r"no kernel 'none'; it has: plain, sum, twice, twice"):
        device.get_function(module, "none")
    device.unload_module(module)


def read_kernels(image):
    from hal_hip import _image  # noqa: PLC0415

    return _image.read(image, TARGET).kernels


def test_damaged_images_are_read_or_refused_c5(vendor):
    image = code_object(kernel("f", 4, 8), target="gfx90a:xnack-")
    for seed in range(1000):
        with contextlib.suppress(HalError):
            hal.Program.from_images(damaged(image, seed))
