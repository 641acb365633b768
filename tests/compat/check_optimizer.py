"""optimizer(grads), optimizer.parameters, GradScaler with gradients, MindSpore's loss scalers, gradient ops."""

import msadapter.pytorch as torch

import mindspore  # isort: skip
import numpy as np
import pytest
from mindspore import Tensor, amp, ops
from mindspore import nn as ms_nn

from msadapter.pytorch import nn

close = torch.testing.assert_close
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
}


def make(device="mindspore", seed=0):
    with torch.device(device):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def data(device="mindspore"):
    torch.manual_seed(1)
    return torch.randn(8, 3, device=device), torch.randn(8, 2, device=device)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("device", ["mindspore", "cpu"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_of_grads_is_step(name, device):
    model, plain = make(device), make(device)
    optimizer, other = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](plain.parameters())
    x, y = data(device)
    function = mindspore.value_and_grad(lambda x, y: nn.functional.mse_loss(model(x), y), None, optimizer.parameters)
    for _ in range(3):
        loss, grads = function(x, y)
        assert optimizer(grads) is True
        other.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        other.step()
    close(weights(model), weights(plain), rtol=0, atol=0)
    assert all(p.grad is None for p in model.parameters())


def test_exactly_these_gradients():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    before = weights(model)
    kept = torch.full_like(model[0].weight, 100.0)
    model[0].weight.grad = kept  # of some backward(): not used, not lost
    grads = [torch.ones_like(p) for p in optimizer.parameters]
    grads[1] = None
    optimizer(grads)
    after = weights(model)
    close(after[0], before[0] - 1)
    close(after[1], before[1])
    assert model[0].weight.grad is kept and model[2].weight.grad is None and bool((kept == 100).all())
    optimizer(tuple(torch.cast_to_ms_tensor(torch.ones_like(p)) for p in model.parameters()))  # MindSpore's tensors
    optimizer([torch.ones_like(p).half().cpu() for p in model.parameters()])  # another dtype, another device
    close(model[2].bias.detach(), before[3] - 3)


def test_frozen_parameters_and_groups():
    model = make()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(
        [{"params": model[2].parameters(), "lr": 0.1}, {"params": model[0].parameters()}], lr=1.0
    )
    in_order = [*model[2].parameters(), *model[0].parameters()]
    assert all(p is q for p, q in zip(optimizer.parameters, in_order)) and len(optimizer.parameters) == 4
    assert len(model.trainable_params()) == 3
    before = weights(model)
    optimizer([torch.ones_like(p) for p in optimizer.parameters if p.requires_grad])
    moved = [b - a for a, b in zip(weights(model), before)]
    close(moved[1:], [torch.ones(4), *(torch.full_like(p, 0.1) for p in before[2:])])


def test_scheduler_counts_the_steps():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    optimizer([torch.zeros_like(p) for p in optimizer.parameters])
    scheduler.step()  # warns if no step came before
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    "error, words, grads",
    [
        (ValueError, "expected 4 gradients", lambda p: [torch.ones(1)]),
        (ValueError, "gradient 1", lambda p: [torch.ones_like(p[0]), torch.ones(1), p[2], p[3]]),
        (TypeError, "received a int", lambda p: [1, 2, 3, 4]),
    ],
)
def test_wrong_gradients(error, words, grads):
    optimizer = torch.optim.SGD(make().parameters(), 0.1)
    with pytest.raises(error, match=words):
        optimizer(grads(optimizer.parameters))


def test_parameters_clone_and_accumulate():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    sums = optimizer.parameters.clone(prefix="sum", init="zeros")
    for s, p in zip(sums, model.parameters()):
        ops.assign_add(s, torch.ones_like(p) * 2)
        assert not s.requires_grad and bool((s == 2).all())
        ops.assign(s, ops.zeros_like(s))
    assert all(bool((s == 0).all()) for s in sums)
    close(list(optimizer.parameters.clone()), weights(model))
    with pytest.raises(ValueError, match="init"):
        optimizer.parameters.clone(init="normal")

    class Own(torch.optim.SGD):
        def __init__(self, params):
            super().__init__(params, 0.1)
            self.parameters = "mine"

    assert Own(model.parameters()).parameters == "mine"


def test_set_train():
    model = make()
    assert model.set_train(False) is model and not model.training and model.set_train().training


# ------------------------------------------------------------------------------------------------------- loss scaling


SCALERS = {"cuda.amp": lambda **k: torch.cuda.amp.GradScaler(**k), "amp": lambda **k: torch.amp.GradScaler(**k)}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("unscale", [False, True], ids=["step", "unscale_"])
@pytest.mark.parametrize("form", SCALERS)
def test_grad_scaler_with_grads(form, unscale):
    """The gradients' form equals torch's own, with an overflow in the middle."""
    x, y = data()
    histories = []
    for style in ("grads", "torch"):
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = SCALERS[form](init_scale=2.0**8, growth_interval=2)
        assert scaler.is_enabled()
        history = []
        for i in range(5):
            factor = float("inf") if i == 2 else 1.0

            def forward(x, y, model=model, scaler=scaler, factor=factor):
                return scaler.scale(nn.functional.mse_loss(model(x), y) * factor)

            if style == "grads":
                grads = mindspore.grad(forward, None, optimizer.parameters)(x, y)
                if unscale:
                    scaler.unscale_(optimizer, grads)
                    assert i == 2 or grads[0].abs().max() < 10
                scaler.step(optimizer, grads)
            else:
                optimizer.zero_grad()
                forward(x, y).backward()
                if unscale:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
            scaler.update()
            history.append((scaler.get_scale(), weights(model)))
        histories.append(history)
        if style == "grads":
            assert all(p.grad is None for p in model.parameters())
    close(histories[0], histories[1], rtol=0, atol=0)
    assert [scale for scale, _ in histories[0]] == [256, 512, 256, 256, 512]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_grad_scaler_returns_unscaled_and_can_be_disabled():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    scaler = torch.cuda.amp.GradScaler(init_scale=4.0)
    scaler.scale(torch.ones(()))
    grads = tuple(torch.full_like(p, 4.0) for p in optimizer.parameters)
    unscaled = scaler.unscale(optimizer, grads)
    assert bool((unscaled[0] == 1).all()) and bool((grads[0] == 4).all())
    before = weights(model)
    scaler.step(optimizer, unscaled)
    close(model[0].bias.detach(), before[1] - 1)
    off = torch.cuda.amp.GradScaler(enabled=False)
    off.step(optimizer, tuple(torch.ones_like(p) for p in optimizer.parameters))
    off.update()
    close(model[0].bias.detach(), before[1] - 2)


def test_mindspore_scalers():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    scaler = amp.StaticLossScaler(8.0)
    scaled = scaler.scale((x * 3).sum())
    scaled.backward()
    close(x.grad, torch.full((2,), 24.0))
    close(scaler.unscale((x.grad, x.grad.half())), (torch.full((2,), 3.0), torch.full((2,), 3.0).half()))
    assert scaler.adjust(torch.tensor(True)) is False
    dynamic = amp.DynamicLossScaler(64, 2, 2)
    for finite, expected in ((True, 64), (True, 128), (False, 64), (True, 64), (True, 128)):
        dynamic.adjust(amp.all_finite([torch.tensor([1.0 if finite else float("nan")]), x]))
        assert dynamic.scale_value.asnumpy() == expected
    assert amp.all_finite((x, x)).dtype is torch.bool and not amp.all_finite([x / 0])
    close(dynamic.scale([x.detach()])[0], x.detach() * 128)


# ----------------------------------------------------------------------------------------------------------------- ops


def test_clipping_as_mindspore_does():
    a, b = np.array([[3.0, -4.0]], np.float32), np.array([12.0, 0.5], np.float32)
    x, y, ms_x, ms_y = torch.tensor(a), torch.tensor(b), Tensor(a), Tensor(b)

    def same(ours, native):
        ours, native = (ours, native) if isinstance(ours, tuple) else ((ours,), (native,))
        for o, n in zip(ours, native):
            assert isinstance(o, torch.Tensor)
            np.testing.assert_allclose(o.asnumpy(), n.asnumpy(), rtol=1e-6)

    for limit in (1.0, 13.0, 100.0):
        same(ops.clip_by_global_norm((x, y), limit), ops.clip_by_global_norm((ms_x, ms_y), limit))
        same(ops.clip_by_norm((x, y), limit), ops.clip_by_norm((ms_x, ms_y), limit))
        same(ops.clip_by_norm(x, limit), ops.clip_by_norm(ms_x, limit))
    same(ops.clip_by_value(x, -1.0, 2.0), ops.clip_by_value(ms_x, -1.0, 2.0))
    same(ops.clip_by_value([x, y], 1.0), ops.clip_by_value([ms_x, ms_y], 1.0))
    same(ops.clip_by_value(x, torch.tensor(0.0), None), ops.clip_by_value(ms_x, 0.0))
    total = torch.nn.utils.get_total_norm([x, y])
    close(ops.clip_by_global_norm([x, y], 1.0)[0], x / total)
    close(ops.clip_by_global_norm([x.half()], 1.0)[0], (x / 5).half(), rtol=1e-3, atol=1e-4)
    for call in (
        lambda: ops.clip_by_global_norm((x,), 0.0),
        lambda: ops.clip_by_value(x),
        lambda: ops.clip_by_global_norm((x,), 1.0, 2.0),
    ):
        with pytest.raises(ValueError, match=r"expected|Expected"):
            call()
    with pytest.raises(RuntimeError, match="finite"):
        ops.clip_by_norm(x / 0, 1.0, error_if_nonfinite=True)
    with pytest.raises(TypeError, match="tuple or list"):
        ops.clip_by_global_norm(x, 1.0)


def test_small_ops():
    x = torch.ones(2, requires_grad=True)
    close(ops.ones_like(x), torch.ones(2))
    close(ops.zeros_like(x, dtype=mindspore.float16), torch.zeros(2, dtype=torch.float16))
    assert not ops.stop_gradient(x * 2).requires_grad
    assert ops.depend(x, x * 2) is x and ops.Depend()(x, None) is x
    optimizer = torch.optim.SGD([x], 0.5)
    loss = ops.depend(x.sum(), optimizer((torch.ones(2),)))
    assert loss.item() == 2 and x.tolist() == [0.5, 0.5]


def test_distributed_grad_reducer_in_one_process():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    reducer = ms_nn.DistributedGradReducer(optimizer.parameters)
    grads = tuple(torch.ones_like(p) for p in model.parameters())
    assert all(a is b for a, b in zip(reducer(grads), grads))
    with pytest.raises(ValueError, match="expected 4 gradients"):
        reducer(grads[:1])
    with pytest.raises(ValueError, match="degree"):
        ms_nn.DistributedGradReducer(optimizer.parameters, degree=0)
