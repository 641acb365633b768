"""Scripts that never mention a device: what is active under `msadapter run` and `msadapter.pytorch`, and only there.

The default device is `mindspore`. Some tensors still start on the host: `torch.from_numpy`, `torch.FloatTensor`,
batches of DataLoader workers. Where such a tensor meets a device tensor it is moved, and counted in the report:

* inside a kernel, `storage.read` moves it (`Host.implicit`);
* one that requires grad is moved before autograd sees the op (`DeviceMode`), so that its gradient comes back to it;
* one that C++ refuses before any kernel runs is moved, and the function called again (`DeviceMode`);
* parameters and buffers of modules move when they are registered, keeping their identity;
* NumPy, matplotlib and scikit-learn read device tensors through `Tensor.numpy`, as a copy;
* DataLoader workers stay on the host, and a dataset's device tensors reach them as host tensors.
"""

import copy
import functools

import torch
import torch.utils._device
from torch.utils._pytree import tree_leaves, tree_map

from .counters import Host

_CONSTRUCTORS = torch.utils._device._device_constructors()  # kept before anything in torch is replaced
_enabled = False

# Functions that mean the tensors they are given, wherever those are.
_AS_GIVEN = {
    torch.Tensor.to, torch.Tensor.type_as, torch.Tensor.copy_, torch.Tensor.cpu, torch.Tensor.backward,
    torch.Tensor.data.__set__, torch.Tensor.grad.__set__, torch.Tensor.set_, torch.Tensor.register_hook,
    torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__, torch.autograd.grad, torch.autograd.backward,
}  # fmt: skip

# Functions that compare devices before any kernel runs, and whose integer arguments (batch sizes) belong on the host.
_CHECKED = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu,
            torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell}  # fmt: skip


def enable():
    """Make `mindspore` the default device and let host tensors meet device tensors. Safe to call more than once."""
    global _enabled
    if not _enabled:
        _enabled = True
        torch.utils._device.DeviceContext = DeviceMode
        for patch in (_patch_numpy, _patch_data, _patch_modules, _patch_lengths, _patch_dataloader):
            patch()
    Host.implicit = True
    torch.set_default_device("mindspore:0")


def to_host():
    """This process computes on the host (a DataLoader worker)."""
    Host.implicit = False
    torch.set_default_device("cpu")


def _is_device(x):
    return isinstance(x, torch.Tensor) and x.device.type == "mindspore"


def _implied():
    """Whether a tensor without a device would be made on ours."""
    return Host.implicit and torch.get_default_device().type == "mindspore"


# --------------------------------------------------------------------------------------------------------- the default


class DeviceMode(torch.utils._device.DeviceContext):
    """torch's default-device mode; it also moves host tensors that require grad to the device tensors they meet."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if torch.compiler.is_dynamo_compiling():  # torch.compile traces torch's own mode
            return super().__torch_function__(func, types, args, kwargs)
        kwargs = kwargs or {}
        if func in _CONSTRUCTORS:
            if kwargs.get("device") is None:
                kwargs["device"] = self.device
            if kwargs.get("pin_memory"):  # MindSpore reads any host memory: there is no pinned kind
                kwargs["pin_memory"] = False
        elif (_host_grad(args) and torch.is_grad_enabled() and func not in _AS_GIVEN) or func in _CHECKED:
            args, kwargs = _join(func, args, kwargs)
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:  # C++ that compares devices before any kernel runs
            if not (Host.implicit and "device" in str(error)) or func in _AS_GIVEN:
                raise
            joined = _join(func, args, kwargs)
            if joined[0] is args:
                raise
        return func(*joined[0], **joined[1])


def _host_grad(args):
    for a in args:
        if isinstance(a, torch.Tensor):
            if a.requires_grad and a.is_cpu:
                return True
        elif (type(a) is list or type(a) is tuple) and a and isinstance(a[0], torch.Tensor) and _host_grad(a):
            return True
    return False


def _join(func, args, kwargs):
    """Move the host tensors among the arguments, if there are any and one of the others is on the device."""
    leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if not (any(x.is_cpu and x.dim() for x in leaves) and any(map(_is_device, leaves))):
        return args, kwargs
    name = getattr(func, "__name__", "")
    inplace = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    kept = args[:1] if inplace else ()
    args, kwargs = tree_map(_move if func not in _CHECKED else _move_floats, (tuple(args[len(kept) :]), kwargs))
    return (*kept, *args), kwargs


def _move(x):
    if isinstance(x, torch.Tensor) and x.is_cpu and x.dim():
        Host.moved += 1
        return x.to("mindspore")
    return x


def _move_floats(x):
    return _move(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


# ------------------------------------------------------------------------------------------------------------- tensors


def _patch_numpy():
    """`x.numpy()`; `np.asarray(x)`, matplotlib and scikit-learn come here through `Tensor.__array__`."""
    original = torch.Tensor.numpy

    @functools.wraps(original)
    def numpy(self, *, force=False):
        if not (Host.implicit and _is_device(self)):
            return original(self, force=force)
        if self.requires_grad and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return original(self.detach().cpu(), force=force)

    torch.Tensor.numpy = numpy


def _patch_data():
    """`p.data = torch.from_numpy(w)`: the value goes to where p is."""
    original = torch.Tensor.data

    def set_data(self, value):
        if Host.implicit and isinstance(value, torch.Tensor) and value.device.type != self.device.type:
            if {value.device.type, self.device.type} == {"cpu", "mindspore"}:
                Host.moved += 1
                value = value.to(self.device)
        original.__set__(self, value)

    torch.Tensor.data = property(original.__get__, set_data, doc=original.__doc__)


def _patch_lengths():
    """`pack_padded_sequence` wants lengths on the host; a script without devices gives a tensor on the default one."""
    rnn = torch.nn.utils.rnn
    original = rnn.pack_padded_sequence

    @functools.wraps(original)
    def pack_padded_sequence(input, lengths, *args, **kwargs):
        return original(input, lengths.cpu() if _is_device(lengths) else lengths, *args, **kwargs)

    rnn.pack_padded_sequence = pack_padded_sequence


# ------------------------------------------------------------------------------------------------------------- modules


def _patch_modules():
    """`nn.Parameter(torch.FloatTensor(n))`, weights from NumPy, buffers: a module's state is on the device."""
    module = torch.nn.Module
    register_parameter, register_buffer = module.register_parameter, module.register_buffer

    @functools.wraps(register_parameter)
    def parameter(self, name, param):
        if isinstance(param, torch.nn.Parameter) and type(param.data) is torch.Tensor and param.is_cpu and _implied():
            Host.moved += 1
            moved = torch.nn.Parameter(param.detach().to("mindspore"), param.requires_grad)
            torch.utils.swap_tensors(param, moved)
        register_parameter(self, name, param)

    @functools.wraps(register_buffer)
    def buffer(self, name, tensor, *args, **kwargs):
        if type(tensor) is torch.Tensor and tensor.is_cpu and _implied():
            Host.moved += 1
            tensor = tensor.to("mindspore")
        register_buffer(self, name, tensor, *args, **kwargs)

    module.register_parameter, module.register_buffer = parameter, buffer


# ---------------------------------------------------------------------------------------------------------- DataLoader


def _patch_dataloader():
    data = torch.utils.data
    loop, start = data._utils.worker._worker_loop, data.dataloader._BaseDataLoaderIter.__init__

    @functools.wraps(loop)
    def _worker_loop(*args, **kwargs):
        to_host()
        return loop(*args, **kwargs)

    @functools.wraps(start)
    def __init__(self, loader):
        start(self, loader)
        if loader.num_workers > 0:
            self._dataset = host_copy(self._dataset)

    data._utils.worker._worker_loop = _worker_loop
    data.dataloader._BaseDataLoaderIter.__init__ = __init__

    def __getitems__(self, indices):
        """A batch of rows at once: rows of device tensors are read together, on the host."""
        if not (Host.implicit and self.tensors and all(map(_is_device, self.tensors))):
            return [self[i] for i in indices]
        from .storage import host

        index = torch.as_tensor(indices, device="cpu")
        return list(zip(*(host(t.detach())[index].unbind(0) for t in self.tensors)))

    data.TensorDataset.__getitems__ = __getitems__


def host_copy(x, _seen=None):
    """x with its device tensors on the host, looking into datasets and containers; x itself where there are none."""
    seen = {} if _seen is None else _seen
    if id(x) in seen:
        return seen[id(x)]
    if _is_device(x):
        seen[id(x)] = new = x.detach().cpu().requires_grad_(x.requires_grad)
        return new
    seen[id(x)] = x
    if type(x) in (list, tuple, dict):
        old = list(x.values()) if type(x) is dict else x
        new = [host_copy(v, seen) for v in old]
        if any(a is not b for a, b in zip(new, old)):
            seen[id(x)] = dict(zip(x, new)) if type(x) is dict else type(x)(new)
    elif isinstance(x, torch.utils.data.Dataset) and hasattr(x, "__dict__"):
        changed = {k: new for k, v in vars(x).items() if (new := host_copy(v, seen)) is not v}
        if changed:
            seen[id(x)] = twin = copy.copy(x)
            vars(twin).update(changed)
    return seen[id(x)]
