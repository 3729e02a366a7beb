from collections.abc import Callable

sources: int

class Calls:
    users: int
    def __init__(self, *table: int) -> None: ...

class Packer:
    def __init__(self, parameters: tuple[tuple[str, object, int, int], ...], /) -> None: ...

class Rebinder:
    def __init__(
        self,
        slots: tuple[tuple[str, object, int, int, int], ...],
        launches: tuple[tuple[int, bytes, int], ...],
        patches: tuple[tuple[int, int, int, int, int, int], ...],
        ranges: tuple[tuple[int, int], ...] | None,
        kept: object,
        /,
    ) -> None: ...

class Shortcut:
    __wrapped__: Callable[..., object]
    def __init__(self, name: str, function: Callable[..., object], /) -> None: ...
    def __call__(self, *arguments: object, **options: object) -> object: ...

def install(classes: dict[str, type], parts: dict[str, object], /) -> None: ...
def install_flow(classes: dict[str, type], /) -> None: ...
def release(semaphore: object, value: int, /) -> bool | None: ...
def use_lock(lock: object, /) -> None: ...
