"""DistributedGradReducer on torch parameters: two ranks train as one process on the union of their batches."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]


def one_process():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = torch.randn(8, 3), torch.randn(8, 2)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return [p.tolist() for p in model.parameters()]


def test_two_ranks_equal_one_process(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    msrun = Path(sys.executable).parent / "msrun"
    command = [
        str(msrun), "--worker_num=2", "--local_worker_num=2", "--master_addr=127.0.0.1", f"--master_port={port}",
        f"--log_dir={tmp_path}/log", "--join=True", "--cluster_time_out=120",
        str(Path(__file__).parent / "reducer_rank.py"), str(tmp_path),
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOG_v": "4"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    logs = "".join(f.read_text(errors="replace")[-1500:] for f in sorted((tmp_path / "log").glob("worker_*.log")))
    assert done.returncode == 0, done.stderr[-2000:] + logs
    ranks = [json.loads((tmp_path / f"rank{i}.json").read_text()) for i in range(2)]
    assert ranks[0] == ranks[1]
    for got, want in zip(ranks[0]["weights"], one_process()):
        torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-5, atol=1e-6)
    assert ranks[0]["sum"] == 3 and ranks[0]["degree"] == pytest.approx(0.75)
    assert ranks[0]["mean"] == [1.5] * 4
    assert ranks[0]["dtypes"] == ["torch.float16", "torch.float64", "torch.float32", "torch.bfloat16"]
