"""What a call does beside its tensors: prints, a look at the clock, random numbers, log messages. A graph would leave it out.

The C profiler of the standard library notes who called whom, for a hundredth of a microsecond a call; `sys.setprofile` with a
function of ours would double the time of the call.
"""

import _lsprof
import contextlib
import dis
import logging
import sys
import sysconfig
import types

# What matters where the user's own code calls it, as the profiler writes it.
_EFFECTS = {
    f"<built-in method {name}>"
    for name in (
        "builtins.print", "builtins.input", "io.open", "_io.open", "now", "time.time", "time.time_ns", "time.perf_counter",
        "time.perf_counter_ns", "time.monotonic", "time.process_time", "time.sleep",
    )
}  # fmt: skip
_RANDOM = {f"<method {name!r} of '_random.Random' objects>" for name in ("random", "getrandbits", "seed", "setstate")}
_BACKWARD = "<method 'run_backward' of 'torch._C._EngineBase' objects>"
_LOG = logging.Logger._log.__code__

_INSTALLED = tuple({sysconfig.get_path(k) for k in ("stdlib", "platstdlib", "purelib", "platlib")} - {None})
_PACKAGE = __file__.rsplit("/", 2)[0]


def is_users(file):
    """Whether a source file is the user's own, not that of an installed package."""
    return not file.startswith((*_INSTALLED, _PACKAGE, "<frozen"))


class Watch:
    """Notes the effects of what this thread does inside `with watch:`.

    backward: whether gradients were computed.
    found: each effect in words, with the user's file and line.
    """

    def __init__(self):
        self.backward, self.found, self._profiler = False, [], None

    def __enter__(self):
        self.backward = True  # if nobody can say
        if sys.getprofile() is None:
            profiler = _lsprof.Profiler(subcalls=True, builtins=True)
            with contextlib.suppress(ValueError):  # Python 3.12 has room for one such profiler, in whatever thread
                profiler.enable()
                self._profiler = profiler
        return self

    def __exit__(self, *exception):
        if self._profiler is not None:
            self._profiler.disable()
            calls = {}
            for entry in self._profiler.getstats():
                calls.setdefault(entry.code, []).extend(sub.code for sub in entry.calls or ())
            self._read(calls)
            self._profiler = None

    def _read(self, calls):
        """calls: {who: whom}, each a code object or, if it is built in, its name."""
        self.backward = _BACKWARD in calls
        users = [who for who in calls if isinstance(who, types.CodeType) and is_users(who.co_filename)]
        for who in users:
            for whom in calls[who]:
                if whom in _EFFECTS:
                    self.found.append(_place(_name(whom), who, whom))
                elif _LOG in calls and _leads(whom, _LOG, calls):
                    self.found.append(_place("logging", who, whom))
        for drawn in _RANDOM.intersection(calls):
            places = [_place("random numbers", who, whom) for who in users for whom in calls[who] if _leads(whom, drawn, calls)]
            self.found.append(places[0] if places else "random numbers")


def _leads(whom, goal, calls):
    """Whether a call of `whom` comes to `goal` within one file: that of logging, or of random."""
    seen, todo = set(), [whom]
    while todo:
        code = todo.pop()
        if code == goal:
            return True
        if code not in seen and isinstance(code, types.CodeType) and code.co_filename == whom.co_filename:
            seen.add(code)
            todo += calls.get(code, ())
    return False


def _name(code):
    """The plain name of a function: of "<built-in method time.sleep>" and "<method 'random' of '_random.Random' objects>"."""
    if isinstance(code, types.CodeType):
        return code.co_name
    return code.split("'")[1] if "'" in code else code.strip("<>").split()[-1].rsplit(".", 1)[-1]


def _place(what, who, whom):
    """`what`, with the line in the code `who` that names `whom`."""
    name, line = _name(whom), who.co_firstlineno
    for i in dis.get_instructions(who):
        line = i.starts_line or line
        if i.argval == name:
            break
    return f"{what} ({who.co_filename.rsplit('/', 1)[-1]}:{line})"
