"""Threads that call one compiled function (test_compile.py: threads with a function each)."""

import copy
import threading

import torch
from torch import nn
from torch.testing import assert_close

import msadapter

from .util import DEVICE, batches

THREADS = 2


def together(work):
    """Run work(0), work(1) ... in a thread each, started at one moment."""
    barrier, errors = threading.Barrier(THREADS), []

    def run(k):
        try:
            barrier.wait()
            work(k)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors


def test_one_function():
    data = batches(2 * 40)
    step, results = msadapter.compile(lambda x: (x @ x.T).relu() * 2 + x), {}

    def work(k):
        results.update((i, step(data[i]).cpu()) for i in range(k, len(data), THREADS))

    together(work)
    for i, x in enumerate(data):
        assert_close(results[i], (x @ x.T).relu().cpu() * 2 + x.cpu())
    assert step.stats()["hits"] == len(data) - 2


def test_one_training_step():
    """Each thread's update is the same whatever the other did before: together they are the sum, whatever the order."""
    trained, data = nn.Linear(4, 4).to(DEVICE), batches(2 * 40)
    plain = copy.deepcopy(trained)

    def stepper(module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

        def step(x):
            optimizer.zero_grad()
            loss = module(x).sum()  # its gradient does not depend on the parameters
            loss.backward()
            optimizer.step()
            return loss

        return step

    step, expected = msadapter.compile(stepper(trained)), stepper(plain)

    def work(k):
        for x in data[k::THREADS]:
            step(x)

    together(work)
    for x in data:
        expected(x)
    assert_close(trained.state_dict(), plain.state_dict())
    assert step.stats()["hits"] == len(data) - 2
