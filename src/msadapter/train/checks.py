"""What `TrainStep` asks of its arguments, of the loss, of micro-batches that all count alike, and of a plain loop."""

import gc
import warnings
import weakref

import torch


def check_arguments(model, loss_fn, optimizer, accumulate, weight, clip_norm, scaler, scheduler):
    def need(name, good, expected, received, error=TypeError):
        if not good:
            raise error(f"{name}: expected {expected}; received {received!r}.")

    need("model", callable(model), "a module or a function", model)
    need("loss_fn", callable(loss_fn), "a function of (output, target)", loss_fn)
    need("optimizer", isinstance(optimizer, torch.optim.Optimizer), "a torch.optim.Optimizer", optimizer)
    need(
        "optimizer",
        not isinstance(optimizer, torch.optim.LBFGS),
        "one whose step() takes no closure, such as SGD or AdamW (LBFGS evaluates the loss itself)",
        optimizer,
    )
    whole = isinstance(accumulate, int) and not isinstance(accumulate, bool)
    need("accumulate", whole and accumulate >= 1, "a whole number from 1", accumulate, ValueError)
    need("weight", weight is None or callable(weight), "None or a function of (*inputs, target)", weight)
    need("clip_norm", clip_norm is None or clip_norm > 0, "None or a positive number", clip_norm, ValueError)
    methods = ("scale", "unscale_", "step", "update", "get_scale", "state_dict", "load_state_dict")
    scales = all(hasattr(scaler, m) for m in methods)
    need("scaler", scaler is None or scales, "a torch.amp.GradScaler or an msadapter.train.LossScaler", scaler)
    need("scheduler", scheduler is None or hasattr(scheduler, "step"), "a learning rate scheduler", scheduler)
    need(
        "scheduler",
        not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau),
        "one that is stepped once per update (for ReduceLROnPlateau leave scheduler out and call plateau.step(metric) "
        "yourself, once per evaluation)",
        scheduler,
    )


def check_loss(loss):
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"loss_fn: expected a scalar tensor; received {type(loss).__name__}. Return the loss alone.")
    if loss.numel() != 1:
        raise ValueError(
            f"loss_fn: expected the mean loss, a scalar; received shape {tuple(loss.shape)}. Use reduction='mean'."
        )


def check_history(loss):
    """A loss without a gradient trains nothing."""
    if not loss.requires_grad:
        raise RuntimeError(
            "Expected a loss that depends on a trainable parameter; received one without a gradient. Do not call "
            "the step under torch.no_grad(), and leave requires_grad on for what is to be trained."
        )


def check_mean(loss_fn):
    """A loss module that says it sums does not fit: each mean is multiplied by its weight."""
    if getattr(loss_fn, "reduction", None) == "sum":
        raise ValueError(
            f"loss_fn: expected the mean of the loss (reduction='mean'); received {loss_fn} with reduction='sum'. "
            "The step multiplies each mean by its weight and divides by the sum of weights itself."
        )


def warn_of_unequal(loss_fn, target, sizes, look_inside):
    """Warn when micro-batches count alike (weight=None) although their losses divide by different numbers.

    Args:
        target: of the micro-batch, (N, ...).
        sizes: the N of the window's micro-batches, a set that is added to.
        look_inside: search the target for ignored indices (a synchronisation).

    Returns:
        True once it has warned.
    """
    if not isinstance(target, torch.Tensor) or target.dim() == 0:
        return False
    sizes.add(target.shape[0])
    indices = not target.is_floating_point()
    if len(sizes) > 1:
        reason = f"micro-batches of {sorted(sizes)} samples count alike in one window: pass weight=samples"
    elif indices and isinstance(getattr(loss_fn, "weight", None), torch.Tensor):
        reason = "the loss has class weights: pass weight=valid_targets(class_weights=...)"
    elif indices and look_inside and _holds(target, getattr(loss_fn, "ignore_index", None)):
        reason = "some targets are ignored: pass weight=valid_targets()"
    else:
        return False
    text = f"{reason} (from msadapter.train), else the mean of the means differs from the mean of one full batch."
    warnings.warn(f"TrainStep: {text}", UserWarning, stacklevel=4)
    return True


def _holds(target, index):
    return isinstance(index, int) and bool((target == index).any())


class LoaderWatch:
    """The iterators of DataLoaders that run at this moment, to notice the end of an epoch in a plain loop.

    `for x, y in loader: step(x, y)` tells the step nothing about epochs, but the loop's iterator counts its batches and
    goes when the loop ends. It is found among the objects that Python's garbage collector knows (a fraction of a
    second, and only at the start of a run).
    """

    def __init__(self):
        kind = torch.utils.data.dataloader._BaseDataLoaderIter
        running = [o for o in gc.get_objects() if issubclass(type(o), kind)]
        self._seen = [(weakref.ref(o), _length(o)) for o in running]
        self._yielded = [o._num_yielded for o in running]

    def ended(self):
        """The length of the epoch that ended since: no iterator goes on, and one had given all its batches. Or 0."""
        lengths = []
        for i, (ref, length) in enumerate(self._seen):
            iterator = ref()
            now = -1 if iterator is None else iterator._num_yielded  # a persistent one starts again from 0
            if now >= self._yielded[i]:
                self._yielded[i] = now
                return 0
            if self._yielded[i] >= length:
                lengths.append(length)
        return max(lengths, default=0)


def _length(iterator):
    try:
        return len(iterator)
    except TypeError:  # a dataset without a length
        return float("inf")
