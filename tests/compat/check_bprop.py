"""A Module with `bprop` is differentiated by it."""

import msadapter.pytorch as torch

import mindspore  # isort: skip
import pytest

from msadapter.pytorch import nn

close = torch.testing.assert_close


class Straight(nn.Module):
    """round(x), whose gradient passes as it is, times a factor."""

    def forward(self, x, factor=1.0):
        return torch.round(x) * factor

    def bprop(self, x, out, grad_output):
        self.seen = (x, out)
        return grad_output * 5


@pytest.mark.parametrize("device", ["mindspore", "cpu"])
def test_backward_and_value_and_grad(device):
    module, x = Straight(), torch.tensor([0.4, 1.6], device=device, requires_grad=True)
    out = module(x)
    assert out.tolist() == [0, 2]
    (out * 2).sum().backward()
    assert x.grad.tolist() == [10, 10] and x.grad.device.type == device
    close(module.seen, (x, out))
    close(mindspore.grad(lambda x: module(x).sum())(x), torch.full_like(x, 5))
    with torch.no_grad():
        assert not module(x).requires_grad
    assert not module(x.detach()).requires_grad


class Multiply(nn.Module):
    """Two inputs, one of them without gradient, keyword-only `out` and `grad_output`, a parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x, y, n=1, *, sign=1):
        return x * y * n * sign * self.weight, x + y

    def bprop(self, *inputs, sign=1, out, grad_output):
        self.called = (inputs, sign, out, grad_output)
        x, y = inputs[:2]
        return (grad_output[0] * y * 10, None, *[None] * (len(inputs) - 2))


def test_several_inputs_outputs_keywords_and_none():
    module = Multiply()
    x, y = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)
    product, total = module(x, y=y, n=3, sign=-1)
    close((product, total), (-x * y * 3, x + y))
    product.sum().backward()
    assert x.grad.tolist() == [30, 40] and y.grad is None and module.weight.grad is None
    inputs, sign, out, grad_output = module.called
    assert inputs[2] == 3 and sign == -1 and len(out) == 2
    close(grad_output, (torch.ones(2), torch.zeros(2)))
    x.grad = None
    module(x, y)[0].sum().backward()  # defaults stay out, as in MindSpore
    assert len(module.called[0]) == 2


def test_inheritance():
    class Child(Straight):
        def forward(self, x):
            return super().forward(x, 2.0)

    class OtherGradient(Straight):
        def bprop(self, x, out, grad_output):
            return grad_output * 7

    class Plain(nn.Module):
        def forward(self, x):
            return x * 3

    for cls, value, gradient in ((Child, 4, 5), (OtherGradient, 2, 7), (Plain, 6, 3)):
        x = torch.tensor([2.0], requires_grad=True)
        out = cls()(x)
        out.backward()
        assert (out.item(), x.grad.item()) == (value, gradient)


def test_second_derivative():
    class Cube(nn.Module):
        def forward(self, x):
            return x**3

        def bprop(self, x, out, grad_output):
            return (3 * x**2 * grad_output,)

    module, x = Cube(), torch.tensor([2.0])
    close(mindspore.grad(mindspore.grad(lambda x: module(x).sum()))(x), 6 * x)


def test_a_model_trains_through_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), Straight(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(8, 3)
    _, grads = mindspore.value_and_grad(lambda x: model(x).square().mean(), None, optimizer.parameters)(x)
    assert grads[0].abs().sum() > 0  # round alone has none
    optimizer(grads)


def test_errors():
    class Wrong(nn.Module):
        def forward(self, x, y):
            return x * y

        def bprop(self, x, y, out, grad_output):
            return grad_output, grad_output, grad_output

    class NoTensor(Straight):
        def bprop(self, x, out, grad_output):
            return "gradient"

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="each of the 2 inputs"):
        Wrong()(x, x).sum().backward()
    with pytest.raises(TypeError, match="received a str"):
        NoTensor()(x).sum().backward()
