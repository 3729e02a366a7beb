"""The table that the compiler makes of kernels, and the marks that kernels have."""

import ctypes
import subprocess

import pytest
from compilers import COMPILERS, needs_compiler

from hal._programs.scanner import read_source, scan
from hal._programs.signature import Parameter, Signature
from hal._programs.type_table import KernelEntry, read_type_table, type_table
from hal.errors import InvalidArgumentError

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
using size = decltype(sizeof(0));
using ReadOnly = const Foo *const;
namespace app { struct Bar { long long a; char b; }; }
struct Later;
__global__ void elements(char *a, unsigned char *b, const signed char *c, short *d,
    unsigned *__restrict__ e, const volatile int *f, long *g, size *h, double *i, bool *j,
    Unsigned *k, Pair<int, double> *l, long double *m, Later *n, void (**o)(int), void *p,
    Signed *q, char16_t *r) {}
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
    "pointers": "(const f32* x, ptr y, f32* z, bytes[12]* a, ptr f, ptr p, f32* v, bytes[3]* w, "
    "const bytes[16]* cv, const bytes[3]* cw, const ptr cp, const ptr cq, const bytes[12]* ca, "
    "const bytes[3]* cr, const f32* cz, const ptr ct)",
    "elements": "(i8* a, u8* b, const i8* c, i16* d, u32* e, const i32* f, i64* g, u64* h, f64* i, "
    "bool* j, u16* k, bytes[16]* l, bytes[16]* m, ptr n, ptr o, ptr p, i32* q, u16* r)",
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


MAGIC, VERSION = 0x6C6168, 3


def test_table_is_read_back():
    kernels = b"saxpy(a,x);none();blur(in)\0"
    numbers = [
        MAGIC, VERSION, 3, 3,
        0, 0, 0, 0,
        4, 4, 4, 0,
        1, 8, 8, 1 | 4 << 4 | 8 << 8,
        8, 4, 2, 1024,
        0, 0, 0, 16,
        6, 12, 4, 0,
    ]  # fmt: skip
    assert read_type_table(kernels, bytes((ctypes.c_uint32 * 28)(*numbers))) == {
        "saxpy": KernelEntry(Signature.parse("(f32 a, const f64* x)")),
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
        (b"k(a)\0", [1, 1, *NONE, 4, 4, 4, 4 << 4 | 4 << 8]),
        (b"k(a)\0", [1, 1, *NONE, 1, 8, 8, 8 << 4 | 4 << 8]),
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
    with pytest.raises(InvalidArgumentError, match=r"damaged|only a pointer|has no elements"):
        read_type_table(kernels, parameters)


@pytest.mark.parametrize(
    ("numbers", "match"),
    [
        ([4, 4, 4, 0, 0, 0], "older version or damaged.*version 3.*compile.*signatures="),
        ([], "older version or damaged"),
        ([MAGIC, 4, 1, 0, 1, 1, 1, 0, 5], "of version 4, and this hal reads version 3"),
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
enum class Size : short { four = 4 };
__global__ void HAL_BLOCK(Size::four, 2.0, char(1)) HAL_SHARED_MEMORY(0xffffffff) e() {}
"""


@needs_compiler
def test_compiler_evaluates_the_marks(tmp_path):
    entries, plain = read_source(MARKED, filename="k.cpp")
    done, library = compile_source(
        COMPILERS[0], plain, tmp_path, "-std=c++17", table=type_table(entries)
    )
    assert done.returncode == 0, done.stderr
    assert "hal_" not in done.stderr
    found = read_type_table(*load_table(library, 6))
    assert {name: entry[1:] for name, entry in found.items()} == {
        "a": ((28, 3, 1), 56),
        "b": ((2, 1, 1), 0),
        "c": (None, 0),
        "d": ((1, 2, 3), 0),
        "e": ((4, 2, 1), 0xFFFFFFFF),
    }


@needs_compiler
@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("HAL_BLOCK(0)", "kernel 'k': HAL_BLOCK takes 1 or more"),
        ("HAL_BLOCK(4, -1)", "kernel 'k': HAL_BLOCK takes 1 or more"),
        ("HAL_SHARED_MEMORY(-1)", "kernel 'k': HAL_SHARED_MEMORY takes 0 or more"),
        ("HAL_BLOCK(variable)", "constant"),
        ("HAL_BLOCK(4294967296LL + 64)", "kernel 'k': HAL_BLOCK takes whole numbers below 2**32"),
        ("HAL_BLOCK(4, 0x100000000)", "kernel 'k': HAL_BLOCK takes whole numbers below 2**32"),
        ("HAL_BLOCK(1.9)", "kernel 'k': HAL_BLOCK takes whole numbers"),
        ("HAL_SHARED_MEMORY(0.5)", "kernel 'k': HAL_SHARED_MEMORY takes whole numbers"),
        ("HAL_SHARED_MEMORY(1ull << 32)", "kernel 'k': HAL_SHARED_MEMORY takes whole numbers"),
    ],
)
def test_compiler_refuses_wrong_marks(tmp_path, mark, message):
    source = f"int variable;\n__global__ void {mark} k() {{}}"
    entries, plain = read_source(source, filename="k.cpp")
    done, _ = compile_source(COMPILERS[0], plain, tmp_path, "-std=c++17", table=type_table(entries))
    assert done.returncode != 0
    assert message in done.stderr
