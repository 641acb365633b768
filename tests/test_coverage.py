"""`msadapter coverage`: the statuses, the files it writes, and the page in a browser."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from msadapter import cli, coverage
from msadapter.coverage import data, page
from msadapter.coverage.rows import SECTIONS, STATUS, count, rows

ROOT = Path(__file__).parents[1]
NATIVE = {"status": "native", "compared": "forward grad inplace out"}
HOST = {"status": "fallback", "compared": "forward grad", "detail": "host: lu_unpack"}
WRONG = {"status": "wrong", "compared": "forward", "detail": "0 forward: 3 of 4 values differ, by up to 2"}
OUT_FAILS = {"status": "error", "compared": "forward grad", "detail": "0 out: RuntimeError: no"}
SKIP = {"status": "skip", "detail": "the CPU cannot: AssertionError: CUDA only"}


def row(outcomes, name="f", dtypes=(), errors=(), **info):
    entries = {f"e{i}": o for i, o in enumerate(outcomes)}
    results = {"op": entries, "dtype": dict(dtypes), "error": dict(errors)}
    names = {"torch": {name: {"entries": [f"op {e}" for e in entries], **info}}}
    (found,) = rows({"torch": "2.13", "names": names, "results": results, "primitives": {"op e0": ["Exp", "Add"]}})
    return found


@pytest.mark.parametrize(
    "outcomes, status, note",
    [
        ([NATIVE], "Stable", ""),
        ([NATIVE, NATIVE], "Stable", ""),
        ([NATIVE, SKIP], "Stable", ""),
        ([HOST], "Host", "host: lu_unpack"),
        ([NATIVE, HOST], "Partial", "e1: host: lu_unpack"),
        ([OUT_FAILS], "Partial", "fails: 0 out: RuntimeError: no"),
        ([WRONG], "Not supported", "differs: 0 forward: 3 of 4 values differ, by up to 2"),
        ([NATIVE, WRONG], "Partial", "e1: differs: 0 forward: 3 of 4 values differ, by up to 2"),
        ([SKIP], "Untested", SKIP["detail"]),
        ([], "Untested", ""),
    ],
)
def test_the_status_of_a_name_is_that_of_its_worst_results(outcomes, status, note):
    found = row(outcomes)
    assert (found.status, found.note) == (status, note)


def test_a_dtype_that_is_not_native_makes_a_name_partial():
    dtypes = {"e0": {"float32": "native", "float64": "fallback host: f", "bool": "skip no samples"}}
    found = row([NATIVE], dtypes=dtypes)
    assert (found.status, found.native, found.others) == ("Partial", ("float32",), ("float64 (host)",))
    assert row([NATIVE], dtypes={"e0": {"float32": "native", "bool": "native"}}).status == "Stable"
    assert row([NATIVE, NATIVE], dtypes={"e0": {"float16": "error x"}, "e1": {"float16": "native"}}).others == (
        "float16 (fails)",
    )


def test_an_in_place_method_needs_its_own_comparison():
    assert row([NATIVE], name="f_").status == "Stable"
    assert row([{**NATIVE, "compared": "forward grad"}], name="f_").status == "Untested"
    assert row([], name="f_", check={"status": "native", "compared": "forward"}, expression="f_(x)").known == "f_(x)"


def test_reasons_primitives_and_wrong_calls_are_told():
    found = row([], why=["Not supported", "no streams"])
    assert (found.status, found.note) == ("Not supported", "no streams")
    found = row([NATIVE], errors={"e0": "silent 2 of 3"})
    assert found.primitives == ("Add", "Exp") and found.note == "a wrong call is not refused"


# ------------------------------------------------------------------------------------------------------------ the data


def test_every_section_has_its_names_and_statuses():
    found = rows(data.current())
    totals = count(found)
    assert set(SECTIONS) == {r.section for r in found} and {r.status for r in found} <= set(STATUS)
    for section, least in {"torch": 450, "Tensor": 550, "nn": 150, "nn.functional": 110, "optim": 35, "linalg": 40}.items():
        assert totals[section].total() >= least, section
    assert totals["all"]["Stable"] + totals["all"]["Partial"] > 0.7 * len(found)
    by_name = {r.full_name: r for r in found}
    assert by_name["torch.matmul"].status in ("Stable", "Partial") and "MatMul" in by_name["torch.matmul"].primitives
    assert by_name["torch.optim.AdamW"].status == "Stable"
    assert all(r.note or r.others for r in found if r.status != "Stable"), "each other status has a reason"


def test_results_of_another_version_of_torch_are_left_out():
    _, results = data.committed()
    assert results["op"] and not any(" @ " in name for entries in results.values() for name in entries)


def test_the_names_are_those_of_the_installed_torch():
    import torch

    for section, names in data.current()["names"].items():
        place = torch
        for part in section.split(".") if section != "torch" else ():
            place = getattr(place, part)
        if data.current()["torch"] == ".".join(torch.__version__.split(".")[:2]):
            assert all(hasattr(place, name.split(".")[0]) for name in names), section


def test_every_public_name_is_exercised_or_has_a_reason():
    import torch

    from tests.coverage_checks import checks, names

    if data.current()["torch"] != ".".join(torch.__version__.split(".")[:2]):
        pytest.skip("the names are those of another version of torch")
    known = {s: set(found) | {k.removeprefix(f"{s}.") for k in checks.WHY} for s, found in checks.CHECKS.items()}
    public = names.mapped()
    missing = [f"{s}.{n}" for s, found in public.items() for n, e in found.items() if not e and n not in known.get(s, ())]
    stale = [f"{s}.{n}" for s, found in checks.CHECKS.items() for n in found if n not in public[s]]
    assert not missing and not stale
    assert {s: set(found) for s, found in public.items()} == {s: set(found) for s, found in data.current()["names"].items()}


# ----------------------------------------------------------------------------------------------------------- the command


def command(*args, **kwargs):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    run = [sys.executable, "-m", "msadapter", "coverage", *map(str, args)]
    return subprocess.run(run, capture_output=True, text=True, env=env, timeout=120, **kwargs)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coverage")
    done = command("--output", folder / "page.html")
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in folder.iterdir()) == ["page.html", "page.md"], "no temporary file is left"
    return folder


def test_the_page_needs_nothing_else(written):
    text = (written / "page.html").read_text()
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=|@import|url\(|fetch\(", text)
    assert text.count("<tr data-section=") == len(rows(data.current()))
    assert "<!--" not in text.replace("<!DOCTYPE", "")


def test_the_markdown_has_totals_and_a_table_per_section(written):
    text = (written / "page.md").read_text()
    assert "230 of 417" in text and "17 of 526" in text and "3 of 34" in text
    assert all(f"\n## {words}\n" in text for words in SECTIONS.values())
    (line,) = [line for line in text.splitlines() if line.startswith("| `conv2d` |") and "Conv2D" in line][:1]
    assert line.count(" | ") == 3


def test_summary_is_printed_and_nothing_written(tmp_path):
    done = command("--summary", cwd=tmp_path)
    assert done.returncode == 0 and "Tensor methods" in done.stdout and not list(tmp_path.iterdir())
    all_ = count(rows(data.current()))["all"]
    assert f"Of {all_.total()} public names" in done.stdout


@pytest.mark.parametrize(
    "args, message",
    [
        (["--colour"], "unrecognized arguments: --colour"),
        (["--output"], "expected one argument"),
        (["--output", "missing/page.html"], "found none named 'missing'"),
        (["--output", "page.txt"], "ends in .html"),
        (["--output", "folder.html"], "is a directory"),
    ],
)
def test_bad_calls_end_with_a_message(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    assert cli.main(["coverage", *args]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_said_and_left_as_it_was(tmp_path, monkeypatch, capsys):
    old = tmp_path / "page.html"
    old.write_text("old")

    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(data.os, "replace", refuse)
    assert cli.main(["coverage", "--output", str(old)]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_an_installed_package_says_where_its_results_come_from(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "ROOT", tmp_path)
    assert cli.main(["coverage", "--output", str(tmp_path / "page.html")]) == 0
    assert "came with this package" in capsys.readouterr().out
    assert cli.main(["coverage", "--run", "--output", str(tmp_path / "page.html")]) == 2
    assert "expected a source checkout for --run" in capsys.readouterr().err
    monkeypatch.setattr(data, "FILE", tmp_path / "absent.json")
    assert cli.main(["coverage", "--summary"]) == 2
    assert "found none" in capsys.readouterr().err


def test_run_runs_the_suites_and_stops_at_the_first_failure(tmp_path, monkeypatch, capsys):
    ran = []

    def run(command, cwd):
        ran.append(" ".join(command[2:]))
        return subprocess.CompletedProcess(command, returncode=len(ran) == 4)

    monkeypatch.setattr(subprocess, "run", run)
    page = tmp_path / "page.html"
    assert cli.main(["coverage", "--run", "--output", str(page)]) == 0 and page.exists()
    assert ran == list(coverage.RUN) and "tests.coverage_checks.collect" in ran
    assert cli.main(["coverage", "--run", "--output", str(tmp_path / "other.html")]) == 2
    assert f"`python -m {ran[0]}` failed" in capsys.readouterr().err and not (tmp_path / "other.html").exists()


def test_data_is_written_a_line_per_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "FILE", tmp_path / "data.json")
    content = {"torch": "2.13", "results": {"op": {"a": NATIVE, "b": HOST}}, "names": {}, "primitives": {"op a": ["Add"]}}
    data.save(content)
    assert json.loads(data.FILE.read_text()) == content == data.shipped()
    assert len(data.FILE.read_text().splitlines()) > 5


def test_text_from_results_cannot_become_markup():
    found = row([{"status": "error", "detail": "0 forward: <b>&|x</b>"}])
    content = {"torch": "2.13"}
    assert "&lt;b&gt;&amp;|x&lt;/b&gt;" in page.html(content, [found])
    assert r"&lt;b>&\|x&lt;/b>" in page.markdown(content, [found])


# ----------------------------------------------------------------------------------------------------------- the browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def shown(folder, fragment):
    """(names shown, the count line) of the page, loaded with a fragment in a browser without a window."""
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}",
    ]
    url = f"{(folder / 'page.html').as_uri()}#{fragment}"
    done = subprocess.run([CHROMIUM, *options, "--dump-dom", url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "<tr" in done.stdout, done.stderr[-2000:]
    found = re.findall(
        r'<tr data-section="[^"]*" data-status="([^"]*)"( hidden="")?><th scope="row"><code>(.*?)</code>', done.stdout
    )
    assert len(found) == len(rows(data.current()))
    counted = re.search(r'<p id="count"[^>]*>(.*?)</p>', done.stdout)[1]
    return {html.unescape(name): status for status, hidden, name in found if not hidden}, counted


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")


@needs_browser
def test_the_page_finds_an_op(written):
    names, counted = shown(written, "q=conv2d")
    by_name = {r.full_name: r for r in rows(data.current())}
    assert {"torch.conv2d", "torch.nn.Conv2d", "torch.nn.functional.conv2d"} <= set(names)
    assert "torch.nn.Linear" not in names and 3 <= len(names) < 100
    assert all("conv2d" in f"{n} {by_name[n].primitives}".lower() and s == by_name[n].status for n, s in names.items())
    assert counted == f"{len(names)} of {len(by_name)} names"


@needs_browser
def test_the_page_filters_by_status_and_section(written):
    by_name = {r.full_name: r for r in rows(data.current())}
    names, _ = shown(written, "section=linalg&status=Stable,Partial")
    expected = {n for n, r in by_name.items() if r.section == "linalg" and r.status in ("Stable", "Partial")}
    assert set(names) == expected
    assert len(shown(written, "")[0]) == len(by_name)
    assert shown(written, "q=no+such+op") == ({}, f"0 of {len(by_name)} names")
