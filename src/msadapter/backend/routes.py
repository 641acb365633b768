"""Which of MindSpore's two ways into a CPU kernel a primitive takes, and how both stay flat in memory.

MindSpore 2.10 runs an eager primitive in one of two ways. Measured on CPU (8x8 float32):

* **pyboost**, generated code per primitive. It is the faster way for most (Exp 12 us, the other way 17 us), but not for
  Mul, Div and comparisons (32 us, the other way 19 us). And it loses 512 bytes of its memory pool for every argument
  that is no tensor (an axis, a flag), for good: `CopyNoneTensorDataToDevice` takes the memory and nobody returns it.
  A small MLP grew by 24 KB a training step.
* **run_op**, the interpreter of earlier versions. It remembers the shape and dtype of every result (700 bytes a call) in
  a table that only `clear_res` empties, together with the caches of kernels, which fill again at the next calls (about
  a millisecond for each primitive). `clear_res` may not run while MindSpore records a gradient.

So: the primitives of `BY_RUN_OP` take the second way, whoever calls them in this process, and every `CLEAR_EVERY` calls
of it, unless a gradient is being recorded, the table is emptied. The results are the same: the kernel is.
"""

import functools

from .. import runtime

ms = runtime.ms()
from mindspore.ops.auto_generate import gen_ops_prim as _generated  # noqa: E402

CLEAR_EVERY = 20_000

# Names of pyboost functions. First those that would lose memory, then those that are slower there.
BY_RUN_OP = """
    adaptive_max_pool2d argmax_with_value argmin_with_value avg_pool2d avg_pool2d_grad batch_mat_mul binary_cross_entropy
    binary_cross_entropy_grad cdist cummax dense elu_ext gather_d gather_d_grad_v2 grid_sampler_2d grid_sampler_2d_grad
    grid_sampler_3d grid_sampler_3d_grad lerp lerp_scalar log_softmax log_softmax_grad matmul mean_ext nllloss nllloss_grad
    reduce_all reduce_any reduce_max reduce_min reverse_v2 searchsorted smooth_l1_loss smooth_l1_loss_grad softmax sum_ext
    triu
    add_ext div equal floor_div greater_equal less mul pow sub_ext
""".split()

_executor = ms.common.api._pynative_executor
_core = _executor._executor
_run = _core.run_op_async
_calls = 0


def run_op(primitive, name, args):
    """Call a primitive's kernel by the interpreter; `args` is all that it takes, its attributes included."""
    global _calls
    _calls += 1
    if _calls >= CLEAR_EVERY and not _core.grad_flag():
        _calls = 0
        _core.clear_res()
    return _run(primitive, name, args)


def _by_run_op(primitive, args):
    return run_op(primitive, primitive.name, tuple(args))


def bare(primitive):
    """The shortest way to call `primitive`, which has no attributes: a function of the list of its operands."""
    if not isinstance(primitive, ms.ops.Primitive):  # a function of ours made of several
        return lambda operands: primitive(*operands)
    names = type(primitive).__call__.__code__.co_names
    pyboost = next((getattr(_generated, n) for n in names if n.startswith("pyboost_")), _by_run_op)
    return functools.partial(pyboost, primitive)


_executor.run_op_async = run_op  # every primitive that has no pyboost function comes here
for _name in BY_RUN_OP:
    setattr(_generated, f"pyboost_{_name}", _by_run_op)
