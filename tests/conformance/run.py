"""Run PyTorch's databases on the device: `python -m tests.conformance.run --help`."""

import argparse
import dataclasses
import fnmatch
import json
import sys
import time
import zlib
from pathlib import Path

import torch

from . import check_dtypes, check_errors, check_modules, check_ops, check_optims, pool, samples, status
from .status import Outcome

VERSION = ".".join(torch.__version__.split(".")[:2])
CHECKS = {"op": check_ops, "module": check_modules, "optim": check_optims, "error": check_errors, "dtype": check_dtypes}
DEFAULT = ("op", "module", "optim", "error")


def main(argv=None):
    options = _parse(argv)
    torch.set_num_threads(1)
    samples.SEED = options.seed
    databases = {db: CHECKS[db].entries() for db in options.db or DEFAULT}
    tasks = [(db, n) for db, e in databases.items() for n in e if not options.only or _matches(n, options.only)]
    tasks = [(db, n) for db, n in tasks if _in_part(n, options.fraction, options.part)]
    if options.only and not tasks:
        print(f"Expected names of entries; nothing matches {' '.join(options.only)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    results = run(databases, tasks, options)
    file_version, lines = status.load()
    old = status.committed(lines, VERSION)
    regressions, improvements = status.changes(results, old)
    if regressions and not options.verbose:  # once more, alone: a loaded machine is no regression
        again = [(db, name) for db, name, _, _ in regressions]
        print(f"{len(again)} worse than committed; running them once more")
        options.jobs, options.time_limit, options.journal = 1, 3 * options.time_limit, None
        for db, entries in run(databases, again, options).items():
            results[db].update(entries)
        regressions, improvements = status.changes(results, old)
    _print(results, options)
    seconds = time.monotonic() - started
    print(f"\n{status.summary(results)}\n{len(tasks)} entries in {seconds:.0f} s, torch {torch.__version__}")
    return _conclude(results, file_version, lines, regressions, improvements, options)


def _parse(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (2)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="entries to run, shell patterns; details are printed")
    parser.add_argument("--db", action="append", choices=list(CHECKS), help="run this database only; all but dtype")
    parser.add_argument("--dtypes", dest="db", action="append_const", const="dtype", help="every op in every dtype")
    parser.add_argument("--errors", dest="db", action="append_const", const="error", help="what the CPU refuses")
    parser.add_argument("--fraction", type=int, default=1, metavar="N", help="one Nth of the entries, chosen by their names")
    parser.add_argument("--part", type=int, default=0, metavar="K", help="which one: 0 to N - 1 (0)")
    parser.add_argument("--seed", type=int, default=samples.SEED, help=f"of samples and random ops ({samples.SEED})")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="append answers to FILE; entries in it are not run again")
    parser.add_argument("--time-limit", type=float, default=120, metavar="S", help="seconds for one entry (120)")
    parser.add_argument("--verbose", action="store_true", help="in one process, with samples and tracebacks")
    parser.add_argument("--allow-regressions", action="store_true", help="let --update make an entry worse")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="fail if an entry is worse than in its file of results")
    what.add_argument("--update", action="store_true", help="write the files of results")
    options = parser.parse_args(argv)
    if options.update and options.seed != samples.SEED:
        parser.error(f"Expected the seed of the committed results, {samples.SEED}, with --update; received {options.seed}.")
    return options


def _matches(name, patterns):
    """Whether a pattern is that of an entry, "abs", or of an entry in a dtype, "abs float64"."""
    return any(fnmatch.fnmatchcase(n, p) for p in patterns for n in (name, name.rpartition(" ")[0]))


def _in_part(name, fraction, part):
    return zlib.crc32(name.encode()) % fraction == part


def run(databases, tasks, options):
    """{database: {entry: Outcome}} for the tasks, (database, entry) pairs."""
    results = {db: {} for db in databases}

    def one(task):
        db, name = task
        try:
            return CHECKS[db].check(databases[db][name], options.verbose)
        except Exception as error:
            return Outcome("error", "", f"the harness: {type(error).__name__}: {str(error).strip()[:100]}")

    if options.verbose:
        start_worker()
        for db, name in tasks:
            print(f"{db} {name}")
            results[db][name] = one((db, name))
        return results
    known = _from_journal(options.journal)
    for db, name in tasks:
        if (db, name) in known:
            results[db][name] = known[db, name]
    tasks = [t for t in tasks if t not in known]
    for i, (task, answer) in enumerate(pool.run_all(tasks, _quiet_worker, one, options.jobs, options.time_limit)):
        db, name = task
        results[db][name] = Outcome(answer.how, "", answer.detail) if isinstance(answer, pool.Lost) else answer
        _to_journal(options.journal, db, name, results[db][name])
        if sys.stderr.isatty():
            print(f"\r{i + 1}/{len(tasks)} {name[:60]:60}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r" + " " * 75 + "\r", end="", file=sys.stderr)
    return results


def _from_journal(path):
    """{(database, entry): Outcome} of an earlier run that was cut short."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}]")]
    return {(db, name): Outcome(**outcome) for db, name, outcome in lines}


def _to_journal(path, db, name, outcome):
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps([db, name, dataclasses.asdict(outcome)]) + "\n")


def start_worker():
    """Load the device, with fallbacks that are counted and not talked about."""
    import msadapter

    msadapter.set_config(fallback="silent")
    torch.set_num_threads(1)
    torch.empty(1, device="mindspore")
    for absent in (torch.cuda, torch.mtia, torch.xpu):  # they note each seed, with a stack trace: a third of the time
        absent.manual_seed_all = lambda seed: None


def _quiet_worker():
    pool.silence()
    start_worker()


def _print(results, options):
    for db, entries in results.items():
        for name, o in sorted(entries.items()):
            if options.only or o.status in status.BAD:
                print(f"{o.status:9} {db:7} {name} [{o.compared}] {o.detail}")


def _conclude(results, file_version, lines, regressions, improvements, options):
    for kind, found in (("improved", improvements), ("WORSE", regressions)):
        for db, name, before, after in found:
            print(f"{kind}: {db} {name}: {before.status} -> {after.status} {after.detail}")
    if options.update:
        if regressions and not options.allow_regressions:
            print("The results are left as they are: entries became worse. Repair them, or say --allow-regressions.")
            return 1
        file_version = file_version or VERSION
        new = status.merged(lines, results, VERSION, file_version)
        for file in [f for f, databases in status.FILES.items() if any(results.get(db) for db in databases)]:
            status.save(file_version, new, file)
            print(f"wrote {file}")
    elif options.check:
        if regressions:
            print(f"{len(regressions)} entries are worse than committed.")
            return 1
        print("No entry is worse than committed." + (" Run with --update to keep the improvements." if improvements else ""))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except pool.CannotStart as problem:
        sys.exit(f"The device does not start in a worker process:\n{problem}")
