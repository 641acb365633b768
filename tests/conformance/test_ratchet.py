"""The ratchet as a test: `pytest -m conformance`. `make test` runs it as `python -m tests.conformance.run --check`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import pool, status
from tests.conformance.status import Outcome

ROOT = Path(__file__).parents[2]


@pytest.mark.conformance
@pytest.mark.timeout(1800)
def test_no_entry_is_worse_than_committed():
    subprocess.run([sys.executable, "-m", "tests.conformance.run", "--check"], cwd=ROOT, check=True)


def results(**entries):
    return {"op": {name: Outcome(s) for name, s in entries.items()}, "module": {}, "optim": {}}


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
    file = tmp_path / "status.json"
    found = results(b="native", a="wrong")
    found["op"]["a"] = Outcome("wrong", "forward", 'shape (2,), expected "(1,)"')
    status.save("2.13", found, file)
    assert status.load(file) == ("2.13", found)
    lines = [line.strip() for line in file.read_text().splitlines()]
    assert [line[1] for line in lines if line.startswith(('"a"', '"b"'))] == ["a", "b"]


def test_the_committed_file_is_complete():
    data = json.loads(status.FILE.read_text())
    assert set(data) == {"torch", *status.DATABASES}
    assert all(o.status in status.ORDER for db in status.load()[1].values() for o in db.values())


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
