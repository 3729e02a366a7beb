"""The vendor's libraries with a Python interface, and their errors as our classes.

The only module that touches ``cuda.bindings``. The functions that every
submission calls are exported unchanged: they take integers for handles and
return a tuple whose first item is the error, zero for none. All others are
called through `call`, which raises.

`call` and `query` relax the thread's capture mode during a call
(`hal.capture_modes`, O1); no call that only enqueues work needs it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import pathlib
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from hal.capture_modes import RELAXED, CaptureMode, captured
from hal.errors import (
    BackendUnavailableError,
    DeviceLostError,
    HalError,
    OperationError,
    OutOfMemoryError,
    UnimplementedError,
)
from hal.handlers import dropped, own
from hal.native import CallTable, DeviceInfo


def _import_bindings() -> Any:  # noqa: ANN401 - they ship no types
    try:
        return importlib.import_module("cuda.bindings.driver")
    except own(ImportError) as error:
        message = (
            f"the CUDA bindings for Python are not installed ({error}): pip install cuda-bindings"
        )
        raise BackendUnavailableError(message) from error


cuda: Final = _import_bindings()
"""The driver's functions and structures."""

INVALID_VALUE: Final = 1
OUT_OF_MEMORY: Final = 2
INVALID_CONTEXT: Final = 201
INVALID_HANDLE: Final = 400
NOT_FOUND: Final = 500
NOT_READY: Final = 600

_LINKED: Final = {"ltoir": "LTO-IR", "fatbin": "LTO-IR", "cubin": "one of several parts"}
_UNNAMED: Final = "CUDA_ERROR_UNKNOWN"
_NO_RESULT: Final = re.compile(r"(-?\d+) is not a valid CUresult")
_CLASSES: Final[dict[int, type[HalError]]] = {
    OUT_OF_MEMORY: OutOfMemoryError,
    801: UnimplementedError,  # NOT_SUPPORTED
    # The errors that the driver's documentation calls the end of the context or the process (O2).
    3: DeviceLostError,  # NOT_INITIALIZED: it was, so this is a fork
    4: DeviceLostError,  # DEINITIALIZED, as at the process's end
    INVALID_CONTEXT: DeviceLostError,  # after it was made current: other code has destroyed it
    214: DeviceLostError,  # ECC_UNCORRECTABLE
    220: DeviceLostError,  # NVLINK_UNCORRECTABLE
    226: DeviceLostError,  # CONTAINED
    700: DeviceLostError,  # ILLEGAL_ADDRESS
    702: DeviceLostError,  # LAUNCH_TIMEOUT
    709: DeviceLostError,  # CONTEXT_IS_DESTROYED
    710: DeviceLostError,  # ASSERT
    714: DeviceLostError,  # HARDWARE_STACK_ERROR
    715: DeviceLostError,  # ILLEGAL_INSTRUCTION
    716: DeviceLostError,  # MISALIGNED_ADDRESS
    717: DeviceLostError,  # INVALID_ADDRESS_SPACE
    718: DeviceLostError,  # INVALID_PC
    719: DeviceLostError,  # LAUNCH_FAILED
    721: DeviceLostError,  # TENSOR_MEMORY_LEAK
    810: DeviceLostError,  # MPS_CLIENT_TERMINATED
    911: DeviceLostError,  # EXTERNAL_DEVICE
}
"""The class of each error; an error not listed failed its own call, and the context lives."""


_mode = CaptureMode()  # replaced by `probe`


def relaxed(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as it is
    """Call a function of the driver that a capture may forbid; return its result."""
    return _mode.relaxed(function, *arguments)


def query(event: object) -> int:
    """Return ``cuEventQuery``'s error for an event, as `relaxed` would, and faster."""
    mode = _mode
    try:
        if mode.word.value != RELAXED:
            return _query(event)[0]  # type: ignore[no-any-return]
        swap = mode.swap
        try:
            swap()
            return _query(event)[0]  # type: ignore[no-any-return]
        finally:
            swap()
    except own(ValueError) as problem:
        raise unknown(problem, _query) from problem


_query: Final = cuda.cuEventQuery


def uncaptured(stream: int) -> Any:  # noqa: ANN401 - the bindings' object
    """Return the object of a foreign stream; raises `OperationError` while it is captured."""
    if is_captured(stream):
        raise captured(stream)
    return cuda.CUstream(stream)


def is_captured(stream: int) -> bool:
    """Return whether a stream is being captured; raises the driver's error for an invalid one."""
    return bool(call(cuda.cuStreamIsCapturing, cuda.CUstream(stream)))


def error_of(error: int, what: str) -> HalError:
    """Return the exception for an error of the driver; `what` is the function or the action."""
    code = int(error)
    name = str(getattr(error, "name", _UNNAMED))
    text = ""
    with dropped(Exception):  # an error without a text is still an error
        text = cuda.cuGetErrorString(cuda.CUresult(code))[1].decode(errors="replace")
    kind = _CLASSES.get(code, OperationError)
    return kind(
        f"{what} failed with {name}{f': {text}' if text else ''}",
        native_name=name,
        native_code=code,
    )


def fail(error: int, function: Callable[..., Any]) -> NoReturn:
    """Raise the exception for an error that a function of the driver returned."""
    raise error_of(error, function.__name__)


def call(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - whatever it returns
    """Call a function of the driver; return its one result, or None.

    Raises the exception of `error_of` for an error, and `UnimplementedError` if
    the driver lacks the function.
    """
    try:
        results = _mode.relaxed(function, *arguments)
    except own(RuntimeError) as problem:
        raise _missing(function.__name__, problem) from problem
    except own(ValueError) as problem:
        raise unknown(problem, function) from problem
    if results[0]:
        fail(results[0], function)
    return results[1] if len(results) == 2 else results[1:] or None  # noqa: PLR2004


def launch_host_function(stream: int, function: int, argument: int) -> None:
    """Have the driver call a plain C function after a stream's work so far.

    Calls the driver's own entry: that of the bindings takes the interpreter
    lock on the driver's thread around the function, which deadlocks once
    another thread waits for the driver with the lock held (I6).
    """
    if error := _host_function_entry()(stream, function, argument):
        raise error_of(cuda.CUresult(error), "cuLaunchHostFunc")


@functools.cache
def _host_function_entry() -> Callable[[int, int, int], int]:
    """Return ``cuLaunchHostFunc`` as the driver has it."""
    pointer = ctypes.c_void_p
    address = _address("cuLaunchHostFunc", 10000)
    return ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer)(address)


def _address(name: str, version: int) -> int:
    """Return the address of a function in the driver, in the form that a version of CUDA has."""
    error, address, _ = cuda.cuGetProcAddress(name.encode(), version, 0)
    if error or not address:
        raise error_of(error or cuda.CUresult(NOT_FOUND), f"looking for {name} in the driver")
    return int(address)


_TABLE: Final = {
    "record_event": ("cuEventRecord", 2000),
    "wait_event": ("cuStreamWaitEvent", 3020),
    "query_event": ("cuEventQuery", 2000),
    "fill_8": ("cuMemsetD8Async", 3020),
    "fill_16": ("cuMemsetD16Async", 3020),
    "fill_32": ("cuMemsetD32Async", 3020),
    "launch": ("cuLaunchKernel", 4000),
    "launch_graph": ("cuGraphLaunch", 10000),
    "current": ("cuCtxGetCurrent", 4000),
    "exchange_capture_mode": ("cuThreadExchangeStreamCaptureMode", 10010),
    "allocate_async": ("cuMemAllocFromPoolAsync", 11020),
    "free_async": ("cuMemFreeAsync", 11020),
    "update_launch": ("cuGraphExecKernelNodeSetParams", 12000),
    "write_value": ("cuStreamWriteValue64", 11070),
    "wait_value": ("cuStreamWaitValue64", 11070),
    "copy": ("cuMemcpyAsync", 4000),
    "synchronize_stream": ("cuStreamSynchronize", 2000),
    "make_current": ("cuCtxSetCurrent", 4000),
    "query_stream": ("cuStreamQuery", 2000),
}
"""The functions of a call table, each with the version of CUDA that gave it its form."""


MOST_LAUNCHES: Final = 256
"""Far below the 1,024 that a hardware channel takes, which streams of all libraries share."""


def call_table(context: int) -> CallTable | None:
    """Return the driver's functions for a context, or None if it lacks one."""
    try:
        addresses = {field: _address(name, version) for field, (name, version) in _TABLE.items()}
    except own(HalError):
        return None
    return CallTable(**addresses, context=context, not_ready=NOT_READY, most_launches=MOST_LAUNCHES)


def _missing(name: str, problem: RuntimeError) -> HalError:
    """Return the exception for a library or a function that is not there."""
    if type(problem).__name__ == "DynamicLibNotFoundError":
        return BackendUnavailableError(f"no NVIDIA driver is installed here: {problem}")
    return UnimplementedError(
        f"this NVIDIA driver has no {name}, it is too old for that: {problem}", native_name=name
    )


def unknown(problem: ValueError, function: Callable[..., Any]) -> Exception:
    """Return the exception for a number unknown to the bindings, which they raise for."""
    found = _NO_RESULT.search(str(problem))
    if found is None:
        return problem
    # The driver is newer than the bindings.
    return OperationError(
        f"{function.__name__} failed with error {found[1]}, which the bindings do not know: the "
        "driver is newer",
        native_name=f"CUDA_ERROR_{found[1]}",
        native_code=int(found[1]),
    )


# Devices


def probe() -> None:
    """Initialise the driver; raises `BackendUnavailableError` without one, or without a device."""
    try:
        (error,) = cuda.cuInit(0)
    except own(RuntimeError) as problem:
        message = (
            "no NVIDIA driver is installed here: libcuda.so.1 cannot be loaded "
            f"({str(problem).splitlines()[0] if str(problem) else type(problem).__name__})"
        )
        raise BackendUnavailableError(message) from problem
    except own(ValueError) as problem:
        message = f"the NVIDIA driver does not start: {problem}"
        raise BackendUnavailableError(message) from problem
    if error:
        known = error_of(error, "cuInit")
        raise BackendUnavailableError(
            f"no CUDA device can be used here: {known}",
            native_name=known.native_name,
            native_code=known.native_code,
        )
    global _mode  # noqa: PLW0603 - the driver's function is known from here on
    exchange = _address("cuThreadExchangeStreamCaptureMode", 10010)
    _mode = CaptureMode(exchange)
    if device_count() == 0:
        message = "the NVIDIA driver is here, and no device; CUDA_VISIBLE_DEVICES may hide it"
        raise BackendUnavailableError(message, native_name="CUDA_ERROR_NO_DEVICE", native_code=100)


def device_count() -> int:
    """Return how many devices there are."""
    return int(call(cuda.cuDeviceGetCount))


def attribute(device: int, name: str) -> int:
    """Return ``CU_DEVICE_ATTRIBUTE_name`` of a device, 0 where the driver has none."""
    key = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
    if key is None:
        return 0
    error, *value = cuda.cuDeviceGetAttribute(key, device)
    return 0 if error else int(value[0])


_SHOWN: Final = (
    "CLOCK_RATE",
    "MEMORY_CLOCK_RATE",
    "GLOBAL_MEMORY_BUS_WIDTH",
    "L2_CACHE_SIZE",
    "MAX_THREADS_PER_MULTIPROCESSOR",
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "ASYNC_ENGINE_COUNT",
    "ECC_ENABLED",
    "INTEGRATED",
    "COMPUTE_MODE",
    "MANAGED_MEMORY",
    "CONCURRENT_MANAGED_ACCESS",
    "PAGEABLE_MEMORY_ACCESS",
    "MEMORY_POOLS_SUPPORTED",
)


def describe(index: int) -> DeviceInfo:
    """Describe a device; creates no context."""
    device = int(call(cuda.cuDeviceGet, index))
    major = attribute(device, "COMPUTE_CAPABILITY_MAJOR")
    minor = attribute(device, "COMPUTE_CAPABILITY_MINOR")
    plain = attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK")
    properties: dict[str, str | int | float] = {
        name.lower(): attribute(device, name) for name in _SHOWN
    }
    bus = [attribute(device, f"PCI_{part}_ID") for part in ("DOMAIN", "BUS", "DEVICE")]
    properties["pci_bus_id"] = "{:04x}:{:02x}:{:02x}.0".format(*bus)
    name = call(cuda.cuDeviceGetName, 256, device)
    return DeviceInfo(
        index=index,
        name=bytes(name).split(b"\0")[0].decode(errors="replace"),
        uuid=f"GPU-{uuid.UUID(bytes=bytes(call(cuda.cuDeviceGetUuid, device).bytes))}",
        architecture=f"sm_{major}{minor}",
        total_memory=int(call(cuda.cuDeviceTotalMem, device)),
        compute_units=attribute(device, "MULTIPROCESSOR_COUNT"),
        max_threads_per_block=attribute(device, "MAX_THREADS_PER_BLOCK"),
        # A kernel may have more than the plain limit, on request at its launch.
        max_shared_memory=max(plain, attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")),
        warp_size=attribute(device, "WARP_SIZE"),
        driver=_driver_text(),
        properties=properties,
    )


def _driver_text() -> str:
    """Return the versions of CUDA, of the kernel's driver if known, and of the bindings."""
    version = int(call(cuda.cuDriverGetVersion))
    parts = [f"CUDA {version // 1000}.{version % 1000 // 10}"]
    with dropped(OSError, ValueError):
        found = pathlib.Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
        parts.append(f"driver {found}")
    with dropped(importlib.metadata.PackageNotFoundError):
        parts.append(f"cuda-bindings {importlib.metadata.version('cuda-bindings')}")
    return ", ".join(parts)


# The compiler and the linker


def compiler() -> tuple[str, tuple[int, ...]]:
    """Return NVRTC's version and the architectures that it knows, as in ``("13.0", (80, 90))``.

    Raises `UnimplementedError` with the pip command when it is not installed.
    """
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        error, major, minor = nvrtc.nvrtcVersion()
    except own(ImportError, RuntimeError) as problem:
        version = _major_version()
        package = "nvidia-cuda-nvrtc" if version > 12 else f"nvidia-cuda-nvrtc-cu{version}"  # noqa: PLR2004
        message = (
            f"kernels are compiled by NVRTC, which is not installed here: pip install {package}"
        )
        raise UnimplementedError(message) from problem
    known: Sequence[int] = ()
    if not error:
        error, known = nvrtc.nvrtcGetSupportedArchs()
    if error:
        message = f"NVRTC does not work: {error.name}"
        raise UnimplementedError(message, native_name=error.name, native_code=int(error))
    return f"{major}.{minor}", tuple(int(each) for each in known)


@functools.cache
def header_folder() -> str | None:
    """Return the folder of the vendor's ``cuda_fp16.h``: in a wheel, in conda, or in a toolkit."""
    try:
        pathfinder: Any = importlib.import_module("cuda.pathfinder")
        found = pathfinder.locate_nvidia_header_directory("cudart")
        folder = None if found is None else pathlib.Path(found.abs_path)
    except own(Exception):  # whatever it is, there is a header of our own
        return None
    return str(folder) if folder is not None and (folder / "cuda_fp16.h").is_file() else None


def compile_source(
    source: bytes, name: bytes, options: Sequence[bytes], headers: Mapping[str, str]
) -> tuple[bytes | None, str]:
    """Run NVRTC; return a cubin or PTX, as the options say, or None, and the log.

    `headers` are texts to include, by name.
    """
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
    texts = [text.encode() for text in headers.values()]
    names = [each.encode() for each in headers]
    error, program = nvrtc.nvrtcCreateProgram(source, name, len(names), texts, names)
    if error:
        return None, f"NVRTC takes no such program: {error.name}"
    try:
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), list(options))
        log = _nvrtc_bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        text = log.rstrip(b"\0 \n").decode(errors="replace")
        if error:
            return None, text or f"NVRTC failed with {error.name}"
        image = _nvrtc_bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return image or _nvrtc_bytes(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program), text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc_bytes(size: Callable[..., Any], read: Callable[..., Any], program: object) -> bytes:
    """Return NVRTC's output for a program, empty if there is none."""
    error, count = size(program)
    if error or not count:
        return b""
    content = bytearray(int(count))
    (error,) = read(program, content)
    return b"" if error else bytes(content)


def _major_version() -> int:
    """Return the version of CUDA here: the driver's, or without one that of the bindings."""
    try:
        return int(call(cuda.cuDriverGetVersion)) // 1000
    except own(HalError):
        version = importlib.metadata.version("cuda-bindings")
        return int(version.partition(".")[0])


def link(image: bytes, kind: str, architecture: str) -> bytes:
    """Link LTO-IR, alone or in a fat binary, to a cubin; raises as `link_parts`."""
    return link_parts({"image": image}, kind, architecture, "-lto")[0]


def link_parts(
    parts: Mapping[str, bytes], kind: str, architecture: str, *options: str
) -> tuple[bytes, str]:
    """Link images of one kind, by name, to a cubin with nvJitLink; return it and the log.

    Raises `UnimplementedError` with the pip command when it is not installed,
    and `OperationError` with its log when it refuses an image.
    """
    what = "image" if len(parts) == 1 else "images"
    try:
        linker: Any = importlib.import_module("cuda.bindings.nvjitlink")
        linker.version()
    except own(ImportError, RuntimeError) as problem:
        message = (
            f"the image is {_LINKED[kind]}, which nvJitLink links, and that is not installed here: "
            "pip install nvidia-nvjitlink"
        )
        raise UnimplementedError(message) from problem
    try:
        arguments = [f"-arch={architecture}", *options]
        handle = linker.create(len(arguments), arguments)
    except own(linker.nvJitLinkError) as problem:
        message = f"nvJitLink cannot link for {architecture}: {problem}"
        raise OperationError(message, native_name="nvJitLink") from problem
    try:
        kinds = linker.InputType
        number = {"ltoir": kinds.LTOIR, "fatbin": kinds.FATBIN, "cubin": kinds.CUBIN}[kind]
        for name, image in parts.items():
            linker.add_data(handle, number, image, len(image), name)
        linker.complete(handle)
        content = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, content)
        log = _linker_text(linker.get_info_log_size, linker.get_info_log, handle)
        return bytes(content), log
    except own(linker.nvJitLinkError) as problem:
        text = _linker_text(linker.get_error_log_size, linker.get_error_log, handle)
        message = f"nvJitLink cannot link the {what} for {architecture}: {problem}\n{text}"
        raise OperationError(message, native_name="nvJitLink") from problem
    finally:
        linker.destroy(handle)


def _linker_text(size: Callable[..., Any], read: Callable[..., Any], handle: object) -> str:
    """Return nvJitLink's log."""
    log = bytearray(max(size(handle), 1))
    read(handle, log)
    return log.rstrip(b"\0 \n").decode(errors="replace")
