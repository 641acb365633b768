"""What a CUDA user does with one device."""

import copy
import gc
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "mindspore"


def same(program, **tolerance):
    expected, got = program("cpu"), program(DEVICE)
    torch.testing.assert_close(got, expected, check_device=False, **tolerance)


# ----------------------------------------------------------------------------------------------- factories and printing

FACTORIES = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "ones int": lambda d: torch.ones(2, dtype=torch.int64, device=d),
    "full": lambda d: torch.full((2,), 3.5, device=d),
    "arange": lambda d: torch.arange(1, 10, 2, device=d),
    "arange float": lambda d: torch.arange(0, 1, 0.1, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 7, device=d),
    "eye": lambda d: torch.eye(3, 4, device=d),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "as_tensor": lambda d: torch.as_tensor(np.arange(3.0), device=d),
    "scalar": lambda d: torch.tensor(2.5, device=d),
    "empty": lambda d: torch.empty(0, 3, device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
    "new_full": lambda d: torch.ones(2, device=d).new_full((3,), 7),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2, 2, device=d), dtype=torch.float64),
    "bool": lambda d: torch.tensor([True, False], device=d),
    "bfloat16": lambda d: torch.ones(2, dtype=torch.bfloat16, device=d) * 1.5,
    "float16": lambda d: torch.ones(2, dtype=torch.float16, device=d) * 1.5,
    "complex": lambda d: torch.ones(2, dtype=torch.complex64, device=d) * 1j,
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factory(name):
    same(FACTORIES[name], rtol=0, atol=0)
    assert FACTORIES[name](DEVICE).device == torch.device(DEVICE, 0)


def test_printing():
    assert repr(torch.tensor([1.0, 2.0], device=DEVICE)) == "tensor([1., 2.], device='mindspore:0')"
    assert f"{torch.tensor(1.5, device=DEVICE):.2f}" == "1.50"
    assert repr(nn.Parameter(torch.ones(1, device=DEVICE))) == (
        "Parameter containing:\ntensor([1.], device='mindspore:0', requires_grad=True)"
    )


def test_movement():
    x = torch.arange(3.0)
    for y in (x.to(DEVICE), x.mindspore(), x.to(torch.device(DEVICE, 0)), x.to("cpu").to(DEVICE, torch.float32)):
        assert y.is_mindspore and y.device == torch.device("mindspore:0") and type(y) is torch.Tensor
    assert x.to(DEVICE, torch.float64).dtype == torch.float64
    y = x.to(DEVICE)
    assert y.to(DEVICE) is y
    assert torch.equal(y.cpu(), x) and isinstance(y.cpu().numpy(), np.ndarray)
    with pytest.raises(TypeError, match="Use Tensor.cpu"):
        y.numpy()


def test_host_meets_device_is_the_error_of_cuda():
    x, h = torch.ones(3, device=DEVICE), torch.ones(3)
    for call in (lambda: x + h, lambda: h * x, lambda: torch.cat([x, h]), lambda: torch.where(x > 0, x, h), lambda: x.add_(h)):
        with pytest.raises(RuntimeError, match="same device"):
            call()
    with pytest.raises(RuntimeError):
        nn.Linear(3, 2).to(DEVICE)(h)
    assert (x + torch.tensor(2.0)).tolist() == [3, 3, 3]  # 0-dim host tensors are scalars


def test_bad_devices_and_types():
    with pytest.raises(RuntimeError, match="ordinal"):
        torch.ones(2, device="mindspore:1")
    with pytest.raises(TypeError, match="Expected a dtype"):
        torch.ones(2).to(torch.float8_e4m3fn).to(DEVICE)
    for export in (torch.utils.dlpack.to_dlpack, np.from_dlpack, lambda x: x.__dlpack__()):
        with pytest.raises(BufferError, match="host tensor"):
            export(torch.ones(2, device=DEVICE))


# ------------------------------------------------------------------------------------------------- modules and optimizers


def test_module_to_keeps_parameter_identity():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    names = {n: p for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    model.to(DEVICE)
    assert all(p is names[n] and p.device.type == DEVICE for n, p in model.named_parameters())
    before = model[0].weight.detach().cpu()
    model(torch.randn(4, 2, device=DEVICE)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight.detach().cpu(), before)
    model.cpu()
    assert all(p is names[n] and p.device.type == "cpu" and p.grad.device.type == "cpu" for n, p in model.named_parameters())


def test_module_to_keeps_hooks_and_attributes():
    import weakref

    m = nn.Linear(2, 1)
    m.weight._no_weight_decay = True
    calls = []
    m.weight.register_hook(lambda g: g * 2)
    m.weight.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.device.type))
    alive = weakref.ref(m.weight)
    for device in (DEVICE, "cpu", DEVICE):
        m.to(device)
        m.weight.grad = None
        m(torch.ones(1, 2, device=device)).sum().backward()
        assert m.weight.grad.tolist() == [[2, 2]] and m.weight._no_weight_decay and alive() is m.weight
        assert calls.pop() == device and not calls


def test_tied_weights_stay_tied():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[1].weight = model[0].weight
    model.to(DEVICE)
    assert model[1].weight is model[0].weight
    twin = copy.deepcopy(model)
    assert twin[1].weight is twin[0].weight and twin[0].weight is not model[0].weight


def test_deepcopy_and_copy():
    x = torch.arange(6.0, device=DEVICE).requires_grad_()
    y = copy.deepcopy(x)
    assert y.requires_grad and torch.equal(y.cpu(), x.cpu())
    with torch.no_grad():
        y.add_(1)
    assert x[0].item() == 0
    base = torch.arange(4.0, device=DEVICE)
    a, b = copy.deepcopy([base, base[1:]])
    a.fill_(7)
    assert b.tolist() == [7, 7, 7]  # storages shared before the copy are shared after it
    assert copy.copy(base).data_ptr() == base.data_ptr()


def test_identity_for_tied_weight_detection():
    x = torch.ones(4, device=DEVICE)
    y = torch.ones(4, device=DEVICE)
    assert x.data_ptr() == x.view(2, 2).data_ptr() != y.data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 4
    assert x.untyped_storage().data_ptr() == x[2:].untyped_storage().data_ptr() != 0
    assert x.untyped_storage().nbytes() == 16


def test_scaler_and_clip():
    def program(d):
        torch.manual_seed(0)
        model = nn.Linear(4, 3).to(d)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler(d, init_scale=2.0**10)
        scales = []
        for i in range(4):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4, device=d) * (float("inf") if i == 2 else 1)).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return model.weight.detach(), torch.tensor(scales)

    if not torch.amp.GradScaler("cpu").is_enabled():
        pytest.skip("this torch has no GradScaler on CPU to compare with")
    same(program)


# ---------------------------------------------------------------------------------------------------------------- autograd


def test_autograd_function_hooks_and_double_backward():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 3 * x**2

    def program(d):
        x = torch.arange(3.0, device=d).requires_grad_()
        x.register_hook(lambda g: g * 2)
        (g,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        return g.detach(), h

    same(program)


def test_checkpointing_repeats_the_dropout_mask():
    from torch.utils.checkpoint import checkpoint

    def program(d, reentrant):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to(d)
        x = torch.randn(4, 8).to(d).requires_grad_()
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        return x.grad

    for reentrant in (False, True):
        same(lambda d, r=reentrant: program(d, r))


FUNCTIONAL = {
    "grad": lambda d: torch.func.grad(lambda x: (x**2).sum())(torch.arange(3.0).to(d)),
    "vmap": lambda d: torch.func.vmap(lambda x: x * 2 + x.sum())(torch.arange(6.0).view(2, 3).to(d)),
    "jvp": lambda d: torch.func.jvp(torch.sin, (torch.arange(3.0).to(d),), (torch.ones(3).to(d),)),
    "jacrev": lambda d: torch.func.jacrev(torch.sin)(torch.arange(3.0).to(d)),
    "per-sample grad": lambda d: torch.func.vmap(torch.func.grad(lambda w, x: (w * x).sin().sum()), (None, 0))(
        torch.ones(3).to(d), torch.arange(6.0).view(2, 3).to(d)
    ),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional(name):
    same(FUNCTIONAL[name])


def test_threads():
    results = []

    def work(k):
        x = torch.full((3,), float(k), device=DEVICE).requires_grad_()
        for _ in range(20):
            x.grad = None
            (x * x).sum().backward()
        results.append((k, x.grad.tolist()))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert sorted(results) == [(k, [2.0 * k] * 3) for k in range(4)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    def program(d):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(d)
        x = torch.randn(3, 4).to(d)
        with torch.autocast(d, dtype=dtype):
            y = model(x)
            loss = nn.functional.cross_entropy(y, torch.tensor([0, 1, 1], device=d))
            both = torch.cat([y, x[:, :2]])
        assert y.dtype == dtype and loss.dtype == torch.float32 and both.dtype == torch.float32
        loss.backward()
        return y.detach(), loss.detach(), model[0].weight.grad

    same(program, rtol=2e-2, atol=2**-8)  # one bfloat16 unit in the last place of values near 1


# -------------------------------------------------------------------------------------------------------------- the module


def test_module_functions():
    m = torch.mindspore
    assert m.is_available() and m.device_count() == 1 and m.current_device() == 0
    assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == DEVICE
    assert "MindSpore" in m.get_device_name()
    m.synchronize(), torch.accelerator.synchronize(), m.empty_cache()
    assert m.memory_allocated() > 0 and m.max_memory_allocated() >= m.memory_allocated() // 2
    assert torch.accelerator.memory_allocated() > 0
    start, end = m.Event(enable_timing=True), m.Event(enable_timing=True)
    start.record()
    torch.ones(10, device=DEVICE).sum().item()
    end.record()
    assert start.elapsed_time(end) > 0 and end.query()
    with m.stream(m.Stream()), m.device(0):
        assert torch.ones(1, device=DEVICE).item() == 1
    with pytest.raises(RuntimeError, match="ordinal"):
        m.set_device(3)


def test_default_device():
    torch.set_default_device(DEVICE)
    try:
        assert torch.ones(2).device.type == DEVICE and nn.Linear(2, 2).weight.device.type == DEVICE
        assert torch.from_numpy(np.ones(2)).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    with torch.device(DEVICE):
        assert torch.arange(3).device.type == DEVICE


def test_random_numbers_are_those_of_the_cpu():
    def program(d):
        torch.manual_seed(7)
        g = torch.Generator(device=d).manual_seed(3)
        return (
            torch.rand(5, device=d),
            torch.randn(33, device=d),
            torch.randint(0, 100, (7,), device=d),
            torch.randperm(9, device=d),
            torch.bernoulli(torch.full((6,), 0.3, device=d)),
            torch.multinomial(torch.tensor([0.1, 0.2, 0.7], device=d), 5, replacement=True),
            torch.randn(4, generator=g, device=d),
            nn.functional.dropout(torch.ones(20, device=d), 0.4),
            torch.empty(4, device=d).uniform_(-1, 1),
            torch.empty(4, device=d).exponential_(),
            torch.normal(torch.zeros(3, device=d), torch.ones(3, device=d)),
            torch.randn(4, 6, device=d).t().contiguous(),
            nn.init.xavier_uniform_(torch.empty(3, 5, device=d)),
        )

    same(program, rtol=0, atol=0)


def test_rng_state():
    torch.manual_seed(0)
    state = torch.mindspore.get_rng_state()
    a = torch.rand(3, device=DEVICE)
    torch.mindspore.set_rng_state(state)
    assert torch.equal(torch.rand(3, device=DEVICE).cpu(), a.cpu())
    with torch.random.fork_rng(devices=[0], device_type=DEVICE):
        torch.rand(3, device=DEVICE)
    assert isinstance(torch.default_generator, torch.Generator)


# ------------------------------------------------------------------------------------------------------------- data loading


def test_dataloader_with_workers_and_pinning():
    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)
    assert [b[0].to(DEVICE, non_blocking=True).sum().item() for b in loader] == [6, 22]


def test_device_tensors_in_workers_raise_and_do_not_hang():
    torch.ones(2, device=DEVICE).add_(1)  # MindSpore runs before the fork
    loader = DataLoader(TensorDataset(torch.arange(8.0, device=DEVICE)), batch_size=4, num_workers=1, timeout=60)
    with pytest.raises(RuntimeError, match="forked|fork"):
        list(loader)
    assert [b[0].sum().item() for b in DataLoader(TensorDataset(torch.arange(8.0, device=DEVICE)), batch_size=4)] == [6, 22]


# ------------------------------------------------------------------------------------------------------------------ memory


def test_memory_goes_with_the_tensor():
    def resident():
        gc.collect()
        return torch.mindspore.memory_allocated()

    keep = torch.ones(1, device=DEVICE)
    before = resident()
    for _ in range(30):
        x = torch.ones(1 << 20, device=DEVICE)
        x = (x * 2)[1:]
        del x
    assert resident() - before < 40e6 and keep.item() == 1


@pytest.mark.parametrize("build", [lambda: nn.Linear(8, 4), lambda: nn.Conv2d(3, 8, 3), lambda: nn.LayerNorm(8)])
def test_layers_in_several_threads(build):
    """MindSpore's kernels crash or mix values when threads run them at once: the device runs one at a time."""
    layer = build().to(DEVICE)
    inputs = [torch.randn(2, 3, 8, 8).to(DEVICE) for _ in range(4)]
    expected = [layer(x).detach().cpu() for x in inputs]
    wrong = []

    def work(i):
        for _ in range(40):
            if not torch.allclose(layer(inputs[i]).detach().cpu(), expected[i], atol=1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not wrong and not any(t.is_alive() for t in threads)
