"""HIP's libraries with a Python interface, and their errors as our classes.

The only module that touches ``rocm.bindings``. Most functions are called through
`call`, which raises. hip-python makes objects of every handle, address and
status, which takes longer than HIP's own work: the functions that every
submission calls are therefore its own C functions (`entry_point`), which take
integers and return the status, zero for none. HIP remembers a thread's last
error until it is queried: code that turns one into an exception clears
it, so that no later caller sees it.

`call` and `relaxed_entry_point` relax the thread's capture mode during a call
(`hal.capture_modes`, O1); no call that only enqueues work needs it.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from hal.capture_modes import CaptureMode
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
from hal_hip import _bindings

_bindings.check()
# Typed as Any: the stubs accept fewer argument types than the functions do.
hip: Final[Any] = importlib.import_module("rocm.bindings.hip")
"""The runtime's functions and structures."""
hiprtc: Final[Any] = importlib.import_module("rocm.bindings.hiprtc")

NOT_READY: Final = 600
NO_DEVICE: Final = 100

_REQUIRED: Final = (
    "hipGetDevicePropertiesR0600",
    "hipLaunchHostFunc",
    "hipMemsetD8Async",
    "hipMemsetD16Async",
    "hipMemsetD32Async",
    "hipStreamCreateWithFlags",
    "hipEventCreateWithFlags",
    "hipModuleLaunchKernel",
    "hipMallocManaged",
    "hipHostMalloc",
    "hipThreadExchangeStreamCaptureMode",
)
"""Functions that the backend needs and older runtimes lack."""

_CLASSES: Final[dict[int, type[HalError]]] = {
    2: OutOfMemoryError,  # OutOfMemory
    801: UnimplementedError,  # NotSupported
    # Errors that end the context, by the documentation or as CUDA's error of that number (O2).
    3: DeviceLostError,  # NotInitialized: it was, so this is a fork
    4: DeviceLostError,  # Deinitialized, as at the process's end
    53: DeviceLostError,  # PriorLaunchFailure: "reset the device"
    201: DeviceLostError,  # InvalidContext: destroyed, or reset
    214: DeviceLostError,  # ECCNotCorrectable
    700: DeviceLostError,  # IllegalAddress
    702: DeviceLostError,  # LaunchTimeOut
    709: DeviceLostError,  # ContextIsDestroyed
    710: DeviceLostError,  # Assert
    719: DeviceLostError,  # LaunchFailure
}
"""The class of each error; an error not listed failed its own call, and the device lives."""

_UNKNOWN: Final = re.compile(r"(-?\d+) is not a valid hip(?:rtc)?\w+")
_MISSING_LIBRARY: Final = "dlopen"


def clear() -> None:
    """Forget the thread's last error."""
    with dropped(RuntimeError, ValueError):
        hip.hipGetLastError()


def error_of(status: int, what: str) -> HalError:
    """Return the exception for a status; `what` is the function or the action.

    Clears the thread's last error.
    """
    code = int(status)
    name = f"hipError {code}"
    text = f"hip-python {_bindings.version()} does not know it, HIP's runtime is newer"
    with dropped(Exception):  # an error without a text is still an error
        known = hip.hipError_t(code)
        name, text = str(known.name), ""
        text = bytes(hip.hipGetErrorString(known)[-1]).rstrip(b"\0").decode(errors="replace")
    clear()
    kind = _CLASSES.get(code, OperationError)
    return kind(
        f"{what} failed with {name}{f': {text}' if text and text != name else ''}",
        native_name=name,
        native_code=code,
    )


def fail(status: int, function: Callable[..., Any]) -> NoReturn:
    """Raise the exception for a status that a function returned."""
    raise error_of(status, function.__name__)


def unknown_status(problem: ValueError, function: Callable[..., Any]) -> HalError:
    """Return the exception for a status unknown to the bindings, which raise ValueError for it."""
    found = _UNKNOWN.search(str(problem))
    if found is None:
        clear()
        raise problem
    return error_of(int(found[1]), function.__name__)


def call(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - whatever it returns
    """Call a function of the runtime; return its one result, or None.

    Raises the exception of `error_of` for an error, and `UnimplementedError` if
    the runtime lacks the function.
    """
    try:
        status, *results = _mode.relaxed(function, *arguments)
    except own(RuntimeError) as problem:
        raise _missing(function.__name__, problem) from problem
    except own(ValueError) as problem:
        raise unknown_status(problem, function) from problem
    if status:
        fail(status, function)
    return results[0] if len(results) == 1 else tuple(results) or None


def relaxed(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as it is
    """Call a function that does what a capture may forbid; return its result."""
    return _mode.relaxed(function, *arguments)


def entry_point(name: str, *arguments: Any) -> Callable[..., int]:  # noqa: ANN401 - ctypes' classes
    """Return a function of the runtime that takes integers and releases the interpreter lock.

    It is hip-python's function for C, which finds it as it finds all others: at the
    first call, which must be of a function that is known to exist.
    """
    function = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(_address(name))
    function.__name__ = name  # type: ignore[attr-defined] # what `fail` tells
    return function


def relaxed_entry_point(name: str, *arguments: Any) -> Callable[..., int]:  # noqa: ANN401
    """Return a function that a capture may forbid, as `entry_point`, relaxed for each call."""
    function = entry_point(name, *arguments)

    def call_relaxed(*values: int) -> int:
        return _mode.relaxed(function, *values)  # type: ignore[no-any-return]

    call_relaxed.__name__ = name
    return call_relaxed


_TABLE: Final = {
    "record_event": "hipEventRecord",
    "wait_event": "hipStreamWaitEvent",
    "query_event": "hipEventQuery",
    "fill_8": "hipMemsetD8Async",
    "fill_16": "hipMemsetD16Async",
    "fill_32": "hipMemsetD32Async",
    "launch": "hipModuleLaunchKernel",
    "launch_graph": "hipGraphLaunch",
    "current": "hipGetDevice",
    "exchange_capture_mode": "hipThreadExchangeStreamCaptureMode",
    "allocate_async": "hipMallocFromPoolAsync",
    "free_async": "hipFreeAsync",
    "update_launch": "hipGraphExecKernelNodeSetParams",
    "write_value": "hipStreamWriteValue64",
    "wait_value": "hipStreamWaitValue64",
    "make_current": "hipSetDevice",
    "query_stream": "hipStreamQuery",
}
"""The runtime's functions of a call table."""


MOST_LAUNCHES: Final = 128
"""As for CUDA: far below what a hardware queue takes, which streams of all libraries share."""


def call_table(index: int) -> CallTable | None:
    """Return the runtime's own functions for a device, or None if it lacks one.

    hip-python's would take the interpreter lock when they are first called. `CallTable.current` is
    the number of the thread's device.
    """
    if not has("hipGetProcAddress"):  # before ROCm 6.2
        return None
    pointer = ctypes.c_void_p
    arguments = (ctypes.c_char_p, pointer, ctypes.c_int, ctypes.c_uint64, pointer)
    find = entry_point("hipGetProcAddress", *arguments)
    version = runtime_version()
    addresses: dict[str, int] = {}
    for field, name in _TABLE.items():
        found = pointer()
        if find(name.encode(), ctypes.addressof(found), version, 0, None) or not found.value:
            clear()
            return None
        addresses[field] = found.value
    return CallTable(**addresses, context=index, not_ready=NOT_READY, most_launches=MOST_LAUNCHES)


def _address(name: str) -> int:
    """Return the address of hip-python's function for C."""
    capsule = _entry_points[name]
    return int(_capsule_pointer(capsule, _capsule_name(capsule)))


_entry_points: Final = importlib.import_module("rocm.bindings.cyhip").__pyx_capi__
_capsule_name: Final = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_capsule_pointer: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


_mode = CaptureMode()  # replaced by `probe`


def has(*names: str) -> bool:
    """Return whether the runtime has all of these functions; False without a runtime."""
    return all(hip.has_symbol(name) for name in names)


def _missing(name: str, problem: RuntimeError) -> HalError:
    """Return the exception for a library or a function that is not there."""
    if _MISSING_LIBRARY in str(problem):
        return BackendUnavailableError(_no_runtime(problem))
    return UnimplementedError(
        f"this HIP runtime ({_version_text()}) has no {name}, it is too old for that",
        native_name=name,
    )


def _no_runtime(problem: RuntimeError) -> str:
    reason = str(problem).strip().splitlines()[0] if str(problem).strip() else "no reason given"
    return (
        f"no HIP runtime can be loaded here ({reason}): hip-python looks for libamdhip64.so, "
        "without a version behind it, in $ROCM_PATH/lib, else /opt/rocm/lib, else as the "
        "system's loader does"
    )


# Devices


def probe() -> None:
    """Initialise HIP; raises `BackendUnavailableError` without a runtime, or without a device."""
    try:
        started = hip.hipInit(0)[0]
        # More precise than the first: some runtimes call a missing device an invalid one.
        status, count = hip.hipGetDeviceCount()
        status = status or started
    except own(RuntimeError) as problem:
        if _MISSING_LIBRARY in str(problem):
            raise BackendUnavailableError(_no_runtime(problem)) from problem
        message = f"the HIP runtime here does not work: {problem}"
        raise BackendUnavailableError(message) from problem
    except own(ValueError) as problem:
        known = unknown_status(problem, hip.hipInit)
        raise _unavailable(known) from known
    if status:
        known = error_of(status, "looking for devices")
        raise _unavailable(known) from known
    if not count:
        message = (
            f"the HIP runtime ({_version_text()}) is here, and no device; HIP_VISIBLE_DEVICES or "
            "ROCR_VISIBLE_DEVICES may hide it"
        )
        raise BackendUnavailableError(
            message, native_name="hipErrorNoDevice", native_code=NO_DEVICE
        )
    missing = [name for name in _REQUIRED if not hip.has_symbol(name)]
    if missing:
        message = (
            f"the HIP runtime here is version {_version_text()}, and has no {', '.join(missing)}: "
            "hal needs ROCm 6 or later"
        )
        raise BackendUnavailableError(message, native_name=missing[0])
    global _mode  # noqa: PLW0603 - the runtime's function is known from here on
    _mode = CaptureMode(_address("hipThreadExchangeStreamCaptureMode"))


def _unavailable(known: HalError) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"no HIP device can be used here (runtime {_version_text()}): {known}",
        native_name=known.native_name,
        native_code=known.native_code,
    )


def has_stream_values(index: int) -> bool:
    """Return whether streams of a device can write and await numbers in memory."""
    has_calls = has("hipStreamWriteValue64", "hipStreamWaitValue64")
    return has_calls and bool(device_attribute(index, "CanUseStreamWaitValue"))


def device_count() -> int:
    """Return how many devices there are."""
    return int(call(hip.hipGetDeviceCount))


def runtime_version() -> int:
    """Return HIP's version number, 70152633 for 7.1.52633; 0 if unknown."""
    try:
        return int(call(hip.hipRuntimeGetVersion))
    except own(HalError):
        return 0


def _version_text() -> str:
    number = runtime_version()
    if not number:
        return "of an unknown version"
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


def device_attribute(device: int, name: str) -> int:
    """Return ``hipDeviceAttribute<name>`` of a device, 0 where the runtime has none."""
    key = getattr(hip.hipDeviceAttribute_t, f"hipDeviceAttribute{name}", None)
    if key is None:
        return 0
    try:
        return int(call(hip.hipDeviceGetAttribute, key, device))
    except own(HalError):
        return 0


_SHOWN: Final = (
    "clockRate",
    "memoryClockRate",
    "memoryBusWidth",
    "l2CacheSize",
    "maxThreadsPerMultiProcessor",
    "maxSharedMemoryPerMultiProcessor",
    "regsPerMultiprocessor",
    "asyncEngineCount",
    "integrated",
    "managedMemory",
    "concurrentManagedAccess",
    "pageableMemoryAccess",
    "memoryPoolsSupported",
)


def describe(index: int) -> DeviceInfo:
    """Describe a device; creates no context."""
    found = call(hip.hipGetDeviceProperties, index)
    target = _text(found.gcnArchName)
    properties: dict[str, str | int | float] = {
        _snake(name): int(getattr(found, name)) for name in _SHOWN
    }
    bus = (found.pciDomainID, found.pciBusID, found.pciDeviceID)
    properties["pci_bus_id"] = "{:04x}:{:02x}:{:02x}.0".format(*bus)
    properties["compile_target"] = target
    return DeviceInfo(
        index=index,
        name=_text(found.name) or target,
        uuid=_uuid(index, str(properties["pci_bus_id"])),
        architecture=target.partition(":")[0],
        total_memory=int(found.totalGlobalMem),
        compute_units=int(found.multiProcessorCount),
        max_threads_per_block=int(found.maxThreadsPerBlock),
        max_shared_memory=int(found.sharedMemPerBlock),
        warp_size=int(found.warpSize),
        driver=f"HIP {_version_text()}, hip-python {_bindings.version() or 'unknown'}",
        properties=properties,
    )


def _text(value: Any) -> str:  # noqa: ANN401 - the bindings'
    """Return a structure's characters as text."""
    content = bytes(value) if not isinstance(value, str) else value.encode()
    return content.split(b"\0")[0].decode(errors="replace").strip()


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _uuid(index: int, bus: str) -> str:
    """Return the device's id in `amd-smi` and ``ROCR_VISIBLE_DEVICES``, or its bus address."""
    content = b""
    with dropped(HalError):
        content = bytes(byte & 0xFF for byte in call(hip.hipDeviceGetUuid, index).bytes)
    if not any(content):
        return f"GPU-{bus}"
    # AMD's are sixteen letters, not sixteen bytes.
    if content.isascii() and content.decode().isalnum():
        return f"GPU-{content.decode()}"
    return f"GPU-{uuid.UUID(bytes=content[:16])}"


# The compiler


def has_compiler() -> bool:
    """Return whether hiprtc is here."""
    return bool(hiprtc.has_symbol("hiprtcCompileProgram"))


def compiler_version() -> str:
    """Return hiprtc's version, as in ``"7.1"``; empty if unknown."""
    try:
        status, major, minor = hiprtc.hiprtcVersion()
    except own(RuntimeError, ValueError):
        return ""
    return "" if status else f"{major}.{minor}"


def compile_source(
    source: bytes, name: bytes, options: Sequence[bytes], headers: Mapping[str, str]
) -> tuple[bytes | None, str]:
    """Run hiprtc; return a code object, or None, and the log.

    `headers` are texts to include, by name.
    """
    texts = [text.encode() for text in headers.values()] or None
    names = [each.encode() for each in headers] or None
    try:
        status, program = hiprtc.hiprtcCreateProgram(source, name, len(headers), texts, names)
        if status:
            return None, f"hiprtc takes no such program: {status.name}"
        try:
            return _compile(program, options)
        finally:
            hiprtc.hiprtcDestroyProgram(program.createRef())
    except own(RuntimeError) as problem:
        message = f"kernels are compiled by hiprtc, and that cannot be loaded here: {problem}"
        raise UnimplementedError(message) from problem


def _compile(program: Any, options: Sequence[bytes]) -> tuple[bytes | None, str]:  # noqa: ANN401
    (status,) = hiprtc.hiprtcCompileProgram(program, len(options), list(options))
    error, size = hiprtc.hiprtcGetProgramLogSize(program)
    log = bytearray(0 if error else int(size))
    if log:
        hiprtc.hiprtcGetProgramLog(program, log)
    text = log.rstrip(b"\0 \n").decode(errors="replace")
    if status:
        return None, text or f"hiprtc failed with {status.name}"
    error, size = hiprtc.hiprtcGetCodeSize(program)
    image = bytearray(0 if error else int(size))
    if not image or hiprtc.hiprtcGetCode(program, image)[0]:
        return None, text or "hiprtc made no code object"
    return bytes(image), text
