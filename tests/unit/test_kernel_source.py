"""Kernels are found where they are, and what is none is not."""

import contextlib
import shutil
import subprocess

import pytest
from compilers import COMPILERS, needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st

from hal._programs.scanner import scan
from hal.errors import InvalidArgumentError


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
        scan(piece * (150_000 // len(piece)), filename="k.cpp")
