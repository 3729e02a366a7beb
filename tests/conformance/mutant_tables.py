"""Read tables of mutants, which show each mistake as the lines that it changes.

    # A heading
    = the name of a mutant
    > a test that must fail for it
    @ a module that is patched
     a line that stays
    -a line that goes
    +a line that comes

A patch looks for the lines that stay or go, which must occur exactly once in the module's file,
and puts those that stay or come in their place. The first and the last may be parts of lines.
"""

__all__ = ["read_mutants"]


def read_mutants(path):
    """Return each mutant of a table: its name, its tests, and its patches (module, old, new)."""
    mutants = []
    for line in path.read_text(encoding="utf-8").splitlines():
        mark, text = line[:1], line[1:]
        if mark == "=":
            mutants.append((text.strip(), [], []))
        elif mark == ">":
            mutants[-1][1].append(text.strip())
        elif mark == "@":
            mutants[-1][2].append((text.strip(), [], []))
        elif mark in {" ", "-", "+"}:
            _, old, new = mutants[-1][2][-1]
            if mark != "+":
                old.append(text)
            if mark != "-":
                new.append(text)
        elif mark not in {"", "#"}:
            message = f"{path.name} has a line of no known mark: {line!r}"
            raise ValueError(message)
    return [
        (name, tuple(tests), tuple((m, "\n".join(old), "\n".join(new)) for m, old, new in patches))
        for name, tests, patches in mutants
    ]
