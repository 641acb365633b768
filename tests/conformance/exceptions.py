"""What the harness does not compare in the ordinary way, each with its reason. Keys are names of op_db entries."""

# Not run at all.
SKIP: dict[str, str] = {}

# The values are whatever was in memory: shape, dtype and strides are compared, values are not.
NO_VALUES = {
    "empty": "uninitialised memory",
    "empty_like": "uninitialised memory",
    "empty_permuted": "uninitialised memory",
    "empty_strided": "uninitialised memory",
    "new_empty": "uninitialised memory",
    "new_empty_strided": "uninitialised memory",
    "resize_": "what is behind the old elements is uninitialised memory",
    "resize_as_": "what is behind the old elements is uninitialised memory",
}

# Tensor arguments that PyTorch wants on the host, whatever the device of the rest.
ON_HOST = {
    "tensor_split": "the indices",
}

# The result is defined up to a sign or a phase: what PyTorch's own tests differentiate is compared instead.
UP_TO_PHASE = {
    "linalg.eig": "eigenvectors up to a phase",
    "linalg.eigh": "eigenvectors up to a phase",
    "linalg.svd": "singular vectors up to a phase",
    "pca_lowrank": "singular vectors up to a phase",
    "svd": "singular vectors up to a phase",
    "svd_lowrank": "singular vectors up to a phase",
}

# The result's indices say which of several equal values was taken, as it happens: the values there are compared instead,
# except where the sample asks for a stable order. The number is the position of `dim` among the arguments.
WHICH_OF_EQUALS = {
    "argsort": (0, "the CPU's unstable sort decides"),
    "kthvalue": (1, "the CPU's partition decides"),
    "mode": (0, "the CPU's unstable sort decides"),
    "sort": (0, "the CPU's unstable sort decides"),
    "topk": (1, "the CPU's partition decides"),
}

# `out=` is run with an empty tensor only: the CPU writes wrong values into one that is not contiguous.
NO_STRIDED_OUT = {
    "narrow_copy": "the CPU ignores the strides of out",
    "nn.functional.avg_pool3d": "the CPU ignores the strides of out",
    "nn.functional.gelu": "the CPU ignores the strides of out",
}

# (rtol, atol) wider than torch.testing's defaults, of an entry or of an entry in one dtype ("sinc float16").
WIDER: dict[str, tuple[float, float, str]] = {
    "Muon": (1.6e-2, 1e-3, "its orthogonalisation computes in bfloat16, whatever the dtype of the parameters"),
    "nn.functional.multi_head_attention_forward bfloat16": (
        3e-2,
        3e-2,
        "a softmax of logits in the hundreds, rounded to bfloat16",
    ),
    "pca_lowrank complex64": (1e-3, 1e-3, "its gradient divides by differences of squared singular values"),
    "svd_lowrank complex64": (1e-3, 1e-3, "its gradient divides by differences of squared singular values"),
}

# Not differentiated twice in float32 and complex64, where the CPU's own second gradients are noise.
NOT_TWICE = {
    "pca_lowrank": "divides by differences of squared singular values, twice",
    "svd_lowrank": "divides by differences of squared singular values, twice",
}

# Error inputs (by number) where another exception, or none, is right.
OTHER_ERRORS: dict[str, dict[str, str]] = {}
