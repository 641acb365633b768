"""Events, streams, synchronize, memory queries, default tensor types: what benchmark scripts use."""

import time

import torch

cuda = torch.cuda.is_available()
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
LongTensor = torch.cuda.LongTensor if cuda else torch.LongTensor
torch.manual_seed(0)
a = Tensor([[1.0, 2.0], [3.0, 4.0]])
b = LongTensor([1, 0])
if cuda:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_device(0)
    start.record()
began = time.perf_counter()
for _ in range(10):
    a = torch.tanh(a @ a[b])
if cuda:
    end.record()
    torch.cuda.synchronize()
    assert 0 < start.elapsed_time(end) < 1e5
    with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
        a = a + 0
    torch.cuda.current_stream().synchronize()
    print(f"{torch.cuda.max_memory_allocated() / 2**20:.0f} MB", torch.cuda.memory_summary()[:20])
    torch.cuda.empty_cache()
    assert isinstance(a, torch.cuda.FloatTensor) and a.is_cuda and not a.cpu().is_cuda
    assert a.type() == "torch.cuda.FloatTensor"
print(f"{time.perf_counter() - began:.3f} s")
print("result:", " ".join(f"{v:.7f}" for v in a.cpu().numpy().ravel()))
