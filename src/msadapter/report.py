"""The report of `msadapter run --report`: what ran where, printed or written when the process ends."""

import atexit
import json
import os
import sys
import tempfile
import time
from typing import Any

from .backend.counters import CALLS, FALLBACKS, SECONDS, Host

_ROWS = 12  # native ops shown by name, the slowest first; the file has all


def at_exit(file: str, command: list[str]) -> None:
    """When this process ends, write the report to `file`, or print it if `file` is empty.

    Registered before the script starts, so that it runs after the script's own exit handlers and threads.
    """
    start, pid = time.perf_counter(), os.getpid()
    file = os.path.abspath(file) if file else ""

    def finish() -> None:
        if os.getpid() != pid:  # a forked child
            return
        report = collect(command, time.perf_counter() - start)
        if not file:
            print(render(report), flush=True)
            return
        try:
            write(report, file)
        except OSError as error:
            print(f"msadapter: the report could not be written to {file!r}: {error}", file=sys.stderr)

    atexit.register(finish)


def collect(command: list[str], seconds: float) -> dict[str, Any]:
    native = {op: {"calls": n, "seconds": round(SECONDS[op], 6)} for op, n in CALLS.items() if n > FALLBACKS[op]}
    for op in native:
        native[op]["calls"] -= FALLBACKS[op]
    return {
        "command": command,
        "seconds": round(seconds, 3),
        "native": dict(sorted(native.items(), key=lambda item: -item[1]["seconds"])),
        "native_calls": sum(entry["calls"] for entry in native.values()),
        "native_seconds": round(sum(entry["seconds"] for entry in native.values()), 3),
        "fallbacks": dict(FALLBACKS.most_common()),
        "fallback_calls": sum(FALLBACKS.values()),
        "host_syncs": Host.syncs,
        "host_tensors_moved": Host.moved,
    }


def render(report: dict[str, Any]) -> str:
    lines = [
        "",
        f"msadapter report: {' '.join(report['command'])}",
        f"  seconds             {report['seconds']:.3f}",
        f"  native ops          {report['native_calls']} calls of {len(report['native'])} ops, "
        f"{report['native_seconds']:.3f} s",
    ]
    rows = list(report["native"].items())
    lines += [f"    {op:<40} {e['calls']:>9} {e['seconds']:>9.3f} s" for op, e in rows[:_ROWS]]
    if len(rows) > _ROWS:
        rest = rows[_ROWS:]
        calls, seconds = (sum(e[key] for _, e in rest) for key in ("calls", "seconds"))
        lines.append(f"    {f'{len(rest)} more':<40} {calls:>9} {seconds:>9.3f} s")
    lines += [
        f"  host syncs          {report['host_syncs']}",
        f"  host tensors moved  {report['host_tensors_moved']}",
    ]
    fallbacks = report["fallbacks"]
    lines += [f"    {op:<40} {n:>9} on the host" for op, n in fallbacks.items()]
    lines.append(f"fallbacks: {report['fallback_calls']}")
    return "\n".join(lines)


def write(report: dict[str, Any], file: str) -> None:
    """Write the whole file or nothing."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(file), prefix=".msadapter-", suffix=".json")
    try:
        with os.fdopen(handle, "w") as out:
            json.dump(report, out, indent=1)
            out.write("\n")
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
