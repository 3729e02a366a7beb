"""Requests to compile, as the core makes them for a native device, and their images."""

import importlib

from hal._programs.scanner import read_source
from hal._programs.type_table import type_table
from hal.native import CompileRequest


def request(source, filename="kernel.cpp", **more):
    """Return a request to compile a source; `more` are fields of it."""
    entries, plain = read_source(source, filename=filename)
    return CompileRequest(plain, filename, entries, type_table(entries), **more)


def compiled(device, asked):
    """Return the image that the compiler of a native device's backend makes for it."""
    package = type(device).__module__.partition(".")[0]
    compiler = importlib.import_module(f"{package}.plugin").hal_backend().compiler()
    return compiler.compile(asked, compiler.target_of(device.info)).image
