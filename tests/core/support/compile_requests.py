"""Requests to compile, as the core makes them for a native device."""

from __future__ import annotations

from hal._programs.scanner import read_source, type_table
from hal.native import CompileRequest


def request(source, filename="kernel.cpp", **more):
    """Return a request to compile a source; `more` are fields of it."""
    entries, plain = read_source(source, filename=filename)
    return CompileRequest(plain, filename, entries, type_table(entries), **more)
