"""value_and_grad, grad and GradOperation of functions over torch objects: values and structures."""

import warnings

import msadapter.pytorch as torch

import mindspore  # isort: skip
import numpy as np
import pytest
from mindspore import Tensor, ops

from msadapter.pytorch import nn

DEVICES = ["mindspore", "cpu"]
devices = pytest.mark.parametrize("device", DEVICES)
close = torch.testing.assert_close


def problem(device):
    """A small classifier: (model, optimizer, forward, x, y)."""
    with torch.device(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        x, y = torch.randn(5, 3), torch.randint(2, (5,))
    loss_fn = nn.CrossEntropyLoss()

    def forward(x, y):
        logits = model(x)
        return loss_fn(logits, y), logits

    return model, torch.optim.SGD(model.parameters(), 0.1), forward, x, y


def reference(model, forward, *inputs):
    """(loss, gradients of the weights) by backward."""
    loss = forward(*inputs)[0]
    loss.backward()
    grads = tuple(p.grad for p in model.parameters())
    model.zero_grad(set_to_none=True)
    return loss.detach(), grads


@devices
@pytest.mark.parametrize("function", [mindspore.value_and_grad, ops.value_and_grad], ids=["mindspore", "ops"])
def test_value_and_grad_of_weights(device, function):
    model, optimizer, forward, x, y = problem(device)
    loss, grads = reference(model, forward, x, y)
    (value, logits), found = function(forward, None, optimizer.parameters, has_aux=True)(x, y)
    assert isinstance(found, tuple) and [g.shape for g in found] == [p.shape for p in model.parameters()]
    close(found, grads, rtol=0, atol=0)
    close(value, loss, rtol=0, atol=0)
    assert logits.shape == (5, 2) and not value.requires_grad and not logits.requires_grad
    assert all(p.grad is None for p in model.parameters())
    assert value.asnumpy().shape == () and value.device.type == device


def test_weights_come_in_every_form():
    model, optimizer, forward, x, y = problem("mindspore")
    _, grads = reference(model, forward, x, y)
    for weights in (model.trainable_params(), tuple(model.parameters()), model.parameters(), optimizer.parameters):
        function = mindspore.value_and_grad(forward, grad_position=None, weights=weights, has_aux=True)
        for _ in range(2):
            close(function(x, y)[1], grads)
    single = mindspore.value_and_grad(forward, None, model[0].bias, has_aux=True)(x, y)[1]
    close(single, grads[1])
    close(mindspore.value_and_grad(forward, None, [model[0].bias], has_aux=True)(x, y)[1], (grads[1],))
    with torch.no_grad():
        close(mindspore.grad(forward, None, optimizer.parameters, has_aux=True)(x, y)[0], grads)


def test_unused_and_frozen_weights_get_zeros():
    model, _, forward, x, y = problem("mindspore")
    model[0].bias.requires_grad_(False)
    unused = nn.Parameter(torch.ones(3, 2))
    weights = [*model.parameters(), unused]
    grads = mindspore.value_and_grad(forward, None, weights, has_aux=True)(x, y)[1]
    close(grads[1], torch.zeros(4))
    close(grads[4], torch.zeros(3, 2))
    assert grads[0].abs().sum() > 0


def test_no_grad_is_touched():
    model, optimizer, forward, x, y = problem("mindspore")
    before = [torch.full_like(p, 7.0) for p in model.parameters()]
    for p, g in zip(model.parameters(), before):
        p.grad = g
    mindspore.value_and_grad(forward, None, optimizer.parameters, has_aux=True)(x, y)
    assert all(p.grad is g and bool((g == 7).all()) for p, g in zip(model.parameters(), before))


def product(x, y):
    return (x * y).sum(), x + y


@devices
def test_positions(device):
    x, y = torch.tensor([1.0, 2.0], device=device), torch.tensor([3.0, 4.0], device=device)
    value, grad = mindspore.value_and_grad(lambda x, y: (x * y).sum())(x, y)
    close((value, grad), (torch.tensor(11.0, device=device), y))
    close(mindspore.grad(lambda x, y: (x * y).sum(), 1)(x, y), x)
    close(mindspore.grad(lambda x, y: (x * y).sum(), (1, 0))(x, y), (x, y))
    close(mindspore.grad(lambda x, y: (x * y).sum(), (1,))(x, y), x)  # as MindSpore: one position, no tuple
    (value, total), grads = mindspore.value_and_grad(product, (0, 1), has_aux=True)(x, y)
    close((total, grads), (x + y, (y, x)))
    grads, aux = mindspore.grad(product, has_aux=True)(x, y)
    close((grads, aux), (y, (x + y,)))
    close(mindspore.grad(product, (0, 1))(x, y), (y + 1, x + 1))  # without aux all outputs count
    assert not x.requires_grad and x.grad is None


def test_inputs_and_weights():
    w = nn.Parameter(torch.tensor([2.0, 3.0]))
    x = torch.tensor([5.0, 7.0])
    value, (of_x, of_w) = mindspore.value_and_grad(lambda x: (w * x).sum(), 0, [w])(x)
    close((of_x, of_w), (w.detach(), (x,)))
    of_x, of_w = ops.GradOperation(get_all=True, get_by_list=True)(lambda x: (w * x).sum(), [w])(x)
    close((of_x, of_w), ((w.detach(),), (x,)))


def test_module_and_method_as_function():
    model, optimizer, _, x, _ = problem("mindspore")
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    for fn in (model, model.forward):
        close(mindspore.grad(fn, None, optimizer.parameters)(x), expected)
    assert mindspore.grad(model)(x).shape == x.shape


def test_grad_operation():
    model, optimizer, forward, x, y = problem("mindspore")
    _, grads = reference(model, forward, x, y)

    def loss(x, y):
        return forward(x, y)[0]

    close(ops.GradOperation(get_by_list=True)(loss, optimizer.parameters)(x, y), grads)
    of_x = mindspore.grad(loss)(x, y)
    close(ops.GradOperation()(loss)(x, y), of_x)
    all_inputs = ops.GradOperation(get_all=True)(loss)(x, y)
    close(all_inputs[0], of_x)
    assert isinstance(ops.GradOperation(get_all=True)(lambda x: x * 2)(x), tuple)
    sens = torch.tensor(10.0)
    close(ops.GradOperation(sens_param=True)(loss)(x, y, sens), of_x * 10)
    close(mindspore.value_and_grad(loss, sens_param=True)(x, y, sens=sens)[1], of_x * 10)
    close(ops.GradOperation(get_by_list=True, sens_param=True)(loss, optimizer.parameters)(x, y, 2.0)[0], grads[0] * 2)


@devices
def test_nested(device):
    x = torch.tensor([1.0, 2.0], device=device)
    cube = mindspore.grad(lambda x: (x**3).sum())
    close(mindspore.grad(cube)(x), 6 * x)
    close(mindspore.grad(mindspore.grad(cube))(x), torch.full_like(x, 6))
    w = nn.Parameter(torch.tensor([1.5, -1.0], device=device))

    def penalty(x):  # a gradient penalty: the derivative with respect to w of (d/dx (w x^2))^2
        return (mindspore.grad(lambda x: (w * x**2).sum())(x) ** 2).sum()

    close(mindspore.grad(penalty, None, [w])(x), (2 * w.detach() * (2 * x) ** 2,))
    linear = mindspore.grad(mindspore.grad(lambda x: (2 * x).sum()))
    with pytest.warns(RuntimeWarning, match="depends on"):
        close(linear(x), torch.zeros_like(x))


def test_batches_of_mindspore_become_torch():
    model, optimizer, forward, x, y = problem("mindspore")
    _, grads = reference(model, forward, x, y)
    function = mindspore.value_and_grad(forward, None, optimizer.parameters, has_aux=True)
    close(function(Tensor(x.asnumpy()), Tensor(y.asnumpy()))[1], grads)


def test_keyword_arguments_and_numbers():
    x = torch.tensor([1.0, 2.0])
    close(mindspore.grad(lambda x, n, scale=1.0: (x**n).sum() * scale)(x, 2, scale=3.0), 6 * x)


def test_return_ids():
    x, y = torch.tensor([1.0]), torch.tensor([3.0])
    close(mindspore.grad(lambda x, y: (x * y).sum(), (0, 1), return_ids=True)(x, y), ((0, y), (1, x)))
    with pytest.raises(ValueError, match="have no names"):
        mindspore.grad(lambda x: x, None, [nn.Parameter(x)], return_ids=True)


def test_a_loss_that_depends_on_nothing_warns():
    model, optimizer, forward, x, y = problem("mindspore")
    with pytest.warns(RuntimeWarning, match="all gradients are zero"):
        grads = mindspore.grad(lambda x: forward(x, y)[0].detach(), None, optimizer.parameters)(x)
    assert all(bool((g == 0).all()) for g in grads)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mindspore.grad(lambda x: forward(x, y)[0], None, optimizer.parameters)(x)


@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, "received None for both", lambda x: mindspore.grad(nn.Linear(2, 2), None)(x)),
        (ValueError, "different positions", lambda x: mindspore.grad(nn.ReLU(), (0, 0))(x)),
        (ValueError, "grad_position 5", lambda x: mindspore.grad(nn.ReLU(), 5)(x)),
        (TypeError, "grad_position", lambda x: mindspore.grad(nn.ReLU(), "x")(x)),
        (TypeError, "torch.int64", lambda x: mindspore.grad(nn.ReLU())(x.long())),
        (ValueError, "has_aux", lambda x: mindspore.grad(nn.ReLU(), has_aux=True)(x)),
        (TypeError, "weights as torch Parameters", lambda x: mindspore.grad(nn.ReLU(), None, [x, 3])(x)),
        (ValueError, "get_by_list", lambda x: ops.GradOperation(get_by_list=True)(nn.ReLU())(x)),
        (ValueError, "one sensitivity", lambda x: ops.GradOperation(sens_param=True)(product_of_two)(x, x, 1.0)),
    ],
)
def test_errors(error, words, call):
    with pytest.raises(error, match=words):
        call(torch.ones(2))
    close(mindspore.grad(lambda x: (x * x).sum())(torch.ones(2)), torch.full((2,), 2.0))  # and nothing is left behind


product_of_two = type("ProductOfTwo", (nn.Module,), {"forward": lambda self, x, y: (x * y, x + y)})()


def test_nothing_is_left_after_an_exception():
    def fails(x):
        raise KeyError("inside")

    with pytest.raises(KeyError):
        mindspore.grad(fails)(torch.ones(2))
    assert not mindspore.grad(lambda x: (x * x).sum())(torch.ones(2)).requires_grad


def test_conversions():
    ms_tensor = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    nested = torch.cast_to_adapter_tensor({"a": [ms_tensor, 3], "b": (ms_tensor, None)})
    x = nested["a"][0]
    assert isinstance(x, torch.Tensor) and x.device.type == "mindspore"
    assert nested["a"][1] == 3 and nested["b"][1] is None
    ms_tensor[0] = 9
    assert x[0].tolist() == [0, 1, 2]  # a copy: MindSpore's in-place changes do not show
    back = torch.cast_to_ms_tensor((x, [x.half(), x.bfloat16(), x.cpu(), x.t()], "s"))
    assert all(isinstance(v, Tensor) for v in (back[0], *back[1])) and back[2] == "s"
    assert back[1][0].dtype == mindspore.float16 and back[1][1].dtype == mindspore.bfloat16
    assert back[1][3].asnumpy().tolist() == x.t().tolist()
    back[0][0] = 5
    assert x[0].tolist() == [0, 1, 2]
    x.add_(1)
    assert back[1][2].asnumpy()[0].tolist() == [0, 1, 2]
    shared = torch.cast_to_adapter_tensor(torch.cast_to_ms_tensor(x, copy=False), copy=False)
    close(shared, x)
    shared.mul_(2)  # torch's in-place ops replace the buffer
    assert x[0].tolist() == [1, 2, 3]
    close(torch.cast_to_adapter_tensor(torch.cast_to_ms_tensor(torch.zeros(0, 3))), torch.zeros(0, 3))
    close(torch.cast_to_adapter_tensor(torch.cast_to_ms_tensor(torch.tensor(3))), torch.tensor(3))
    parameter = nn.Parameter(torch.ones(2))
    assert isinstance(torch.cast_to_ms_tensor(parameter), Tensor)
    assert torch.ones(2, dtype=torch.bfloat16).asnumpy().dtype == np.float32
    assert parameter.asnumpy().tolist() == [1, 1] and torch.ones(2, device="cpu").asnumpy().tolist() == [1, 1]
