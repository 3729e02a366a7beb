"""How much of a backend is the vendor's own: what docs/write-a-backend.md says is counted here."""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "write-a-backend.md"
RUN = 3
NEAR = 0.1
BLANK = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
VENDOR = re.compile(
    r"(?<![A-Za-z0-9])(hal_)?(cuda|hip|cpu|cu)(?![a-z])|\b(Cuda|Hip|Cpu|CUDA|HIP|CPU)", re.ASCII
)


def code(path):
    """Return a file's lines without comments, docstrings and blank lines."""
    text = path.read_text(encoding="utf-8")
    documents = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                documents |= set(range(each.lineno, each.end_lineno + 1))
    kept = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in BLANK:
            kept |= set(range(token.start[0], token.end[0] + 1))
    lines = text.splitlines()
    return [lines[number - 1].strip() for number in sorted(kept - documents)]


def files(folder):
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [code(path) for path in paths if not {"_cli", "demo", "flow"} & set(path.parts)]


def alike(ours, theirs):
    """Count the lines of some files in runs that others have too, but for the vendor's names."""
    plain = [[VENDOR.sub("X", line) for line in lines] for lines in (*ours, *theirs)]
    ours, theirs = plain[: len(ours)], plain[len(ours) :]
    runs = {tuple(lines[i : i + RUN]) for lines in theirs for i in range(len(lines) - RUN + 1)}
    found = 0
    for lines in ours:
        same = set()
        for i in range(len(lines) - RUN + 1):
            if tuple(lines[i : i + RUN]) in runs:
                same |= set(range(i, i + RUN))
        found += len(same)
    return found


def test_the_page_says_how_much_of_a_backend_is_the_vendors_own():
    core = files("hal_core/src/hal")
    cuda, hip, cpu = (files(f"{name}/src/{name}") for name in ("hal_cuda", "hal_hip", "hal_cpu"))
    counted = [
        *(sum(map(len, each)) for each in (core, cuda, hip, cpu)),
        *(alike(hip, cuda), alike(cpu, [*cuda, *hip])),
    ]
    table = PAGE.read_text(encoding="utf-8").rpartition("| lines |")[2]
    written = [int(each.replace(" ", "")) for each in re.findall(r"\| ([\d ]+) \|", table)]
    for number, told in zip(counted, written, strict=True):
        assert abs(number - told) <= NEAR * number, (counted, written)
