"""Compiled steps train like eager ones: optimizers, schedules, scaling, accumulation, averages, modes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from msadapter.graph import hostcalls

from .util import DEVICE, batches, check, host, step_of

SCENARIOS = {}


def scenario(graph=True, because=None):
    """graph, because: as `check` takes them."""

    def register(fn):
        SCENARIOS[fn.__name__] = (fn, graph, because)
        return fn

    return register


def lin():
    return nn.Linear(4, 4).to(DEVICE)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


@scenario()
def plain(wrap):
    m = lin()
    o = sgd(m)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    return [f(x) for x in batches(8)], m.state_dict()


@scenario()
def arg_grad(wrap):
    m = lin()

    @wrap
    def f(x):
        loss = m(x).pow(2).sum()
        loss.backward()
        return loss

    out = []
    for x in batches(8):
        x.requires_grad_()
        f(x)
        out.append(x.grad)
    return out


@scenario(graph=False, because="it changes requires_grad of an argument")
def arg_grad_inside(wrap):
    m = lin()

    @wrap
    def f(x):
        x.requires_grad_()
        loss = m(x).pow(2).sum()
        loss.backward()
        return loss

    out = []
    for x in batches(8):
        f(x)
        out.append(x.grad)
    return out


@scenario()
def adversarial(wrap):
    m = lin()

    @wrap
    def f(x):
        x = x.detach().requires_grad_()
        loss = m(x).pow(2).sum()
        (g,) = torch.autograd.grad(loss, x)
        return x + g.sign()

    return [f(x) for x in batches(8)]


@scenario()
def raw_params(wrap):
    w = torch.randn(4, 4, device=DEVICE, requires_grad=True)
    o = torch.optim.Adam([w], lr=0.01)

    @wrap
    def f(x):
        o.zero_grad()
        loss = (x @ w).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    return [f(x) for x in batches(8)], w


@scenario()
def raw_params_no_opt(wrap):
    w = torch.randn(4, 4, device=DEVICE, requires_grad=True)

    @wrap
    def f(x):
        w.grad = None
        loss = (x @ w).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            w.sub_(w.grad, alpha=0.1)
        return loss

    return [f(x) for x in batches(8)], w, w.grad


@scenario(graph=False, because="two parameters have gradients in one memory")
def cat_grads_accumulate(wrap):
    a = torch.randn(4, device=DEVICE, requires_grad=True)
    b = torch.randn(4, device=DEVICE, requires_grad=True)
    o = torch.optim.SGD([a, b], lr=0.1)

    @wrap
    def f(x):
        loss = (torch.cat([a, b]) * torch.cat([x[0], x[1]])).pow(2).sum()
        loss.backward()
        return loss

    out = []
    for i, x in enumerate(batches(12)):
        out.append(f(x))
        if i % 4 == 3:
            o.step()
            o.zero_grad()
    return out, a, b


@scenario(graph=False, because="it returns a tensor with a history. Call backward inside, or return it detached: loss.detach()")
def outside_backward(wrap):
    m = lin()
    o = sgd(m)

    @wrap
    def f(x):
        return m(x).pow(2).mean()

    out = []
    for x in batches(6):
        o.zero_grad()
        loss = f(x) + m.bias.sum() * 0.1
        loss.backward()
        o.step()
        out.append(loss)
    return out


@scenario(graph=False, because="it computes on the host with a tensor among the arguments. Move it to the device first")
def packed(wrap):
    g = nn.GRU(4, 4, batch_first=True).to(DEVICE)

    @wrap
    def f(x, n):
        p = nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
        return g(p)[1].detach()

    b = batches(8, (2, 3, 4))
    return [f(b[i], torch.tensor([3, 1 if i < 5 else 2])) for i in range(8)]


@scenario(graph=False, because="it seeds a random generator, or draws from it on the host")
def checkpoint(wrap):
    from torch.utils.checkpoint import checkpoint

    m = lin()
    o = sgd(m)

    @wrap
    def f(x):
        o.zero_grad()
        loss = checkpoint(lambda x: F.dropout(m(x)), x, use_reentrant=False).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    return [f(x) for x in batches(8)], m.state_dict()


@scenario()
def param_data_inside(wrap):
    m = lin()

    @wrap
    def f(x):
        d = m.weight.data
        m.weight.data = d * 0.9
        return m(x).detach()

    return [f(x) for x in batches(8)], m.weight


@scenario()
def param_data_outside(wrap):
    m = lin()
    o = sgd(m)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    out = []
    for i, x in enumerate(batches(12)):
        if i == 5:
            m.weight.data = m.weight.data * 0.5
        out.append(f(x))
    return out, m.weight


@scenario()
def param_transposed_outside(wrap):
    m = lin()

    @wrap
    def f(x):
        return m(x).detach()

    out = []
    for i, x in enumerate(batches(12)):
        if i == 5:
            m.weight.data = m.weight.data.t()
        out.append(f(x))
    return out, m.weight


@scenario(graph=None)
def grad_transposed(wrap):
    m = lin()

    @wrap
    def f(x):
        m(x).pow(2).sum().backward()

    m.weight.grad = torch.zeros(4, 4, device=DEVICE)
    m.bias.grad = torch.zeros(4, device=DEVICE)
    for i, x in enumerate(batches(12)):
        if i == 5:
            m.weight.grad = m.weight.grad.t()
        f(x)
    return m.weight.grad


@scenario()
def weight_decay_changed(wrap):
    m = lin()
    o = torch.optim.AdamW(m.parameters(), lr=0.01)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    out = []
    for i, x in enumerate(batches(16)):
        if i == 6:
            for g in o.param_groups:
                g["weight_decay"] = 0.3
                g["betas"] = (0.5, 0.9)
        out.append(f(x))
    return out, m.state_dict()


@scenario()
def miss_dropout(wrap):
    @wrap
    def f(x):
        y = F.dropout(x)
        return y * 2 if (x.sum() > 100).item() else y

    b = batches(8)
    b[5] = b[5] + 1000
    return [f(x) for x in b]


class Opt(torch.optim.Optimizer):
    def __init__(s, p):
        super().__init__(p, {"lr": 0.1})
        s.calls = 0

    @torch.no_grad()
    def step(s):
        s.calls += 1
        for g in s.param_groups:
            for p in g["params"]:
                st = s.state[p]
                st["step"] = st.get("step", 0) + 1
                if not torch.isfinite(p.grad).all().item():
                    continue
                p.add_(p.grad, alpha=-g["lr"] / st["step"])


@scenario()
def custom_opt(wrap):
    m = lin()
    o = Opt(m.parameters())

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    b = batches(12)
    b[8] = b[8] * float("inf")
    return [f(x) for x in b], m.state_dict(), o.calls, [s["step"] for s in o.state.values()]


@scenario()
def scaler(wrap):
    m = lin()
    o = sgd(m)
    s = torch.amp.GradScaler("mindspore", init_scale=8.0, growth_interval=3)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        s.scale(loss).backward()
        s.unscale_(o)
        nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        s.step(o)
        s.update()
        return loss

    b = batches(14)
    b[8] = b[8] * float("inf")
    out = []
    for x in b:
        out.append((f(x), s.get_scale()))
    return out, m.state_dict(), o.state_dict()


@scenario()
def scaler_interval(wrap):
    m = lin()
    o = sgd(m)
    s = torch.amp.GradScaler("mindspore", init_scale=8.0, growth_interval=100)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        s.scale(loss).backward()
        s.step(o)
        s.update()
        return loss

    out = []
    for i, x in enumerate(batches(14)):
        if i == 6:
            s.set_growth_interval(2)
        out.append((f(x), s.get_scale()))
    return out


@scenario(graph=False, because="a value is read back,")
def plateau(wrap):
    m = lin()
    o = sgd(m)
    sch = torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        sch.step(loss)
        return loss

    return [f(x) for x in batches(10)], o.param_groups[0]["lr"]


@scenario()
def autograd_fn(wrap):
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.x = x
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3 + ctx.x

    m = lin()
    o = sgd(m)

    @wrap
    def f(x):
        o.zero_grad()
        loss = Fn.apply(m(x)).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    return [f(x) for x in batches(8)], m.state_dict()


@scenario()
def lr_tensor(wrap):
    m = lin()
    lr = torch.tensor(0.1)
    o = torch.optim.SGD(m.parameters(), lr=lr)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    out = []
    for i, x in enumerate(batches(10)):
        out.append(f(x))
        lr.mul_(0.9)
    return out, m.state_dict()


@scenario()
def adversarial_backward(wrap):
    m = lin()

    @wrap
    def f(x):
        x = x.detach().requires_grad_()
        m.zero_grad()
        loss = m(x).pow(2).sum()
        loss.backward()
        return x + x.grad.sign()

    return [f(x) for x in batches(8)]


@scenario(graph=False, because="it needs the values of a host tensor among the arguments")
def packed_sorted(wrap):
    g = nn.GRU(4, 4, batch_first=True).to(DEVICE)

    @wrap
    def f(x, n):
        p = nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True)
        return g(p)[1].detach()

    b = batches(8, (2, 3, 4))
    return [f(b[i], torch.tensor([3, 1 if i < 5 else 2])) for i in range(8)]


@scenario(graph=False, because="a host tensor that is no argument meets the device")
def packed_list(wrap):
    g = nn.GRU(4, 4, batch_first=True).to(DEVICE)

    @wrap
    def f(x, n):
        p = nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True)
        return g(p)[1].detach()

    b = batches(8, (2, 3, 4))
    return [f(b[i], [3, 1 if i < 5 else 2]) for i in range(8)]


class Trainer:
    def __init__(s):
        s.m = lin()
        s.o = sgd(s.m)
        s.history = []
        s.n = 0
        s.best = None

    def step(s, x):
        s.o.zero_grad()
        loss = s.loss(x)
        loss.backward()
        s.o.step()
        return loss

    def loss(s, x):
        return s.m(x).pow(2).mean()


@scenario()
def trainer_history(wrap):
    t = Trainer()
    f = wrap(t.step)
    for i, x in enumerate(batches(10)):
        t.history.append(f(x).item())
        t.n += 1
        if t.best is None or t.best > t.history[-1]:
            t.best = t.history[-1]
    return t.history


@scenario()
def decorated_method(wrap):
    class T(Trainer):
        @wrap
        def step(s, x):
            return Trainer.step(s, x)

    t = T()
    return [t.step(x) for x in batches(8)] if not hasattr(T.step, "stats") else [T.step(t, x) for x in batches(8)]


@scenario()
def two_opts(wrap):
    a, b = lin(), lin()
    oa, ob = torch.optim.Adam(a.parameters(), lr=0.01), torch.optim.SGD(b.parameters(), lr=0.1, momentum=0.9)

    @wrap
    def f(x):
        oa.zero_grad()
        ob.zero_grad()
        la = b(a(x)).pow(2).mean()
        la.backward()
        oa.step()
        ob.zero_grad()
        lb = (b(a(x).detach()) - 1).pow(2).mean()
        lb.backward()
        ob.step()
        return la, lb

    return [f(x) for x in batches(10)], a.state_dict(), b.state_dict()


@scenario()
def freeze_between(wrap):
    m = nn.Sequential(lin(), nn.ReLU(), lin())
    o = torch.optim.Adam(m.parameters(), lr=0.01)
    f = wrap(step_of(m, o))
    out = []
    for i, x in enumerate(batches(14)):
        if i == 6:
            m[0].requires_grad_(False)
        if i == 11:
            m[0].requires_grad_(True)
        out.append(f(x))
    return out, m.state_dict()


@scenario()
def train_eval(wrap):
    m = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), lin()).to(DEVICE)

    @wrap
    def f(x):
        return m(x).detach()

    out = []
    for i, x in enumerate(batches(16)):
        m.train(i % 8 < 4)
        out.append(f(x))
    return out, m.state_dict()


@scenario()
def nograd_eval(wrap):
    m = lin()
    o = sgd(m)
    f = wrap(step_of(m, o))
    e = wrap(lambda x: m(x).sum())
    out = []
    for x in batches(10):
        out.append(f(x))
        with torch.no_grad():
            out.append(e(x))
    return out


@scenario()
def eager_mixed(wrap):
    m = lin()
    o = torch.optim.Adam(m.parameters(), lr=0.01)
    g = step_of(m, o)
    f = wrap(g)
    return [(f if i % 3 else g)(x) for i, x in enumerate(batches(14))], m.state_dict(), o.state_dict()


@scenario()
def set_to_none_false(wrap):
    m = lin()
    o = torch.optim.Adam(m.parameters(), lr=0.01)

    @wrap
    def f(x):
        o.zero_grad(set_to_none=False)
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    return [f(x) for x in batches(8)], m.state_dict(), [host(p.grad) for p in m.parameters()]


@scenario()
def accumulate_inside(wrap):
    m = lin()
    o = sgd(m)

    @wrap
    def f(x):
        o.zero_grad()
        for k in x.chunk(2):
            loss = m(k).pow(2).mean() / 2
            loss.backward()
        o.step()
        return loss

    return [f(x) for x in batches(8)], m.state_dict()


@scenario()
def accumulate_outside(wrap):
    m = lin()
    o = sgd(m)

    @wrap
    def micro(x):
        loss = m(x).pow(2).mean()
        loss.backward()
        return loss

    out = []
    for i, x in enumerate(batches(20)):
        out.append(micro(x))
        if i % 4 == 3:
            o.step()
            o.zero_grad()
    return out, m.state_dict()


@scenario()
def tied(wrap):
    e = nn.Embedding(6, 4).to(DEVICE)
    decoder = nn.Linear(4, 6, bias=False).to(DEVICE)
    decoder.weight = e.weight
    m = nn.ModuleList([e, decoder])
    o = torch.optim.Adam(m.parameters(), lr=0.01)

    @wrap
    def f(i):
        o.zero_grad()
        ls = F.cross_entropy(decoder(e(i)), i)
        ls.backward()
        o.step()
        return ls

    return [f(torch.randint(6, (5,)).to(DEVICE)) for _ in range(8)], m.state_dict()


@scenario(graph=False, because="Python state that changes with each call: a.n_averaged")
def ema_averaged(wrap):
    m = lin()
    o = sgd(m)
    a = torch.optim.swa_utils.AveragedModel(m, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        a.update_parameters(m)
        return loss

    return [f(x) for x in batches(10)], m.state_dict(), a.state_dict()


@scenario(graph=False, because="Python state that changes with each call: a.n_averaged")
def swa_averaged(wrap):
    m = lin()
    o = sgd(m)
    a = torch.optim.swa_utils.AveragedModel(m)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        a.update_parameters(m)
        return loss

    return [f(x) for x in batches(10)], m.state_dict(), a.state_dict()


@scenario()
def ema_hand(wrap):
    import copy

    m = lin()
    o = sgd(m)
    a = copy.deepcopy(m)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        with torch.no_grad():
            for p, q in zip(a.parameters(), m.parameters()):
                p.mul_(0.9).add_(q, alpha=0.1)
        return loss

    return [f(x) for x in batches(10)], m.state_dict(), a.state_dict()


@scenario()
def sched_inside(wrap):
    m = lin()
    o = torch.optim.AdamW(m.parameters(), lr=0.01)
    s = torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        s.step()
        return loss

    return [f(x) for x in batches(15)], m.state_dict(), o.param_groups[0]["lr"], s.last_epoch


@scenario()
def sched_outside(wrap):
    m = lin()
    o = sgd(m)
    s = torch.optim.lr_scheduler.CosineAnnealingLR(o, 6)
    f = wrap(step_of(m, o))
    out = []
    for x in batches(15):
        out.append(f(x))
        s.step()
    return out, m.state_dict(), o.param_groups[0]["lr"]


@scenario()
def clip(wrap):
    m = lin()
    o = sgd(m)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        n = nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        nn.utils.clip_grad_value_(m.parameters(), 0.1)
        o.step()
        return loss, n

    return [f(x) for x in batches(8)], m.state_dict()


@scenario()
def amp(wrap):
    m = nn.Sequential(lin(), nn.ReLU(), lin())
    o = sgd(m)
    s = torch.amp.GradScaler("mindspore", init_scale=2.0**8, growth_interval=4)

    @wrap
    def f(x):
        o.zero_grad()
        with torch.autocast("mindspore", dtype=torch.float16):
            loss = m(x).pow(2).mean()
        s.scale(loss).backward()
        s.step(o)
        s.update()
        return loss

    b = batches(14)
    b[8] = b[8] * 1e30
    return [(f(x), s.get_scale()) for x in b], m.state_dict()


@scenario()
def load_state_between(wrap):
    m = lin()
    o = torch.optim.Adam(m.parameters(), lr=0.01)
    f = wrap(step_of(m, o))
    out = []
    for i, x in enumerate(batches(10)):
        if i == 5:
            m.load_state_dict({k: v * 0.5 for k, v in m.state_dict().items()})
        out.append(f(x))
    return out, m.state_dict()


@scenario()
def load_state_assign(wrap):
    m = lin()

    @wrap
    def f(x):
        return m(x).detach()

    out = []
    for i, x in enumerate(batches(10)):
        if i == 5:
            m.load_state_dict({k: v * 0.5 for k, v in m.state_dict().items()}, assign=True)
        out.append(f(x))
    return out, m.state_dict()


@scenario()
def host_args(wrap):
    m = lin()
    o = sgd(m)

    @wrap
    def f(x, y=None, *, w):
        x = x.to(DEVICE)
        y = y.to(DEVICE)
        o.zero_grad()
        loss = ((m(x) - y) * w.to(DEVICE)).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    b = batches(24, device="cpu")
    return [f(b[3 * i], y=b[3 * i + 1], w=b[3 * i + 2]) for i in range(8)]


@scenario()
def ragged(wrap):
    m = lin()
    o = sgd(m)
    f = wrap(step_of(m, o))
    b = batches(15)
    return [f(x[:3].clone() if i % 5 == 4 else x) for i, x in enumerate(b)], m.state_dict()


@scenario()
def zero_dim_lr_device(wrap):
    m = lin()
    lr = torch.tensor(0.1, device=DEVICE)
    o = torch.optim.Adam(m.parameters(), lr=lr, capturable=True)
    f = wrap(step_of(m, o))
    out = []
    for x in batches(8):
        out.append(f(x))
        lr.mul_(0.9)
    return out, m.state_dict()


@scenario()
def weightnorm(wrap):
    m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).to(DEVICE)
    o = sgd(m)
    f = wrap(step_of(m, o))
    return [f(x) for x in batches(8)], m.state_dict()


@scenario()
def spectral(wrap):
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).to(DEVICE)
    o = sgd(m)
    f = wrap(step_of(m, o))
    return [f(x) for x in batches(8)], m.state_dict()


@scenario()
def double_backward(wrap):
    m = nn.Sequential(lin(), nn.Tanh(), lin())
    o = sgd(m)

    @wrap
    def f(x):
        o.zero_grad()
        x = x.detach().requires_grad_()
        y = m(x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        loss = (g.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    return [f(x) for x in batches(8)], m.state_dict()


@scenario(graph=False, because="it returns a tensor with a history. Call backward inside, or return it detached: loss.detach()")
def retain_graph_result(wrap):
    m = lin()
    o = sgd(m)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward(retain_graph=True)
        o.step()
        return loss

    return [f(x) for x in batches(8)], m.state_dict()


@scenario()
def noise_arg(wrap):
    m = lin()
    o = torch.optim.Adam(m.parameters(), lr=0.01)

    @wrap
    def f(x):
        o.zero_grad()
        loss = (m(x + torch.randn_like(x) * 0.1) + torch.rand(4, 4, device=DEVICE)).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    return [f(x) for x in batches(8)], m.state_dict(), torch.rand(3)


@scenario()
def bn_train(wrap):
    m = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), lin()).to(DEVICE)

    @wrap
    def f(x):
        return m(x).detach()

    return [f(x) for x in batches(8)], m.state_dict()


@scenario()
def bn_train_backward(wrap):
    m = nn.Sequential(nn.BatchNorm1d(4), lin()).to(DEVICE)
    o = sgd(m)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    return [f(x) for x in batches(8)], m.state_dict()


@scenario()
def bn_train_eval_step(wrap):
    m = nn.Sequential(nn.BatchNorm1d(4), lin()).to(DEVICE)
    o = sgd(m)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        o.step()
        return loss

    e = wrap(lambda x: m(x))
    out = []
    for i, x in enumerate(batches(16)):
        m.train()
        out.append(f(x))
        m.eval()
        with torch.no_grad():
            out.append(e(x))
    return out, m.state_dict()


@pytest.mark.parametrize("name", SCENARIOS)
def test_like_eager(name):
    fn, graph, because = SCENARIOS[name]
    check(fn, graph=graph, because=because)


def momentum(wrap, count, before, step=lambda optimizer: optimizer.step(), noted=()):
    """What `count` steps of SGD with momentum show, and how much is noted after each.

    before(number, optimizer, w): what happens before each.
    """
    w = torch.nn.Parameter(torch.ones(4, device=DEVICE))
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    @wrap
    def f(x):
        optimizer.zero_grad()
        (w * x).sum().backward()
        step(optimizer)

    out = []
    for i, x in enumerate(batches(count, (4,))):
        before(i, optimizer, w)
        f(x)
        out.append((w.detach().clone(), len(noted)))
    return out


def test_an_optimizer_without_numbers_of_its_own_is_asked_again_when_its_settings_change(monkeypatch):
    calls = []
    original = hostcalls._Numbers.__enter__
    monkeypatch.setattr(hostcalls._Numbers, "__enter__", lambda self: calls.append(1) or original(self))

    def scenario(wrap):
        hooks = []

        def before(i, optimizer, w):
            if i == 6:
                optimizer.param_groups[0]["lr"] = 0.01
            if i == 9:
                optimizer.param_groups[0]["weight_decay"] = 0.0
                optimizer.register_step_post_hook(lambda *_: hooks.append("hook"))

        return momentum(wrap, 12, before, noted=hooks)

    check(scenario)
    assert 2 <= len(calls) <= 8  # once for each setting, and always with a hook


@pytest.mark.parametrize("first", ["scheduler", "optimizer"])
def test_a_scheduler_in_the_step_moves_the_numbers_of_sgd(first):
    def scenario(wrap):
        made = {}

        def before(i, optimizer, w):
            if i == 0:
                made["scheduler"] = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)

        def step(optimizer):
            both = (optimizer, made["scheduler"])
            for which in both if first == "optimizer" else both[::-1]:
                which.step()

        return momentum(wrap, 14, before, step)

    check(scenario)


def test_an_optimizer_state_that_was_cleared_and_made_anew():
    def before(i, optimizer, w):
        if i == 6:
            optimizer.state.clear()
        if i == 8:
            optimizer.state[w]["momentum_buffer"].zero_()

    check(lambda wrap: momentum(wrap, 12, before))


def test_a_step_that_the_user_replaces():
    def scenario(wrap):
        counted = []

        def before(i, optimizer, w):
            if i == 6:
                own = optimizer.step

                def instead():
                    counted.append(1)
                    optimizer.param_groups[0]["lr"] *= 0.9
                    own()

                optimizer.step = instead

        return momentum(wrap, 10, before, noted=counted)

    check(scenario)
