"""The core's packages import one way, type-only imports included."""

import ast
import functools
import graphlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "hal_core" / "src" / "hal"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
BACK = {
    pair
    for contract in CONTRACTS["contracts"]
    if contract["type"] == "layers"
    for pair in contract.get("ignore_imports", ())
}  # fmt: skip
"""The imports that run back: a buffer's `device` is of the class that users know.

They are honest as they stand. With `DeviceCore` as its type a checker would refuse
``buffer.device.create_queue()``; the protocol of `hal.protocols` would be refused where a function
takes a `hal.Device`; and a type variable of `Buffer` would stand in every signature of a user's.
"""

PROPERTIES = BACK | {"hal._engine.timelines -> hal._engine.semaphore"}
"""All imports for the type of a public property: also that of a timepoint's `semaphore`."""

TOGETHER = {
    # Records that refer to each other: an operation has its queue, and the queue its operations
    "_engine": "device_context events memory_events notifier operation steps stream timelines",
    "_memory": "books heap reaper segment_pool storage stream_order views",
    # A class, and functions that do the work of its methods
    "_buffers": "buffer exports",
    "_devices": "device lifecycle queue",
    "_kernels": "executable launch_shape",
}
"""The files of each package that form a circle, type-only imports included."""

LONGEST = 600
"""Lines of a file at the most: what is longer holds more than one concept."""


def module_of(path):
    return ".".join(path.relative_to(CORE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(CORE.rglob("*.py"))}


@functools.cache
def imports_of(path):
    """Return each module that a file imports, with whether that is for types alone."""

    def visit(node, is_typing):
        for child in ast.iter_child_nodes(node):
            is_block = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if isinstance(child, ast.Import):
                yield from ((alias.name, is_typing) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                for alias in child.names:
                    name = f"{child.module}.{alias.name}"
                    yield (name if name in MODULES else child.module), is_typing
            else:
                yield from visit(child, is_typing or is_block)

    return tuple(visit(ast.parse(path.read_text("utf-8")), is_typing=False))


def room_of(module):
    """Return what stands for a module in the graph: its package; in `hal.flow` each file itself."""
    parts = module.split(".")
    return module if parts[1:2] == ["flow"] else ".".join(parts[:2])


def graph(files):
    """Return which room imports which, without the imports that run back."""
    rooms = {}
    for name, path in files.items():
        for target, _ in imports_of(path):
            there = room_of(target)
            if target in MODULES and there != room_of(name) and f"{name} -> {target}" not in BACK:
                rooms.setdefault(room_of(name), set()).add(there)
    return rooms


def run_time_graph(files):
    """Return which file imports which when it runs, in functions too."""
    return {
        name: {
            target for target, is_typing in imports_of(path) if target in files and not is_typing
        }
        for name, path in files.items()
    }


FILES = {name: path for name, path in MODULES.items() if name != "hal"}


def test_no_circle_between_packages():
    rooms = graph(FILES)
    assert len(rooms) > 15
    tuple(graphlib.TopologicalSorter(rooms).static_order())  # raises CycleError with the circle


@pytest.mark.parametrize(
    ("module", "target"),
    [("hal._base.circle", "hal._devices.device"), ("hal.flow.tracking", "hal.flow.flow")],
)
def test_a_circle_is_found(tmp_path, module, target):
    (tmp_path / "a.py").write_text(
        f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {target}\n"
    )
    files = FILES | {module: tmp_path / "a.py"}
    with pytest.raises(graphlib.CycleError):
        tuple(graphlib.TopologicalSorter(graph(files)).static_order())


def test_no_circle_between_files_when_they_run(tmp_path):
    order = tuple(graphlib.TopologicalSorter(run_time_graph(FILES)).static_order())
    assert set(order) == set(FILES)
    (tmp_path / "a.py").write_text(
        "def late():\n    from hal._buffers import imports\n    return imports\n"
    )
    files = FILES | {"hal._buffers.dlpack": tmp_path / "a.py"}  # which imports.py imports
    with pytest.raises(graphlib.CycleError):
        tuple(graphlib.TopologicalSorter(run_time_graph(files)).static_order())


def file_graph(together):
    """Return which file imports which, for types too; the files of a circle are one."""
    circles = {
        f"hal.{room}.{name}": room for room, names in together.items() for name in names.split()
    }
    found = {}
    for name, path in FILES.items():
        for target, _ in imports_of(path):
            here, there = (circles.get(each, each) for each in (name, target))
            if target in FILES and here != there and f"{name} -> {target}" not in PROPERTIES:
                found.setdefault(here, set()).add(there)
    return found


def test_no_other_circle_between_files_with_their_types():
    tuple(graphlib.TopologicalSorter(file_graph(TOGETHER)).static_order())
    for room, names in TOGETHER.items():
        for name in names.split():  # each is part of the circle
            less = " ".join(each for each in names.split() if each != name)
            with pytest.raises(graphlib.CycleError):
                tuple(
                    graphlib.TopologicalSorter(file_graph(TOGETHER | {room: less})).static_order()
                )


def test_no_file_is_too_long():
    lengths = {name: len(path.read_text("utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


@pytest.mark.parametrize("pair", sorted(PROPERTIES))
def test_what_runs_back_is_the_type_of_a_property(pair):
    """Such an import serves the annotation of one property, and nothing that runs."""
    source, target = pair.split(" -> ")
    tree = ast.parse(MODULES[source].read_text("utf-8"))
    assert dict(imports_of(MODULES[source]))[target], "for types only"
    name = target.rsplit(".", 1)[1].capitalize()
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    properties = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(
            isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list
        )
        and isinstance(node.returns, ast.Name)
        and node.returns.id == name
    ]
    assert [each.returns for each in properties] == uses
    assert len(uses) == 1


def definitions(path):
    """Yield the name of each class and alias of a file, and its text."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_"), ast.unparse(node)
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            yield ast.unparse(node.target).lstrip("_"), ast.unparse(node.value).strip("'")


def test_no_name_stands_for_two_classes():
    """`hal.protocols` aside, whose names are those of the classes that it describes."""
    found = {}
    for module in FILES.keys() - {"hal.protocols"}:
        for name, text in definitions(FILES[module]):
            found.setdefault(name, set()).add(text)
    several = {name for name, texts in found.items() if len(texts) > 1}
    assert several == {"HookSpecification"}  # of backends and of providers, each by its own module
