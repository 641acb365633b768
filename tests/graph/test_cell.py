"""`msadapter.to_cell`, `msadapter export`: modules as Cells, against PyTorch on the CPU."""

import copy
import subprocess
import sys

import mindspore
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import msadapter
from msadapter.backend.tracing import CannotCapture
from tests.models import CASES, LeNet5, ResNet18, ViT
from tests.test_cli import command


@pytest.fixture(params=["graph", "pynative"])
def mode(request):
    mindspore.set_context(mode={"graph": mindspore.GRAPH_MODE, "pynative": mindspore.PYNATIVE_MODE}[request.param])
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


def ms(x):
    return mindspore.Tensor(x.detach().numpy())


def close(ours, reference, error=1e-5):
    ours, reference = ours.asnumpy(), reference.detach().numpy()
    assert ours.shape == reference.shape
    assert np.abs(ours - reference).max(initial=0) <= error * max(np.abs(reference).max(initial=0), 1e-6)


def check_gradients(module, cell, *inputs):
    """One call and its gradients; `module` is changed as a call changes it."""
    reference = module(*inputs)
    weights = torch.randn(reference.shape, generator=torch.Generator().manual_seed(1))
    (reference * weights).sum().backward()
    factors = ms(weights)

    def loss(*given):
        out = cell(*given)
        return (out * factors).sum(), out

    (_, out), gradients = mindspore.value_and_grad(loss, None, cell.trainable_params(), has_aux=True)(*map(ms, inputs))
    close(out, reference)
    parameters = dict(module.named_parameters())
    assert [p.name for p in cell.trainable_params()] == list(parameters)
    for p, g in zip(cell.trainable_params(), gradients):
        close(g, parameters[p.name].grad, 2e-5)


def build(name, train=False):
    torch.manual_seed(0)
    return CASES[name].build().train(train), CASES[name].batch(torch.Generator().manual_seed(0))[0]


# ------------------------------------------------------------------------------------------------- values and gradients


@pytest.mark.parametrize("name", ["lenet", "resnet18_small_images", "vit"])
def test_gradients_are_those_of_pytorch(name, mode):
    module, x = build(name)
    check_gradients(copy.deepcopy(module), msadapter.to_cell(module, x), x)


def test_a_second_use_in_jit():
    module, x = build("lenet")
    cell = msadapter.to_cell(module, x)

    @mindspore.jit
    def run(y):
        return cell(y)

    close(run(ms(x)), module(x))
    close(run(ms(2 * x)), module(2 * x))


def test_training_mode_updates_the_running_statistics(mode):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    x, state = torch.randn(2, 3, 8, 8), copy.deepcopy(module.state_dict())
    cell, reference = msadapter.to_cell(module, x), copy.deepcopy(module)
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    assert [p.name for p in cell.get_parameters()] == [*dict(module.named_parameters()), *dict(module.named_buffers())]
    check_gradients(reference, cell, x)
    assert cell.to_module() is module
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value)


def test_evaluation_mode_leaves_them(mode):
    module, x = nn.BatchNorm1d(3).eval(), torch.randn(4, 3)
    cell = msadapter.to_cell(module, x)
    close(cell(ms(x)), module(x))
    assert (cell.parameters_dict()["running_mean"].asnumpy() == 0).all()


def test_dropout_in_training_mode_draws_each_time_anew(mode):
    module, x = nn.Sequential(nn.Dropout(0.25)), torch.ones(100, 100)
    cell = msadapter.to_cell(module, x)

    def total(y):
        out = cell(y)
        return out.sum(), out

    (_, a), gradient = mindspore.value_and_grad(total, has_aux=True)(ms(x))
    assert np.unique(a.asnumpy()) == pytest.approx([0, 4 / 3])
    assert (a.asnumpy() == gradient.asnumpy()).all()  # the same mask in both directions
    assert (cell(ms(x)).asnumpy() != cell(ms(x)).asnumpy()).any()
    assert (a.asnumpy() == 0).mean() == pytest.approx(0.25, abs=0.03)


class Pair(nn.Module):
    """Two inputs, one of integers; three results, one a view, one an input; a buffer out of state_dict; tied weights."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, tokens, x):
        y = self.embedding(tokens) * self.scale + x
        return self.head(y).transpose(0, 1), {"first": y[:, 0], "tokens": tokens}


def test_results_inputs_and_weights_of_all_kinds(mode):
    torch.manual_seed(0)
    module, tokens, x = Pair(), torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.randn(2, 3, 4)
    cell = msadapter.to_cell(module, tokens, x)
    out, rest = module(tokens, x)
    for ours, reference in zip(cell(ms(tokens), ms(x)), [out, *rest.values()], strict=True):
        close(ours, reference)
    (out.sum() + rest["first"].square().sum()).backward()

    def loss(t, y):
        a, b, _ = cell(t, y)
        return a.sum() + b.square().sum()

    gradients = mindspore.grad(loss, 1, cell.trainable_params())(ms(tokens), ms(x))[1]
    assert [p.name for p in cell.trainable_params()] == ["unused", "embedding.weight"]
    close(gradients[1], module.embedding.weight.grad)
    assert not gradients[0].asnumpy().any()


class Twice(nn.Module):
    """Results that are one tensor, or an input."""

    def forward(self, x):
        y = F.relu(x)
        return x, y, y, y.view(-1)


def test_results_that_are_one_tensor(mode):
    x, module = torch.randn(2, 3, requires_grad=True), Twice()
    cell = msadapter.to_cell(module, x)
    weights = [1.0, 10.0, 100.0, 1000.0]
    sum(w * y.sum() for w, y in zip(weights, module(x))).backward()

    def loss(y):
        a, b, c, d = cell(y)
        return a.sum() + 10 * b.sum() + 100 * c.sum() + 1000 * d.sum()

    close(mindspore.grad(loss)(ms(x)), x.grad)


class Attribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = torch.tensor([1.0, 0.0, 2.0], device="mindspore")

    def forward(self, x, y):
        return x * self.mask - y


def test_tensors_on_the_device():
    """One tensor as two inputs, a view of another as an input, a tensor that is an attribute."""
    x = torch.randn(4, 3).to("mindspore")[1:3]
    cell = msadapter.to_cell(Attribute(), x, x)
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    close(cell(ms(a), ms(b)), a * torch.tensor([1.0, 0.0, 2.0]) - b)
    cell = msadapter.to_cell(nn.Flatten(), x.T)
    close(cell(ms(a.T.contiguous())), a.T)


def test_a_module_on_the_device():
    module, x = build("mlp")
    ours = copy.deepcopy(module).to("mindspore")
    cell = msadapter.to_cell(ours, x.to("mindspore"))
    close(cell(ms(x)), module(x))
    cell.trainable_params()[0].set_data(mindspore.ops.zeros_like(cell.trainable_params()[0]))
    assert not next(cell.to_module().parameters()).cpu().any()


def test_autocast_is_recorded():
    module, x = build("mlp")
    with torch.autocast("mindspore", torch.bfloat16):
        cell = msadapter.to_cell(module, x)
    assert cell(ms(x)).dtype == mindspore.bfloat16
    assert all(p.dtype == mindspore.float32 for p in cell.get_parameters())


def test_amp_levels(mode):
    module, x = build("mlp")
    cell = mindspore.amp.auto_mixed_precision(msadapter.to_cell(module, x), "auto")
    out, reference = cell(ms(x)).asnumpy(), module(x).detach().numpy()
    assert 1e-6 < np.abs(out - reference).max() < 1e-2  # computed in float16
    (gradient, *_) = mindspore.grad(total_of(cell), None, cell.trainable_params())(ms(x))
    module(x).sum().backward()
    close(gradient, next(module.parameters()).grad, 1e-2)
    for level in ("O2", "O3"):
        with pytest.raises(ValueError, match="amp level 'auto', or call to_cell under torch.autocast"):
            mindspore.amp.auto_mixed_precision(msadapter.to_cell(module, x), level)


def total_of(cell):
    def total(x):
        return cell(x).sum()

    return total


# ------------------------------------------------------------------------------------------------------------- training


def test_training_steps_are_those_of_pytorch(mode):
    torch.manual_seed(0)
    module = LeNet5()
    reference, x, labels = copy.deepcopy(module), torch.randn(20, 8, 1, 28, 28), torch.randint(0, 10, (20, 8))
    cell = msadapter.to_cell(module, x[0])
    sgd = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    ours = mindspore.nn.SGD(cell.trainable_params(), learning_rate=0.05, momentum=0.9)
    criterion = mindspore.nn.CrossEntropyLoss()

    def loss(images, targets):
        return criterion(cell(images), targets)

    step = mindspore.value_and_grad(loss, None, cell.trainable_params())
    for images, targets in zip(x, labels):
        sgd.zero_grad()
        expected = F.cross_entropy(reference(images), targets)
        expected.backward()
        sgd.step()
        value, gradients = step(ms(images), ms(targets.int()))
        ours(gradients)
        assert float(value.asnumpy()) == pytest.approx(expected.item(), rel=1e-4)
    assert cell.to_module() is module
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_model_train():
    module, x = build("resnet18_small_images", train=True)
    cell = msadapter.to_cell(module, x)
    images, labels = np.concatenate([x.numpy()] * 3), np.arange(3 * len(x)).astype(np.int32) % 10
    data = mindspore.dataset.NumpySlicesDataset((images, labels), shuffle=False).batch(len(x))
    before = module.fc.weight.clone()
    model = mindspore.train.Model(cell, mindspore.nn.CrossEntropyLoss(), mindspore.nn.Adam(cell.trainable_params(), 1e-3))
    model.train(1, data, dataset_sink_mode=False)
    cell.to_module()
    assert not torch.equal(module.fc.weight, before)
    assert module.stem[1].num_batches_tracked == 3


# -------------------------------------------------------------------------------------------------------- any batch size


@pytest.mark.parametrize(
    "name", ["lenet", "vit", *(pytest.param(x, marks=pytest.mark.slow) for x in ("resnet18_small_images", "lstm_lm", "unet"))]
)
def test_dynamic_batch(name):
    module, x = build(name)
    cell = msadapter.to_cell(module, x, dynamic_batch=True)
    for n in (1, 3):
        given = torch.cat([x] * 3)[:n]
        reference, out = module(given), cell(ms(given))
        first = isinstance(reference, tuple)
        close(out[0] if first else out, reference[0] if first else reference)
    if name == "lenet":
        check_gradients(module, cell, torch.cat([x] * 3)[:3])


class Other(nn.Module):
    def forward(self, x):
        return x * len(x) if len(x) < 6 else x + 1


class Mean(nn.Module):
    def forward(self, x):
        return x - x.mean(0) + torch.arange(len(x), device=x.device)[:, None] ** 2


@pytest.mark.parametrize("module", [Other(), Mean(), nn.BatchNorm1d(3)], ids=lambda m: type(m).__name__)
def test_a_batch_that_changes_what_is_done(module):
    with pytest.raises(CannotCapture, match=r"for every batch size.*aten::\w+"):
        msadapter.to_cell(module, torch.randn(4, 3), dynamic_batch=True)


def test_dynamic_batch_needs_one():
    with pytest.raises(ValueError, match=r"first dimension is the batch; received shapes \(2, 3\), \(4,\)"):
        msadapter.to_cell(nn.Bilinear(3, 4, 2), torch.randn(2, 3), torch.randn(4), dynamic_batch=True)


# --------------------------------------------------------------------------------------------------------------- errors


class Depends(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Host(nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(x @ x.T).real


class Chosen(nn.Module):
    def forward(self, x):
        return x[x > 0]


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


@pytest.mark.parametrize(
    "module, words",
    [
        (Depends(), r"takes a number from the device \(test_cell.py:\d+"),
        (Host(), "(?i)test_cell.py|host|values"),
        (Chosen(), "depends on"),
        (Noise(), r"draws random numbers on the host \(test_cell.py:\d+, aten::randn_like\)"),
        (nn.Dropout2d(0.5).train(), "module.eval"),
    ],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_graph(module, words):
    with pytest.raises(CannotCapture, match=words):
        msadapter.to_cell(module, torch.randn(4, 3) if "2d" not in type(module).__name__ else torch.randn(1, 2, 3, 3))


def test_wrong_calls():
    with pytest.raises(TypeError, match="Expected a torch.nn.Module; received function"):
        msadapter.to_cell(lambda x: x, torch.ones(1))
    with pytest.raises(TypeError, match="at least one example input"):
        msadapter.to_cell(nn.Linear(3, 2))
    with pytest.raises(TypeError, match="input 0 is a ndarray"):
        msadapter.to_cell(nn.Linear(3, 2), np.ones((1, 3)))


def test_wrong_inputs_of_a_cell(mode):
    cell = msadapter.to_cell(nn.Linear(3, 2), torch.ones(4, 3))
    for wrong in (np.ones((4, 3)), np.ones((5, 3), np.float32), np.ones(3, np.float32)):
        with pytest.raises(ValueError, match=r"Expected input 0 as float32\(4, 3\)"):
            cell(mindspore.Tensor(wrong))


# --------------------------------------------------------------------------------------------------------------- export

PLAIN = """
import sys, numpy, mindspore
net = mindspore.nn.GraphCell(mindspore.load(sys.argv[1]))
for i in range(2, len(sys.argv)):
    numpy.save(sys.argv[i] + ".out.npy", net(mindspore.Tensor(numpy.load(sys.argv[i]))).asnumpy())
assert not {"torch", "msadapter"} & set(sys.modules)
"""


def plain(path, inputs, folder):
    """What MindSpore alone makes of a MINDIR file."""
    names = [str(folder / f"{i}.npy") for i in range(len(inputs))]
    for name, x in zip(names, inputs):
        np.save(name, x.numpy())
    done = subprocess.run([sys.executable, "-c", PLAIN, str(path), *names], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [torch.from_numpy(np.load(name + ".out.npy")) for name in names]


MODELS = """
import torch
from tests.models import ResNet18, ViT
def resnet():
    torch.manual_seed(0)
    return ResNet18(10, width=16)
def vit():
    torch.manual_seed(0)
    return ViT(size=32, patch=8, classes=10, width=32, heads=4, layers=3)
"""


@pytest.mark.parametrize("name, size, dynamic", [("resnet", 64, True), ("vit", 32, True), ("vit", 32, False)])
def test_exported_files_need_only_mindspore(name, size, dynamic, tmp_path):
    (tmp_path / "exported.py").write_text(MODELS)
    options = ["--dynamic-batch"] if dynamic else []
    done = command("export", f"exported:{name}", "--input", f"1,3,{size},{size}", *options, "-o", "m.mindir", cwd=tmp_path,
                   env={"PYTHONPATH": ":".join(sys.path)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("__")) == ["exported.py", "m.mindir"]
    torch.manual_seed(0)
    make = {"resnet": lambda: ResNet18(10, width=16), "vit": lambda: ViT(32, 8, 3, 10, 32, 4, 3)}
    module = make[name]().eval()
    inputs = [torch.randn(n, 3, size, size) for n in ([1, 4] if dynamic else [1])]
    for x, ours in zip(inputs, plain(tmp_path / "m.mindir", inputs, tmp_path)):
        reference = module(x).detach()
        assert (ours - reference).abs().max() <= 1e-5 * reference.abs().max()


def test_exporting_a_saved_module(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 2))
    torch.save(module, tmp_path / "m.pt")
    arguments = ["export", "m.pt", "--input=2,3", "--input-dtype", "int64", "--output", "m.mindir"]
    refused = command(*arguments, cwd=tmp_path)
    assert refused.returncode == 2 and "--trust" in refused.stderr
    assert command(*arguments, "--trust", cwd=tmp_path).returncode == 0
    tokens = torch.tensor([[1, 2, 3], [6, 7, 8]])
    torch.testing.assert_close(plain(tmp_path / "m.mindir", [tokens], tmp_path)[0], module.eval()(tokens).detach())


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "received none"),
        (["torch.nn:Identity"], "expected -o FILE.mindir"),
        (["torch.nn:Identity", "-o", "x.bin"], "expected -o FILE.mindir"),
        (["torch.nn:Identity", "-o", "x.mindir"], "the shape of each input"),
        (["torch.nn:Identity", "-o", "no/x.mindir", "--input", "1"], "can be written"),
        (["torch.nn:Identity", "-o", "x.mindir", "--input", "1,x"], "a shape like"),
        (["torch.nn:Identity", "-o", "x.mindir", "--input", "1", "--input-dtype", "float"], None),
        (["torch.nn:Identity", "-o", "x.mindir", "--input", "1", "--input-dtype", "nn"], "torch.dtype"),
        (["torch.nn:Nothing", "-o", "x.mindir", "--input", "1"], "has no 'Nothing'"),
        (["nothing_here:x", "-o", "x.mindir", "--input", "1"], "no module named"),
        (["torch.nn:Linear", "-o", "x.mindir", "--input", "1"], "without arguments"),
        (["torch:ones", "-o", "x.mindir", "--input", "1"], "torch"),
        (["torch.nn:Identity", "--what"], "unknown option '--what'"),
        (["missing.pt", "-o", "x.mindir", "--input", "1"], "no file"),
    ],
)
def test_wrong_exports(arguments, words, tmp_path, monkeypatch, capsys):
    from msadapter.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code = main(["export", *arguments])
    assert code == (0 if words is None else 2)
    assert words is None or words in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".mindir"] == []


def test_onnx_without_its_package(tmp_path, monkeypatch, capsys):
    import importlib.util

    from msadapter.cli import main

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "onnx" else find(name, *a))
    assert main(["export", "torch.nn:Identity", "--input", "1", "-o", str(tmp_path / "x.onnx")]) == 2
    assert "pip install onnx" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
