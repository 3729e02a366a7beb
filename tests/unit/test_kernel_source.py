"""Test that kernels are found where they are, and that the compiler tabulates their parameters."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal._kernel_source import read_source, read_type_table, scan, type_table
from hal._signature import Parameter, Signature
from hal._type_table import KernelEntry
from hal.errors import InvalidArgumentError

COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
needs_compiler = pytest.mark.skipif(not COMPILERS, reason="there is no g++ and no clang++ here")


def names(source):
    return [entry.name for entry in scan(source, filename="k.cpp")]


def one(source):
    (entry,) = scan(source, filename="k.cpp")
    return entry


# Single parameters: declaration, type text, name


@pytest.mark.parametrize(
    ("declaration", "type_text", "name"),
    [
        ("float a", "float", "a"),
        ("const float* __restrict__ x", "const float* __restrict__", "x"),
        ("float *y", "float *", "y"),
        ("float*y", "float*", "y"),
        ("unsigned long long n", "unsigned long long", "n"),
        ("unsigned n", "unsigned", "n"),
        ("struct Foo s", "struct Foo", "s"),
        ("Foo s", "Foo", "s"),
        ("const Foo s", "const Foo", "s"),
        ("Foo const s", "Foo const", "s"),
        ("const int n", "const int", "n"),
        ("::Foo s", "::Foo", "s"),
        ("app::inner::Foo s", "app::inner::Foo", "s"),
        ("typename A<int>::type s", "typename A<int>::type", "s"),
        ("float *p[2]", "float *[2]", "p"),
        ("float p[]", "float[]", "p"),
        ("float p[2][N < 3 ? 1 : 2]", "float[2][N < 3 ? 1 : 2]", "p"),
        ("float (*p)[3]", "float (*)[3]", "p"),
        ("float (*const p)[3]", "float (*const)[3]", "p"),
        ("int (*f)(int, Pair<int, int>)", "int (*)(int, Pair<int, int>)", "f"),
        ("Pair<int, float> p", "Pair<int, float>", "p"),
        ("Pair<Pair<int,float>,unsigned> p", "Pair<Pair<int,float>,unsigned>", "p"),
        ("Pair<::Foo, decltype(1 > 0)> p", "Pair<::Foo, decltype(1 > 0)>", "p"),
        ("Box<(1 > 0), 1 << 3> p", "Box<(1 > 0), 1 << 3>", "p"),
        ("Box<int{1}, Pair<int, int>{ {}, 2 }.x> b", "Box<int{1}, Pair<int, int>{ {}, 2 }.x>", "b"),
        ("Box<[] { int i = 1; return i; }()> b", "Box<[] { int i = 1; return i; }()>", "b"),
        ("decltype(1.0) d", "decltype(1.0)", "d"),
        ("int /* a */ n // b\n", "int", "n"),
        ("int/**/n", "int", "n"),
        ("unsigned\n\tint\r\n n", "unsigned int", "n"),
        ("un\\\nsigned \\\r\n n\\\n", "unsigned", "n"),
        ("[[maybe_unused]] int n", "int", "n"),
        ("int n [[maybe_unused]]", "int", "n"),
        ("const __grid_constant__ Foo s", "const Foo", "s"),
        ("int __attribute__((unused)) n", "int", "n"),
        ("int größe", "int", "größe"),
        ("int _n$1", "int", "_n$1"),
        ("float *p<:2:>", "float *[2]", "p"),
    ],
)
def test_parameter_is_split_into_type_and_name(declaration, type_text, name):
    source = f"__global__ void k(int before, {declaration}, int after) {{}}"
    entry = one(source)
    assert entry.parameters == (("int", "before"), (type_text, name), ("int", "after"))
    inside = source[entry.parameters_start : entry.parameters_end]
    assert inside == f"int before, {declaration}, int after"


@pytest.mark.parametrize("inside", ["", "void", " ", " void /* none */ ", "\n// none\n"])
def test_no_parameters(inside):
    source = f"__global__ void k({inside}) {{}}"
    entry = one(source)
    assert entry.parameters == ()
    assert source[entry.parameters_start : entry.parameters_end] == inside


@pytest.mark.parametrize(
    "head",
    [
        "__global__ void k(int n)",
        "void __global__ k(int n)",
        'extern "C" __global__ void k(int n)',
        'extern "C" __global__ __attribute__((visibility("default"))) void k(int n)',
        "static __global__ void k(int n)",
        "inline __global__ void k(int n)",
        "__global__ void __launch_bounds__(256, 2) k(int n)",
        "__global__ __launch_bounds__(256, (2)) void k(int n)",
        "__launch_bounds__(256) __global__ void k(int n)",
        "__global__ void k(int n) __attribute__((noinline))",
        "__global__ void k(int n) noexcept(true)",
        "__global__ auto k(int n) -> void",
        "__global__ auto k(int n) -> decltype(void())",
        "[[gnu::cold]] __global__ void k(int n)",
        "MACRO(with, parameters)\n__global__ void k(int n)",
        "__global__ void USER_BOUNDS(1, 2) k(int n)",
        "__global__\nvoid\nk\n(int n)\n",
        "__glo\\\nbal__ vo\\  \nid k(int n)",
    ],
)
@pytest.mark.parametrize("body", ["{}", "{ if (n) { return; } }", '{ "}"; }', "<% <% %> %>"])
def test_head_and_body_are_found_exactly(head, body):
    before = "int before;\nvoid f() { { } }\n"
    source = f"{before}{head} {body}\nint after;"
    entry = one(source)
    assert entry.name == "k"
    assert entry.parameters == (("int", "n"),)
    assert source[entry.parameters_start - 1 : entry.parameters_end + 1] == "(int n)"
    assert source[entry.body_start : entry.body_end] == body
    offset = head.index("__glo")
    assert entry.line == 3 + head[:offset].count("\n")


def test_each_branch_of_a_condition_starts_afresh():
    head = "#ifdef A\nstatic __global__\n#else\n__global__\n#endif\n"
    assert one(head + "void k(int n) {}").line == 4
    unfinished = "#ifdef A\nvoid f(\n#else\nvoid g(\n#endif\nint a) {}\n"
    assert one(unfinished + KERNEL).line == 7


# What is no kernel. Each text is C++, so a compiler can be asked what it defines.

HOSTILE = {
    "line comment": "// __global__ void no() {}\nKERNEL",
    "spliced line comment": "// \\\n__global__ void no() {} \\\r\n__global__ void no() {}\nKERNEL",
    "splice with space": "// a \\  \n__global__ void no() {}\nKERNEL",
    "splice in comment sign": "/\\\n/ {}\n/\\\n* \n__global__ void no() {}*\\\n/KERNEL",
    "block comment": "/* __global__ void no() {} // */ KERNEL /* { */",
    "block comment with stars": "/***/ KERNEL /**** __global__ void no() {} ***/",
    "string": 'const char *s = "__global__ void no() { \\" // { /*"; KERNEL',
    "spliced string": 'const char *s = "a\\\n__global__ void no() { \\\\"; KERNEL',
    "comment signs in string": 'const char *s = "/*"; KERNEL const char *t = "*/";',
    "raw string": 'const char *s = R"(" __global__ void no() {} \\)"; KERNEL',
    "raw string with delimiter": 'auto s = u8R"x()" __global__ void no() { )x"; KERNEL',
    "raw string with lines": 'auto s = LR"(\n#if 0\n__global__ void no() {\n)"; KERNEL',
    "no raw string": '#define aR ""\nauto s = aR"( \\" "; KERNEL',
    "characters": "char a = '\"', b = '{', c = '\\'', d = '\\\\'; KERNEL",
    "digit separators": "long a = 1'000'000, b = 0x1'F'f; KERNEL char c = '{';",
    "suffix and exponent": "double a = 1e+5, b = .5'0e-1, c = 0x1p-3; KERNEL",
    "definition": "#define NO __global__ void no() {\nKERNEL",
    "definition with lines": "#define NO __global__ void \\\n no() { \\\n } {\nKERNEL",
    "definition with comment": "#define NO /* \n __global__ void no() { \n */ {\nKERNEL",
    "definition with quotes": "#define NO(x) \"/*\" x '{'\nKERNEL",
    "indented directive": "  /* a */ # define NO __global__ void no() {\nKERNEL",
    "null directive": "#\n%:\nKERNEL",
    "digraph directive": "%:define NO {\nKERNEL",
    "off": "#if 0\ndon't __global__ void no() { /* }\n */ '\n#endif\nKERNEL",
    "off, nested": "#if 0\n#if 1\n{\n#else\n{\n#endif\n{\n#elif 1\nKERNEL\n#else\n{\n#endif",
    "off, spelled oddly": "# /* a */ if 0 // b\n{\n# else\nKERNEL\n#endif",
    "on": "#if 1\nKERNEL\n#else\n__global__ void no() {\n#endif",
    "after elif": "#ifdef NO\n{ \n#elif 0\n{ {\n#else\nKERNEL\n#endif",
    "open twice": "#ifdef NO\nvoid f(int a) {\n#else\nvoid f(long a) {\n#endif\n}\nKERNEL",
    "open in the body": "__global__ void k(int n) {\n#ifdef NO\nif (n) {\n#else\n{\n#endif\n}\n}",
    "closed twice": "__global__ void k(int n) {\n#ifdef NO\n}\n#else\nn = 1; }\n#endif",
    "language linkage": '#ifdef A\nextern "C" {\n#endif\nKERNEL\n#ifdef A\n}\n#endif',
    "include guard": "#ifndef GUARD\n#define GUARD\nKERNEL\n#endif",
    "forward declaration": "__global__ void k(int); __global__ void no(float *x); KERNEL",
    "declared in a function": "void g() { __global__ void no(int); } KERNEL",
    "friend": "struct S { friend __global__ void k(int n); }; KERNEL",
    "namespace": "namespace a { namespace b::c { struct S {}; void f() {} } } KERNEL",
    "namespace alias": "namespace a {} namespace b = a; using namespace a; KERNEL",
    "initialisers": "int a[] = {1, 2}, b{3}; struct P { int x; } p = {1}; KERNEL",
    "brace in parentheses": "int f(int x = int{1}, int y = int{2}); KERNEL",
    "lambda": "auto f = [](int x) { return [=] { return x; }; }; KERNEL",
    "structure": "template <class T> struct S { T x; void f() { } enum E : int { A }; }; KERNEL",
    "function of a structure": "struct S {}; struct S f(struct S s) { return s; } KERNEL",
    "template": "template <typename T, class U = int> T f(T x) { return x; } KERNEL",
    "enumeration": "enum class E : unsigned { A, B }; enum { C }; KERNEL",
    "byte order mark": "\ufeff#define NO {\nKERNEL",
    "carriage returns": "// __global__ void no() {\r\n#define NO {\r\nKERNEL\r\n",
    "condition in front": "#ifdef NO\nstatic\n#endif\nKERNEL",
    "pragma in parameters": "__global__ void k(int n,\n#pragma NO (\nfloat *x) {}",
}
KERNEL = "__global__ void k(int n) { n = '{' + n; }"


@pytest.mark.parametrize("label", HOSTILE)
def test_hostile_text_hides_and_invents_nothing(label):
    source = HOSTILE[label].replace("KERNEL", KERNEL)
    assert names(source) == ["k"]
    entry = one(source)
    assert source[entry.parameters_start :].startswith("int n")
    assert source[entry.body_start] == "{"
    assert source[entry.body_end - 1] == "}"


@needs_compiler
def test_compiler_finds_the_same_kernels_in_hostile_text(tmp_path):
    if not shutil.which("nm"):
        pytest.skip("there is no nm to list what was compiled")
    for number, text in enumerate(HOSTILE.values()):
        (tmp_path / f"t{number}.cpp").write_text(text.replace("KERNEL", KERNEL), newline="")
    sources = sorted(path.name for path in tmp_path.iterdir())
    marker = '-D__global__=__attribute__((section("kernels"),used))'
    subprocess.run(
        [COMPILERS[0], "-std=c++17", "-w", "-c", marker, *sources], cwd=tmp_path, check=True
    )
    for number, label in enumerate(HOSTILE):
        found = subprocess.run(
            ["nm", "--defined-only", "--format=sysv", "-C", f"t{number}.o"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        kernels = [
            line.split("|")[0].split("(")[0] for line in found.splitlines() if "|kernels" in line
        ]
        assert [name.strip() for name in kernels] == ["k"], label


# What is refused


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "void f();\n__global__ void k(float (&a)[3]) {}",
            "k.cpp:2: kernel 'k': parameter 1 (`float (&a)[3]`) is a reference",
        ),
        (
            "__global__ void k(int n,\nconst Foo &a) {}",
            "k.cpp:2: kernel 'k': parameter 2 (`const Foo &a`) is a reference",
        ),
        ("__global__ void k(Foo &&a) {}", "is a reference"),
        ("__global__ void k(float*) {}", "has no name"),
        ("__global__ void k(int n, Foo) {}", "parameter 2 (`Foo`) has no name"),
        ("__global__ void k(const Foo) {}", "has no name"),
        ("__global__ void k(struct Foo) {}", "has no name"),
        ("__global__ void k(unsigned long) {}", "has no name"),
        ("__global__ void k(a::Foo) {}", "has no name"),
        ("__global__ void k(Pair<int, float>) {}", "has no name"),
        ("__global__ void k(Foo[3]) {}", "has no name"),
        ("__global__ void k(float* __restrict__) {}", "has no name"),
        ("__global__ void k(float (*)[3]) {}", "has no name"),
        ("__global__ void k(int (*(*f)(int))[3]) {}", "has no name"),
        ("__global__ void k(int f(int)) {}", "has no name"),
        ("__global__ void k(int n,) {}", "parameter 2 (``) has no name"),
        ("__global__ void k([3]) {}", "has no name"),
        ("__global__ void k(]) {}", "has no name"),
        ("__global__ void k(int n = 3) {}", "has a default value"),
        ("__global__ void k(int n, ...) {}", "variadic"),
        ("__global__ void k(auto n) {}", "makes the kernel a template"),
        ("template <typename T>\n__global__ void k(T *x) {}", "k.cpp:2: kernel 'k': a template"),
        ("template <> __global__ void k<int>(int *x) {}", "a template"),
        (
            "__global__ void k(int n) {}\n\n__global__ void k(float n) {}",
            "k.cpp:3: kernel 'k': line 1 defines it already",
        ),
        (
            "#ifdef A\n__global__ void k(int n) {}\n#else\n__global__ void k(long n) {}\n#endif",
            "k.cpp:4: kernel 'k': line 2 defines it already",
        ),
        (
            "__global__ void k(\n#ifdef A\nint n\n#else\nlong n\n#endif\n) {}",
            "a preprocessor line stands in its declaration",
        ),
        (
            "#ifdef A\n__global__ void k(int n)\n#else\n__global__ void k(long n)\n#endif\n{}",
            "a preprocessor line",
        ),
        (
            "__global__ void k(\n#if 0\n#elif A\nint n\n#else\nlong n\n#endif\n) {}",
            "a preprocessor line",
        ),
        ('__global__ void k(\n#include "parameters.inc"\n) {}', "a preprocessor line"),
        ("namespace app { __global__ void k(int n) {} }", "it is in a namespace"),
        ('namespace { extern "C" { __global__ void k(int n) {} } }', "it is in a namespace"),
        ("inline namespace v1 { __global__ void k(int n) {} }", "it is in a namespace"),
        ("__global__ void app::k(int n) {}", "it is in a namespace"),
        ("struct S { static __global__ void k(int n) {} };", "it is in a class"),
        ("__global__ void k(int n) { if (n) {", "its body is never closed"),
        ("__global__ void k(int n) { /* }", "its body is never closed"),
        ('__global__ void k(int n) { R"x( }', "its body is never closed"),
        ("__global__ void NAME(k)(int n) {}", "its name is not plainly written"),
    ],
)
def test_what_cannot_be_an_entry_point_is_refused_with_its_place(source, message):
    with pytest.raises(InvalidArgumentError) as caught:
        scan(source, filename="k.cpp")
    assert message in str(caught.value)
    assert str(caught.value).startswith("k.cpp:")


@pytest.mark.parametrize(
    "source",
    [
        "",
        "{",
        "}",
        "}}}};",
        "__global__",
        "__global__ int x;",
        "__global__ x { }",
        "__global__ (",
        "#",
        "#else\n#endif\n#elif 1",
        "\\",
        '"',
        "'",
        "/*",
        'R"(',
        "\0",
        "__global__ void k(int n);",
    ],
)
def test_text_without_kernels_gives_none(source):
    assert scan(source, filename="k.cpp") == ()


FRAGMENTS = [
    *"(){}[]<>,;:*&=#\"'\\/ \n",
    "__global__ void k(int n) {}",
    "__global__",
    "void ",
    "k",
    "(int n)",
    "template <class T> ",
    "namespace a {",
    "struct S {",
    'extern "C" {',
    "\n#if 0\n",
    "\n#if 1\n",
    "\n#ifdef A\n",
    "\n#else\n",
    "\n#elif 0\n",
    "\n#endif\n",
    "/*",
    "*/",
    "//",
    "\\\n",
    'R"x(',
    ')x"',
    "1'0",
    "é",
    "[[",
    "]]",
    "<::",
    "%:",
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_consistent_entries_or_the_documented_error(source):
    try:
        entries = scan(source, filename="k.cpp")
    except InvalidArgumentError:
        return
    end = 0
    for entry in entries:
        assert end <= entry.parameters_start <= entry.parameters_end < entry.body_start
        assert entry.body_start < entry.body_end <= len(source)
        assert source[entry.parameters_start - 1] == "("
        assert source[entry.parameters_end] == ")"
        assert source[entry.body_start] in "{<"
        assert source[entry.body_end - 1] in "}>"
        end = entry.body_end


NOISE = [
    "// {\n",
    "/* } */",
    'const char *s1 = "{";',
    "\n#define A {\n",
    "void f() { '{'; }",
    "struct S { int x; };",
    "\n#if 0\n } \n#endif\n",
    "namespace n { int y; }",
    "int z[] = { 1, 2 };",
    "__global__ void fwd(int n);",
    ";",
    "\n",
]


@given(st.lists(st.sampled_from([None, *NOISE]), max_size=20))
@settings(max_examples=100, deadline=None)
def test_kernels_are_found_in_order_among_other_text(parts):
    source, expected = "", []
    for part in parts:
        if part is None:
            name = f"k{len(expected)}"
            start = len(source) + len(f"__global__ void {name}(")
            source += f"__global__ void {name}(int n) {{ {{}} }}"
            expected.append((name, start, len(source)))
        else:
            source += part
    found = scan(source, filename="k.cpp")
    assert [(e.name, e.parameters_start, e.body_end) for e in found] == expected


@pytest.mark.parametrize(
    "piece",
    [
        '"',
        "'",
        "\\\n",
        "/*",
        "//\\\n",
        'R"(',
        "(",
        "{",
        "<",
        "#if A\n",
        '\\"',
        "a ",
        "__global__ (",
        "<::",
        "1'",
        "k(int n)",
        "({})",
        "f(int x = {}, ",
    ],
)
def test_reading_takes_no_more_than_linear_time(piece):
    with contextlib.suppress(InvalidArgumentError):
        scan(piece * (300_000 // len(piece)), filename="k.cpp")


# The table that the compiler makes

TYPES_SOURCE = """
#define N 16
#define T float
#define K value
#define type int
#define value int
#define hal_nothing
#define real double
struct Foo { char a[3]; };
struct alignas(32) Wide { float x[8]; };
template <class A, class B> struct Pair { A a; B b; };
enum Signed { minus = -1 };
enum class Unsigned : unsigned short { a };
enum class Truth : bool { no };
union Either { int i; double d; };
typedef float Vector[4];
using Index = unsigned long long;
using ReadOnly = const Foo *const;
namespace app { struct Bar { long long a; char b; }; }
extern "C" __global__ void pointers(const float *__restrict__ x, float *y[2], float z[N],
    float (*a)[3], int (*f)(int, Foo), void *const p, Vector v, volatile Foo *w,
    const Vector *cv, const volatile Foo *cw, float *const *cp, const float *const *cq,
    const float (*ca)[3], ReadOnly cr, float const cz[N], const void *ct) {}
__global__ void numbers(signed char a, short b, const int c, long long d, unsigned char e,
    unsigned short f, volatile unsigned g, Index h, bool i, float j, double k, real l,
    char16_t m) {}
__global__ void records(Foo a, struct Foo b, const Wide c, Pair<int, Pair<char, double>> d,
    Either e, app::Bar f, Signed g, Unsigned h, Truth i, enum Signed j, decltype(nullptr) k,
    long double l) {}
__global__ void none() {}
__global__ void gr\u00f6\u00dfe(int \u00e4) {} // ends in a splice \\
"""
EXPECTED = {
    "pointers": "(const ptr x, ptr y, ptr z, ptr a, ptr f, ptr p, ptr v, ptr w, "
    "const ptr cv, const ptr cw, const ptr cp, const ptr cq, const ptr ca, const ptr cr, "
    "const ptr cz, const ptr ct)",
    "numbers": "(i8 a, i16 b, i32 c, i64 d, u8 e, u16 f, u32 g, u64 h, bool i, f32 j, f64 k, "
    "f64 l, u16 m)",
    "records": "(bytes[3] a, bytes[3] b, bytes[32] c, bytes[24] d, bytes[8] e, bytes[16] f, "
    "i32 g, u16 h, bool i, i32 j, ptr k, bytes[16] l)",
    "none": "()",
    "gr\u00f6\u00dfe": "(i32 \u00e4)",
}
ALIGNMENTS = [1, 1, 32, 8, 8, 8, 4, 2, 1, 4, 8, 16]


def compile_source(compiler, source, folder, *options, table=""):
    prelude = '#define __global__\n#define HAL_TABLE __attribute__((visibility("default"), used))\n'
    (folder / "k.cpp").write_text(f"{prelude}{source}{table}", encoding="utf-8")
    library = folder / f"{compiler}{''.join(options)}.so"
    command = [compiler, "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    command += ["-shared", "-fPIC", *options, "k.cpp", "-o", library.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done, library


def load_table(library, count):
    loaded = ctypes.CDLL(str(library))
    kernels = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(loaded, "hal_kernels")))
    numbers = (ctypes.c_uint32 * (4 * count + 4)).in_dll(loaded, "hal_parameters")
    return kernels + b"\0", bytes(numbers)


@needs_compiler
@pytest.mark.parametrize("compiler", COMPILERS or ["none"])
@pytest.mark.parametrize("standard", ["-std=c++17", "-std=gnu++20"])
def test_table_tells_what_the_compiler_knows(tmp_path, compiler, standard):
    entries = scan(TYPES_SOURCE, filename="k.cpp")
    done, library = compile_source(
        compiler, TYPES_SOURCE, tmp_path, standard, "-Wno-volatile", table=type_table(entries)
    )
    assert done.returncode == 0, done.stderr
    assert "hal_" not in done.stderr  # no warning from the table
    count = sum(1 + len(entry.parameters) for entry in entries)
    found = read_type_table(*load_table(library, count))
    assert {name: str(entry.signature) for name, entry in found.items()} == EXPECTED
    assert list(found) == [entry.name for entry in entries]
    assert [each.alignment for each in found["records"].signature.parameters] == ALIGNMENTS
    assert {entry[1:] for entry in found.values()} == {(None, 0)}


@needs_compiler
def test_table_does_not_mind_a_changed_kernel(tmp_path):
    """A backend may give kernels a parameter of its own."""
    source = "struct P { int a, b; };\n__global__ void k(P p, int n) {}\n__global__ void j() {}"
    entries = scan(source, filename="k.cpp")
    changed = source
    for entry in reversed(entries):
        hidden = "void *hidden, " if entry.parameters else "void *hidden"
        start = entry.parameters_start
        changed = f"{changed[:start]}{hidden}{changed[start:]}"
    done, library = compile_source(COMPILERS[0], changed, tmp_path, table=type_table(entries))
    assert done.returncode == 0, done.stderr
    found = read_type_table(*load_table(library, 4))
    assert [str(entry.signature) for entry in found.values()] == ["(bytes[8] p, i32 n)", "()"]


@needs_compiler
def test_table_of_nothing_is_readable(tmp_path):
    done, library = compile_source(COMPILERS[0], "// none", tmp_path, table=type_table(()))
    assert done.returncode == 0, done.stderr
    assert read_type_table(*load_table(library, 0)) == {}


@needs_compiler
@pytest.mark.parametrize(
    "definition",
    ["struct Foo { Foo(const Foo &); };", "typedef int &Foo;", "struct Foo { ~Foo() {} };"],
)
def test_compiler_refuses_what_cannot_be_copied_byte_by_byte(tmp_path, definition):
    source = f"{definition}\n__global__ void k(int n, Foo foo) {{}}"
    table = type_table(scan(source, filename="k.cpp"))
    done, _ = compile_source(COMPILERS[0], source, tmp_path, table=table)
    assert done.returncode != 0
    assert "kernel 'k': parameter 'foo' must be trivially copyable" in done.stderr


MAGIC, VERSION = 0x6C6168, 2


def test_table_is_read_back():
    kernels = b"saxpy(a,x);none();blur(in)\0"
    numbers = [
        MAGIC, VERSION, 3, 3,
        0, 0, 0, 0,
        4, 4, 4, 0,
        1, 8, 8, 1,
        8, 4, 2, 1024,
        0, 0, 0, 16,
        6, 12, 4, 0,
    ]  # fmt: skip
    assert read_type_table(kernels, bytes((ctypes.c_uint32 * 28)(*numbers))) == {
        "saxpy": KernelEntry(
            Signature([Parameter("a", "float", 4, 4), Parameter("x", "ptr", 8, 8, is_const=True)])
        ),
        "none": KernelEntry(Signature([]), (8, 4, 2), 1024),
        "blur": KernelEntry(Signature([Parameter("in", "record", 12, 4)]), None, 16),
    }


NONE = [0, 0, 0, 0]
FLOAT = [4, 4, 4, 0]


@pytest.mark.parametrize(
    ("kernels", "numbers"),
    [
        (b"k(a)\0", [1, 1, *NONE]),
        (b"k(a)\0", [1, 1, *NONE, 0, 0, 0, 0]),
        (b"k(a)\0", [1, 1, *NONE, *FLOAT, *FLOAT]),
        (b"k(a)\0", [1, 2, *NONE, *FLOAT]),
        (b"k(a)\0", [2, 1, *NONE, *FLOAT]),
        (b"k(a)\0", [1, 1, *NONE, 9, 4, 4, 0]),
        (b"k(a)\0", [1, 1, *NONE, 4, 5, 4, 0]),
        (b"k(a)\0", [1, 1, *NONE, 4, 4, 4, 1]),
        (b"k(a)\0", [1, 1, *NONE, 4, 4, 4]),
        (b"k(a,b)\0", [1, 1, *NONE, *FLOAT]),
        (b"k(a,a)\0", [1, 2, *NONE, *FLOAT, *FLOAT]),
        (b"k(\xff)\0", [1, 1, *NONE, *FLOAT]),
        (b"k()\0", [1, 0]),
        (b"\0", [1, 0]),
        (b"\0", [0, 0, *NONE]),
    ],
)
def test_damaged_table_is_refused(kernels, numbers):
    whole = [MAGIC, VERSION, *numbers]
    parameters = bytes((ctypes.c_uint32 * len(whole))(*whole))
    with pytest.raises(InvalidArgumentError, match=r"damaged|only a pointer"):
        read_type_table(kernels, parameters)


@pytest.mark.parametrize(
    ("numbers", "match"),
    [
        ([4, 4, 4, 0, 0, 0], "older version or damaged.*version 2.*compile.*signatures="),
        ([], "older version or damaged"),
        ([MAGIC, 3, 1, 0, 1, 1, 1, 0, 5], "of version 3, and this hal reads version 2"),
    ],
)
def test_table_of_another_version_is_refused(numbers, match):
    parameters = bytes((ctypes.c_uint32 * len(numbers))(*numbers))
    with pytest.raises(InvalidArgumentError, match=match):
        read_type_table(b"k(a)\0", parameters)


# Marks


@pytest.mark.parametrize(
    ("head", "block", "shared"),
    [
        ("__global__ void HAL_BLOCK(256) k(int n)", ("256",), ""),
        ("HAL_BLOCK(N * 2, 4) __global__ void k(int n)", ("N * 2", "4"), ""),
        ("__global__ void k(int n) HAL_BLOCK(8, 4, 2)", ("8", "4", "2"), ""),
        ("__global__ HAL_SHARED_MEMORY(sizeof(Pair<int, 2>)) void k(int n)", (), None),
        ("__global__ void HAL_BLOCK((1, 2)) k(int n)", ("(1, 2)",), ""),
        (
            "__global__ void\nHAL_BLOCK(/* x, */ 64)\nHAL_SHARED_MEMORY(64 * 4) k(int n)",
            ("64",),
            "64 * 4",
        ),
        ("__global__ void __launch_bounds__(64) k(int n)", (), ""),
    ],
)
def test_marks_are_read_and_blanked(head, block, shared):
    source = f"int before;\n{head} {{ HAL_BLOCK(n); }}\nint after;"
    (entry,), plain = read_source(source, filename="k.cpp")
    assert entry.name == "k"
    assert entry.parameters == (("int", "n"),)
    assert entry.block == block
    assert entry.shared_memory == ("sizeof(Pair<int, 2>)" if shared is None else shared)
    assert len(plain) == len(source)
    changed = [i for i, (a, b) in enumerate(zip(source, plain, strict=True)) if a != b]
    assert {plain[i] for i in changed} <= {" "}
    assert plain.count("\n") == source.count("\n")
    outside = plain[: entry.body_start] + plain[entry.body_end :]
    assert "HAL_" not in outside
    assert plain[entry.body_start : entry.body_end] == "{ HAL_BLOCK(n); }"
    assert scan(plain, filename="k.cpp")[0].parameters_start == entry.parameters_start


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("__global__ void HAL_BLOCK() k(int n)", "k.cpp:2: kernel 'k': HAL_BLOCK takes one to"),
        ("__global__ void HAL_BLOCK(1, 2, 3, 4) k(int n)", "HAL_BLOCK takes one to three numbers"),
        ("__global__ void HAL_BLOCK(1,) k(int n)", "HAL_BLOCK takes one to three numbers"),
        ("__global__ void HAL_SHARED_MEMORY(1, 2) k(int n)", "HAL_SHARED_MEMORY takes one number"),
        ("HAL_BLOCK(1) __global__ void HAL_BLOCK(1) k(int n)", "HAL_BLOCK stands there twice"),
        ("#if A\n__global__\n#endif\nvoid HAL_BLOCK(1) k(int n)", "put the #if around"),
    ],
)
def test_marks_that_are_wrong(head, message):
    with pytest.raises(InvalidArgumentError) as caught:
        read_source(f"int x;\n{head} {{}}", filename="k.cpp")
    assert message in str(caught.value)


MARKED = """
#define N 7
constexpr int width = 4;
enum { height = 3 };
__global__ void HAL_BLOCK(N * width, height) HAL_SHARED_MEMORY(sizeof(long long) * N) a(int n) {}
HAL_BLOCK(2) __global__ void b() {}
__global__ void HAL_SHARED_MEMORY(0) c() {}
__global__ void HAL_BLOCK(unsigned(1), 2u, 3ull) d() {}
"""


@needs_compiler
def test_compiler_evaluates_the_marks(tmp_path):
    entries, plain = read_source(MARKED, filename="k.cpp")
    done, library = compile_source(
        COMPILERS[0], plain, tmp_path, "-std=c++17", table=type_table(entries)
    )
    assert done.returncode == 0, done.stderr
    assert "hal_" not in done.stderr
    found = read_type_table(*load_table(library, 5))
    assert {name: entry[1:] for name, entry in found.items()} == {
        "a": ((28, 3, 1), 56),
        "b": ((2, 1, 1), 0),
        "c": (None, 0),
        "d": ((1, 2, 3), 0),
    }


@needs_compiler
@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("HAL_BLOCK(0)", "kernel 'k': HAL_BLOCK takes 1 or more"),
        ("HAL_BLOCK(4, -1)", "kernel 'k': HAL_BLOCK takes 1 or more"),
        ("HAL_SHARED_MEMORY(-1)", "kernel 'k': HAL_SHARED_MEMORY takes 0 or more"),
        ("HAL_BLOCK(variable)", "constant"),
    ],
)
def test_compiler_refuses_wrong_marks(tmp_path, mark, message):
    source = f"int variable;\n__global__ void {mark} k() {{}}"
    entries, plain = read_source(source, filename="k.cpp")
    done, _ = compile_source(COMPILERS[0], plain, tmp_path, "-std=c++17", table=type_table(entries))
    assert done.returncode != 0
    assert message in done.stderr
