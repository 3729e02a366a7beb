"""Images: what they are, and what is said of those that a device does not take."""

import struct

import pytest
from cuda_harness import fatbin

from hal.errors import NotFoundError, OperationError, UnimplementedError

PTX = b"// made by hand\n/* .version */\n.version 8.0\n.target sm_80, debug\n.address_size 64\n"


def elf(machine, flags=0, abi=0x41, size=64):
    head = b"\x7fELF\x02\x01\x01" + bytes([abi]) + bytes(8)
    return head + struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, size, flags, 64, 0, 0, 64, 0, 0
    )


def sniff(image):
    from hal_cuda import _image  # noqa: PLC0415

    return _image.sniff(image)


@pytest.mark.parametrize(
    ("image", "kind", "contents", "is_lto"),
    [
        (PTX, "ptx", "PTX for sm_80", False),
        (b".version 8.0\n", "ptx", "PTX for an unknown target", False),
        (elf(190, 0x06005A04), "elf", "a cubin for sm_90", False),
        (elf(190, 0x00500550, abi=0x33), "elf", "a cubin for sm_80", False),
        (elf(62), "elf", "code for x86_64", False),
        (elf(224), "elf", "code for an AMD GPU (a code object)", False),
        (fatbin((1, 80), (2, 90)), "fatbin", "a fat binary (PTX for 80, cubin for 90)", False),
        (fatbin((8, 90)), "fatbin", "a fat binary (LTO-IR for 90)", True),
        (fatbin((8, 90), (2, 90)), "fatbin", "a fat binary (LTO-IR for 90, cubin for 90)", False),
        (b"\xed\x43\x4e\x7f" + bytes(60), "ltoir", "LTO-IR", True),
    ],
)
def test_what_an_image_is(driver, image, kind, contents, is_lto):
    assert sniff(image)[:3] == (kind, contents, is_lto)


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (b"nonsense", "nonsense"),
        (bytes(4096), "begins with"),
        (b"__global__ void f() {}", "compile it with device.compile"),
        (b"BC\xc0\xde....", "LLVM bitcode"),
        (b"__CLANG_OFFLOAD_BUNDLE__....", "AMD"),
        (b"\xb1\x43\x62\x46" + bytes(20), "wrapper"),
        (b"\x7fELF", "damaged"),
        (elf(190, size=10**9), "damaged"),
        (b"\x50\xed\x55\xba\0\0", "damaged"),
        (b"// .version 8.0\nint x;", "begins with"),
    ],
)
def test_what_is_no_image_is_named_c5(lab, image, told):
    if image[:4] == b"\x7fELF" and len(image) > 4:
        image = image[:58] + struct.pack("<HH", 64, 3) + image[62:]
    with pytest.raises(OperationError, match=told) as caught:
        lab.device.load_module(image)
    assert "PTX, cubins, fat binaries and LTO-IR" in str(caught.value)


def test_a_refused_image_tells_both_sides_c5(lab):
    """The driver judges whom code is for; the error says what the image and the device are."""
    with pytest.raises(OperationError) as caught:
        lab.device.load_module(elf(190, 0x06007804) + bytes(64))
    text = str(caught.value)
    assert "a cubin for sm_120" in text
    assert f"the device is an {lab.device.info.architecture}" in text
    assert caught.value.native_name.startswith("CUDA_ERROR")


@pytest.fixture
def modules(vendor):
    """The backend's own module for images in the driver."""
    from hal_cuda import _module  # noqa: PLC0415 - imports the bindings

    return _module


class Bindings:
    """Take the place of the driver's functions for modules."""

    def __init__(self, real, code):
        self._real = real
        self.code = code
        self.images = []

    def __getattr__(self, name):
        return getattr(self._real, name)

    def cuModuleLoadData(self, image):  # noqa: N802
        self.images.append(image)
        return self.code, 4711

    def cuModuleLoadDataEx(self, image, count, options, values):  # noqa: N802
        assert count == len(options) == len(values) == 2
        values[0][:11] = b"bad ptx, so"
        return self.code, 0


def test_ptx_ends_with_a_zero(modules, monkeypatch):
    bindings = Bindings(modules.cuda, 0)
    monkeypatch.setattr(modules, "cuda", bindings)
    for image in (PTX, PTX + b"\0"):
        assert modules.load(image, "sm_90") == 4711
    assert bindings.images == [PTX + b"\0"] * 2


def test_ptx_that_is_refused_shows_the_drivers_log_c5(modules, monkeypatch):
    code = modules.cuda.CUresult(218)
    monkeypatch.setattr(modules, "cuda", Bindings(modules.cuda, code))
    with pytest.raises(OperationError, match="PTX for sm_80, and the device is an sm_90") as caught:
        modules.load(PTX, "sm_90")
    assert str(caught.value).endswith("bad ptx, so")
    assert caught.value.native_name == "CUDA_ERROR_INVALID_PTX"


def test_lto_ir_is_linked_first(native, modules, monkeypatch):
    bindings = Bindings(modules.cuda, 0)
    monkeypatch.setattr(modules, "cuda", bindings)
    monkeypatch.setattr(native, "link", lambda *arguments: repr(arguments[1:]).encode())
    modules.load(b"\xed\x43\x4e\x7f", "sm_90")
    modules.load(fatbin((8, 90)), "sm_90")
    assert bindings.images == [b"('ltoir', 'sm_90')", b"('fatbin', 'sm_90')"]


def test_lto_ir_without_its_linker_names_the_package(lab, hide):
    hide("cuda.bindings.nvjitlink")
    with pytest.raises(UnimplementedError, match="pip install nvidia-nvjitlink"):
        lab.device.load_module(b"\xed\x43\x4e\x7f" + bytes(60))


class Listing:
    """Take the place of the functions that find kernels, over a module of these names."""

    def __init__(self, real, names):
        self._real = real
        self._names = names

    def __getattr__(self, name):
        return getattr(self._real, name)

    def cuModuleGetFunction(self, modules, name):  # noqa: N802
        found = name.decode() in self._names
        return (0, self._names.index(name.decode()) + 1) if found else (self._real.CUresult(500), 0)

    def cuModuleGetFunctionCount(self, modules):  # noqa: N802
        return 0, len(self._names)

    def cuModuleEnumerateFunctions(self, count, modules):  # noqa: N802
        return 0, list(range(1, count + 1))

    def cuFuncGetName(self, function):  # noqa: N802
        return 0, self._names[function - 1].encode()


def test_a_cpp_kernel_is_found_by_its_name_c5(modules, monkeypatch):
    names = ["plain", "_Z5saxpyfPKfPfi", "_Z6scaledf", "_Z5twiceIfEvT_", "_Z5twiceIdEvT_"]
    monkeypatch.setattr(modules, "cuda", Listing(modules.cuda, names))
    assert modules.find_function(1, "plain") == 1
    assert modules.find_function(1, "saxpy") == 2
    assert modules.find_function(1, "_Z6scaledf") == 3
    with pytest.raises(NotFoundError, match="has 2 kernels 'twice'"):
        modules.find_function(1, "twice")
    with pytest.raises(NotFoundError, match=r"'scale'; it has: .*_Z6scaledf.*plain"):
        modules.find_function(1, "scale")
