"""Compile for NVIDIA GPUs without opening one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from hal.errors import CompilationError, InvalidArgumentError, OperationError
from hal.handlers import own
from hal.native import CompiledImage, CompileRequest, DeviceInfo, ImageInfo, NativeCompiler
from hal_cuda import _compile, _driver, _image, _metadata

__all__ = ["CudaCompiler"]

_TARGET: Final = re.compile(r"(sm|compute)_(\d{2,3})([af]?)")
_EXAMPLES: Final = (
    "'sm_90' for code that such GPUs run, 'compute_90' for PTX that newer ones run too"
)
_CODE: Final = 10_000
_OWN: Final = 100_000


class _Target(NamedTuple):
    is_code: bool
    number: int
    suffix: str


class CudaCompiler(NativeCompiler):
    """NVRTC as a compiler and nvJitLink as a linker; neither needs a driver.

    Targets are ``"sm_90"`` and the like, whose code runs on GPUs of the same
    major version that are not older; ``"compute_90"``, PTX that the driver
    compiles for any GPU that is not older; those with an ``a``, for one kind
    of GPU only; and those with an ``f``, for those of the same major version.
    """

    def compile(self, request: CompileRequest, target: str) -> CompiledImage:
        """Compile for a target; raises as `NativeCompiler.compile`."""
        if not target:
            message = f"name what to compile for, as in 'cuda:sm_90'; a target is {_EXAMPLES}"
            raise InvalidArgumentError(message)
        wanted = _parse(target)
        version, known = _driver.compiler()
        if wanted is None or (known and wanted.number not in known):
            numbers = ", ".join(map(str, known))
            message = (
                f"{target!r} is no target of NVRTC {version}, which knows the numbers {numbers}; "
                f"write {_EXAMPLES}"
            )
            raise InvalidArgumentError(message)
        if request.part and not wanted.is_code:
            message = (
                f"several sources are linked to code, and {target!r} is PTX; compile for "
                f"'sm_{wanted.number}'"
            )
            raise InvalidArgumentError(message)
        image, log = _compile.compile_image(request, target)
        properties = {"compiler": f"NVRTC {version}"}
        if request.part:
            properties["source"] = request.filename
        return CompiledImage(target, image, log, properties)

    def link(self, parts: Sequence[CompiledImage], target: str) -> CompiledImage:
        """Link cubins; raises as `NativeCompiler.link`."""
        images = {part.properties["source"]: part.image for part in parts}
        try:
            image, log = _driver.link_parts(images, "cubin", target)
        except own(OperationError) as error:
            raise CompilationError(str(error), log=str(error)) from error
        return CompiledImage(
            target, image, log, {"compiler": f"{parts[0].properties['compiler']}, nvJitLink"}
        )

    def image_info(self, image: bytes, target: str) -> ImageInfo:
        """Read PTX, a cubin, a fat binary or LTO-IR; raises as `NativeCompiler.image_info`."""
        found = _image.sniff(image)
        wanted = _parse(target)
        if target and wanted is None:
            message = f"{target!r} is no target of the cuda backend; write {_EXAMPLES}"
            raise InvalidArgumentError(message)
        found_target = _parse(found.target)
        if found.kind == "elf" and found_target is None and not target:
            message = f"{_image.TAKES}, and this image is {found.contents}"
            raise OperationError(message)
        if wanted is None and found_target is None:
            message = f"it is {found.contents}, which says no target; write {_EXAMPLES}"
            raise InvalidArgumentError(message)
        # Cubins do not tell sm_90 from sm_90a.
        if wanted and found_target and wanted[:2] != found_target[:2]:
            message = f"it is {found.contents}, so its target is {found.target!r}, not {target!r}"
            raise InvalidArgumentError(message)
        kernels = None
        try:
            if found_target is not None:
                is_text = found.kind == "ptx"
                kernels = (_metadata.ptx_kernels if is_text else _metadata.cubin_kernels)(image)
        except own(ValueError) as error:
            message = f"it is {found.contents}, and damaged: {error}"
            raise OperationError(message) from error
        return ImageInfo(target or found.target, kernels)

    def target_of(self, info: DeviceInfo) -> str:
        """Return a device's architecture, or PTX where it is newer than NVRTC."""
        return _compile.target_for(info.architecture)

    def rank(self, image: CompiledImage, info: DeviceInfo) -> int:
        """Prefer code to PTX, and the newest."""
        wanted, device = _parse(image.target), _parse(info.architecture)
        if wanted is None or device is None or wanted.number > device.number:
            return 0
        if wanted.suffix == "a":
            same = wanted.number == device.number
            return (_OWN + _CODE * wanted.is_code + wanted.number) * same
        is_near = wanted.number // 10 == device.number // 10
        if wanted.is_code:
            return (_CODE + wanted.number) * is_near
        return wanted.number * (is_near or wanted.suffix != "f")


def _parse(text: str) -> _Target | None:
    match = _TARGET.fullmatch(text)
    return _Target(match[1] == "sm", int(match[2]), match[3]) if match else None
