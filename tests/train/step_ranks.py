"""One rank of the data-parallel tests: python -m tests.train.step_ranks RANK FOLDER. The parent compares the files."""

import sys

import torch
import torch.distributed as dist
from torch import nn

from msadapter.train import LossScaler, TrainStep
from tests.train import step_cases as cases

RANKS, ACCUMULATE, COUNT = 2, 3, 7
NAMES = ("ignore_index", "class weights", "label smoothing")


def batches_of(rank, name, device="cpu", dtype=torch.float64):
    """Rank 1 has other batches, with more valid targets, and one micro-batch fewer."""
    batches = cases.make_batches(COUNT - rank, name, device, dtype, seed=10 + rank)
    if rank == 1:
        batches = [(torch.cat([x, x * 0.5]), torch.cat([y, y.clamp(min=1)])) for x, y in batches]
    return batches


def train(rank, name, device, dtype, wrap=False, group=True, scaler=None, bad=None):
    model = cases.make_model(device, dtype, seed=rank)  # the ranks start apart: rank 0's weights win
    module = nn.parallel.DistributedDataParallel(model) if wrap else model
    loss_fn, weight = cases.make_loss(name, device, dtype)
    count = iter(range(100))

    def loss_of(out, y):
        loss = loss_fn(out, y)
        return loss * float("inf") if bad == (rank, next(count)) else loss

    optimizer = cases.make_optimizer(model)
    step = TrainStep(module, loss_of if bad else loss_fn, optimizer, accumulate=ACCUMULATE, weight=weight,
                     clip_norm=0.5, data_parallel=group, scaler=scaler,
                     scheduler=cases.make_scheduler(optimizer))  # fmt: skip
    curve, outputs = cases.train_step(step, batches_of(rank, name, device, dtype))
    return {
        "curve": curve,
        "reductions": step.reductions,
        "updates": step.updates,
        "skips": step.skips,
        "lr": optimizer.param_groups[0]["lr"],
        "flags": [(o.updated, o.skipped) for o in outputs],
        "scale": scaler.get_scale() if scaler else None,
    }


def half_used(rank):
    """A parameter that rank 0 alone uses, and one that nobody uses; a rank whose whole window weighs nothing."""
    used, some, unused = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(3))
    optimizer = torch.optim.AdamW([used, some, unused], 0.1, weight_decay=0.5)
    step = TrainStep(lambda x: (used * x).sum() + (some.sum() * x.sum() if rank == 0 else 0), lambda out, y: out,
                     optimizer, weight=lambda x, y: 3 * (1 - rank), data_parallel=True)  # fmt: skip
    step(torch.ones(2, dtype=torch.float64), None)
    return {"moved": [bool((p != 1).any()) for p in (used, some, unused)], "used": used.detach()}


def unlike_scales(rank):
    p = nn.Parameter(torch.ones(2))
    step = TrainStep(lambda x: (p * x).sum(), lambda out, y: out, torch.optim.SGD([p], 0.1), data_parallel=True,
                     scaler=LossScaler(2.0 ** (4 + rank)))  # fmt: skip
    try:
        step(torch.ones(2), None)
    except RuntimeError as e:
        return str(e)


def main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    f64, results = torch.float64, {}
    for device in cases.DEVICES:
        for name in NAMES:
            results[device, name, "plain"] = train(rank, name, device, f64)
        results[device, "f32"] = train(rank, "ignore_index", device, torch.float32)
        for place in (0, 1):  # the rank that overflows
            results[device, "overflow", place] = train(
                rank, "ignore_index", device, f64, scaler=LossScaler(1024.0), bad=(place, 1)
            )
    results["ddp"] = train(rank, "ignore_index", "cpu", f64, wrap=True, group=None)
    results["half used"] = half_used(rank)
    results["unlike scales"] = unlike_scales(rank)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
