"""PyTorch's own databases of ops, modules and optimizers, run on the device and compared with the CPU.

    python -m tests.conformance.run [--jobs 2] [--only NAME ...] [--check | --update] [--db op|module|optim]
    python -m tests.conformance.run --errors    what the CPU refuses must be refused
    python -m tests.conformance.run --dtypes    every op in every dtype (a tenth of them: --fraction 10)

`status.json`, `errors.json` and `dtypes.json` hold one status per entry and may only improve.
"""
