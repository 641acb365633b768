"""One rank of the two-rank tests of Model_ACCU: trains each case and writes rank<i>.json into the folder argv[1]."""

import json
import os
import sys

import numpy as np

from tests.train.accu_cases import GRAPH, PYNATIVE, X, Y, make, mindspore, pipeline, weights

from mindspore import nn  # isort: skip
from mindspore.amp import DynamicLossScaleManager  # isort: skip
from mindspore.communication import get_rank, init  # isort: skip
from mindspore.train import Callback  # isort: skip

from msadapter.train import GradientAccumulation, Model_ACCU, samples

init("mccl")
mindspore.set_auto_parallel_context(parallel_mode="data_parallel")
RANK = get_rank()
results = {}


class Outputs(Callback):
    """Collects what each update gave."""

    def __init__(self):
        self.losses, self.skipped = [], []

    def on_train_step_end(self, run_context):
        outputs = run_context.original_args().net_outputs
        if isinstance(outputs, tuple):
            self.skipped.append(bool(outputs[1].asnumpy()))
            outputs = outputs[0]
        self.losses.append(float(outputs.asnumpy()))


def count_calls(cell):
    """Counts the calls of the all-reduce primitive of a cell, in a list."""
    calls, primitive = [], cell.window_mean.reduce.all_reduce

    def counted(value):
        calls.append(1)
        return primitive(value)

    object.__setattr__(cell.window_mean.reduce, "all_reduce", counted)
    return calls


def run(name, mode, x, y, batch, steps, epochs=1, count=False, **options):
    mindspore.set_context(mode=mode)
    network, loss_fn, optimizer = make(seed=RANK)  # rank 1 starts elsewhere: training starts from rank 0
    model = Model_ACCU(network, loss_fn, optimizer, grad_accumulation_step=steps, **options)
    calls = count_calls(model.train_network) if count else None
    outputs = Outputs()
    model.train(epochs, pipeline(batch, x, y), outputs)
    cell = model.train_network
    results[name] = {
        "weights": [w.tolist() for w in weights(network)],
        "losses": outputs.losses,
        "skipped": outputs.skipped,
        "reductions": cell.reductions,
        "primitive_calls": len(calls) if count else None,
        "scale": float(cell.scale_sense.asnumpy()) if hasattr(cell, "scale_sense") else None,
        "updates": int(optimizer.global_step.asnumpy()[0]),
    }
    mindspore.set_context(mode=PYNATIVE)


x, y = X[RANK::2], Y[RANK::2]  # 20 samples of 40
bad = x.copy()
if RANK == 1:
    bad[8] = np.inf  # in batch 4 of 2 samples: the first of the second window
for mode, prefix in ((PYNATIVE, "pynative"), (GRAPH, "graph")):
    run(f"{prefix} plain", mode, x, y, 2, 4, epochs=2, count=mode == PYNATIVE)
    run(f"{prefix} scaled", mode, x, y, 2, 4, epochs=2, loss_scale_manager=DynamicLossScaleManager(1024, 2, 100))
    run(f"{prefix} overflow", mode, bad, y, 2, 4, loss_scale_manager=DynamicLossScaleManager(1024, 2, 100))

cut = slice(0, 30) if RANK == 0 else slice(30, 40)
run("pynative weighted", PYNATIVE, X[cut], Y[cut], 3 if RANK == 0 else 1, 10, weight=samples)
run("pynative sum", PYNATIVE, x, y, 2, 10, gradients_mean=False)

network, loss_fn, optimizer = make(seed=RANK)
trainer = GradientAccumulation(network, loss_fn, optimizer)
trainer.train_process(1, pipeline(2, x, y), 4, per_print_times=0)
results["pynative cells"] = {
    "weights": [w.tolist() for w in weights(network)],
    "reductions": int(trainer._train_optim.window_mean.reductions.asnumpy()),
}

network, loss_fn, optimizer = make()
try:
    Model_ACCU(network, loss_fn, optimizer, grad_accumulation_step=2).train(1, pipeline(4 + RANK, x, y))
except ValueError as error:
    results["unequal batches"] = {"error": str(error)}

assert isinstance(network, nn.Cell)
with open(os.path.join(sys.argv[1], f"rank{RANK}.json"), "w") as file:
    json.dump(results, file)
