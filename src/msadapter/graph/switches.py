"""MindSpore's own switches for the static graph, where they meet torch objects of the device.

    mindspore.set_context(mode=mindspore.GRAPH_MODE)   the outermost module's call, and TrainStep, run as graphs
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)   back to eager
    @mindspore.jit                                     on a function that works with torch objects: msadapter.compile

`install` is called once, when the device's MindSpore starts (runtime.py), and changes three things in MindSpore:

* the setter of "mode" in its context, so that every spelling of `set_context` tells us. Only GRAPH_MODE replaces
  `torch.nn.Module.__call__`; PYNATIVE_MODE puts torch's own back. Kernels do not know about modes.
* `mindspore.jit` and `mindspore.common.jit`: the function that they return looks at each call whether torch objects take
  part, and calls MindSpore's own compiled function if not. MindSpore's library keeps its own `jit`.

A module's call without gradients is `msadapter.compile`; one with gradients, whose backward pass comes later and from
outside, is `torch.compile(module, backend="mindspore")`.
"""

import functools
import itertools
import threading
import types
import warnings

_on = False  # GRAPH_MODE was asked for
_plain_call = None  # torch.nn.Module.__call__, while ours is in its place
_plain_users = 0  # calls that need torch's own in its place
_lock = threading.RLock()
_native_jit = None


def graph_mode():
    """Whether `mindspore.set_context(mode=mindspore.GRAPH_MODE)` is in force on the device."""
    return _on


def install(ms):
    """Watch the mode of the MindSpore module `ms`, and its `jit`."""
    global _native_jit
    if _native_jit is not None:
        return
    setters = type(ms.context._context()).setters
    set_mode = setters["mode"]

    @functools.wraps(set_mode)
    def told(context, mode):
        set_mode(context, mode)
        _turn(mode == ms.GRAPH_MODE)

    setters["mode"] = told
    _native_jit = ms.jit
    ms.jit = ms.common.jit = jit
    _turn(ms.get_context("mode") == ms.GRAPH_MODE)


def _turn(on):
    """Follow the mode."""
    global _on
    with _lock:
        _on = on
        _place()


def _place():
    """Our call of modules in torch's place, or torch's own."""
    global _plain_call
    from torch.nn import Module

    wanted = _on and not _plain_users
    if wanted and _plain_call is None:
        _plain_call = Module.__call__
        Module.__call__ = _call
    elif not wanted and _plain_call is not None:
        if Module.__call__ is _call:
            Module.__call__ = _plain_call
        _plain_call = None


class _Plain:
    """`with _Plain():` torch's own call of modules is in place, in all threads: torch.compile looks at it."""

    def __enter__(self):
        self._move(1)

    def __exit__(self, *exception):
        self._move(-1)

    @staticmethod
    def _move(by):
        global _plain_users
        with _lock:
            _plain_users += by
            _place()


# ------------------------------------------------------------------------------------------------- the call of a module


class _Inside(threading.local):
    module = False


_inside = _Inside()


def eagerly():
    """`with eagerly():` modules called by this thread are part of something larger that is compiled."""
    return _Within()


class _Within:
    def __enter__(self):
        self._before, _inside.module = _inside.module, True

    def __exit__(self, *exception):
        _inside.module = self._before


class _Graphs:
    """What a module was compiled to; kept with the module, gone from copies and files of it."""

    def __init__(self, module):
        self.inference, self.training, self.failed = _inference(module), None, False

    def __reduce__(self):
        return type(None), ()


def _call(module, *args, **kwargs):
    """What `module(...)` does in GRAPH_MODE."""
    plain = _plain_call or _own_call()
    if _inside.module or not _outermost() or not _on_device(module, args, kwargs):
        return plain(module, *args, **kwargs)
    graphs = module.__dict__.get("_msadapter_graphs")
    if graphs is None:
        graphs = module.__dict__["_msadapter_graphs"] = _Graphs(module)
    with eagerly():
        if not _torch().is_grad_enabled():
            return graphs.inference(*args, **kwargs)
        with _Plain():
            return _train(module, graphs, args, kwargs)


def _own_call():
    return _torch().nn.Module._wrapped_call_impl


def _torch():
    import torch

    return torch


def _outermost():
    """Nobody else watches or compiles this call: torch.compile, torch.jit, torch.fx, a recording of ours."""
    torch = _torch()
    busy = torch._C._len_torch_dispatch_stack() or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return not busy and torch._C._functorch.maybe_current_level() is None


def _on_device(module, args, kwargs):
    """Whether the module is on the device, or its arguments if it has no tensors."""
    torch = _torch()
    if type(module).__name__ in ("OptimizedModule", "GraphModule") or isinstance(module, torch.jit.ScriptModule):
        return False  # compiled or traced by somebody else
    own = next(itertools.chain(module.parameters(), module.buffers()), None)
    if own is not None:
        return own.device.type == "mindspore"
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    return any(isinstance(x, torch.Tensor) and x.device.type == "mindspore" for x in leaves)


def _inference(module):
    from .compile import compile

    def forward(*args, **kwargs):
        return _own_call()(module, *args, **kwargs)

    forward.__name__ = type(module).__name__
    return compile(forward)


def _train(module, graphs, args, kwargs):
    if graphs.failed:
        return _own_call()(module, *args, **kwargs)
    torch = _torch()
    try:
        import torch._dynamo.exc

        if graphs.training is None:
            graphs.training = torch.compile(module, backend="mindspore")
    except Exception as error:
        return _give_up(module, graphs, args, kwargs, error)
    try:
        return graphs.training(*args, **kwargs)
    except torch._dynamo.exc.TorchDynamoException as error:
        return _give_up(module, graphs, args, kwargs, error)


def _give_up(module, graphs, args, kwargs, error):
    from .compile import CaptureWarning

    graphs.failed = True
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    warnings.warn(
        f"{type(module).__name__} runs eagerly in GRAPH_MODE: torch.compile cannot take it ({reason}). For a whole training "
        "step as one graph use msadapter.train.TrainStep or msadapter.compile.",
        CaptureWarning,
        stacklevel=4,
    )
    return _own_call()(module, *args, **kwargs)


# --------------------------------------------------------------------------------------------------------- mindspore.jit


def jit(function=None, **options):
    """`mindspore.jit`, also for functions of torch objects."""
    if function is None:
        return functools.partial(jit, **options)
    native = _native_jit(function, **options)
    if not isinstance(function, types.FunctionType) or _is_library(function):
        return native
    state = types.SimpleNamespace(torch=None, step=None)

    @functools.wraps(native)
    def call(*args, **kwargs):
        if state.step is None and (state.torch is None or not state.torch):
            if not _takes_torch(args, kwargs):
                if state.torch is None:
                    state.torch = _reaches_torch(function)
                if not state.torch:
                    return native(*args, **kwargs)
        if state.step is None:
            from .compile import compile

            state.step = compile(function, fullgraph=bool(options.get("fullgraph")))
        with eagerly():
            return state.step(*args, **kwargs)

    return call


def _is_library(function):
    """MindSpore's own code, and the programs that lower.py writes."""
    name = function.__module__ or ""
    return name.partition(".")[0] == "mindspore" or name.startswith("msadapter_graph_")


def _takes_torch(args, kwargs):
    torch = _torch()
    kinds = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    return any(isinstance(x, kinds) for x in torch.utils._pytree.tree_leaves((args, kwargs)))


def _reaches_torch(function):
    """Whether the function's closure, defaults or globals lead to torch objects."""
    from .guards import Guards

    found = Guards(function)
    return bool(found.modules or found.optimizers or found.tensors)
