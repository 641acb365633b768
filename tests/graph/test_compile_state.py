"""What a recording would bake in: Python state, hooks, host tensors, random numbers, shared memory.

A compiled function gives what the eager one gives, or runs eagerly and says why.
"""

import collections
import itertools
import os
import random
import time
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .util import DEVICE, batches, check, host

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
def same_arg_twice_then_two(wrap):
    @wrap
    def f(a, b):
        return a * 2 + b

    b = batches(8)
    return [f(b[0], b[0]), f(b[1], b[1]), f(b[2], b[2]), f(b[3], b[3]), f(b[4], b[5])]


@scenario()
def arg_is_closure_tensor(wrap):
    w = batches(1)[0]

    @wrap
    def f(a):
        return a * 2 + w

    b = batches(8)
    return [f(w) for _ in range(4)] + [f(b[4])]


@scenario()
def results_alias(wrap):
    @wrap
    def f(x):
        y = x * 2
        return y, y[0]

    out = []
    for x in batches(6):
        y, z = f(x)
        y.add_(1)
        out.append((y, z.clone()))
    return out


@scenario()
def results_same(wrap):
    @wrap
    def f(x):
        y = x * 2
        return y, y

    out = []
    for x in batches(6):
        y, z = f(x)
        out.append(y is z)
    return out


@scenario()
def return_grad(wrap):
    m = lin()

    @wrap
    def f(x):
        m.weight.grad = None
        m(x).pow(2).sum().backward()
        return m.weight.grad

    out = []
    for x in batches(6):
        g = f(x)
        g.mul_(2)
        out.append(m.weight.grad)
    return host(out)


@scenario(graph=False, because="it computes on the host with a tensor among the arguments. Move it to the device first")
def host_item(wrap):
    @wrap
    def f(x, n):
        return x * int(n.max())

    b = batches(8)
    return [f(b[i], torch.tensor([1, 2 if i < 5 else 3])) for i in range(8)]


@scenario(graph=False, because="it reads a host tensor among the arguments")
def host_tolist(wrap):
    @wrap
    def f(x, n):
        return x * n.tolist()[1]

    b = batches(8)
    return [f(b[i], torch.tensor([1, 2 if i < 5 else 3])) for i in range(8)]


@scenario(graph=False, because="it reads a host tensor among the arguments")
def host_numpy(wrap):
    @wrap
    def f(x, n):
        return x * n.numpy()[1].item()

    b = batches(8)
    return [f(b[i], torch.tensor([1, 2 if i < 5 else 3])) for i in range(8)]


@scenario(graph=False, because="it computes on the host with a tensor among the arguments. Move it to the device first")
def host_branch(wrap):
    @wrap
    def f(x, n):
        return x * 2 if n.sum() > 3 else x * 4

    b = batches(8)
    return [f(b[i], torch.tensor([1, 2 if i < 5 else 3])) for i in range(8)]


@scenario(graph=False, because="it computes on the host with a tensor among the arguments. Move it to the device first")
def host_mean(wrap):
    @wrap
    def f(x, n):
        return x * n.mean()

    b = batches(8)
    return [f(b[i], torch.tensor([1.0, 2.0 if i < 5 else 3.0])) for i in range(8)]


@scenario(graph=False, because="it computes on the host with a tensor among the arguments. Move it to the device first")
def host_inplace(wrap):
    n = torch.zeros(2)

    @wrap
    def f(x, n):
        n.add_(1)
        return x * 2

    b = batches(8)
    return [f(b[i], n) for i in range(8)], n


@scenario()
def host_closure_scalar(wrap):
    n = torch.tensor(2.0)

    @wrap
    def f(x):
        return x * n

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            n.fill_(3)
        out.append(f(x))
    return out


@scenario()
def host_closure_scalar_data(wrap):
    n = torch.tensor(2.0)

    @wrap
    def f(x):
        return x * n

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            n.data.fill_(3)
        out.append(f(x))
    return out


@scenario(graph=None)
def nested(wrap):
    m = lin()
    o = sgd(m)

    @wrap
    def inner(x):
        return m(x).pow(2).mean()

    @wrap
    def f(x):
        o.zero_grad()
        loss = inner(x)
        loss.backward()
        o.step()
        return loss

    return [f(x) for x in batches(8)], m.state_dict()


@scenario(graph=False, because="it seeds a random generator, or draws from it on the host")
def seed_inside(wrap):
    @wrap
    def f(x):
        torch.manual_seed(3)
        return F.dropout(x)

    return [f(x) for x in batches(8)]


@scenario(graph=False, because="it makes a random generator")
def generator_made_inside(wrap):
    @wrap
    def f(x):
        g = torch.Generator().manual_seed(0)
        return x + torch.rand(4, 4, generator=g, device=DEVICE)

    return [f(x) for x in batches(8)]


@scenario(graph=False, because="it seeds a random generator")
def generator_seeded_inside(wrap):
    g = torch.Generator()

    @wrap
    def f(x):
        g.manual_seed(0)
        return x + torch.rand(4, 4, generator=g, device=DEVICE)

    return [f(x) for x in batches(8)]


@scenario()
def generator_outside(wrap):
    g = torch.Generator()

    @wrap
    def f(x):
        return x + torch.rand(4, 4, generator=g, device=DEVICE)

    return [f(x) for x in batches(8)]


@scenario(graph=False, because="it seeds a random generator, or draws from it on the host")
def host_draw(wrap):
    @wrap
    def f(x):
        torch.rand(1)
        return F.dropout(x)

    return [f(x) for x in batches(8)]


@scenario(graph=False, because="it seeds a random generator, or draws from it on the host")
def host_draw_branch(wrap):
    @wrap
    def f(x):
        return x * 2 if torch.rand(()) < 0.7 else x

    return [f(x) for x in batches(20)]


@scenario(graph=False, because="Python state that changes with each call: random numbers")
def py_random_branch(wrap):
    random.seed(0)

    @wrap
    def f(x):
        return x * 2 if random.random() < 0.8 else x

    return [f(x) for x in batches(20)]


@scenario(graph=False, because="Python state that changes with each call: random numbers of Python or NumPy")
def np_random_branch(wrap):
    np.random.seed(0)

    @wrap
    def f(x):
        return x * 2 if np.random.rand() < 0.8 else x

    return [f(x) for x in batches(20)]


@scenario(graph=False, because="Python state that changes with each call: r")
def np_generator_branch(wrap):
    r = np.random.default_rng(0)

    @wrap
    def f(x):
        return x * 2 if r.random() < 0.8 else x

    return [f(x) for x in batches(20)]


@scenario(graph=False, because="Python state that changes with each call: random numbers")
def py_random_instance(wrap):
    r = random.Random(0)

    @wrap
    def f(x):
        return x * 2 if r.random() < 0.8 else x

    return [f(x) for x in batches(20)]


@scenario(graph=False, because="Python state that changes with each call: it")
def iterator(wrap):

    it = itertools.count()

    @wrap
    def f(x):
        return x * 2 if next(it) % 5 == 4 else x

    return [f(x) for x in batches(12)]


@scenario(graph=False, because="Python state that changes with each call: n")
def counter_nonlocal(wrap):
    n = 0

    @wrap
    def f(x):
        nonlocal n
        n += 1
        return x * 2 if n % 5 == 4 else x

    return [f(x) for x in batches(12)], n


COUNT = 0


@scenario(graph=False, because="Python state that changes with each call: COUNT")
def counter_global(wrap):
    global COUNT
    COUNT = 0

    @wrap
    def f(x):
        global COUNT
        COUNT += 1
        return x * 2 if COUNT % 5 == 4 else x

    return [f(x) for x in batches(12)], COUNT


class Cfg:
    step = 0
    scale = 2.0


@scenario(graph=False, because="Python state that changes with each call: Cfg.step")
def counter_class(wrap):
    Cfg.step = 0

    @wrap
    def f(x):
        Cfg.step += 1
        return x * 2 if Cfg.step % 5 == 4 else x

    return [f(x) for x in batches(12)], Cfg.step


@scenario()
def class_attr(wrap):
    Cfg.scale = 2.0
    c = Cfg()

    @wrap
    def f(x):
        return x * c.scale

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            Cfg.scale = 3.0
        out.append(f(x))
    return out


SCALE = 2.0


class Mod(nn.Module):
    def __init__(s):
        super().__init__()
        s.linear = nn.Linear(4, 4)

    def forward(s, x):
        return s.linear(x) * SCALE


@scenario()
def global_in_forward(wrap):
    global SCALE
    SCALE = 2.0
    m = Mod().to(DEVICE)

    @wrap
    def f(x):
        return m(x).detach()

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            SCALE = 3.0
        out.append(f(x))
    return out


class Tr:
    def __init__(s):
        s.m = lin()

    def loss(s, x):
        return s.m(x) * SCALE

    def step(s, x):
        return s.loss(x).detach()


@scenario()
def global_in_method(wrap):
    global SCALE
    SCALE = 2.0
    f = wrap(Tr().step)
    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            SCALE = 3.0
        out.append(f(x))
    return out


conf = types.ModuleType("conf")
conf.scale = 2.0
conf.f = None


@scenario()
def module_attr(wrap):
    conf.scale = 2.0

    @wrap
    def f(x):
        return x * conf.scale

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            conf.scale = 3.0
        out.append(f(x))
    return out


class Slots:
    __slots__ = ("scale", "h")


@scenario()
def slots(wrap):
    s = Slots()
    s.scale = 2.0

    @wrap
    def f(x):
        return x * s.scale

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            s.scale = 3.0
        out.append(f(x))
    return out


@scenario(graph=False, because="Python state that changes with each call: s.h")
def slots_keep(wrap):
    s = Slots()
    s.h = None

    @wrap
    def f(x):
        s.h = x * 2
        return x * 3

    out = []
    for i, x in enumerate(batches(8)):
        out.append((f(x), host(s.h)))
    return out


@scenario(graph=False, because="Python state that changes with each call: s[0]")
def deque_keep(wrap):
    s = collections.deque(maxlen=2)

    @wrap
    def f(x):
        y = x * 2
        s.append(y)
        return x * 3

    out = []
    for i, x in enumerate(batches(8)):
        out.append((f(x), host(s[-1])))
    return out


@scenario(graph=False, because="Python state that changes with each call: s[0]")
def deque_returned_keep(wrap):
    s = collections.deque(maxlen=2)

    @wrap
    def f(x):
        y = x * 2
        s.append(y)
        return y

    out = []
    for i, x in enumerate(batches(8)):
        f(x)
        out.append(host(s[-1]))
    return out


@scenario(graph=False, because="Python state that changes with each call: s")
def list_append(wrap):
    s = []

    @wrap
    def f(x):
        y = x * 2
        s.append(y)
        return y

    for i, x in enumerate(batches(8)):
        f(x)
    return s


@scenario(graph=False, because="Python state that changes with each call: t.h")
def attr_hidden(wrap):
    class T:
        pass

    t = T()
    t.h = torch.zeros(4, 4, device=DEVICE)

    @wrap
    def f(x):
        t.h = (t.h * 0.5 + x).detach()
        return t.h.sum()

    return [f(x) for x in batches(8)], t.h


@scenario(graph=False, because="Python state that changes with each call: t's attributes")
def attr_new_each(wrap):
    class T:
        pass

    t = T()
    iter(range(100))

    @wrap
    def f(x):
        setattr(t, f"h{len(t.__dict__)}", x * 2)
        return x * 3

    out = [f(x) for x in batches(8)]
    return out, len(t.__dict__)


class Obj:
    def __init__(s, v):
        s.v = v


class Obj2:
    def __init__(s, v):
        s.w = v
        s.v = v + 1


@scenario(graph=None)
def object_argument(wrap):
    @wrap
    def f(x, c):
        return x * c.v

    return [f(x, Obj(2.0 if i < 5 else float(i))) for i, x in enumerate(batches(12))]


@scenario(graph=None)
def numpy_argument(wrap):
    a = np.ones(3)

    @wrap
    def f(x, a):
        return x * a[0].item()

    out = []
    for i, x in enumerate(batches(12)):
        if i > 5:
            a[0] = i
        out.append(f(x, a))
    return out


@scenario()
def numpy_scalar_argument(wrap):
    @wrap
    def f(x, a):
        return x * float(a)

    return [f(x, np.float32(1 if i < 5 else i)) for i, x in enumerate(batches(12))]


@scenario(graph=None)
def numpy_closure(wrap):
    a = np.ones(3)

    @wrap
    def f(x):
        return x * a[0].item()

    out = []
    for i, x in enumerate(batches(12)):
        if i > 5:
            a[0] = i
        out.append(f(x))
    return out


@scenario()
def hook_swap(wrap):
    m = lin()
    h = m.register_forward_hook(lambda m, a, y: y * 2)

    @wrap
    def f(x):
        return m(x).detach()

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            h.remove()
            m.register_forward_hook(lambda m, a, y: y * 3)
        out.append(f(x))
    return out


@scenario()
def tensor_hook(wrap):
    m = lin()

    @wrap
    def f(x):
        m.zero_grad()
        m(x).pow(2).sum().backward()

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            m.weight.register_hook(lambda g: g * 3)
        f(x)
        out.append(host(m.weight.grad))
    return out


@scenario()
def post_acc_hook(wrap):
    m = lin()

    @wrap
    def f(x):
        m.zero_grad()
        m(x).pow(2).sum().backward()

    out = []

    def hook(p):
        p.grad.mul_(2)

    for i, x in enumerate(batches(8)):
        if i == 5:
            m.weight.register_post_accumulate_grad_hook(hook)
        f(x)
        out.append(host(m.weight.grad))
    return out


@scenario()
def global_hook(wrap):
    m = lin()

    @wrap
    def f(x):
        return m(x).detach()

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            h = nn.modules.module.register_module_forward_hook(lambda m, a, y: y * 3)
        out.append(f(x))
    h.remove()
    return out


@scenario()
def view_write(wrap):
    m = lin()

    @wrap
    def f(x):
        with torch.no_grad():
            m.weight.view(-1)[0] = x[0, 0]
            m.weight[1].mul_(0.5)
        return m(x).detach()

    return [f(x) for x in batches(8)], m.weight


@scenario()
def mutate_arg(wrap):
    @wrap
    def f(x):
        x.add_(1)
        return x

    out = []
    for x in batches(8):
        y = f(x)
        y.mul_(2)
        out.append((x, y is x))
    return out


@scenario()
def host_result_state(wrap):
    w = torch.zeros(4, 4, device=DEVICE)

    @wrap
    def f(x):
        w.add_(x)
        return w

    return [host(f(x)) for x in batches(8)]


@scenario()
def swap_state(wrap):
    a = torch.zeros(4, 4, device=DEVICE)
    b = torch.ones(4, 4, device=DEVICE)

    @wrap
    def f(x):
        t = a.clone()
        a.copy_(b)
        b.copy_(t + x)
        return a + b

    return [f(x) for x in batches(8)], a, b


@scenario()
def set_guard(wrap):
    s = {1}

    @wrap
    def f(x):
        return x * 2 if 3 in s else x

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            s.clear()
            s.add(3)
        out.append(f(x))
    return out


@scenario()
def deep(wrap):
    d = {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": 2.0}}}}}}}}}

    @wrap
    def f(x):
        return x * d["a"]["b"]["c"]["d"]["e"]["f"]["g"]["h"]["i"]

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            d["a"]["b"]["c"]["d"]["e"]["f"]["g"]["h"]["i"] = 3.0
        out.append(f(x))
    return out


@scenario()
def kwonly_default(wrap):
    c = [2.0]

    def g(x, *, c=c):
        return x * c[0]

    f = wrap(g)
    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            c[0] = 3.0
        out.append(f(x))
    return out


@scenario()
def function_attr(wrap):
    def g(x):
        return x * g.scale

    g.scale = 2.0
    f = wrap(g)
    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            g.scale = 3.0
        out.append(f(x))
    return out


@scenario(graph=False, because="Python state that changes with each call: s[0]")
def tensor_list_state(wrap):
    s = [torch.zeros(4, 4, device=DEVICE)]

    @wrap
    def f(x):
        s[0] = s[0] + x
        return s[0].sum()

    return [f(x) for x in batches(8)], s


@scenario(graph=False, because="Python state that changes with each call: it returned")
def itemread(wrap):
    @wrap
    def f(x):
        return x.sum().item()

    return [f(x) for x in batches(8)]


@scenario(graph=False, because="Python state that changes with each call: m.tau")
def alpha_attr_in_slots_of_module(wrap):
    m = lin()
    m.tau = 1.0

    @wrap
    def f(x):
        return m(x).detach() * m.tau

    out = []
    for x in batches(8):
        out.append(f(x))
        m.tau *= 0.9
    return out


@scenario()
def requires_grad_leaf_state(wrap):
    w = torch.ones(4, device=DEVICE)

    @wrap
    def f(x):
        return (x * w).sum() if not w.requires_grad else (x * w).sum().detach() * 2

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            w.requires_grad_()
        out.append(f(x))
    return out


@scenario()
def default_arg_obj(wrap):
    c = [2.0]

    def g(x, c=c):
        return x * c[0]

    f = wrap(g)
    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            c[0] = 3.0
        out.append(f(x))
    return out


@scenario()
def host_args_same_memory(wrap):
    buf = torch.zeros(4, 4)

    @wrap
    def f(x):
        return x.to(DEVICE) * 2

    out = []
    for x in batches(8, device="cpu"):
        buf.copy_(x)
        out.append(f(buf))
    return out


@scenario()
def host_arg_returned(wrap):
    @wrap
    def f(x):
        return x.to(DEVICE)

    out = []
    for x in batches(8, device="cpu"):
        y = f(x)
        x.zero_()
        out.append(y)
    return out


@scenario()
def module_replaced(wrap):
    m = nn.Sequential(lin(), nn.Sequential(lin()))

    @wrap
    def f(x):
        return m(x).detach()

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            m[1][0] = nn.Linear(4, 2).to(DEVICE)
        out.append(f(x))
    return out


@scenario()
def forward_patched(wrap):
    m = lin()

    @wrap
    def f(x):
        return m(x).detach()

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            m.forward = lambda x: x * 2
        out.append(f(x))
    return out


@scenario()
def forward_class_patched(wrap):
    class M(nn.Module):
        def forward(s, x):
            return x * 2

    m = M()

    @wrap
    def f(x):
        return m(x)

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            M.forward = lambda s, x: x * 3
        out.append(f(x))
    return out


@scenario()
def function_rebound(wrap):
    def loss(x):
        return x * 2

    @wrap
    def f(x):
        return loss(x)

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:

            def loss(x):
                return x * 3

        out.append(f(x))
    return out


@scenario()
def int_state_tensor(wrap):
    n = torch.zeros((), dtype=torch.long, device=DEVICE)

    @wrap
    def f(x):
        n.add_(1)
        return x * n

    return [f(x) for x in batches(8)], n


@scenario()
def exception_inside(wrap):
    m = lin()
    o = sgd(m)

    @wrap
    def f(x):
        o.zero_grad()
        loss = m(x).pow(2).mean()
        if x.shape[0] == 3:
            raise ValueError("three")
        loss.backward()
        o.step()
        return loss

    out = []
    for i, x in enumerate(batches(12)):
        try:
            out.append(f(x[:3] if i in (0, 5) else x))
        except ValueError:
            out.append(-1)
    return out, m.state_dict()


@scenario()
def recursion(wrap):
    def g(x, n):
        return x if n == 0 else f(x * 2, n - 1)

    f = wrap(g)
    return [f(x, 2) for x in batches(8)]


@scenario()
def inner_shared(wrap):
    m = lin()
    e = wrap(lambda x: m(x).detach())
    f = wrap(lambda x: e(x) * 2)
    out = []
    for x in batches(6):
        out.append(e(x))
        out.append(f(x))
    return out


@scenario()
def view_arg(wrap):
    @wrap
    def f(x):
        x.mul_(2)
        return x.sum()

    b = batches(8, (8, 4))
    out = [f(x[2:6]) for x in b]
    return out, b


@scenario()
def overlapping_args(wrap):
    @wrap
    def f(x, y):
        x.mul_(2)
        return y.sum()

    b = batches(8, (8, 4))
    return [f(x[2:6], x) for x in b], b


@scenario()
def overlapping_then_not(wrap):
    @wrap
    def f(x, y):
        x.mul_(2)
        return y.sum()

    b = batches(8, (8, 4))
    c = batches(8, (8, 4))
    return [f(x[2:6], x if i < 4 else y) for i, (x, y) in enumerate(zip(b, c))], b


@scenario()
def arg_of_bigger_memory(wrap):
    @wrap
    def f(x):
        return x * 2

    b = batches(12, (8, 4)) + batches(6, (9, 4))
    return [f(x[2:6]) for x in b]


@scenario()
def param_as_arg(wrap):
    m = lin()
    w = m.weight

    @wrap
    def f(p, x):
        with torch.no_grad():
            p.mul_(0.9)
        return m(x).detach()

    return [f(w, x) for x in batches(8)], m.state_dict()


@scenario()
def grad_as_arg(wrap):
    m = lin()

    @wrap
    def f(g):
        g.mul_(0.5)
        return g.sum()

    out = []
    for x in batches(8):
        m.zero_grad()
        m(x).pow(2).sum().backward()
        out.append(f(m.weight.grad))
        out.append(host(m.weight.grad))
    return out


@scenario()
def returns_structure(wrap):
    @wrap
    def f(x):
        return {"a": x * 2, "b": [x + 1, (None, "s", 3)]}

    return [f(x) for x in batches(6)]


@scenario()
def returns_param(wrap):
    m = lin()

    @wrap
    def f(x):
        with torch.no_grad():
            m.weight.add_(x)
        return m.weight

    return [(host(f(x)), f(x) is m.weight) for x in batches(6)]


@scenario()
def returns_buffer_view(wrap):
    b = torch.zeros(4, 4, device=DEVICE)

    @wrap
    def f(x):
        b.add_(x)
        return b[1]

    out = []
    for x in batches(6):
        y = f(x)
        y.zero_()
        out.append(host(b))
    return out


@scenario()
def constant_result(wrap):
    @wrap
    def f(x):
        return torch.ones(2, device=DEVICE), torch.arange(3, device=DEVICE)

    out = []
    for x in batches(6):
        a, b = f(x)
        out.append((host(a), host(b)))
        a.add_(1)
        b.add_(1)
    return out


@scenario(graph=False, because="Python state that changes with each call: time")
def clock(wrap):
    @wrap
    def f(x):
        time.time()
        return x * 2

    return [f(x) for x in batches(8)]


@scenario()
def env_dict(wrap):

    os.environ["Q"] = "2"

    @wrap
    def f(x):
        return x * float(os.environ["Q"])

    out = []
    for i, x in enumerate(batches(8)):
        if i == 5:
            os.environ["Q"] = "3"
        out.append(f(x))
    return out


@scenario(graph=None)
def dataclass_arg(wrap):
    import dataclasses

    @dataclasses.dataclass
    class B:
        x: object
        k: float

    @wrap
    def f(b):
        return b.x * b.k

    return [f(B(x, 2.0)) for x in batches(8)]


@scenario(graph=False, because="Python state that changes with each call: m.h")
def module_state_hidden(wrap):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.linear = nn.Linear(4, 4)
            s.h = None

        def forward(s, x):
            y = s.linear(x)
            s.h = y.detach() if s.h is None else s.h * 0.5 + y.detach()
            return s.h

    m = M().to(DEVICE)

    @wrap
    def f(x):
        return m(x)

    return [f(x) for x in batches(8)], m.h


@scenario(graph=False, because="Python state that changes with each call: m.h")
def module_buffer_reassigned(wrap):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("h", torch.zeros(4, 4))

        def forward(s, x):
            s.h = s.h * 0.5 + x
            return s.h * 2

    m = M().to(DEVICE)

    @wrap
    def f(x):
        return m(x)

    return [f(x) for x in batches(8)], m.h


@scenario()
def warning_cache(wrap):
    cache = {}

    @wrap
    def f(x):
        if "mask" not in cache:
            cache["mask"] = torch.ones(4, 4, device=DEVICE).tril()
        return x * cache["mask"]

    return [f(x) for x in batches(8)]


@scenario()
def string_mode(wrap):
    @wrap
    def f(x, mode):
        return x * 2 if mode == "a" else x * 3

    return [f(x, "ab"[i % 2]) for i, x in enumerate(batches(12))]


@pytest.mark.parametrize("name", SCENARIOS)
def test_like_eager(name):
    fn, graph, because = SCENARIOS[name]
    check(fn, graph=graph, because=because)
