"""What kernels and a recording of them know of each other.

While `msadapter.graph` records a call, every MindSpore primitive that a kernel calls on this thread is written down. A
kernel must not decide by values then, which will be others next time: it asks `traced(v)` and takes the way that is right
for all values. What it draws on the host goes through `drawn`, so that each later call draws anew.
"""

import threading

import numpy as np


class _Active(threading.local):
    recorder = None


active = _Active()


class CannotCapture(RuntimeError):
    """Why a call cannot become a graph, in words for the user."""


def traced(v):
    """Whether the value of the `ms.Tensor` v will be another in later runs of what is being recorded."""
    recorder = active.recorder
    return recorder is not None and recorder.varies(v)


def made_of_numbers(v):
    """Whether v is one number that came from Python: in later runs it may be another, but of its kind."""
    recorder = active.recorder
    return recorder is not None and recorder.is_number(v)


def expect(v, low, high, but=None):
    """In each later run, the whole numbers in v must be in [low, high), or `but`; else the call runs eagerly and raises."""
    if active.recorder is not None:
        active.recorder.expect(v, low, high, but)


def finite(v, sums):
    """Whether all that is in the `ms.Tensor` v is finite. sums: a function that adds v up, in primitives.

    A recording says yes only if each later run will ask again, of the sums, and be done eagerly where the answer is no;
    `msadapter.compile`'s do. Else it says no, and the kernel takes the way that is right for all values.
    """
    if active.recorder is not None:
        return active.recorder.finite(v, sums)
    return bool(np.isfinite(v.asnumpy()).all())


def lasting(v):
    """Mark a constant that kernels keep and use again and again."""
    v.lasting = True
    return v


def recording():
    """Whether this thread is recording."""
    return active.recorder is not None


def known(v):
    """Whether a recording, if there is one, knows where v comes from."""
    return active.recorder is None or id(v) in active.recorder.values


def look(v):
    """The values of v as a NumPy array, for a check that `expect` repeats: not to decide by."""
    recorder, active.recorder = active.recorder, None
    try:
        return v.asnumpy()
    finally:
        active.recorder = recorder


def drawn(draw):
    """`draw()`: an `ms.Tensor` of random numbers made on the host, or a tuple of them; drawn again in each later run."""
    v = draw()
    if active.recorder is not None:
        active.recorder.drawn(draw, v)
    return v


def moved(source, make):
    """`make()`: the host tensor `source` as an `ms.Tensor`, perhaps of another dtype."""
    return make() if active.recorder is None else active.recorder.moved(source, make)
