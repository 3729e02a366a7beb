"""Protocols of what other libraries offer; docs/interop.md says what hal does with it.

`hal.protocols` exports them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, SupportsInt


class Tensor(Protocol):
    """Memory that its owner hands out by DLPack, as the Python array API standard has it.

    See https://dmlc.github.io/dlpack/latest/python_spec.html. Producers of before version 1.0
    know `stream` only, and their capsules are named ``dltensor``, not ``dltensor_versioned``.
    """

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


class CudaArray(Protocol):
    """Memory of a CUDA device, by version 3 of the CUDA Array Interface.

    See https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html.
    """

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


class CudaStream(Protocol):
    """A stream of CUDA that another library owns: version 0, and the ``cudaStream_t`` as an int.

    See https://nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html.
    """

    def __cuda_stream__(self) -> tuple[int, int]: ...


class ExternalEvent(Protocol):
    """An event of the vendor's driver that another library owns and has recorded.

    As in `cuda.core.Event`, `handle` is the ``CUevent`` or ``hipEvent_t``, valid while this lives.
    """

    @property
    def handle(self) -> SupportsInt:
        """The vendor's handle."""
