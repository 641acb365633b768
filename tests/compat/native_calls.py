"""Native MindSpore calls, which test_native.py compares with and without compat: argv[1] is 'plain' or 'compat'.

Prints JSON: name of a call -> its numbers.
"""

import json
import sys

import numpy as np

if sys.argv[1] == "compat":
    import msadapter.pytorch  # noqa: F401
import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, amp, nn, ops

results = {}


def numbers(x):
    if isinstance(x, (tuple, list)):
        return [numbers(v) for v in x]
    return x.asnumpy().tolist() if isinstance(x, Tensor) else x


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        weight = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3) / 7)
        self.dense = nn.Dense(3, 2, weight_init=weight, bias_init="ones")
        self.unused = Parameter(Tensor(np.ones(2, np.float32)), name="unused")

    def construct(self, x):
        return ops.tanh(self.dense(x))


class InGraph(nn.Cell):
    """Uses the wrapped names inside of construct."""

    def __init__(self, net):
        super().__init__()
        self.net, self.weights = net, ParameterTuple(net.trainable_params())
        self.grad = ops.GradOperation(get_by_list=True)
        self.scaler = amp.DynamicLossScaler(1024, 2, 3)

    def construct(self, x):
        grads = self.grad(self.net, self.weights)(x)
        grads = ops.clip_by_global_norm(grads, 0.5)
        finite = amp.all_finite(grads)
        more = ops.grad(self.net)(x)
        values = ops.depend(ops.clip_by_value(more, -0.1, 0.1), finite)
        return grads, self.scaler.unscale(grads), values, ops.ones_like(x) + ops.zeros_like(x), ops.stop_gradient(x)


def square(x):
    return (x * x).sum()


def two(x, y):
    return (x * y).sum(), x + y


square_grad = ms.grad(square)


@ms.jit
def compiled(x):
    return ms.value_and_grad(two, (0, 1), has_aux=True)(x, x), square_grad(x)


def run(mode):
    ms.set_context(mode=mode)
    net = Net()
    x, y = Tensor(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)), Tensor(np.ones((2, 3), np.float32))
    weights = net.trainable_params()

    def forward(x):
        out = net(x)
        return out.sum(), out

    calls = {
        "value_and_grad of weights": lambda: ms.value_and_grad(forward, None, weights, has_aux=True)(x),
        "value_and_grad of both": lambda: ops.value_and_grad(forward, 0, ParameterTuple(weights), True)(x),
        "value_and_grad of a cell": lambda: ms.value_and_grad(net, None, weights)(x),
        "grad of a function": lambda: ms.grad(square)(x),
        "grad of two inputs": lambda: ms.grad(two, (0, 1), has_aux=True)(x, y),
        "second derivative": lambda: ms.grad(ms.grad(square))(x),
        "GradOperation": lambda: ops.GradOperation()(square)(x),
        "GradOperation(get_all)": lambda: ops.GradOperation(get_all=True)(two)(x, y),
        "GradOperation(get_by_list)": lambda: ops.GradOperation(get_by_list=True)(net, ParameterTuple(weights))(x),
        "in construct": lambda: InGraph(net)(x),
        "in jit": lambda: compiled(x),
        "all_finite": lambda: amp.all_finite((x, Tensor([float("inf")]))),
        "clip": lambda: (ops.clip_by_global_norm((x, y), 1.0), ops.clip_by_norm(x, 0.5)),
        "clip values": lambda: ops.clip_by_value(x, 0.0, 0.5),
        "static scaler": lambda: (amp.StaticLossScaler(8.0).scale(x), amp.StaticLossScaler(8.0).unscale((x, y))),
        "dynamic scaler": lambda: (s := amp.DynamicLossScaler(64, 2, 1)).adjust(Tensor(False)) and s.scale_value,
        "assign": lambda: ops.assign_add(Parameter(x, name="p"), y),
        "O2": lambda: amp.auto_mixed_precision(Net(), "O2")(x),
        "isinstance": lambda: isinstance(ops.GradOperation(), ops.GradOperation),
    }
    for name, call in calls.items():
        try:
            results[f"{mode} {name}"] = numbers(call())
        except Exception as error:  # what MindSpore refuses must be refused with compat too
            results[f"{mode} {name}"] = type(error).__name__


run(ms.PYNATIVE_MODE)
run(ms.GRAPH_MODE)
print(json.dumps(results))
