"""Views alias their base, in-place ops write through, autograd sees it all: every program runs on both devices."""

import pytest
import torch

DEVICE = "mindspore"


def both(program):
    """Run program(device) on CPU and on the device; the tensors it returns must agree in every respect."""
    expected, got = program("cpu"), program(DEVICE)
    expected, got = (r if isinstance(r, (tuple, list)) else (r,) for r in (expected, got))
    for e, g in zip(expected, got, strict=True):
        assert g.device.type == DEVICE
        torch.testing.assert_close(g.cpu(), e, rtol=0, atol=0)
        assert g.stride() == e.stride() and g.storage_offset() == e.storage_offset()
        assert g._version == e._version


def grid(device, *shape, dtype=torch.float32):
    n = torch.Size(shape).numel()
    return torch.arange(n, dtype=dtype).reshape(shape).to(device)


def _writes(x):
    x[1].fill_(100.0)
    x.t()[2].fill_(-1.0)
    x[:, 1:3].t()[0].fill_(7.0)
    x.detach()[0, :2].fill_(9.0)
    x.view(-1)[11:].fill_(55.0)
    x[::2, ::2].copy_(torch.full((2, 2), 3.0))


PROGRAMS = {
    "slice of slice": lambda d: (x := grid(d, 6, 4), x[1:5][1:3].mul_(10)),
    "many writes": lambda d: (x := grid(d, 3, 4), _writes(x))[:1],
    "transpose": lambda d: (x := grid(d, 3, 4), x.t()[1:3].add_(5)),
    "permute": lambda d: (x := grid(d, 2, 3, 4), x.permute(2, 0, 1)[1].zero_()),
    "diagonal": lambda d: (x := grid(d, 3, 3), x.diagonal().fill_(5), x.diagonal(1).mul_(2)),
    "unfold": lambda d: (x := grid(d, 8), x.unfold(0, 2, 2).add_(1)),
    "as_strided": lambda d: (x := grid(d, 12), x.as_strided((2, 3), (6, 2), 1).fill_(-1)),
    "as_strided from a view": lambda d: (x := grid(d, 12), x[4:].as_strided((2, 2), (2, 1), 1).fill_(-1)),
    "expand": lambda d: (x := grid(d, 3, 1), x.expand(3, 4) + 1),
    "expand then write the base": lambda d: (x := grid(d, 3, 1), e := x.expand(3, 2), x.add_(1), e.clone())[3:],
    "view": lambda d: (x := grid(d, 3, 4), x.view(2, 6)[1].fill_(0)),
    "view.dtype": lambda d: (x := grid(d, 4) + 1, x.view(torch.int32)[:2].zero_())[:1],
    "view.dtype smaller": lambda d: (x := grid(d, 4) + 1, x.view(torch.uint8)[3::4].zero_())[:1],
    "detach": lambda d: (x := grid(d, 4), x.detach().add_(1)),
    ".data": lambda d: (x := grid(d, 4), x.data.add_(1))[:1],
    "chunk and split": lambda d: (x := grid(d, 6), x.chunk(3)[1].fill_(9), x.split(4)[1].fill_(8)),
    "select, narrow, movedim": lambda d: (x := grid(d, 2, 3, 4), x.movedim(2, 0)[1].select(1, 2).narrow(0, 0, 1).fill_(-5)),
    "unsqueeze_ squeeze_ t_": lambda d: (x := grid(d, 2, 3), x.unsqueeze_(0), x.squeeze_(0), x.t_()),
    "as_strided_": lambda d: (x := grid(d, 6), x.as_strided_((2, 2), (3, 1), 1)),
    "resize_ smaller": lambda d: (x := grid(d, 6), x.resize_(2, 2)),
    "resize_ and back": lambda d: (x := grid(d, 6), x.resize_(2), x.resize_(6)),
    "set_ tensor": lambda d: (x := torch.empty(0, device=d), y := grid(d, 6), x.set_(y[2:]), x.add_(1), y),
    "set_ storage": lambda d: (x := torch.empty(0, device=d), y := grid(d, 6), x.set_(y.untyped_storage(), 1, (2, 2), (2, 1))),
    "p.data =": lambda d: (p := torch.nn.Parameter(grid(d, 3)), q := grid(d, 2), setattr(p, "data", q), q.add_(1), p.data)[1:2],
    "out resized": lambda d: torch.add(grid(d, 2, 3), 1, out=torch.empty(0, device=d)),
    "out view": lambda d: (x := grid(d, 4, 4), torch.add(grid(d, 2, 2), 1, out=x[1:3, 1:3]))[:1],
    "channels_last": lambda d: (x := grid(d, 2, 3, 2, 2).contiguous(memory_format=torch.channels_last), x + 1, x.clone()),
    "transposed pointwise keeps strides": lambda d: (x := grid(d, 3, 4).t(), x + 1, x * x, x.abs().clone()),
    "complex: real, imag, conj": lambda d: (
        x := torch.complex(grid("cpu", 3), grid("cpu", 3) + 1).to(d),
        x.imag.fill_(2),
        x.conj().mul_(2),
        x.conj().resolve_conj(),
    )[::3],
    "empty": lambda d: (x := grid(d, 0, 3), x[:, 1:].add_(1), x.t()),
    "zero-dim": lambda d: (x := grid(d, 3), x[1].add_(1), x[1]),
    "index put by slice and mask": lambda d: (
        x := grid(d, 4, 3),
        x.__setitem__((slice(1, 3), slice(None)), 0.0),
        x.__setitem__(x > 9, -1.0),
    )[:1],
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    both(PROGRAMS[name])


def test_slice_of_slice_writes_the_base():
    x = torch.zeros(6, device=DEVICE)
    x[2:5][1:].fill_(1)
    assert x.tolist() == [0, 0, 0, 1, 1, 0]
    assert x[2:5]._base is x and x[2:5].data_ptr() == x.data_ptr() + 8


ERRORS = {
    "write to an expanded tensor": lambda d: torch.zeros(1, device=d).expand(3).add_(1),
    "view of a transposed tensor": lambda d: grid(d, 2, 3).t().view(6),
    "saved tensor modified": lambda d: (
        x := grid(d, 3).requires_grad_(),
        y := x.exp(),
        y.add_(1),
        y.sum().backward(),
    ),
    "in-place on a leaf": lambda d: grid(d, 3).requires_grad_().add_(1),
    "as_strided out of bounds": lambda d: grid(d, 4).as_strided((3, 3), (3, 1)),
    "broadcast grows in place": lambda d: grid(d, 3).add_(grid(d, 2, 3)),
    "in-place result type": lambda d: grid(d, 3, dtype=torch.int64).add_(1.5),
    "out of the wrong type": lambda d: torch.add(grid(d, 3), 1.5, out=torch.empty(3, dtype=torch.int64, device=d)),
    "index out of range": lambda d: grid(d, 3)[5],
    "mm of wrong shapes": lambda d: grid(d, 2, 3) @ grid(d, 2, 3),
    "mm of two types": lambda d: grid(d, 2, 2) @ grid(d, 2, 2, dtype=torch.float64),
    "item of many": lambda d: grid(d, 3).item(),
    "bool of many": lambda d: bool(grid(d, 3)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_misuse_raises_what_torch_raises(name):
    with pytest.raises(Exception) as expected:
        ERRORS[name]("cpu")
    with pytest.raises(type(expected.value)):
        ERRORS[name](DEVICE)


def test_view_and_in_place_under_autograd():
    def program(d):
        x = grid(d, 3, 4).requires_grad_()
        y = x * 2
        y[1:].t()[0].mul_(3)
        y.view(12)[::2].add_(1)
        (y * y).sum().backward()
        return x.grad

    torch.testing.assert_close(program(DEVICE).cpu(), program("cpu"))


def test_a_clone_is_independent_although_it_shares_the_buffer():
    x = torch.ones(3, device=DEVICE)
    y = x.clone()
    x.add_(1)
    y.mul_(5)
    assert x.tolist() == [2, 2, 2] and y.tolist() == [5, 5, 5]


def test_host_copies_are_independent():
    h = torch.ones(3)
    x = h.to(DEVICE)
    h.add_(1)
    back = x.cpu()
    back.add_(5)
    x.mul_(3)
    assert x.tolist() == [3, 3, 3] and back.tolist() == [6, 6, 6]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_strides_of_expanded_times_transposed(dtype):
    """The Meta kernels of the half types say otherwise than the CPU's kernels do."""

    def product(device):
        row = torch.ones(1, 1, 2, dtype=dtype).to(device).expand(4, 3, 2)
        return row * torch.ones(2, 3, 4, dtype=dtype).to(device).permute(2, 1, 0)

    assert product("mindspore").stride() == product("cpu").stride()
