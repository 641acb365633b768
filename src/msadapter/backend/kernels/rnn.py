"""Recurrent layers.

torch composes `lstm`, `gru` and `rnn` in C++ and multiplies the input once per time step on this device. The
composition here does it once per layer, as torch's CPU code does; it is made of differentiable ops, the fused cells
among them. A dense float32 LSTM goes to MindSpore's whole-sequence primitive through ATen's own `mkldnn_rnn_layer`, as
on the CPU.
"""

import functools

import torch

from ..elementary import sigmoid, tanh
from ..registry import LIB, Decline, aten, kernel, quick
from ..storage import TORCH_DTYPE, cast, constant, ms, read, wrap
from ..storage import _prim as prim
from .linalg import add_bias, multiply, sum_rows

_ADD, _SUB, _MUL = ms.ops.Add(), ms.ops.Sub(), ms.ops.Mul()
_SIGMOID_GRAD, _TANH_GRAD, _LERP = prim.SigmoidGrad(), prim.TanhGrad(), ms.ops.Lerp()
_CHUNK, _CONCAT, _FLAT, _RESHAPE = prim.Chunk(), ms.ops.Concat(1), ms.ops.Concat(0), ms.ops.Reshape()
_SPLIT, _AS_STRIDED, _CONTIGUOUS = prim.SplitWithSize(), prim.AsStrided(), prim.Contiguous()
_REVERSE, _TILE, _RELU_GRAD = ms.ops.ReverseV2([0]), ms.ops.Tile(), prim.ReluGrad()

# ------------------------------------------------------------------------------------------------------------ the cells


def _wide(*tensors):
    """(the result dtype, the values): bfloat16 and mixed dtypes compute in float32."""
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors if x is not None))
    inner = torch.float32 if dtype is torch.bfloat16 else dtype
    return dtype, [None if x is None else cast(read(x), inner) for x in tensors]


def _biased(g, bias):
    return g if bias is None else add_bias(g, bias)


def _narrow(dtype, *values):
    return tuple(v if v is None else cast(v, dtype) for v in values)


@kernel("_thnn_fused_lstm_cell", variants=False)
def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    """(h, c, workspace); the workspace holds the activated gates i, f, g, o."""
    dtype, (gi, gh, c, bi, bh) = _wide(input_gates, hidden_gates, cx, input_bias, hidden_bias)
    gates = _ADD(_biased(gi, bi), _biased(gh, bh))
    i, f, _, o = _CHUNK(sigmoid(gates), 4, 1)
    g = tanh(_CHUNK(gates, 4, 1)[2])
    c = _ADD(_MUL(f, c), _MUL(i, g))
    return _narrow(dtype, _MUL(o, tanh(c)), c, _CONCAT((i, f, g, o)))


@kernel("_thnn_fused_lstm_cell_backward_impl", variants=False)
def lstm_cell_backward(grad_h, grad_c, cx, cy, workspace, has_bias):
    dtype, (dh, dc, before, after, saved) = _wide(grad_h, grad_c, cx, cy, workspace)
    i, f, g, o = _CHUNK(saved, 4, 1)
    if dh is None:
        do = ms.ops.ZerosLike()(before)
    else:
        t = tanh(after)
        do, through = _SIGMOID_GRAD(o, _MUL(dh, t)), _TANH_GRAD(t, _MUL(dh, o))
        dc = through if dc is None else _ADD(through, dc)
    di, df = _SIGMOID_GRAD(i, _MUL(dc, g)), _SIGMOID_GRAD(f, _MUL(dc, before))
    gates = _CONCAT((di, df, _TANH_GRAD(g, _MUL(dc, i)), do))
    return _narrow(dtype, gates, _MUL(dc, f), sum_rows(gates) if has_bias else None)


@kernel("_thnn_fused_gru_cell", variants=False)
def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    """(h, workspace); the workspace holds r, z, n, hx and the hidden part of n."""
    dtype, (gi, gh, h, bi, bh) = _wide(input_gates, hidden_gates, hx, input_bias, hidden_bias)
    (ir, iz, i_n), (hr, hz, hn) = _CHUNK(_biased(gi, bi), 3, 1), _CHUNK(_biased(gh, bh), 3, 1)
    r, z = sigmoid(_ADD(ir, hr)), sigmoid(_ADD(iz, hz))
    n = tanh(_ADD(i_n, _MUL(r, hn)))
    return _narrow(dtype, _ADD(n, _MUL(z, _SUB(h, n))), _CONCAT((r, z, n, h, hn)))


@kernel("_thnn_fused_gru_cell_backward", variants=False)
def gru_cell_backward(grad_h, workspace, has_bias):
    dtype, (g, saved) = _wide(grad_h, workspace)
    r, z, n, h, hn = _CHUNK(saved, 5, 1)
    gz = _MUL(g, z)
    dn = _TANH_GRAD(n, _SUB(g, gz))
    dr, dz = _SIGMOID_GRAD(r, _MUL(dn, hn)), _SIGMOID_GRAD(z, _MUL(g, _SUB(h, n)))
    gi, gh = _CONCAT((dr, dz, dn)), _CONCAT((dr, dz, _MUL(dn, r)))
    biases = (sum_rows(gi), sum_rows(gh)) if has_bias else (None, None)
    return _narrow(dtype, gi, gh, gz, *biases)


# ----------------------------------------------------------------------------------- one LSTM layer in one primitive


@functools.cache
def _lstm(grad, input_size, hidden_size):
    cls = ms.ops.operations._grad_ops.LSTMGrad if grad else ms.ops.LSTM
    return cls(input_size, hidden_size, 1, True, False, 0.0)


def _f32(x):
    return cast(read(x), torch.float32)


def _packed(w_ih, w_hh, b_ih, b_hh):
    """MindSpore's weight: all matrices flat, then one bias."""
    parts = (_RESHAPE(_f32(w_ih), (-1,)), _RESHAPE(_f32(w_hh), (-1,)), _ADD(_f32(b_ih), _f32(b_hh)))
    v = _FLAT(parts)
    return _RESHAPE(v, (v.size, 1, 1))


def _state(x):
    return _RESHAPE(_f32(x), (1, *x.shape[-2:]))


@kernel("mkldnn_rnn_layer", variants=False)
def rnn_layer(x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, batch_sizes, mode, hidden, layers, has_biases, bidirectional,
              batch_first, train):  # fmt: skip
    """(output, h, c, workspace) of one direction of one LSTM layer."""
    if mode != _LSTM or batch_sizes or x.dtype is torch.float64:
        raise Decline("expected a dense float32 LSTM")
    v = _REVERSE(_f32(x)) if reverse else _f32(x)
    weights = _packed(w_ih, w_hh, b_ih, b_hh)
    y, h, c, workspace, _ = _lstm(False, x.shape[-1], hidden)(v, _state(hx), _state(cx), weights)
    h, c = _RESHAPE(h, tuple(hx.shape)), _RESHAPE(c, tuple(cx.shape))
    return *(cast(u, x.dtype) for u in (_REVERSE(y) if reverse else y, h, c)), workspace


@kernel("mkldnn_rnn_layer_backward", variants=False)
def rnn_layer_backward(x, w_ih, w_hh, b_ih, b_hh, hx, cx, y, hy, cy, grad_y, grad_h, grad_c, reverse, mode, hidden,
                       layers, has_biases, train, bidirectional, batch_sizes, batch_first, workspace):  # fmt: skip
    order = _REVERSE if reverse else lambda v: v
    gy, gh, gc = (
        constant(0, torch.float32, tuple(like.shape)) if g is None else _f32(g)
        for g, like in ((grad_y, y), (grad_h, hy), (grad_c, cy))
    )
    grads = (_RESHAPE(v, (1, *v.shape[-2:])) for v in (gh, gc))
    results = _lstm(True, x.shape[-1], hidden)(
        order(_f32(x)), _state(hx), _state(cx), _packed(w_ih, w_hh, b_ih, b_hh), order(_f32(y)), _state(hy), _state(cy),
        order(gy), *grads, read(workspace),
    )  # fmt: skip
    dx, dh, dc, dw = (cast(v, x.dtype) for v in results)
    flat = _RESHAPE(dw, (dw.size,))
    sizes = (w_ih.numel(), w_hh.numel(), b_ih.numel())
    a, b, bias = _SPLIT(flat, sizes, 0)
    return (
        order(dx), _RESHAPE(a, tuple(w_ih.shape)), _RESHAPE(b, tuple(w_hh.shape)), bias, bias,
        _RESHAPE(dh, tuple(hx.shape)), _RESHAPE(dc, tuple(cx.shape)),
    )  # fmt: skip


_LSTM = 2  # torch's number for this kind of layer


def _whole(x, state, w_ih, w_hh, b_ih=None, b_hh=None, *, reverse):
    if b_ih is None:
        b_ih = b_hh = w_ih.new_zeros(w_ih.shape[0])
    hidden = w_hh.shape[1]
    y, h, c, _ = aten.mkldnn_rnn_layer(
        x, w_ih, w_hh, b_ih, b_hh, *state, reverse, [], _LSTM, hidden, 1, True, False, False, torch.is_grad_enabled()
    )
    return y, (h, c)


# ------------------------------------------------------------------------------------------------------- one time step


def _step_lstm(gates, state, w_hh, b_hh, w_hr):
    h, c, _ = aten._thnn_fused_lstm_cell(gates, aten.linear(state[0], w_hh, b_hh), state[1])
    return (h if w_hr is None else aten.linear(h, w_hr), c)


def _step_gru(gates, state, w_hh, b_hh, w_hr):
    return (aten._thnn_fused_gru_cell(gates, aten.linear(state[0], w_hh, b_hh), state[0])[0],)


def _step_tanh(gates, state, w_hh, b_hh, w_hr):
    return (torch.tanh(gates + aten.linear(state[0], w_hh, b_hh)),)


def _step_relu(gates, state, w_hh, b_hh, w_hr):
    return (torch.relu(gates + aten.linear(state[0], w_hh, b_hh)),)


def _stepwise(step, x, state, sizes, weights, reverse):
    """One direction of one layer: (outputs of all steps, final state). `sizes` is None for a dense sequence."""
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    gates = aten.linear(x, w_ih, b_ih)
    gates = gates.unbind(0) if sizes is None else gates.split(sizes)
    initial, outputs, finished = state, [], []
    if sizes is not None:
        state = tuple(s[: sizes[-1 if reverse else 0]] for s in state)
    for g in reversed(gates) if reverse else gates:
        n, now = len(g), len(state[0])
        if n < now:  # sequences that ended here keep their state
            finished.append(tuple(s[n:] for s in state))
            state = tuple(s[:n] for s in state)
        elif n > now:  # sequences that begin here, in reverse
            state = tuple(torch.cat((s, s0[now:n])) for s, s0 in zip(state, initial))
        state = step(g, state, w_hh, b_hh, w_hr)
        outputs.append(state[0])
    if finished:
        state = tuple(torch.cat(parts) for parts in zip(state, *reversed(finished)))
    if reverse:
        outputs.reverse()
    return torch.stack(outputs) if sizes is None else torch.cat(outputs), state


# ------------------------------------------------------------------------------- a GRU or RNN layer as one function
#
# The same computation as `_stepwise` in MindSpore values: one dispatch for the layer, one product for all weight
# gradients, and in the backward loop only what depends on the gradient of the state.


def _part(v, start, stop):
    """Rows start:stop of the matrix v, as a view."""
    n = v.shape[1]
    return _AS_STRIDED(v, (stop - start, n), (n, 1), v.storage_offset() + start * n)


def _top(v, n):
    return v if v.shape[0] == n else _part(v, 0, n)


def _fit(v, n, fill, cut):
    """The state v for the n sequences of the next step: rows that end go to `cut`, rows that begin come from `fill`."""
    now = v.shape[0]
    if n < now:
        cut.append(_part(v, n, now))
        return _top(v, n)
    return _FLAT((v, _part(fill, now, n))) if n > now else v


def _join(parts):
    return parts[0] if len(parts) == 1 else _FLAT(tuple(parts))


def _scan(order, sizes, first, fill, step):
    """Carry a state through the steps in `order`; the final state has the rows that ended earlier behind it."""
    cut, v = [], _top(first, sizes[order[0]])
    for t in order:
        v = step(t, _fit(v, sizes[t], fill, cut))
    return _join([v, *reversed(cut)])


def _gru_forward(gates, hidden, bias, order, sizes, h0):
    """(final state, saved per step): r and z, n, the hidden gates, the state before, the state after."""
    saved = [None] * len(sizes)

    def step(t, h):
        hg = multiply(h, hidden, False, True)
        if bias is not None:
            hg = _ADD(hg, _top(bias, sizes[t]))
        width = h.shape[1]
        (x_rz, x_n), (h_rz, h_n) = (_SPLIT(g, (2 * width, width), 1) for g in (gates[t], hg))
        rz = sigmoid(_ADD(x_rz, h_rz))
        r, z = _CHUNK(rz, 2, 1)
        n = tanh(_ADD(x_n, _MUL(r, h_n)))
        after = _LERP(n, h, z) if n.dtype == ms.float32 else _ADD(n, _MUL(z, _SUB(h, n)))
        saved[t] = (rz, n, hg, h, after)
        return after

    return _scan(order, sizes, h0, h0, step), saved


def _gru_backward(rz, n, hg, before, hidden, order, sizes, gy, gh, spans):
    """(gradient of h0, of the input gates, of the hidden gates)."""
    (r, z), h_n = _CHUNK(rz, 2, 1), _CHUNK(hg, 3, 1)[2]
    a = _TANH_GRAD(n, _SUB(constant(1, TORCH_DTYPE[z.dtype]), z))
    weight = _CONCAT((_SIGMOID_GRAD(r, _MUL(a, h_n)), _SIGMOID_GRAD(z, _SUB(before, n)), _MUL(a, r)))
    weights, zs, gys = (_SPLIT(v, spans, 0) for v in (weight, _CONTIGUOUS(z), gy))
    grads, states = [None] * len(sizes), [None] * len(sizes)

    def step(t, g):
        g = states[t] = _ADD(g, gys[t])
        dg = grads[t] = _MUL(weights[t], _TILE(g, (1, 3)))
        return _ADD(_MUL(g, zs[t]), multiply(dg, hidden))

    dh0 = _scan(order, sizes, gh, gh, step)
    dg = _join(grads)
    return dh0, _CONCAT((*_CHUNK(dg, 3, 1)[:2], _MUL(a, _join(states)))), dg


def _rnn_forward(activate):
    def forward(gates, hidden, bias, order, sizes, h0):
        saved = [None] * len(sizes)

        def step(t, h):
            g = _ADD(gates[t], multiply(h, hidden, False, True))
            if bias is not None:
                g = _ADD(g, _top(bias, sizes[t]))
            after = activate(g)
            saved[t] = (h, after)
            return after

        return _scan(order, sizes, h0, h0, step), saved

    return forward


def _rnn_backward(gradient):
    def backward(y, hidden, order, sizes, gy, gh, spans):
        ys, gys, grads = _SPLIT(y, spans, 0), _SPLIT(gy, spans, 0), [None] * len(sizes)

        def step(t, g):
            grads[t] = gradient(ys[t], _ADD(g, gys[t]))
            return multiply(grads[t], hidden)

        dh0 = _scan(order, sizes, gh, gh, step)
        return dh0, *[_join(grads)] * 2

    return backward


_LAYERS = {
    _step_gru: (_gru_forward, _gru_backward),
    _step_tanh: (_rnn_forward(tanh), _rnn_backward(_TANH_GRAD)),
    _step_relu: (_rnn_forward(ms.ops.ReLU()), _rnn_backward(lambda y, g: _RELU_GRAD(g, y))),
}


class _Layer(torch.autograd.Function):
    """One direction of one layer over rows x (all steps, one after the other); `sizes` are the rows of each step."""

    @staticmethod
    def forward(ctx, step, x, h0, w_ih, w_hh, b_ih, b_hh, sizes, reverse, train):
        order = range(len(sizes))[:: -1 if reverse else 1]
        gates = multiply(read(x), read(w_ih), False, True)
        if b_ih is not None:
            gates = add_bias(gates, read(b_ih))
        bias = None if b_hh is None else _TILE(_RESHAPE(read(b_hh), (1, len(b_hh))), (max(sizes), 1))
        h, saved = _LAYERS[step][0](_SPLIT(gates, tuple(sizes), 0), read(w_hh), bias, order, sizes, read(h0))
        *work, after = ([s[i] for s in saved] for i in range(len(saved[0])))
        y, h = wrap(_join(after)), wrap(h)
        if train:
            ctx.save_for_backward(x, h0, w_ih, w_hh, b_ih, b_hh, y, *(wrap(_join(w)) for w in work))
            ctx.layer = step, sizes, reverse, order
        return y, h

    @staticmethod
    def backward(ctx, gy, gh):
        inputs, (y, *work) = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
        step, sizes, reverse, order = ctx.layer
        if torch.is_grad_enabled():  # a second derivative is wanted: through differentiable steps
            grads = _again(step, inputs, sizes, reverse, gy, gh)
        else:
            x, h0, w_ih, w_hh, b_ih, b_hh = inputs
            *values, before = (read(w) for w in work)
            mine = (*values, before) if step is _step_gru else (read(y),)
            hidden = read(w_hh)
            dh0, dx, dh = _LAYERS[step][1](*mine, hidden, order[::-1], sizes, read(gy), read(gh), tuple(sizes))
            grads = (
                multiply(dx, read(w_ih)), dh0, multiply(dx, read(x), True), multiply(dh, before, True),
                None if b_ih is None else sum_rows(dx), None if b_hh is None else sum_rows(dh),
            )  # fmt: skip
            grads = tuple(g if g is None else wrap(g) for g in grads)
        return None, *grads, None, None, None


def _again(step, inputs, sizes, reverse, gy, gh):
    x, h0, *weights = inputs
    y, (h,) = _stepwise(step, x, (h0,), sizes, (*weights, None), reverse)
    wanted = [i for i in inputs if i is not None and i.requires_grad]
    grads = iter(torch.autograd.grad((y, h), wanted, (gy, gh), create_graph=True, allow_unused=True))
    return tuple(next(grads) if i is not None and i.requires_grad else None for i in inputs)


def _fast(step, x, state, sizes, weights, reverse):
    """One layer by `_Layer`: x is dense (steps, batch, features) or, with sizes, packed rows."""
    dense = sizes is None
    if dense:
        sizes = [x.shape[1]] * x.shape[0]
        x = x.reshape(-1, x.shape[2])
    train = torch.is_grad_enabled()
    y, h = _Layer.apply(step, x, state[0], *weights[:4], sizes, reverse, train)
    return y.view(len(sizes), sizes[0], -1) if dense else y, (h,)


def _direction(step, x, state, sizes, weights, reverse):
    tensors = [x, *state, *(w for w in weights if w is not None)]
    if (
        step in _LAYERS and quick() and x.numel() and tensors[0].dtype in (torch.float32, torch.float64)
        and all(t.dtype is x.dtype for t in tensors)
        and state[0].shape[0] == (x.shape[1] if sizes is None else max(sizes))
        and not torch.is_autocast_enabled("mindspore") and torch._C._functorch.peek_interpreter_stack() is None
    ):  # fmt: skip
        return _fast(step, x, state, sizes, weights, reverse)
    return _stepwise(step, x, state, sizes, weights, reverse)


# --------------------------------------------------------------------------------------------------------- all layers


def _run(step, x, hx, sizes, params, has_biases, num_layers, dropout, train, bidirectional):
    """(output, *final states) of stacked layers; hx is a tuple of stacked initial states."""
    if sizes is None and not len(x):
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    directions = 2 if bidirectional else 1
    projected = step is _step_lstm and hx[0].shape[2] != hx[1].shape[2]
    per = (4 if has_biases else 2) + projected
    whole = (
        step is _step_lstm and sizes is None and not projected and x.numel()
        and all(p.dtype is torch.float32 for p in (x, *hx, *params))
    )  # fmt: skip
    states = list(zip(*(s.unbind(0) for s in hx)))
    finals = []
    for layer in range(num_layers):
        outputs = []
        for d in range(directions):
            k = layer * directions + d
            p = list(params[k * per : (k + 1) * per])
            if whole:
                y, state = _whole(x, states[k], *p, reverse=d == 1)
            else:
                w_hr = p.pop() if projected else None
                weights = (*p, *(() if has_biases else (None, None)), w_hr)
                y, state = _direction(step, x, states[k], sizes, weights, d == 1)
            outputs.append(y)
            finals.append(state)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < num_layers - 1:
            x = torch.dropout(x, dropout, train)
    return x, *(torch.stack(s) for s in zip(*finals))


def _dense(step, x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
    x = x.transpose(0, 1) if batch_first else x
    y, *states = _run(step, x, hx, None, params, has_biases, num_layers, dropout, train, bidirectional)
    return y.transpose(0, 1) if batch_first else y, *states


def _variable(step, data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional):
    return _run(step, data, hx, batch_sizes.tolist(), params, has_biases, num_layers, dropout, train, bidirectional)


def _register(name, step):
    """Composites: above autograd, and below it for inference mode."""
    states = tuple if step is _step_lstm else lambda hx: (hx,)

    def dense(x, hx, *args):
        return _dense(step, x, states(hx), *args)

    def variable(data, batch_sizes, hx, *args):
        return _variable(step, data, batch_sizes, states(hx), *args)

    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        LIB.impl(f"{name}.input", dense, key)
        LIB.impl(f"{name}.data", variable, key)


for _name, _step in {"lstm": _step_lstm, "gru": _step_gru, "rnn_tanh": _step_tanh, "rnn_relu": _step_relu}.items():
    _register(_name, _step)
