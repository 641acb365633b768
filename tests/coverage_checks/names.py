"""PyTorch's public names, and the database entries that exercise each."""

import torch
from torch import fft, linalg, nn, optim, special
from torch.nn import functional

from tests.conformance import check_modules, check_ops, check_optims

# Public by name only: removed (they raise whatever the device), parts of other machinery, added by this package
NOT_LISTED = {
    "torch": "import_ir_module import_ir_module_from_buffer init_num_threads merge_type_from_type_comment parse_ir "
    "parse_schema parse_type_comment unify_type_list fork wait from_file thread_safe_generator get_device_module "
    "set_num_interop_threads",
    "Tensor": "eig lstsq solve symeig reinforce resize resize_as volatile new map_ map2_ module_load ipu xpu mtia "
    "is_ipu is_maia is_mtia is_vulkan is_xla is_xpu is_mps const_data_ptr to_mkldnn "
    "index mindspore is_mindspore",
    "nn": "Container LinearCrossEntropyOptions",
    "nn.functional": "Tensor ScalingType SwizzleType assert_int_or_pair boolean_dispatch Callable DType Optional "
    "handle_torch_function has_torch_function has_torch_function_unary has_torch_function_variadic",
    "linalg": "LinAlgError",
    "fft": "Tensor",
    "special": "Tensor",
    "optim": "",
}
OTHER_NAMES = {  # in-place forms that the databases do not have under this name
    "torch": {"celu_", "relu_", "rrelu_", "selu_", "threshold_"},
}


def public():
    """{section: names in order}."""
    found = {
        "torch": _torch(),
        "Tensor": [n for n in dir(torch.Tensor) if not n.startswith("_") and n != "Tag"],
        "nn": nn.modules.__all__,
        "nn.functional": _functions(functional),
        "optim": _optim(),
        "linalg": _functions(linalg),
        "fft": _functions(fft),
        "special": _functions(special),
    }
    return {s: sorted(set(names) - set(NOT_LISTED[s].split())) for s, names in found.items()}


def _torch():
    """Functions that are documented, and the others that PyTorch tests: not the parts of other back ends."""
    tested = _keys()
    names = [n for n in torch.__all__ if not n.startswith("_") and not n.endswith("_") or n in OTHER_NAMES["torch"]]
    functions = [n for n in names if callable(getattr(torch, n)) and not isinstance(getattr(torch, n), type)]
    return [n for n in functions if getattr(torch, n).__doc__ or f"torch.{n}" in tested]


def _functions(module):
    names = getattr(module, "__all__", None) or dir(module)
    return [n for n in names if not n.startswith("_") and callable(getattr(module, n)) and not n.endswith("_with_indices")]


def _optim():
    classes = [n for n in dir(optim) if isinstance(getattr(optim, n), type)]
    methods = [f"Optimizer.{n}" for n in ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")]
    return [*classes, *methods, *(f"lr_scheduler.{n}" for n in optim.lr_scheduler.__all__)]


def _keys():
    """{public name: entries}: "torch.abs", "Tensor.abs_", "nn.functional.relu", "linalg.inv", each with its aliases."""
    found = {}
    for full_name, op in check_ops.entries().items():
        names = [op.name, *(alias.name for alias in op.aliases)]
        keys = {n if "." in n else f"torch.{n}" for n in names}
        plain = [n for n in names if "." not in n]
        if op.method_variant is not None:
            keys |= {f"Tensor.{n}" for n in (*plain, _name(op.method_variant)) if n}
        if op.inplace_variant is not None:
            keys |= {f"Tensor.{n}" for n in (*(f"{n}_" for n in plain), _name(op.inplace_variant)) if n}
        for key in keys:
            found.setdefault(key, []).append(f"op {full_name}")
    for full_name, info in check_modules.entries().items():
        found.setdefault(info.name, []).append(f"module {full_name}")
    for name in check_optims.entries():
        found.setdefault(f"optim.{name}", []).append(f"optim {name}")
    return found


def _name(function):
    return getattr(function, "__name__", "")


def mapped():
    """{section: {name: entries}}; no entries where no database has the name."""
    keys = _keys()
    found = {s: {n: keys.get(f"{s}.{n}", []) for n in names} for s, names in public().items()}
    for name, entries in found["Tensor"].items():  # a method of an op that PyTorch tests as a function
        plain = name.removesuffix("_")
        if not entries:
            entries += keys.get(f"torch.{name}", []) or (keys.get(f"Tensor.{plain}", []) if plain != name else [])
    return found
