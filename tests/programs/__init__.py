"""Random programs of views, in-place ops, arithmetic and backward, on the device and on the CPU, equal at every step.

    python -m tests.programs --count 2000 --seed 0

The wide half of them goes over the breadth of torch (`wide.py`); the others, over views and writes (`steps.py`).
A program is a list of lines of Python, so that one that fails can be pasted into a file and run.
"""
