"""Images that are made to do harm: what reads them is linear in their size, whatever they say."""

import re
import struct

import pytest

from hal import elf
from hal._programs import image_tables

HEADER, SECTION, SYMBOL = 64, 64, 24


def image_of(sections=(), content=b"", *, segments=(), entry_size=None, count=None):
    """An ELF file: its header, its segments, its sections, and what they are to refer to."""
    head = bytearray(HEADER)
    head[:7] = b"\x7fELF\x02\x01\x01"
    struct.pack_into("<HHI", head, 16, 3, 62, 1)
    table = HEADER + 56 * len(segments)
    struct.pack_into("<QQ", head, 32, HEADER, table)
    sizes = (56, len(segments)) if segments else (64, len(sections))
    given = (sizes[0] if entry_size is None else entry_size, sizes[1] if count is None else count)
    struct.pack_into("<HH", head, 54 if segments else 58, *given)
    rows = b"".join(struct.pack("<IIQQQQQQ", 4, 4, at, 0, 0, size, 0, 4) for at, size in segments)
    rows += b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, 0, 0, 0)
        for kind, at, size, link in sections
    )
    return bytes(head) + rows + content


def symbol(name_at, section=1):
    return struct.pack("<IBBHQQ", name_at, 1 << 4 | 1, 0, section, 0, 4)


def test_symbols_have_the_names_of_their_table():
    names = b"\0first\0second\0"
    at = HEADER + 2 * SECTION
    image = image_of(
        [(3, at, len(names), 0), (11, at + len(names), 2 * SYMBOL, 0)],
        names + symbol(1) + symbol(7, section=0),
    )
    assert [(each.name, each.section, each.table) for each in elf.symbols(image)] == [
        ("first", 1, elf.DYNAMIC),
        ("second", 0, elf.DYNAMIC),
    ]
    assert image_tables.read_definitions(image) == {"first"}


def test_only_the_names_of_wanted_symbols_are_read():
    names = b"\0function\0object without an end"
    at = HEADER + 2 * SECTION
    function = struct.pack("<IBBHQQ", 1, 1 << 4 | elf.FUNCTION, 0, 1, 0, 4)
    image = image_of(
        [(3, at, len(names), 0), (2, at + len(names), 2 * SYMBOL, 0)],
        names + function + symbol(10),
    )
    kinds = {elf.STATIC: {elf.FUNCTION}}
    assert [each.name for each in elf.symbols(image, kinds=kinds)] == ["function"]
    assert not list(elf.symbols(image, kinds={elf.DYNAMIC: elf.ANY_KIND}))
    with pytest.raises(ValueError, match="no end"):
        list(elf.symbols(image))


def test_only_the_names_of_variables_are_read_for_their_content():
    names = b"\0variable\0function without an end"
    at = HEADER + 2 * SECTION
    function = struct.pack("<IBBHQQ", 10, 1 << 4 | elf.FUNCTION, 0, 1, 0, 4)
    image = image_of(
        [(3, at, len(names), 0), (11, at + len(names), 2 * SYMBOL, 0)],
        names + function + symbol(1),
    )
    # The symbol's place is counted from the start of its section, the table of symbols.
    start = at + len(names)
    assert elf.constants(image, ("variable",)) == {"variable": image[start : start + 4]}


def test_entries_without_a_size_are_refused():
    # Each of 60,000 entries would be the first one, whose table is read again.
    section = (2, HEADER + SECTION, 0, 0)
    with pytest.raises(ValueError, match="entries of 0 bytes"):
        elf.sections(image_of([section], entry_size=0, count=60_000))
    with pytest.raises(ValueError, match="entries of 0 bytes"):
        list(elf.notes(image_of(segments=[(0, 64)], entry_size=0, count=60_000)))


def test_tables_that_are_listed_twice_are_refused():
    count = 8
    at = HEADER + count * SECTION
    tables = [(2, at, 100 * SYMBOL, 0)] * count
    image = image_of(tables, bytes(100 * SYMBOL))
    with pytest.raises(ValueError, match="symbol tables overlap"):
        list(elf.symbols(image))
    assert image_tables.read_image_table(image) is None
    with pytest.raises(ValueError, match="notes overlap"):
        list(elf.notes(image_of(segments=[(0, 300)] * 4)))


def test_names_that_all_share_one_long_text_are_refused():
    letters, count = 1000, 100
    names = b"\0" + b"a" * letters + b"\0"
    at = HEADER + 2 * SECTION
    image = image_of(
        [(3, at, len(names), 0), (2, at + len(names), count * SYMBOL, 0)],
        names + b"".join(symbol(1 + index) for index in range(count)),
    )
    with pytest.raises(ValueError, match="names of its symbols overlap"):
        list(elf.symbols(image))


@pytest.mark.parametrize(
    "sections",
    [[(2, 10**12, SYMBOL, 0)], [(2, 0, 10**15, 0)], [(2, 0, SYMBOL, 7)]],
    ids=["start", "size", "link"],
)
def test_tables_outside_of_the_file_are_refused(sections):
    with pytest.raises(ValueError, match="behind the file's end"):
        list(elf.symbols(image_of(sections)))


def test_ptx_gets_no_more_memory_than_a_table_takes():
    ptx = b".version 8.0\n.b8 hal_kernels[%d] = {1};\n.b8 hal_parameters[4] = {1};" % 10**15
    assert image_tables.read_image_table(ptx) is None


def test_a_plain_name_is_that_of_the_source():
    assert elf.source_name("_Z5saxpyfPfS_i") == "saxpy"
    assert elf.source_name("_ZL4fillPii") == "fill"
    assert elf.source_name("third") == "third"
    assert elf.source_name("_Z99short") == "_Z99short"


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (b"", "empty"),
        (b"\x03\x02\x23\x07" + bytes(20), "SPIR-V: compile the source"),
        (b"//\n  .version 8.0\n", "PTX for NVIDIA GPUs"),
        (b"// .version 8.0\n", "none of these .it begins with b'// .version 8.0"),
        (b"__global__ void f() {}", "source: compile it"),
    ],
)
def test_what_other_bytes_may_be_is_guessed(image, told):
    assert re.match(told, elf.guess(image))
