"""torch.save and torch.load of device tensors.

A saved file holds ordinary host storages, so that a PyTorch without msadapter opens it; a mark in each tensor's metadata
(which PyTorch ignores) makes it come back to the device here, unless `map_location` says otherwise. Storages stay
shared, so tied weights stay tied.
"""

import functools
import threading

import torch

_MARK = "mindspore"
_load = threading.local()  # .mapped: the running torch.load was given a map_location


def apply():
    torch.serialization.register_package(15, _tag, _restore)
    _patch_metadata()
    _patch_load()
    _patch_multiprocessing()
    _patch_safetensors()


def _tag(storage):
    return "cpu" if storage.device.type == "mindspore" else None


def _restore(storage, location):
    """map_location="mindspore": put the host storage that was read on the device."""
    if location.startswith("mindspore"):
        from .patches import to_device

        index = torch.device(location).index
        if index:
            raise RuntimeError(f"Expected mindspore device 0 (one device a process), got map_location={location!r}.")
        return to_device(storage)
    return None


def _patch_metadata():
    utils = torch._utils
    get_metadata, rebuild = utils.get_tensor_metadata, utils._rebuild_tensor_v2

    @functools.wraps(get_metadata)
    def get_tensor_metadata(tensor):
        metadata = get_metadata(tensor)
        return {**metadata, _MARK: True} if tensor.device.type == "mindspore" else metadata

    @functools.wraps(rebuild)
    def _rebuild_tensor_v2(storage, storage_offset, size, stride, requires_grad, backward_hooks, metadata=None):
        if metadata and _MARK in metadata:
            metadata = {k: v for k, v in metadata.items() if k != _MARK}
            if not getattr(_load, "mapped", False) and storage._untyped_storage.device.type == "cpu":
                storage = _device_twin(storage)
        return rebuild(storage, storage_offset, size, stride, requires_grad, backward_hooks, metadata)

    utils.get_tensor_metadata = get_tensor_metadata
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2


def _device_twin(typed):
    """The device storage for a host storage that was just read: one for all tensors that share it."""
    host = typed._untyped_storage
    if not hasattr(host, "twin"):
        from .patches import to_device

        host.twin = to_device(host)
    return torch.storage.TypedStorage(wrap_storage=host.twin, dtype=typed.dtype, _internal=True)


def _patch_load():
    load = torch.load

    @functools.wraps(load)
    def wrapper(f, map_location=None, *args, **kwargs):
        before = getattr(_load, "mapped", False)
        _load.mapped = map_location is not None
        try:
            return load(f, map_location, *args, **kwargs)
        finally:
            _load.mapped = before

    torch.load = torch.serialization.load = wrapper


def _patch_multiprocessing():
    """Between processes a device tensor travels as its bytes.

    Not as a host tensor: that would travel as a handle of shared memory, which is gone with the copy.
    """
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing.reductions as reductions

    reduce_tensor = reductions.reduce_tensor

    @functools.wraps(reduce_tensor)
    def reduce(tensor):
        if tensor.device.type != "mindspore":
            return reduce_tensor(tensor)
        data = tensor.detach().cpu().contiguous()
        value = data.reshape(-1).view(torch.uint8).numpy(), data.dtype, tuple(data.shape)
        return _from_bytes, (*value, type(tensor) is torch.nn.Parameter, tensor.requires_grad)

    reductions.reduce_tensor = reduce
    for cls in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(cls, reduce)


def _patch_safetensors():
    """safetensors' reader is compiled and knows its own list of devices: read on the host, then move."""
    try:
        import safetensors.torch as library
    except ImportError:
        return
    load_file = library.load_file

    @functools.wraps(load_file)
    def wrapper(filename, device="cpu", *args, **kwargs):
        if torch.device(device).type != "mindspore":
            return load_file(filename, device, *args, **kwargs)
        return {name: x.to(device) for name, x in load_file(filename, "cpu", *args, **kwargs).items()}

    library.load_file = wrapper


def _from_bytes(data, dtype, shape, is_parameter, requires_grad):
    x = torch.from_numpy(data.copy()).view(dtype).reshape(shape).to("mindspore")
    return torch.nn.Parameter(x, requires_grad) if is_parameter else x.requires_grad_(requires_grad)
