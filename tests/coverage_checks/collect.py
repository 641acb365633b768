"""Collects what `msadapter coverage` shows beside the conformance results: `python -m tests.coverage_checks.collect`.

PyTorch's public names, the database entries of each, checks of names that no database has, and the MindSpore primitives
that each entry and check calls. It is written to src/msadapter/coverage/data.json.
"""

import argparse
import contextlib
import dataclasses
import io
import re
import sys

import numpy
import torch
from torch import nn

from msadapter.coverage import data
from tests.conformance import check_modules, check_ops, check_optims, pool, run
from tests.conformance.report import DEVICE, Report, Side, rules_of
from tests.conformance.samples import seed

from . import checks, names

PLAN = check_ops.Plan(samples=2, noncontiguous=0, variants=0)
RUNS = {
    "op": lambda op: check_ops.check_dtype(op, next(d for d in check_ops.DTYPES if d in op.supported_dtypes("cpu")), PLAN),
    "module": lambda info: check_modules.check_dtype(info, torch.float32, 2),
    "optim": check_optims.check,
}


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.coverage_checks.collect", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (2)")
    parser.add_argument("--checks", action="store_true", help="run the checks; keep what is recorded of the entries")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="check these names and print, without writing")
    options = parser.parse_args(argv)
    mapped = names.mapped()
    if options.only:
        run.start_worker()
        for section, name in ((s, n) for s in checks.CHECKS for n, e in checks.CHECKS[s].items() if e):
            if f"{section}.{name}" in options.only or section in options.only:
                print(section, name, probe(("check", f"{section}.{name}")))
        return 0
    databases = {db: run.CHECKS[db].entries() for db in RUNS}
    tasks = [(db, name) for db, entries in databases.items() for name in entries if not options.checks]
    tasks += [("check", f"{s}.{n}") for s, found in mapped.items() for n in found if checks.CHECKS.get(s, {}).get(n)]
    old = data.shipped()
    results, primitives = {}, dict(old["primitives"]) if options.checks else {}
    for i, ((db, name), answer) in enumerate(pool.run_all(tasks, run._quiet_worker, probe, options.jobs, 300)):
        if isinstance(answer, pool.Lost):
            answer = ({"status": answer.how, "detail": answer.detail}, [])
        if db == "check":
            results[name] = answer[0]
        primitives[f"{db} {name}"] = answer[1]
        if sys.stderr.isatty():
            print(f"\r{i + 1}/{len(tasks)} {name[:60]:60}", end="", file=sys.stderr, flush=True)
    found = {}
    for section, entries_of in mapped.items():
        for name, entries in entries_of.items():
            full = f"{section}.{name}"
            found.setdefault(section, {})[name] = {
                **({"entries": entries} if entries else {}),
                **({"check": results[full], "expression": checks.CHECKS[section][name]} if full in results else {}),
                **({"why": checks.WHY[full]} if full in checks.WHY else {}),
            }
    data.save({**old, "names": found, "primitives": {k: v for k, v in primitives.items() if v}})
    print(f"wrote {data.FILE}: {sum(map(len, found.values()))} names, {len(results)} checks")
    return 0


def probe(task):
    """(outcome, primitives called) of one entry or check."""
    db, name = task
    with called() as primitives:
        if db == "check":
            outcome = check(name)
        else:
            with contextlib.suppress(Exception):
                RUNS[db](run.CHECKS[db].entries()[name])
            outcome = None
    found = {k: v for k, v in dataclasses.asdict(outcome).items() if v} if outcome else None
    return found, sorted(primitives)


@contextlib.contextmanager
def called():
    """The names of the MindSpore primitives that are called inside."""
    from msadapter.backend import registry  # here: workers are forked from a process that has not started MindSpore
    from msadapter.backend.storage import ms

    found, undo, todo = set(), [], [ms.ops.Primitive]

    def hooked(call):
        def wrapper(self, *args, **kwargs):
            found.add(self.name)
            return call(self, *args, **kwargs)

        return wrapper

    registry.recording(True)  # every primitive is seen: no shortcuts
    seen = set()
    while todo:
        cls = todo.pop()
        if cls not in seen:
            seen.add(cls)
            todo += cls.__subclasses__()
            if "__call__" in cls.__dict__:
                undo.append((cls, cls.__dict__["__call__"]))
                cls.__call__ = hooked(undo[-1][1])
    try:
        yield found
    finally:
        for cls, call in undo:
            cls.__call__ = call
        registry.recording(False)


# --------------------------------------------------------------------------------------------------------------- checks


def check(full_name):
    """Evaluate a name's expression on both sides; compare results and gradients."""
    section, _, name = full_name.partition(".")
    if section == "nn" and name.startswith("functional."):
        section, name = "nn.functional", name.removeprefix("functional.")
    expression = checks.CHECKS[section][name]
    report, cpu, device, rules = Report(), Side("cpu"), Side(DEVICE), rules_of(full_name)

    def forward(side):
        side.values = side.placed(_values())
        side.result = eval(expression, {**_tools(side), **side.values, **_sparse(side, expression)})
        return side.result

    def gradient(side):
        return check_ops._gradient(side, side.result, tuple(side.values.values()))

    if report.check("", "forward", forward, cpu, device, rules):
        if any(x.requires_grad for x in check_ops._tensors(cpu.result)) and section != "optim":
            report.check("", "grad", gradient, cpu, device, rules)
    return report.outcome()


def _values():
    seed()
    v = {"x": (3, 4), "y": (3, 4), "v": (5,), "seq": (2, 4, 6), "img": (2, 4, 6, 6)}
    found = {name: torch.randn(shape).requires_grad_() for name, shape in v.items()}
    a = torch.randn(4, 4)
    found["m"] = (a @ a.t() + 4 * torch.eye(4)).requires_grad_()
    found["n"], found["b"] = torch.randint(0, 3, (3, 4)), torch.rand(3, 4) > 0.5
    return {**found, "z": torch.randn(3, 4, dtype=torch.complex64)}


def _sparse(side, expression):
    """Those of the sparse and quantized tensors that the expression names: what it does not need must not fail."""
    d, x, v = side.place.device, side.values["x"].detach(), side.values["v"].detach()
    where = torch.tensor([[0, 0, 1, 2], [1, 3, 0, 2]])
    makers = {
        "sp": lambda: torch.sparse_coo_tensor(where.to(d), torch.arange(1.0, 5).to(d), (3, 4)),
        "csr": lambda: torch.sparse_csr_tensor([0, 2, 3, 4], [1, 3, 0, 2], [1.0, 2.0, 3.0, 4.0], (3, 4), device=d),
        "q": lambda: _quantized(v),
        "qc": lambda: torch.quantize_per_channel(x, torch.ones(3).to(d), torch.zeros(3).to(d), 0, torch.quint8),
    }
    return {name: make() for name, make in makers.items() if re.search(rf"\b{name}\b", expression)}


def _quantized(x):
    return torch.quantize_per_tensor(x.detach(), 0.1, 10, torch.quint8)


def _tools(side):
    d = side.place.device.type

    def module(m):
        torch.manual_seed(3)
        for p in m.parameters():
            nn.init.normal_(p)
        return m.to(d)

    def lazy(m, x):
        with torch.no_grad():
            m.to(d)(x)
        return module(m)(x)

    def saved(value):
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        return file

    def within_default_device(call):
        torch.set_default_device(d)
        try:
            return call()
        finally:
            torch.set_default_device(None)

    def retained(x):
        y = x * 2
        y.retain_grad()
        (y * y).sum().backward()
        return y.grad

    def doubled(x):
        x.grad.mul_(2)

    def opt(cls, added=False, reloaded=False, **options):
        p, other = (torch.ones(3, device=d, requires_grad=True) for _ in range(2))
        o = cls([p], **options)
        if added:
            o.add_param_group({"params": [other], "lr": 0.01})
        for step in range(2):
            if reloaded and step:
                state, o = o.state_dict(), cls([p], **options)
                o.load_state_dict(state)
            o.zero_grad()
            (p**2 + other**3).sum().backward()
            o.step()
        return p, other

    def rates(cls, metric=None, **options):
        p = torch.ones(3, device=d, requires_grad=True)
        o = torch.optim.SGD([p], lr=0.1, momentum=0.5)
        scheduler, found = cls(o, **options), []
        for _ in range(5):
            p.grad = p.detach() * 0.1
            o.step()
            scheduler.step(*([metric] if metric is not None else []))
            found.append(o.param_groups[0]["lr"])
        return p, found

    return {
        "torch": torch,
        "nn": nn,
        "F": nn.functional,
        "S": torch.optim.lr_scheduler,
        "numpy": numpy,
        "d": d,
        "quantized": _quantized,
        "then": lambda *values: values[-1],
        **{f.__name__: f for f in (module, lazy, saved, doubled, within_default_device, retained, opt, rates)},
    }


if __name__ == "__main__":
    sys.exit(main())
