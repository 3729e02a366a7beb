"""Compile for AMD GPUs without opening one."""

from __future__ import annotations

import re
from typing import Final

from hal import elf
from hal.errors import InvalidArgumentError, OperationError, UnimplementedError
from hal.native import (
    CompiledImage,
    CompileRequest,
    DeviceInfo,
    ImageInfo,
    KernelInfo,
    NativeCompiler,
)
from hal_hip import _compile, _driver, _image

__all__ = ["HipCompiler"]

_TARGET: Final = re.compile(r"gfx[0-9a-f]{3,4}(?::(?:sramecc|xnack)[+-])*|sm_\d+")
"""AMD's names, and those that a runtime over CUDA gives its devices."""


class HipCompiler(NativeCompiler):
    """The hiprtc compiler, which needs no driver.

    Targets are AMD's names of processors, with the features that a device must have
    on or off if that matters: ``"gfx942"``, ``"gfx90a:xnack-"``.
    Images are not linked.
    """

    def compile(self, request: CompileRequest, target: str) -> CompiledImage:
        """Compile for a target; raises as `NativeCompiler.compile`."""
        if not _TARGET.fullmatch(target):
            message = (
                f"{target!r} is no target of the hip backend; name a processor, as in 'hip:gfx942' "
                "or 'hip:gfx90a:sramecc+:xnack-'"
            )
            raise InvalidArgumentError(message)
        if request.part:
            message = "the hip backend links no images"
            raise UnimplementedError(message)
        if not _driver.has_compiler():
            message = "kernels are compiled by hiprtc, which is not installed here"
            raise UnimplementedError(message)
        image, log = _compile.compile_image(request, target)
        return CompiledImage(
            target, image, log, {"compiler": f"hiprtc {_driver.compiler_version()}".strip()}
        )

    def image_info(self, image: bytes, target: str) -> ImageInfo:
        """Read a code object or a bundle of them; raises as `NativeCompiler.image_info`."""
        if target and not _TARGET.fullmatch(target):
            message = f"{target!r} is no target of the hip backend; write 'gfx942' or the like"
            raise InvalidArgumentError(message)
        found = _image.read(image, target)
        if not (target or found.target):
            if elf.is_readable(image) and elf.machine(image) != elf.AMD_GPU:
                message = f"{_image.TAKES}, and this image is {found.contents}"
                raise OperationError(message)
            message = (
                f"it is {found.contents}, which says no target; name the processor that it is "
                "for, as in 'hip:gfx942'"
            )
            raise InvalidArgumentError(message)
        if target and found.target:
            processor, *switches = target.split(":")
            own, *wanted = found.target.split(":")
            if processor != own or not set(wanted) <= set(switches):
                message = (
                    f"it is {found.contents}, so its target is {found.target!r}, not {target!r}"
                )
                raise InvalidArgumentError(message)
        kernels = {
            name: KernelInfo(each.signature, each.block, each.max_threads)
            for name, each in found.kernels.items()
        }
        return ImageInfo(target or found.target, kernels or None)

    def target_of(self, info: DeviceInfo) -> str:
        """Return a device's processor with all features that are on and off."""
        return str(info.properties.get("compile_target", info.architecture))

    def rank(self, image: CompiledImage, info: DeviceInfo) -> int:
        """Prefer the image that states most about the device, and nothing wrong."""
        processor, *wanted = image.target.split(":")
        own, *switches = self.target_of(info).split(":")
        if processor != own or not set(wanted) <= set(switches):
            return 0
        return 1 + len(wanted)
