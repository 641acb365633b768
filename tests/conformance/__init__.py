"""PyTorch's own databases of ops, modules and optimizers, run on the device and compared with the CPU.

    python -m tests.conformance.run [--jobs 2] [--only NAME ...] [--check | --update] [--db op|module|optim]

`status.json` holds one status per entry and may only improve.
"""
