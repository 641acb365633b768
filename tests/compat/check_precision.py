"""auto_mixed_precision on torch modules: what is computed in which type, and that it trains."""

import copy
import pickle

import msadapter.pytorch as torch

import mindspore  # isort: skip
import pytest
from mindspore import amp

from msadapter.pytorch import nn

close = torch.testing.assert_close
HALF, FLOAT = torch.float16, torch.float32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.table = nn.Embedding(10, 36 * 4)
        self.head = nn.Linear(144, 3)
        self.register_buffer("shift", torch.full((144,), 0.5))
        self.register_buffer("calls", torch.zeros(()))
        self.dtypes = {}
        for name, module in self.named_children():
            module.register_forward_hook(
                lambda m, i, o, name=name: self.dtypes.__setitem__(name, (i[0].dtype, m.weight.dtype, o.dtype))
            )

    def forward(self, x, index):
        self.calls += 1
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        x = x + self.table(index) + self.shift
        self.dtypes["sum"] = x.dtype
        self.dtypes["functional"] = (x @ self.head.weight.t()).dtype
        return self.head(x)


def make(device="mindspore"):
    with torch.device(device):
        torch.manual_seed(0)
        net = Net()
        return net, torch.randn(6, 1, 8, 8), torch.arange(6)


# what goes into a module, its weight inside, and what comes out (the hook sees it before it is cast further)
EXPECTED = {
    "O0": {"conv": (FLOAT, FLOAT, FLOAT), "norm": (FLOAT, FLOAT, FLOAT), "sum": FLOAT, "functional": FLOAT},
    "O1": {"conv": (FLOAT, FLOAT, FLOAT), "norm": (FLOAT, FLOAT, FLOAT), "sum": FLOAT, "functional": FLOAT},
    "O2": {"conv": (HALF, HALF, HALF), "norm": (FLOAT, FLOAT, FLOAT), "sum": HALF, "functional": HALF, "head": (HALF,) * 3},
    "O3": {"conv": (HALF, HALF, HALF), "norm": (HALF, FLOAT, HALF), "sum": HALF, "functional": HALF, "head": (HALF,) * 3},
}  # fmt: skip


@pytest.mark.parametrize("device", ["mindspore", "cpu"])
@pytest.mark.parametrize("level", EXPECTED)
def test_levels(level, device):
    net, x, index = make(device)
    full = net(x, index).detach()
    keys = list(net.state_dict())
    mixed = amp.auto_mixed_precision(net, level)
    out = mixed(x, index)
    assert mixed is net and out.dtype is FLOAT
    assert {k: v for k, v in net.dtypes.items() if k in EXPECTED[level]} == EXPECTED[level]
    difference = (out.detach() - full).abs().max().item()
    assert (difference == 0) if level == "O0" else 1e-6 < difference < 2e-2  # rounded, and near
    out.sum().backward()
    for p in net.parameters():
        assert p.dtype is FLOAT and p.grad.dtype is FLOAT and p.grad.isfinite().all()
    assert list(net.state_dict()) == keys and isinstance(net.conv.weight, nn.Parameter)
    assert net.calls.item() == 2 and net.calls.dtype is FLOAT  # a buffer that forward changes
    assert net.norm.num_batches_tracked == 2 and net.norm.running_mean.dtype is FLOAT


def test_o1_rounds_what_the_white_list_computes():
    net = amp.auto_mixed_precision(nn.Linear(3, 2), "O1")
    x = torch.randn(4, 3)
    w, b = net.weight.detach(), net.bias.detach()
    close(net(x).detach(), nn.functional.linear(x.half(), w.half(), b.half()).float(), rtol=0, atol=0)
    with torch.no_grad():
        net.weight.fill_(1e6)  # out of float16's range
        assert net(x).isinf().any() or net(x).isnan().any()


def test_norms_stay_in_float32_at_o2():
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    for norm in (nn.LayerNorm(6), nn.BatchNorm1d(6)):
        model = amp.auto_mixed_precision(nn.Sequential(norm), "O2")
        norm.weight.data.fill_(1e-6)  # float16 would lose it
        out = model(x)
        assert out.dtype is FLOAT
        inside = norm(x.half().float()).half()
        close(out, inside.float(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, mindspore.bfloat16])
def test_bfloat16(dtype):
    net, x, index = make()
    amp.auto_mixed_precision(net, "O2", dtype)(x, index)
    assert net.dtypes["conv"] == (torch.bfloat16,) * 3


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent(kind, level):
    model = kind(3, 4, batch_first=True)
    flat = list(model._flat_weights)
    out = amp.auto_mixed_precision(model, level)(torch.randn(2, 5, 3))[0]
    out.sum().backward()
    assert out.dtype is FLOAT and model.weight_ih_l0.grad.dtype is FLOAT
    assert all(a is b for a, b in zip(model._flat_weights, flat))


def test_cells_of_the_white_list():
    recurrent = nn.LSTMCell(3, 4), nn.GRUCell(3, 4), nn.RNNCell(3, 4)
    for cell in (*recurrent, nn.Conv1d(3, 4, 1), nn.ConvTranspose2d(3, 4, 2)):
        x = {nn.Conv1d: (2, 3, 5), nn.ConvTranspose2d: (2, 3, 4, 4)}.get(type(cell), (2, 3))
        x = torch.randn(x)
        full = cell(x)
        mixed = amp.auto_mixed_precision(cell, "O1")(x)
        full, mixed = (v[0] if isinstance(v, tuple) else v for v in (full, mixed))
        assert mixed.dtype is FLOAT and 0 < (mixed - full).abs().max() < 1e-2, cell


def test_levels_replace_each_other_and_copies_work():
    net, x, index = make()
    for level in ("O2", "O3", "O1"):
        amp.auto_mixed_precision(net, level)
    with torch.no_grad():
        twin = copy.deepcopy(net)
        twin.head.weight.zero_(), twin.head.bias.zero_()
        assert twin(x, index).abs().sum() == 0 and net(x, index).abs().sum() > 0
    linear = amp.auto_mixed_precision(nn.Linear(2, 2), "O2")
    loaded = pickle.loads(pickle.dumps(linear))
    x = torch.randn(3, 2)
    close(loaded(x), linear(x))
    assert amp.auto_mixed_precision(linear, "O0")(x).dtype is FLOAT and "forward" not in linear.__dict__


def test_state_is_back_after_an_exception():
    net, x, index = make()
    amp.auto_mixed_precision(net, "O2")
    before = dict(net.named_parameters())
    with pytest.raises(RuntimeError):
        net(x[:, :, :3], index)
    assert all(p is before[n] for n, p in net.named_parameters()) and not net.head._forward_pre_hooks


def test_tied_weights():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    twin = copy.deepcopy(model)
    x = torch.randn(2, 3)
    amp.auto_mixed_precision(model, "O3")(x).sum().backward()
    twin(x).sum().backward()
    assert model[0].weight is model[1].weight
    close(model[0].weight.grad, twin[0].weight.grad, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_training_with_a_dynamic_scale(level):
    """Mixed precision, loss scale and the functional style together bring the loss near that of float32."""
    losses = {}
    for kind in ("O0", level):
        torch.manual_seed(0)
        model = amp.auto_mixed_precision(nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)), kind)
        x, y = torch.randn(64, 6), torch.randint(3, (64,))
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        scaler = amp.DynamicLossScaler(2**15, 2, 50)

        def forward(x, y, model=model, scaler=scaler):
            loss = nn.functional.cross_entropy(model(x).float(), y)
            return scaler.scale(loss), loss

        function = mindspore.value_and_grad(forward, None, optimizer.parameters, has_aux=True)
        for _ in range(30):
            (_, loss), grads = function(x, y)
            finite = amp.all_finite(grads)
            if finite:
                optimizer(scaler.unscale(grads))
            scaler.adjust(finite)
        losses[kind] = loss.item()
    assert losses["O0"] < 0.95 and abs(losses[level] - losses["O0"]) < 0.02


def test_errors():
    with pytest.raises(ValueError, match="O5"):
        amp.auto_mixed_precision(nn.Linear(2, 2), "O5")
    with pytest.raises(ValueError, match="float16 or bfloat16"):
        amp.auto_mixed_precision(nn.Linear(2, 2), "O1", torch.float32)
    with pytest.raises(TypeError, match="expected a Module"):
        amp.auto_mixed_precision(torch.ones(2), "O1")
