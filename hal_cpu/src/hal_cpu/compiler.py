"""Compile for processors without opening a device."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Final

from hal.errors import InvalidArgumentError
from hal.native import CompiledImage, CompileRequest, DeviceInfo, NativeCompiler
from hal_cpu import _compile, _toolchain

__all__ = ["CpuCompiler"]

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
        name = target or _compile.NATIVE
        known = _TARGETS.get(platform.machine(), {})
        if name != _compile.NATIVE and name not in known:
            listed = ", ".join([_compile.NATIVE, *known])
            message = (
                f"the cpu backend compiles for no {name!r} on this {platform.machine()} machine; "
                f"its targets are: {listed}"
            )
            raise InvalidArgumentError(message)
        features = known[name] if name in known else _compile.native_features()
        image, log = _compile.compile_image(request, name, features)
        properties = {
            "compiler": _toolchain.find_compiler().version,
            "features": features,
            "machine": platform.machine(),
        }
        if request.part:
            properties["source"] = request.filename
        return CompiledImage(name, image, log, properties)

    def link(self, parts: Sequence[CompiledImage], target: str) -> CompiledImage:  # noqa: ARG002
        """Link object files; raises as `NativeCompiler.link`."""
        named = [(part.properties["source"], part.image) for part in parts]
        image, log = _compile.link_images(named)
        properties = {key: value for key, value in parts[0].properties.items() if key != "source"}
        return CompiledImage(parts[0].target, image, log, properties)

    def target_of(self, info: DeviceInfo) -> str:  # noqa: ARG002 - there is one
        """Return this processor's name for itself."""
        return _compile.NATIVE

    def rank(self, image: CompiledImage, info: DeviceInfo) -> int:
        """Prefer the image that uses most of this processor's features."""
        wanted = image.properties.get("features", "")
        if image.properties.get("machine") != info.architecture:
            return 0
        if _compile.missing_features(wanted):
            return 0
        return 1 + len(wanted.split())
