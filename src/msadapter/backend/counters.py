"""What happened so far in this process, for `msadapter.fallbacks()` and `msadapter run --report`."""

import collections

FALLBACKS: collections.Counter = collections.Counter()  # op -> calls computed by the host
CALLS: collections.Counter = collections.Counter()  # op -> native calls (while config.profile)
SECONDS: collections.Counter = collections.Counter()  # op -> seconds (while config.profile)


class Host:
    """Traffic between host and device. `implicit` allows a host tensor to meet a device tensor (`msadapter run`)."""

    syncs = 0  # values read back by the host: .item(), .cpu(), printing, a data-dependent shape
    moved = 0  # host tensors moved because they met a device tensor
    implicit = False


def fallbacks() -> dict[str, int]:
    """{op name: calls that torch's CPU kernels computed} since the start or the last `reset_fallbacks()`."""
    return dict(FALLBACKS)


def reset_fallbacks() -> None:
    """Forget the counts; each op warns once more."""
    FALLBACKS.clear()
