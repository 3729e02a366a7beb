"""Compile for processors without opening a device."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Final

from hal import elf
from hal.errors import InvalidArgumentError, OperationError
from hal.native import (
    CompiledImage,
    CompileRequest,
    DeviceInfo,
    ImageInfo,
    KernelInfo,
    NativeCompiler,
)
from hal_cpu import _compile, _image, _options, _system, _toolchain

__all__ = ["CpuCompiler"]

_FEATURES: Final = "hal_image_features"
_V2: Final = "popcnt sse4_1 sse4_2 ssse3"
_V3: Final = f"{_V2} abm avx avx2 bmi1 bmi2 f16c fma movbe"
_V4: Final = f"{_V3} avx512bw avx512cd avx512dq avx512f avx512vl"
_TARGETS: Final = {
    "x86_64": {"x86-64": "", "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4},
    "aarch64": {"armv8-a": ""},
}
"""The targets for each kind of machine, and the processor features that each needs."""


class CpuCompiler(NativeCompiler):
    """The machine's C++ compiler, for its own kind of processor.

    Targets are ``"native"``, which is this very processor and the default,
    and those of the compiler's ``-march`` that every
    processor of a level runs: ``"x86-64"``, ``"x86-64-v3"`` and so on.
    """

    def compile(self, request: CompileRequest, target: str) -> CompiledImage:
        """Compile for a target; raises as `NativeCompiler.compile`."""
        name = target or _options.NATIVE
        known = _TARGETS.get(platform.machine(), {})
        if name != _options.NATIVE and name not in known:
            listed = ", ".join([_options.NATIVE, *known])
            message = (
                f"the cpu backend compiles for no {name!r} on this {platform.machine()} machine; "
                f"its targets are: {listed}"
            )
            raise InvalidArgumentError(message)
        features = known[name] if name in known else _compile.native_features()
        compiler = _toolchain.find_compiler()
        image, log = _compile.compile_image(request, name, features, compiler)
        properties = {
            "compiler": compiler.version,
            "features": features,
            "machine": platform.machine(),
        }
        if request.part:
            properties["source"] = request.filename
        return CompiledImage(name, image, log, properties)

    def link(self, parts: Sequence[CompiledImage], target: str) -> CompiledImage:  # noqa: ARG002
        """Link object files; raises as `NativeCompiler.link`."""
        named = [(part.properties["source"], part.image) for part in parts]
        from hal_cpu import _making  # noqa: PLC0415 - as in `_compile`

        image, log = _making.link_images(named)
        properties = {key: value for key, value in parts[0].properties.items() if key != "source"}
        return CompiledImage(parts[0].target, image, log, properties)

    def image_info(self, image: bytes, target: str) -> ImageInfo:
        """Read a shared object for any processor; raises as `NativeCompiler.image_info`.

        One that names no features of the processor is for all of its machine.
        """
        number = elf.machine(image) if elf.is_readable(image) else 0
        machine = elf.PROCESSORS.get(number, platform.machine())
        symbols = _image.read_symbols(image, machine)
        names = [
            name.removeprefix(_image.KERNEL_PREFIX)
            for name, each in symbols.items()
            if _image.is_exported(each) and name.startswith(_image.KERNEL_PREFIX)
        ]
        if not names:
            message = "it is a shared object that exports no kernel, hal_kernel_NAME of image.h"
            raise OperationError(message)
        known = _TARGETS.get(machine, {})
        found = elf.constants(image, (_FEATURES,)).get(_FEATURES, b"")
        said = found.rstrip(b"\0").decode(errors="replace")
        if target not in {"", _options.NATIVE, *known}:
            listed = ", ".join([_options.NATIVE, *known])
            message = f"{target!r} is no target of a shared object for {machine}; write {listed}"
            raise InvalidArgumentError(message)
        features = said or known.get(target, "")
        lacking = set(features.split()) - set(known.get(target, features).split())
        if lacking:
            message = f"it needs {', '.join(sorted(lacking))}, which {target!r} does not promise"
            raise InvalidArgumentError(message)
        default = _options.NATIVE if said else next(iter(known), _options.NATIVE)
        return ImageInfo(
            target or default,
            dict.fromkeys(names, KernelInfo()),
            {"features": features, "machine": machine},
        )

    def target_of(self, info: DeviceInfo) -> str:  # noqa: ARG002 - there is one
        """Return this processor's name for itself."""
        return _options.NATIVE

    def rank(self, image: CompiledImage, info: DeviceInfo) -> int:
        """Prefer the image that uses most of this processor's features."""
        wanted = image.properties.get("features", "")
        if image.properties.get("machine") != info.architecture:
            return 0
        if _system.missing_features(wanted):
            return 0
        return 1 + len(wanted.split())
