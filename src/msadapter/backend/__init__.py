"""The device: tensors, kernels, fallback."""
