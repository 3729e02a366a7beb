"""How the ranks get the identity that rank 0 has made: a way for each kind of rendezvous."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

from hal.errors import InvalidArgumentError, RendezvousError
from hal.handlers import dropped, own
from hal.native_collectives import Join
from hal_nccl._nccl import ID_BYTES

__all__ = ["Exchange", "exchange_of"]

_NAP: Final = 0.005
_VARIABLE: Final = "NCCL_COMM_ID"
_TAGS: Final = 13_000
"""Tags of MPI, from 0 on; the MPI provider has those from here on."""


class Exchange(ABC):
    """A way in which the ranks of a group meet."""

    @abstractmethod
    def __call__(self, name: str, rank: int, make: Callable[[], bytes], timeout: float) -> bytes:
        """Return the identity of the group of this name, which rank 0 makes; waits for rank 0."""

    def listening(
        self,
        name: str,  # noqa: ARG002 - of those that listen
        rank: int,  # noqa: ARG002
        timeout: float,  # noqa: ARG002
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context for the library's call that makes the group of an identity."""
        return contextlib.nullcontext()

    def among(self, ranks: Sequence[int] | None) -> Exchange:  # noqa: ARG002 - of those that care
        """Return the way in which some of the ranks meet; None is a part that nobody knows."""
        return self


def exchange_of(request: Join) -> Exchange:
    """Return the way in which the ranks of a request meet."""
    place = request.place
    if request.exchange is not None:
        return _Given(request.exchange)
    if place.size == 1:
        return _Alone()
    address = place.rendezvous
    if address is None:
        return _OverMpi(tuple(range(place.size)))
    if "://" not in address:
        return _Threads(address)
    if address.startswith("file:///"):
        return _Files(address.removeprefix("file://"))
    with dropped(ValueError):  # of a port that is no number, say
        parts = urlsplit(address)
        if parts.scheme == "tcp" and parts.hostname and parts.port:
            # A launcher's own store listens at its port.
            return _Listening(parts.hostname, parts.port + (place.launcher == "torchrun"))
    message = f"rendezvous {address!r} is not tcp://HOST:PORT, file:///PATH or a name"
    raise InvalidArgumentError(message)


class _Alone(Exchange):
    """There is one rank."""

    def __call__(self, _: str, __: int, make: Callable[[], bytes], ___: float) -> bytes:
        return make()


class _Given(Exchange):
    """The user's function."""

    def __init__(self, function: Callable[[bytes | None], bytes]) -> None:
        self._function = function

    def __call__(self, name: str, rank: int, make: Callable[[], bytes], _: float) -> bytes:
        found = self._function(make() if rank == 0 else None)
        if not isinstance(found, bytes) or len(found) != ID_BYTES:
            message = f"the rendezvous of {name} did not return the {ID_BYTES} bytes of rank 0"
            raise InvalidArgumentError(message)
        return found


class _Listening(Exchange):
    """The library's own: rank 0 listens at an address that all know."""

    def __init__(self, host: str, port: int) -> None:
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def __call__(self, name: str, _: int, make: Callable[[], bytes], timeout: float) -> bytes:
        with _variable.holds(self._address, name, timeout):
            return make()

    def listening(
        self, name: str, rank: int, timeout: float
    ) -> contextlib.AbstractContextManager[None]:
        """Have the variable hold the address: rank 0 begins to listen in that call."""
        if rank == 0:
            return _variable.holds(self._address, name, timeout)
        return contextlib.nullcontext()


class _Variable:
    """The environment's variable from which the library has an address; one at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users = 0
        self._before: str | None = None

    @contextlib.contextmanager
    def holds(self, address: str, name: str, timeout: float) -> Iterator[None]:
        """Have it hold an address; waits for groups that meet at another one."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: not self._users or os.environ.get(_VARIABLE) == address, timeout
            ):
                message = f"another group than {name} has been meeting here for {timeout:g} s"
                raise RendezvousError(message)
            if not self._users:
                self._before = os.environ.get(_VARIABLE)
                os.environ[_VARIABLE] = address
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                if not self._users:
                    os.environ.pop(_VARIABLE, None)
                    if self._before is not None:
                        os.environ[_VARIABLE] = self._before
                    self._changed.notify_all()


_variable: Final = _Variable()


class _Files(Exchange):
    """A file that rank 0 writes, for its user alone, in a folder that all ranks see."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, name: str, rank: int, make: Callable[[], bytes], timeout: float) -> bytes:
        path = f"{self._path}.{re.sub(r'[^0-9A-Za-z_-]', '_', name)}"
        if rank == 0:
            data, part = make(), f"{path}.part"
            try:
                descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                os.link(part, path)
                os.unlink(part)
            except own(OSError) as error:
                message = (
                    f"rank 0 cannot write {path} ({error.strerror}); give each run a path of its "
                    "own, in a folder that exists"
                )
                raise RendezvousError(message) from error
            return data
        deadline = time.monotonic() + timeout
        while True:
            try:
                with open(path, "rb") as file:
                    status = os.fstat(file.fileno())
                    data = file.read()
            except own(FileNotFoundError):
                if time.monotonic() > deadline:
                    message = f"rank 0 of {name} did not write {path} within {timeout:g} s"
                    raise RendezvousError(message, ranks=[0]) from None
                time.sleep(_NAP)
                continue
            if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
                message = f"{path} is not this user's file"
                raise RendezvousError(message)
            if len(data) != ID_BYTES:
                message = f"{path} has {len(data)} bytes, and not the {ID_BYTES} of an identity"
                raise RendezvousError(message)
            return data


class _Threads(Exchange):
    """The ranks are threads of this process."""

    _changed = threading.Condition()
    _found: Final[dict[tuple[str, str], tuple[bytes, set[int]]]] = {}

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, name: str, rank: int, make: Callable[[], bytes], timeout: float) -> bytes:
        key = (self._address, name)
        with self._changed:
            if rank == 0:
                self._found[key] = make(), {rank}
                self._changed.notify_all()
            elif not self._changed.wait_for(
                # A rank that meets again waits for a new identity.
                lambda: key in self._found and rank not in self._found[key][1],
                timeout,
            ):
                message = f"rank 0 of {name} did not come to {self._address!r} in {timeout:g} s"
                raise RendezvousError(message, ranks=[0])
            identity, taken = self._found[key]
            taken.add(rank)
            return identity


class _OverMpi(Exchange):
    """Messages of MPI's world, in which the ranks are those of the group that was joined."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self._members = members
        self._sent: list[Any] = []  # a message lives until it has arrived

    def __call__(self, name: str, rank: int, make: Callable[[], bytes], timeout: float) -> bytes:
        mpi: Any = import_module("mpi4py.MPI")
        if not mpi.Is_initialized():
            mpi.Init_thread()
        world, members = mpi.COMM_WORLD, self._members
        if not members or world.Get_rank() != members[rank]:
            message = (
                f"rank {rank} of {name} is not that rank of mpi4py's world, or the group is a part "
                "of another: give join() a rendezvous"
            )
            raise RendezvousError(message)
        tag = zlib.crc32(name.encode()) % _TAGS
        if rank == 0:
            data = make()
            self._sent += [world.isend(data, other, tag) for other in members[1:]]
            return data
        deadline = time.monotonic() + timeout
        while not world.iprobe(members[0], tag):
            if time.monotonic() > deadline:
                message = f"rank 0 of {name} did not come within {timeout:g} s"
                raise RendezvousError(message, ranks=[0])
            time.sleep(_NAP)
        return bytes(world.recv(source=members[0], tag=tag))

    def among(self, ranks: Sequence[int] | None) -> Exchange:
        """Return the way in which those meet, by their ranks of MPI's world."""
        return _OverMpi(() if ranks is None else tuple(self._members[each] for each in ranks))
