"""Worker processes that may be lost: a crash or a hang costs one task, and the pool goes on with a new process."""

import faulthandler
import multiprocessing
import os
import signal
import time
import traceback
from multiprocessing.connection import wait
from typing import NamedTuple

_fork = multiprocessing.get_context("fork")  # the parent has imported the databases, and has started no MindSpore


class Lost(NamedTuple):
    """The answer of a task whose process is gone."""

    how: str  # "crash" or "timeout"
    detail: str


class CannotStart(RuntimeError):
    """A worker's `start()` failed: no task can be run."""


class _Worker:
    def __init__(self, start, run):
        self.connection, theirs = _fork.Pipe()
        self.process = _fork.Process(target=_serve, args=(theirs, self.connection, start, run), daemon=True)
        self.process.start()
        theirs.close()
        self.task, self.since = None, 0.0
        try:
            problem = self.connection.recv()
        except EOFError:
            problem = "it ended"
        if problem:
            self.stop()
            raise CannotStart(problem)

    def give(self, task):
        self.task, self.since = task, time.monotonic()
        self.connection.send(task)

    def stop(self):
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection, parents_end, start, run):
    parents_end.close()
    try:
        start()
        connection.send("")
    except Exception:
        connection.send(traceback.format_exc())
        return
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(run(task))


def run_all(tasks, start, run, jobs, time_limit):
    """Yield (task, answer) for each task, as they finish; a lost one has the answer `Lost`.

    `start()` is called first in each worker; `run(task)` makes the answer there.
    """
    todo, workers = list(tasks)[::-1], []
    try:
        while todo or any(w.task is not None for w in workers):
            while len(workers) < jobs and todo:
                workers.append(_Worker(start, run))
            for w in workers:
                if w.task is None and todo:
                    w.give(todo.pop())
            wait([w.connection for w in workers] + [w.process.sentinel for w in workers], timeout=1)
            for w in list(workers):
                if w.task is None:
                    continue
                answer = _answer(w, time_limit)
                if answer is None:
                    continue
                yield w.task, answer
                w.task = None
                if isinstance(answer, Lost):
                    w.stop()
                    workers.remove(w)
    finally:
        for w in workers:
            w.stop()


def _answer(w, time_limit):
    if w.connection.poll():
        try:
            return w.connection.recv()
        except (EOFError, ConnectionError):
            pass
    elif w.process.is_alive():
        if time.monotonic() - w.since <= time_limit:
            return None
        return Lost("timeout", f"no answer in {time_limit:g} s")
    w.process.join(5)
    code = w.process.exitcode
    return Lost("crash", signal.Signals(-code).name if code and code < 0 else f"the process ended with code {code}")


def silence():
    """Send what this process prints, C++ included, nowhere."""
    faulthandler.disable()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
