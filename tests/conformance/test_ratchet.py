"""The ratchet as a test: `pytest -m conformance`. `make test` runs it as `python -m tests.conformance.run --check`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import check_dtypes, pool, run, status
from tests.conformance.status import Outcome

ROOT = Path(__file__).parents[2]


@pytest.mark.conformance
@pytest.mark.timeout(1800)
def test_no_entry_is_worse_than_committed():
    subprocess.run([sys.executable, "-m", "tests.conformance.run", "--check"], cwd=ROOT, check=True)


@pytest.mark.conformance
@pytest.mark.timeout(1800)
def test_no_dtype_is_worse_than_committed():
    subprocess.run([sys.executable, "-m", "tests.conformance.run", "--dtypes", "--check"], cwd=ROOT, check=True)


def results(**entries):
    found = {"op": {name: Outcome(s) for name, s in entries.items()}}
    return {db: found.get(db, {}) for db in status.DATABASES}


def test_every_step_down_is_a_regression():
    for i, better in enumerate(status.ORDER):
        for worse in status.ORDER[i + 1 :]:
            regressions, improvements = status.changes(results(a=worse), results(a=better))
            assert [c[1] for c in regressions] == ["a"] and not improvements
            regressions, improvements = status.changes(results(a=better), results(a=worse))
            assert [c[1] for c in improvements] == ["a"] and not regressions


def test_entries_that_one_version_of_torch_lacks_are_no_regression():
    assert status.changes(results(a="native"), results(b="native")) == ([], [])


def test_another_version_of_torch_has_lines_of_its_own_where_it_differs():
    lines = results(a="native", b="native")
    found = results(a="native", b="fallback", c="native")
    lines = status.merged(lines, found, "2.14", "2.13")
    assert {n: o.status for n, o in lines["op"].items()} == {
        "a": "native",
        "b": "native",
        "b @ 2.14": "fallback",
        "c": "native",
    }
    assert status.committed(lines, "2.14") == found
    assert status.committed(lines, "2.13")["op"]["b"].status == "native"
    assert "b @ 2.14" not in status.merged(lines, results(b="native"), "2.14", "2.13")["op"]


def test_the_file_has_one_sorted_line_for_an_entry(tmp_path):
    found = results(b="native", a="wrong")
    found["op"]["a"] = Outcome("wrong", "forward", 'shape (2,), expected "(1,)"')
    status.save("2.13", found, "status.json", tmp_path)
    assert status.load(tmp_path) == ("2.13", found)
    lines = [line.strip() for line in (tmp_path / "status.json").read_text().splitlines()]
    assert [line[1] for line in lines if line.startswith(('"a"', '"b"'))] == ["a", "b"]


def test_the_dtypes_of_an_entry_share_a_line(tmp_path):
    found = results()
    found["dtype"] = {
        "a float64": Outcome("native"),
        "a int64": Outcome("fallback", "", "host: a"),
        "a int64 @ 2.14": Outcome("wrong", "", "1 of 2 values differ"),
        "nn.B (some form) float64": Outcome("native"),
    }
    status.save("2.13", found, "dtypes.json", tmp_path)
    assert status.load(tmp_path) == ("2.13", found)
    line = '"a": {"float64": "native", "int64": "fallback host: a", "int64 @ 2.14": "wrong 1 of 2 values differ"}'
    assert line in (tmp_path / "dtypes.json").read_text()
    assert status.committed(found, "2.14")["dtype"]["a int64"].status == "wrong"


def test_why_is_written_where_an_error_is_another(tmp_path):
    found = results()
    found["error"] = {"a": Outcome("same"), "b": Outcome("silent", "", "0: no error, the CPU raises IndexError")}
    status.save("2.13", found, "errors.json", tmp_path)
    assert status.load(tmp_path) == ("2.13", found)


@pytest.mark.parametrize("file", status.FILES)
def test_the_committed_files_are_complete(file):
    assert set(json.loads((status.FOLDER / file).read_text())) == {"torch", *status.FILES[file]}
    assert all(o.status in status.ORDER for db in status.FILES[file] for o in status.load()[1][db].values())


def test_the_parts_are_all_of_it():
    names = list(check_dtypes.entries())
    parts = [[n for n in names if run._in_part(n, 10, k)] for k in range(10)]
    assert sorted(n for part in parts for n in part) == sorted(names)
    assert max(map(len, parts)) < 1.3 * len(names) / 10


def test_a_pattern_names_an_entry_in_each_dtype_or_in_one():
    assert run._matches("abs float64", ["abs"]) and run._matches("abs float64", ["* float64"])
    assert not run._matches("abs float64", ["ab"])


def test_a_journal_answers_for_what_was_run(tmp_path):
    file = tmp_path / "journal"
    run._to_journal(file, "dtype", "abs float64", Outcome("native", "forward"))
    with file.open("a") as end:
        end.write('["dtype", "abs int')  # a run that was cut short
    assert run._from_journal(file) == {("dtype", "abs float64"): Outcome("native", "forward")}


def _work(task):
    if task == "crash":
        import os
        import signal

        os.kill(os.getpid(), signal.SIGSEGV)
    while task == "hang":
        pass
    return task


def test_a_lost_worker_costs_one_task():
    tasks = ["a", "crash", "b", "hang", "c"]
    answers = dict(pool.run_all(tasks, pool.silence, _work, jobs=2, time_limit=2))
    assert answers == {
        "a": "a",
        "b": "b",
        "c": "c",
        "crash": pool.Lost("crash", "SIGSEGV"),
        "hang": pool.Lost("timeout", "no answer in 2 s"),
    }


def test_a_worker_that_cannot_start_ends_the_run():
    def start():
        raise OSError("no device")

    with pytest.raises(pool.CannotStart, match="no device"):
        list(pool.run_all(["a"], start, _work, jobs=2, time_limit=2))
