"""Saving and loading: both ways, with and without msadapter, ties kept."""

import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

DEVICE = "mindspore"


def saved(x):
    f = io.BytesIO()
    torch.save(x, f)
    f.seek(0)
    return f


def model():
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    m.add_module("tied", nn.Linear(3, 4))
    m.tied.weight = m[0].weight
    return m


@pytest.mark.parametrize("weights_only", [True, False])
def test_round_trip_comes_back_to_the_device(weights_only):
    m = model().to(DEVICE)
    loaded = torch.load(saved(m.state_dict()), weights_only=weights_only)
    for name, x in m.state_dict().items():
        assert loaded[name].device.type == DEVICE and torch.equal(loaded[name].cpu(), x.cpu())
    loaded["0.weight"].fill_(5)
    assert loaded["tied.weight"].eq(5).all()


@pytest.mark.parametrize("location", ["cpu", DEVICE, "mindspore:0", torch.device(DEVICE), {"cpu": DEVICE}])
def test_map_location(location):
    x = torch.arange(4.0)
    target = "cpu" if location == "cpu" else DEVICE
    for source in (x, x.to(DEVICE)):
        y = torch.load(saved([source, source[1:]]), map_location=location)
        assert y[0].device.type == target and torch.equal(y[0].cpu(), x)
        y[0].zero_()
        assert not y[1].any()


def test_views_and_shared_storages():
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    a, b, c = torch.load(saved([x, x.t(), x[1:]]))
    assert b.stride() == (1, 3) and c.storage_offset() == 3
    a.fill_(9)
    assert b.eq(9).all() and c.eq(9).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8])
def test_dtypes(dtype):
    x = torch.tensor([0, 1, 2], device=DEVICE).to(dtype)
    assert torch.equal(torch.load(saved(x)).cpu(), x.cpu())
    assert torch.equal(pickle.loads(pickle.dumps(x)).cpu(), x.cpu())


def test_parameters_optimizers_and_whole_modules():
    m = model().to(DEVICE)
    optimizer = torch.optim.Adam(m.parameters())
    m(torch.randn(5, 3, device=DEVICE)).sum().backward()
    optimizer.step()
    checkpoint = torch.load(saved({"model": m.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}))
    other = model().to(DEVICE)
    again = torch.optim.Adam(other.parameters())
    other.load_state_dict(checkpoint["model"])
    again.load_state_dict(checkpoint["optimizer"])
    for p, q in zip(m.parameters(), other.parameters()):
        assert torch.equal(p.detach().cpu(), q.detach().cpu())
        assert torch.equal(optimizer.state[p]["exp_avg"].cpu(), again.state[q]["exp_avg"].cpu())
        assert again.state[q]["exp_avg"].device.type == DEVICE
    whole = torch.load(saved(m), weights_only=False)
    assert isinstance(whole[0].weight, nn.Parameter) and whole.tied.weight is whole[0].weight


def test_a_pytorch_without_msadapter_opens_the_file(tmp_path):
    m = model().to(DEVICE)
    torch.save(m.state_dict(), tmp_path / "model.pt")
    code = (
        "import torch, sys; s = torch.load(sys.argv[1], weights_only=True); "
        "assert 'msadapter' not in sys.modules and s['0.weight'].device.type == 'cpu'; "
        "s['0.weight'].fill_(2); assert s['tied.weight'].eq(2).all(); "
        "torch.save({'x': torch.arange(3.)}, sys.argv[2]); print(float(s['2.bias'].sum()))"
    )
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "model.pt", tmp_path / "plain.pt"],
        env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) == pytest.approx(m[2].bias.sum().item(), rel=1e-6)
    assert torch.load(tmp_path / "plain.pt")["x"].device.type == "cpu"
    assert torch.load(tmp_path / "plain.pt", map_location=DEVICE)["x"].tolist() == [0, 1, 2]


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    m = model().to(DEVICE)
    safetensors.save_model(m, tmp_path / "m.safetensors")  # finds the tied pair, or refuses
    other = model().to(DEVICE)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    safetensors.load_model(other, tmp_path / "m.safetensors")
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(m.state_dict().values(), other.state_dict().values()))
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    safetensors.save_file({"x": x, "y": x.clone()}, tmp_path / "x.safetensors")
    assert safetensors.load_file(tmp_path / "x.safetensors", device=DEVICE)["x"].device.type == DEVICE
    with pytest.raises(RuntimeError, match="share"):
        safetensors.save_file({"x": x, "y": x}, tmp_path / "z.safetensors")


def test_a_truncated_file_raises(tmp_path):
    torch.save(model().to(DEVICE).state_dict(), tmp_path / "model.pt")
    data = (tmp_path / "model.pt").read_bytes()
    (tmp_path / "short.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(Exception) as expected:
        torch.load(tmp_path / "short.pt", map_location="cpu")
    with pytest.raises(type(expected.value)):
        torch.load(tmp_path / "short.pt")
    with pytest.raises(RuntimeError, match="device 0"):
        torch.load(tmp_path / "model.pt", map_location="mindspore:1")


def _double(queue, x, module):
    queue.put((x * 2, module(torch.ones(1, 2, device=DEVICE)).detach()))
    queue.close()
    queue.join_thread()


def test_between_processes():
    import torch.multiprocessing as mp

    spawn = mp.get_context("spawn")
    queue = spawn.Queue()
    queue.put(torch.arange(3.0, device=DEVICE))
    assert queue.get(timeout=60).tolist() == [0, 1, 2]
    module = nn.Linear(2, 1).to(DEVICE)
    child = spawn.Process(target=_double, args=(queue, torch.arange(3.0, device=DEVICE), module))
    child.start()
    doubled, y = queue.get(timeout=120)
    child.join(60)
    assert child.exitcode == 0 and doubled.tolist() == [0, 2, 4] and doubled.device.type == DEVICE
    assert torch.equal(y.cpu(), module(torch.ones(1, 2, device=DEVICE)).detach().cpu())


def test_storages_do_not_crash():
    s = torch.UntypedStorage(4, device=DEVICE)
    assert s.nbytes() == 4 and s.tolist() == [0, 0, 0, 0]
    x = torch.arange(3.0, device=DEVICE)
    clone = x.untyped_storage().clone()
    assert clone.device.type == DEVICE and clone.tolist() == x.cpu().untyped_storage().tolist()
    assert x.untyped_storage().cpu().device.type == "cpu"
    x.untyped_storage().fill_(0)
    assert x.tolist() == [0, 0, 0]
    x.untyped_storage().resize_(4)
    assert x.untyped_storage().nbytes() == 4
    y = torch.arange(3.0, device=DEVICE)
    y.untyped_storage().copy_(torch.ones(3).untyped_storage())
    assert y.tolist() == [1, 1, 1]
