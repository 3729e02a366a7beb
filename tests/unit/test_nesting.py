"""How deep a word stands in the statements of its function."""

import pytest

from hal._programs.nesting import nested_words

DEPTHS = {
    "X": [],
    "void f() { X; }": [0],
    "#define Y X\nvoid f() { Y; }": [],
    "namespace n { struct S { int f() const { X; { X; } X; } }; } X": [0, 1, 0],
    "void f() { for (int i = 0; i < 3; ++i) { X; } X; }": [1, 0],
    "void f() { for (;;) X; X; }": [1, 0],
    "void f() { for (;;) while (g(X)) X; X; }": [2, 0],
    "void f() { for (;;) for (;;) { X; } X; }": [2, 0],
    "void f() { if (a) X; else X; X; }": [1, 1, 0],
    "void f() { if (a) { X; } else { X; } X; }": [1, 1, 0],
    "void f() { if (a) X; else if (b) X; else { X; } X; }": [1, 1, 1, 0],
    "void f() { for (;;) if (a) X; else { X; } X; }": [2, 2, 0],
    "void f() { for (;;) if (a) { X; } else X; X; }": [2, 2, 0],
    "void f() { if (a) if (b) X; else X; else X; X; }": [2, 2, 1, 0],
    "void f() { do X; while (a); X; do { X; } while (a); X; }": [1, 0, 1, 0],
    "void f() { int a[] = {1}; X; auto g = [&] { X; }; X; }": [0, 1, 0],
    'void f() { const char *t = "{"; /* { */ X; }': [0],
    "void f() { switch (a) { case 1: X; break; default: X; } X; }": [1, 1, 0],
    "void f() { } } } void g() { X; }": [0],
}


@pytest.mark.parametrize("source", DEPTHS)
def test_depths(source):
    found = list(nested_words(source, "X"))
    assert [depth for _, depth in found] == DEPTHS[source]
    assert all(source[token.start : token.end] == "X" for token, _ in found)
