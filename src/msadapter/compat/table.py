"""Every name that `import msadapter.pytorch` wraps in MindSpore or adds to torch, and the function that does it.

A wrapped MindSpore name runs ours where an argument is (or contains) a torch object, else the original, untouched.
`Deferred` ones return a function, and may have to see that function's arguments before they know.
"""

from . import bprop, convert, grad, ops, optimizer, precision, reducer, scaler
from .wrap import Deferred

MINDSPORE = {
    # gradients
    "mindspore.value_and_grad": Deferred(grad.value_and_grad),
    "mindspore.grad": Deferred(grad.grad),
    "mindspore.ops.GradOperation.__call__": Deferred(grad.grad_operation),
    # mixed precision
    "mindspore.amp.auto_mixed_precision": precision.auto_mixed_precision,
    "mindspore.amp.all_finite": scaler.all_finite,
    "mindspore.amp.DynamicLossScaler.scale": scaler.scale,
    "mindspore.amp.DynamicLossScaler.unscale": scaler.unscale,
    "mindspore.amp.DynamicLossScaler.adjust": scaler.adjust_dynamic,
    "mindspore.amp.StaticLossScaler.scale": scaler.scale,
    "mindspore.amp.StaticLossScaler.unscale": scaler.unscale,
    # data parallel
    "mindspore.nn.DistributedGradReducer.__new__": reducer.new,
    # clipping
    "mindspore.ops.clip_by_global_norm": ops.clip_by_global_norm,
    "mindspore.ops.clip_by_norm": ops.clip_by_norm,
    "mindspore.ops.clip_by_value": ops.clip_by_value,
    # what training scripts mix in
    "mindspore.ops.ones_like": ops.ones_like,
    "mindspore.ops.zeros_like": ops.zeros_like,
    "mindspore.ops.stop_gradient": ops.stop_gradient,
    "mindspore.ops.assign": ops.assign,
    "mindspore.ops.assign_add": ops.assign_add,
}

# The modules through which users reach these functions: all of them get the wrapper.
MODULES = (
    "mindspore", "mindspore.ops", "mindspore.ops.functional", "mindspore.ops.composite", "mindspore.amp",
    "mindspore.train.amp",
)  # fmt: skip

TORCH = {
    "torch.cast_to_adapter_tensor": convert.cast_to_adapter_tensor,
    "torch.cast_to_ms_tensor": convert.cast_to_ms_tensor,
    "torch.Tensor.asnumpy": convert.asnumpy,
    "torch.nn.Module.trainable_params": optimizer.trainable_params,
    "torch.nn.Module.set_train": optimizer.set_train,
    "torch.nn.Module.__init_subclass__": bprop.init_subclass,
    "torch.optim.Optimizer.parameters": optimizer.Parameters(),
    "torch.optim.Optimizer.__call__": optimizer.apply,
    "torch.amp.GradScaler.__init__": scaler.GradScaler.init,
    "torch.amp.GradScaler.unscale_": scaler.GradScaler.unscale_,
    "torch.amp.GradScaler.unscale": scaler.GradScaler.unscale,
    "torch.amp.GradScaler.step": scaler.GradScaler.step,
}
