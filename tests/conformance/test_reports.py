"""The reports that are kept, and the table that is made of them."""

import getpass
import json
import re
import socket

import pytest
from conformance_harness import ROOT, check_report

from hal._base import speedups
from hal_conformance import table
from hal_conformance.report import Result, RunRecord, build_report, markdown, write_report

REPORTS = ROOT / "conformance" / "reports"
KEPT = table.load(REPORTS)


def made_up(**parts):
    """Return the report of a run that never was."""
    results = [
        Result("semaphores/test_a.py::test_one[1/2]", "passed"),
        Result("semaphores/test_a.py::test_two", "unsupported", reason="no"),
        Result("kernels/test_b.py::test_one", "failed", reason="7"),
        Result("brand_new/test_c.py::test_one", "passed"),
    ]
    device = {"name": "Acme | 1", "driver": "libacme 2"}
    record = RunRecord("acme", device=device, results={each.id: each for each in results})
    for name, value in parts.items():
        setattr(record, name, value)
    return build_report(record)


def test_reports_of_the_reference_backend_are_kept():
    assert {"cpu-graph.json", "cpu-stream.json"} <= set(KEPT)


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_report_has_its_form(name):
    report, path = KEPT[name], REPORTS / name
    check_report(report)
    assert report["verdict"] in {"conformant", "partial"}
    assert report["complete"]
    assert report["device"]["name"]
    assert report["versions"]["hal-conformance"]
    assert report["command"].startswith("pytest --pyargs hal_conformance.suite --hal-backend ")
    assert path.with_suffix(".md").read_text(encoding="utf-8") == markdown(report)
    assert name.split("-")[0] == re.split("[:?]", report["backend"])[0]
    assert path.stem.split("-")[-1] == report["mode"]
    assert table.OTHERS not in {table.area(test["id"]) for test in report["tests"]}


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_report_names_no_machine(name):
    text = (REPORTS / name).read_text(encoding="utf-8")
    assert f'"{socket.gethostname()}"' not in text
    assert f"/{getpass.getuser()}/" not in text


def test_the_readme_has_the_table_of_the_kept_reports():
    document = (ROOT / "README.md").read_text(encoding="utf-8")
    wanted = table.place(document, table.render(KEPT, "conformance/reports"))
    assert document == wanted, "python -m hal_conformance.table conformance/reports README.md"


def test_the_table_counts_the_tests_of_each_area():
    reports = {"acme-auto.json": made_up(), "acme-gpu-graph.json": made_up(mode="graph", note="x")}
    day = reports["acme-auto.json"]["date"]
    verdicts = f"[failed](here/acme-auto.md), {day} | [failed](here/acme-gpu-graph.md), {day}"
    assert table.render(reports, "here").splitlines()[2:] == [
        "| ran on | Acme \\| 1 | Acme \\| 1: x |",
        f"| engine | {speedups.engine()} | {speedups.engine()} |",
        "| timeline semaphores (S1 to S9) | partial (1 of 2) | partial (1 of 2) |",
        "| kernels (C5) | **1 of 1 failed** | **1 of 1 failed** |",
        "| others | passed (1) | passed (1) |",
        "| all | **1 of 4 failed** | **1 of 4 failed** |",
        f"| verdict | {verdicts} |",
    ]


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({}, "not run"),
        ({"not_run": 3}, "not run"),
        ({"passed": 3}, "passed (3)"),
        ({"unsupported": 3}, "unsupported"),
        ({"passed": 2, "expected_failure": 1}, "partial (2 of 3)"),
        ({"passed": 2, "not_run": 1}, "partial (2 of 3)"),
        ({"passed": 2, "unsupported": 1, "failed": 1}, "**1 of 4 failed**"),
    ],
    ids=str,
)
def test_cells(counts, text):
    assert table.cell(counts) == text


def test_the_program_writes_the_table_or_says_that_it_is_stale(tmp_path, capsys):
    write_report(made_up(), tmp_path / "reports" / "acme-auto.json")
    document = tmp_path / "page.md"
    begin, end = table.MARKERS
    document.write_text(f"before\n{begin}\n{end}\nafter\n")
    arguments = [str(tmp_path / "reports"), str(document)]
    assert table.main([*arguments, "--check"]) == 1
    assert document.read_text() == f"before\n{begin}\n{end}\nafter\n"
    assert table.main(arguments) == 0
    lines = document.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "| kernels (C5) | **1 of 1 failed** |" in lines
    assert table.main([*arguments, "--check"]) == 0
    document.write_text("no place")
    with pytest.raises(SystemExit):
        table.main(arguments)
    assert "no place for the table" in capsys.readouterr().err


def test_a_report_has_a_line_for_each_test(tmp_path):
    for report in (made_up(), made_up(results={})):
        path = tmp_path / "report.json"
        write_report(report, path)
        text = path.read_text(encoding="utf-8")
        assert json.loads(text) == report
        assert text.count('"id"') == sum('"id"' in line for line in text.splitlines())
