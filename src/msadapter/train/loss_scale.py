"""Loss scaling, fixed and dynamic, that exchanges its state with PyTorch and with MindSpore.

Small gradients vanish in float16, so the loss is multiplied by a scale before the backward pass and the gradients are
divided by it afterwards. The rule of the dynamic scale is the same in all three libraries:

    overflow                         scale <- max(scale * backoff_factor, min_scale);  good <- 0
    no overflow                      good <- good + 1
    ... and good == growth_interval  scale <- min(scale * growth_factor, max_scale);   good <- 0

    here, torch.amp.GradScaler        mindspore DynamicLossScaleManager               mindspore.amp.DynamicLossScaler
    scale                             loss_scale                                      scale_value
    growth_factor                     scale_factor (increase_ratio)                   scale_factor
    backoff_factor                    1 / scale_factor (decrease_ratio)               1 / scale_factor
    growth_interval                   scale_window                                    scale_window
    good (_growth_tracker)            (cur_iter - 1 - last_overflow_iter) % window    counter

What differs, and what is done here:

                       torch            DynamicLossScaleManager        DynamicLossScaler     LossScaler
    default start      2**16            2**24                          no default            2**16
    smallest scale     none             1                              1                     min_scale = 1
    growth to inf      stays finite     not prevented                  stays finite          max_scale, finite
    endless overflow   silent           RuntimeError, 1001 in a row    silent                RuntimeError, 1001 in a row
    float16 gradients  ValueError       unscaled                       unscaled              unscaled

Sources: torch/amp/grad_scaler.py, mindspore/train/loss_scale_manager.py, mindspore/amp.py,
mindspore/nn/wrap/loss_scale.py (2.13 and 2.10).
"""

import math

import torch

LARGEST = float(torch.finfo(torch.float32).max)
HALVES = (torch.float16, torch.bfloat16)
MOST_SKIPS = 1000  # of MindSpore's DynamicLossScaleManager


class LossScaler:
    """A loss scale with the methods of `torch.amp.GradScaler`, usable in its place and in `TrainStep`.

        scaler = LossScaler()                            # dynamic
        scaler = LossScaler(1024.0, dynamic=False)       # fixed; an overflow still skips the update
        scaler = LossScaler.from_mindspore(manager)      # continue where a MindSpore run stood

    Args:
        init_scale: the first scale, between min_scale and max_scale.
        growth_factor: > 1; backoff_factor: between 0 and 1; growth_interval: updates without an overflow, at least 1.
        min_scale, max_scale: the scale never leaves these. max_scale is finite, so no growth reaches inf.
        dynamic: False keeps the scale as it is.
        enabled: False makes every method do nothing, except `step`, which calls `optimizer.step`.

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        *,
        min_scale: float = 1.0,
        max_scale: float = LARGEST,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        self.min_scale, self.max_scale = float(min_scale), float(max_scale)
        _check("min_scale", self.min_scale, 0 < self.min_scale < math.inf, "a positive finite number")
        _check("max_scale", self.max_scale, self.min_scale <= self.max_scale <= LARGEST, f"min_scale ... {LARGEST:.3g}")
        self.dynamic, self._enabled = bool(dynamic), bool(enabled)
        self.skips = 0  # overflows in a row
        self._set(init_scale, growth_factor, backoff_factor, growth_interval, 0)
        self._ready()

    def _set(self, scale, growth_factor, backoff_factor, growth_interval, good):
        low, high = self.min_scale, self.max_scale
        _check("scale", scale, low <= scale <= high, f"{low:g} ... {high:.3g}, the limits min_scale and max_scale")
        _check("growth_factor", growth_factor, 1 < growth_factor < math.inf, "a number above 1")
        _check("backoff_factor", backoff_factor, 0 < backoff_factor < 1, "a number between 0 and 1")
        _check("growth_interval", growth_interval, growth_interval >= 1, "a whole number from 1")
        _check("_growth_tracker", good, good >= 0, "a whole number from 0")
        self._scale, self._growth_tracker = float(scale), int(good)
        self._growth_factor, self._backoff_factor = float(growth_factor), float(backoff_factor)
        self._growth_interval = int(growth_interval)

    def _ready(self):
        self._unscaled = self._stepped = False
        self._found: list[torch.Tensor] = []

    # -- one update -----------------------------------------------------------------------------------------------

    def scale(self, outputs):
        """A loss (a tensor of any shape, or a list or tuple of them) times the scale.

        A 16-bit loss is multiplied in float32, as torch does: 65536 is inf in float16.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(o) for o in outputs)
        if not isinstance(outputs, torch.Tensor):
            raise TypeError(f"scale: expected a tensor or a list of tensors; received {type(outputs).__name__}.")
        return (outputs.float() if outputs.dtype in HALVES else outputs) * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of the optimizer by the scale, once per update, and note whether one is inf or nan."""
        if not self._enabled:
            return
        if self._unscaled or self._stepped:
            raise RuntimeError(
                "unscale_() was called twice since the last update(): the second division would shrink the gradient. "
                "Call it once per update, after the last backward pass of the window."
            )
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(g.layout != torch.strided for g in grads):
            raise TypeError("unscale_: expected dense gradients; received a sparse one. Use sparse=False.")
        with torch.no_grad():
            self._found += [unscale(g, self._scale, 1.0 / self._scale) for g in by_kind(grads)]
        self._unscaled = True

    def step(self, optimizer: torch.optim.Optimizer, *args, **kwargs):
        """`optimizer.step()` with unscaled gradients, unless one of them is inf or nan. Returns what it returns."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if self._stepped:
            raise RuntimeError("step() was called twice since the last update(). Call update() after each step().")
        if not self._unscaled:
            self.unscale_(optimizer)
        self._stepped = True
        return None if self.overflow else optimizer.step(*args, **kwargs)

    @property
    def overflow(self) -> bool:
        """Whether the gradients seen by `unscale_` since the last `update()` held an inf or a nan."""
        return any(bool(f) for f in self._found)

    def update(self, new_scale: float | None = None) -> None:
        """Adjust the scale, once per update, by the rule in this file's head; `new_scale` sets it instead.

        Raises:
            RuntimeError: no `unscale_` or `step` came before; or more than 1000 overflows in a row.
        """
        if not self._enabled:
            return
        if new_scale is not None:
            self._set(float(new_scale), *self._factors(), self._growth_tracker)
        elif not self._unscaled:
            raise RuntimeError("update() came before step(): expected scale, backward, step, update in this order.")
        else:
            self._adjust(self.overflow)
        self._ready()

    def _adjust(self, overflow: bool) -> None:
        self.skips = self.skips + 1 if overflow else 0
        if self.skips > MOST_SKIPS:
            raise RuntimeError(
                f"The gradients overflowed in {self.skips} updates in a row (scale {self._scale:g}): the loss itself "
                "is inf or nan, and no scale helps. Look for a division by zero, log(0) or a too large learning rate."
            )
        if not self.dynamic:
            return
        if overflow:
            self._scale, self._growth_tracker = max(self._scale * self._backoff_factor, self.min_scale), 0
        elif self._growth_tracker + 1 >= self._growth_interval:
            grown = self._scale * self._growth_factor
            # like torch: a growth that would pass the limit is not made
            self._scale, self._growth_tracker = (grown if grown <= self.max_scale else self._scale), 0
        else:
            self._growth_tracker += 1

    # -- state ----------------------------------------------------------------------------------------------------

    def _factors(self):
        return self._growth_factor, self._backoff_factor, self._growth_interval

    def get_scale(self) -> float:
        """The scale in force; 1.0 when disabled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """By how much the scale grows."""
        return self._growth_factor

    def get_backoff_factor(self) -> float:
        """What an overflow multiplies the scale by."""
        return self._backoff_factor

    def get_growth_interval(self) -> int:
        """How many updates without an overflow make the scale grow."""
        return self._growth_interval

    def is_enabled(self) -> bool:
        """Whether it scales at all."""
        return self._enabled

    def state_dict(self) -> dict:
        """The five entries of `torch.amp.GradScaler.state_dict()`, which loads it; empty when disabled.

        A torch GradScaler has no fixed scale: it takes the entries and goes on dynamically.
        """
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state: dict) -> None:
        """Take the state of a LossScaler or torch GradScaler, or the dict of `mindspore_state`.

        Raises:
            RuntimeError: the state is empty (it came from a disabled scaler).
            KeyError: neither form; the message names what is missing.
            ValueError: a value outside its range.
        """
        if not self._enabled:
            return
        if not state:
            raise RuntimeError("The scaler's state is empty: it was saved from a disabled scaler.")
        if "loss_scale" in state:
            state = _from_mindspore(state)
        names = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
        missing = [k for k in names if k not in state]
        if missing:
            raise KeyError(f"The scaler's state lacks {missing}; received the entries {sorted(state)}.")
        scale = min(max(float(state["scale"]), self.min_scale), self.max_scale)
        self._set(scale, *(state[k] for k in names[1:]))
        self.skips = int(state.get("skips", 0))
        self._ready()

    def mindspore_state(self) -> dict:
        """The fields of MindSpore's DynamicLossScaleManager for this state: a dict of plain numbers.

        Raises:
            ValueError: backoff_factor is not 1 / growth_factor: MindSpore has one factor for both directions.
        """
        if not math.isclose(self._backoff_factor * self._growth_factor, 1.0, rel_tol=1e-6):
            raise ValueError(
                "MindSpore has one scale_factor: expected backoff_factor = 1 / growth_factor; received "
                f"{self._backoff_factor} and {self._growth_factor}."
            )
        factor = self._growth_factor
        return {
            "loss_scale": self._scale,
            "scale_factor": int(factor) if factor == int(factor) else factor,
            "scale_window": self._growth_interval,
            "cur_iter": self._growth_tracker + 1,
            "last_overflow_iter": 0,
            "bad_step": self.skips,
        }

    def to_mindspore(self):
        """A MindSpore manager that goes on from this state: DynamicLossScaleManager, or FixedLossScaleManager."""
        from mindspore import amp

        if not self.dynamic:
            return amp.FixedLossScaleManager(self._scale)
        state = self.mindspore_state()
        manager = amp.DynamicLossScaleManager(*(state[k] for k in ("loss_scale", "scale_factor", "scale_window")))
        manager.cur_iter, manager.last_overflow_iter = state["cur_iter"], state["last_overflow_iter"]
        manager.bad_step = state["bad_step"]
        return manager

    @classmethod
    def from_mindspore(cls, source, **options) -> "LossScaler":
        """The scaler that goes on from a MindSpore object.

        Args:
            source: a DynamicLossScaleManager or amp.DynamicLossScaler (dynamic), or a FixedLossScaleManager or
                amp.StaticLossScaler (fixed). A DynamicLossScaleUpdateCell does not hold its scale (the train Cell
                does): pass {"loss_scale": ..., "scale_factor": ..., ...} to `load_state_dict`.
            options: min_scale, max_scale, enabled.

        Raises:
            TypeError: none of these.
            ValueError: a FixedLossScaleManager(drop_overflow_update=False), which updates with inf gradients.
        """
        if getattr(source, "_drop_overflow_update", True) is False:
            raise ValueError(
                "FixedLossScaleManager: expected drop_overflow_update=True; received False, which updates the weights "
                "with inf or nan. Make it with drop_overflow_update=True."
            )
        fields = {name: _number(source, *where) for name, where in _FIELDS.items()}
        if fields["loss_scale"] is None:
            raise TypeError(f"from_mindspore: expected a MindSpore loss scale manager or scaler; received {source!r}.")
        if fields["scale_factor"] is None:
            return cls(float(fields["loss_scale"]), dynamic=False, **options)
        scaler = cls(**options)
        scaler.load_state_dict({k: v for k, v in fields.items() if v is not None})
        return scaler


# A field of MindSpore's state: the attribute names that hold it in its several classes.
_FIELDS = {
    "loss_scale": ("loss_scale", "_loss_scale", "scale_value"),
    "scale_factor": ("scale_factor",),
    "scale_window": ("scale_window",),
    "cur_iter": ("cur_iter",),
    "last_overflow_iter": ("last_overflow_iter",),
    "counter": ("counter",),
    "bad_step": ("bad_step",),
}


def _number(source, *names):
    value = next((getattr(source, n) for n in names if getattr(source, n, None) is not None), None)
    return value.asnumpy().item() if hasattr(value, "asnumpy") else value


def _from_mindspore(state):
    missing = [k for k in ("scale_factor", "scale_window") if k not in state]
    if missing:
        raise KeyError(f"The loss scale state lacks {missing}; received the entries {sorted(state)}.")
    factor, window = float(state["scale_factor"]), int(state["scale_window"])
    good = state.get("counter", int(state.get("cur_iter", 1)) - 1 - int(state.get("last_overflow_iter", 0)))
    return {
        "scale": float(state["loss_scale"]),
        "growth_factor": factor,
        "backoff_factor": 1 / factor,
        "growth_interval": window,
        "_growth_tracker": int(good) % window,
        "skips": int(state.get("bad_step", 0)),
    }


def unscale(grads, scale, inverse):
    """Divide the gradients, all of one dtype, by the scale in place. A tensor: whether one of them was inf or nan.

    scale, and inverse (1 / scale): numbers, or {dtype: number as a tensor}.
    """
    # the largest magnitude of each gradient: inf and nan show in it, and a sum of squares cannot overflow
    norms = torch.stack(torch._foreach_norm([x for x in grads if x.numel()] or [grads[0].new_zeros(1)], math.inf))
    found = ~torch.isfinite(norms).all()
    if grads[0].dtype in HALVES:  # in float32: 1 / scale may be 0 in float16
        for x in grads:
            x.copy_(x.float() / _of_dtype(scale, torch.float32))
    else:
        torch._foreach_mul_(grads, _of_dtype(inverse, grads[0].dtype))
    return found


def _of_dtype(number, dtype):
    return number.get(dtype, number.get(torch.float32)) if isinstance(number, dict) else number


def by_kind(grads):
    kinds: dict = {}
    for g in grads:
        kinds.setdefault((g.device, g.dtype), []).append(g)
    return kinds.values()


def _check(name, value, good, expected):
    if not good:
        raise ValueError(f"LossScaler: {name}: expected {expected}; received {value!r}.")
