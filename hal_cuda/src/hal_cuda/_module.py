"""Load images, and find kernels and variables in them."""

from __future__ import annotations

from typing import Final

from hal.errors import HalError, NotFoundError, OperationError, UnimplementedError
from hal.handlers import own
from hal.native import FunctionInfo
from hal_cuda import _driver, _image
from hal_cuda._driver import call, cuda

_LOG_BYTES = 16384
_PLAIN_SHARED_MEMORY = 49152
"""The shared memory that a block may have without a request, in bytes."""
_REFUSED = frozenset({200, 209, 218, 222, 223})
"""Errors of images: invalid, for other devices, PTX that does not compile, or too new."""

_NO_VARIABLE: Final = frozenset({_driver.NOT_FOUND, _driver.INVALID_VALUE})
"""The second is for a kernel's name."""


def load(image: bytes, architecture: str) -> int:
    """Load an image into the current context; raises `OperationError` that says what it is."""
    found = _image.sniff(image)
    if found.is_lto:
        image = _driver.link(image, found.kind, architecture)
    if found.kind == "ptx" and not image.endswith(b"\0"):
        image += b"\0"  # the driver looks for a terminating zero
    error, module = cuda.cuModuleLoadData(image)
    if not error:
        return int(module)
    problem = _driver.error_of(error, "cuModuleLoadData")
    if not isinstance(problem, OperationError):
        raise problem
    message = f"the image is {found.contents}, and the device is an {architecture}: {problem}"
    if problem.native_code in _REFUSED:
        message += f"; {_image.TAKES}: compile the source with device.compile()"
    if found.kind == "ptx":
        log = _jit_log(image)
        message += f"\n{log}" if log else ""
    raise OperationError(
        message, native_name=problem.native_name, native_code=problem.native_code
    ) from problem


def _jit_log(image: bytes) -> str:
    """Compile PTX that was refused once more, and return what the driver says about it."""
    log = bytearray(_LOG_BYTES)
    options = cuda.CUjit_option
    try:
        error, module = cuda.cuModuleLoadDataEx(
            image,
            2,
            [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES],
            [log, len(log)],
        )
    except own(RuntimeError, TypeError):
        return ""
    if not error:
        _driver.relaxed(cuda.cuModuleUnload, module)
    return bytes(log).split(b"\0")[0].decode(errors="replace").strip()


def find_function(module: int, name: str) -> int:
    """Return a kernel by the name in its source; raises `NotFoundError` with the known names.

    A C++ kernel that was compiled elsewhere is found by that name, too.
    """
    error, function = cuda.cuModuleGetFunction(module, name.encode())
    if not error:
        return int(function)
    if int(error) != _driver.NOT_FOUND:
        _driver.fail(error, cuda.cuModuleGetFunction)
    functions = _functions(module)
    mark = f"_Z{len(name)}{name}"
    matches = [each for each in functions if each.startswith(mark)]
    if len(matches) == 1:
        return functions[matches[0]]
    known = ", ".join(sorted(functions))
    message = f"the image has no kernel {name!r}{f'; it has: {known}' if known else ''}"
    if matches:
        message = f"the image has {len(matches)} kernels {name!r}; name one: {', '.join(matches)}"
    raise NotFoundError(message, native_name="CUDA_ERROR_NOT_FOUND", native_code=_driver.NOT_FOUND)


def _functions(module: int) -> dict[str, int]:
    """Return the kernels of a module by name; empty if the driver cannot tell."""
    try:
        count = int(call(cuda.cuModuleGetFunctionCount, module))
        found = call(cuda.cuModuleEnumerateFunctions, count, module) if count else []
        return {call(cuda.cuFuncGetName, each).decode(): int(each) for each in found}
    except own(HalError):
        return {}


def find_global(module: int, name: str) -> tuple[int, int]:
    """Return the address and the bytes of a variable; raises `NotFoundError`."""
    error, *found = cuda.cuModuleGetGlobal(module, name.encode())
    if int(error) in _NO_VARIABLE:
        message = f"the image has no variable {name!r}"
        raise NotFoundError(
            message, native_name="CUDA_ERROR_NOT_FOUND", native_code=_driver.NOT_FOUND
        )
    if error:
        _driver.fail(error, cuda.cuModuleGetGlobal)
    return int(found[0]), int(found[1])


def describe(function: int) -> FunctionInfo:
    """Describe a kernel."""
    names = cuda.CUfunction_attribute
    return FunctionInfo(
        max_threads_per_block=int(
            call(
                cuda.cuFuncGetAttribute,
                names.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                function,
            )
        ),
        static_shared_memory=static_shared_memory(function),
        parameter_sizes=_parameter_sizes(function),
    )


def static_shared_memory(function: int) -> int:
    """Return the bytes of shared memory that a kernel declares itself."""
    name = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
    return int(call(cuda.cuFuncGetAttribute, name, function))


def plain_shared_memory(function: int) -> int:
    """Return the bytes of dynamic shared memory that a kernel may have without a request."""
    return max(_PLAIN_SHARED_MEMORY - static_shared_memory(function), 0)


def allow_shared_memory(function: int, size: int) -> None:
    """Allow that many bytes of dynamic shared memory in later launches of a kernel."""
    name = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call(cuda.cuFuncSetAttribute, function, name, size)


def _parameter_sizes(function: int) -> tuple[int, ...] | None:
    """Return the bytes of each parameter, or None where the driver cannot tell."""
    sizes: list[int] = []
    try:
        while True:
            error, _, size = cuda.cuFuncGetParamInfo(function, len(sizes))
            if error:
                break
            sizes.append(int(size))
    except own(RuntimeError, AttributeError):
        return None
    if int(error) != _driver.INVALID_VALUE:
        problem = _driver.error_of(error, "cuFuncGetParamInfo")
        if isinstance(problem, UnimplementedError):
            return None
        raise problem
    return tuple(sizes)
