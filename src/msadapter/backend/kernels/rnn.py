"""Recurrent layers.

torch composes `lstm`, `gru` and `rnn` in C++ and multiplies the input once per time step on this device. The composition
here does it once per layer, as torch's CPU code does; it is made of differentiable ops, the fused cells among them. A
dense float32 LSTM goes to MindSpore's whole-sequence primitive through ATen's own `mkldnn_rnn_layer`, as on the CPU.
"""

import functools

import torch

from ..registry import LIB, Decline, aten, kernel
from ..storage import constant, ms, read
from ..storage import _prim as prim
from .linalg import add_bias, sum_rows

_ADD, _SUB, _MUL, _SIGMOID, _TANH = ms.ops.Add(), ms.ops.Sub(), ms.ops.Mul(), ms.ops.Sigmoid(), ms.ops.Tanh()
_SIGMOID_GRAD, _TANH_GRAD, _LERP = prim.SigmoidGrad(), prim.TanhGrad(), ms.ops.Lerp()
_CHUNK, _CONCAT, _FLAT, _RESHAPE = prim.Chunk(), ms.ops.Concat(1), ms.ops.Concat(0), ms.ops.Reshape()
_REVERSE = ms.ops.ReverseV2([0])

# ------------------------------------------------------------------------------------------------------------ the cells


def _gates(x, bias):
    g = read(x)
    return g if bias is None else add_bias(g, read(bias))


@kernel("_thnn_fused_lstm_cell", variants=False)
def lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    """(h, c, workspace); the workspace holds the activated gates i, f, g, o."""
    gates = _ADD(_gates(input_gates, input_bias), _gates(hidden_gates, hidden_bias))
    i, f, _, o = _CHUNK(_SIGMOID(gates), 4, 1)
    g = _TANH(_CHUNK(gates, 4, 1)[2])
    c = _ADD(_MUL(f, read(cx)), _MUL(i, g))
    return _MUL(o, _TANH(c)), c, _CONCAT((i, f, g, o))


@kernel("_thnn_fused_lstm_cell_backward_impl", variants=False)
def lstm_cell_backward(grad_h, grad_c, cx, cy, workspace, has_bias):
    i, f, g, o = _CHUNK(read(workspace), 4, 1)
    t, dc, do = _TANH(read(cy)), None if grad_c is None else read(grad_c), constant(0, cx.dtype, tuple(cx.shape))
    if grad_h is not None:
        dh = read(grad_h)
        do, through = _SIGMOID_GRAD(o, _MUL(dh, t)), _TANH_GRAD(t, _MUL(dh, o))
        dc = through if dc is None else _ADD(through, dc)
    di, df = _SIGMOID_GRAD(i, _MUL(dc, g)), _SIGMOID_GRAD(f, _MUL(dc, read(cx)))
    gates = _CONCAT((di, df, _TANH_GRAD(g, _MUL(dc, i)), do))
    return gates, _MUL(dc, f), sum_rows(gates) if has_bias else None


@kernel("_thnn_fused_gru_cell", variants=False)
def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    """(h, workspace); the workspace holds r, z, n, hx and the hidden part of n."""
    (ir, iz, i_n), (hr, hz, hn) = (
        _CHUNK(_gates(*p), 3, 1) for p in ((input_gates, input_bias), (hidden_gates, hidden_bias))
    )
    r, z = _SIGMOID(_ADD(ir, hr)), _SIGMOID(_ADD(iz, hz))
    n, h = _TANH(_ADD(i_n, _MUL(r, hn))), read(hx)
    return _ADD(n, _MUL(z, _SUB(h, n))), _CONCAT((r, z, n, h, hn))


@kernel("_thnn_fused_gru_cell_backward", variants=False)
def gru_cell_backward(grad_h, workspace, has_bias):
    r, z, n, h, hn = _CHUNK(read(workspace), 5, 1)
    g = read(grad_h)
    gz = _MUL(g, z)
    dn = _TANH_GRAD(n, _SUB(g, gz))
    dr, dz = _SIGMOID_GRAD(r, _MUL(dn, hn)), _SIGMOID_GRAD(z, _MUL(g, _SUB(h, n)))
    gi, gh = _CONCAT((dr, dz, dn)), _CONCAT((dr, dz, _MUL(dn, r)))
    return gi, gh, gz, *((sum_rows(gi), sum_rows(gh)) if has_bias else (None, None))


# ----------------------------------------------------------------------------------- one LSTM layer in one primitive


@functools.cache
def _lstm(grad, input_size, hidden_size):
    cls = ms.ops.operations._grad_ops.LSTMGrad if grad else ms.ops.LSTM
    return cls(input_size, hidden_size, 1, True, False, 0.0)


def _packed(w_ih, w_hh, b_ih, b_hh):
    """MindSpore's weight: all matrices flat, then one bias."""
    parts = (_RESHAPE(read(w_ih), (-1,)), _RESHAPE(read(w_hh), (-1,)), _ADD(read(b_ih), read(b_hh)))
    v = _FLAT(parts)
    return _RESHAPE(v, (v.size, 1, 1))


def _state(x):
    return _RESHAPE(read(x), (1, *x.shape[-2:]))


@kernel("mkldnn_rnn_layer", variants=False)
def rnn_layer(x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, batch_sizes, mode, hidden, layers, has_biases, bidirectional,
              batch_first, train):  # fmt: skip
    """(output, h, c, workspace) of one direction of one LSTM layer."""
    if mode != _LSTM or batch_sizes or x.dtype is not torch.float32:
        raise Decline("expected a dense float32 LSTM")
    v = _REVERSE(read(x)) if reverse else read(x)
    y, h, c, workspace, _ = _lstm(False, x.shape[-1], hidden)(v, _state(hx), _state(cx), _packed(w_ih, w_hh, b_ih, b_hh))
    return _REVERSE(y) if reverse else y, _RESHAPE(h, tuple(hx.shape)), _RESHAPE(c, tuple(cx.shape)), workspace


@kernel("mkldnn_rnn_layer_backward", variants=False)
def rnn_layer_backward(x, w_ih, w_hh, b_ih, b_hh, hx, cx, y, hy, cy, grad_y, grad_h, grad_c, reverse, mode, hidden, layers,
                       has_biases, train, bidirectional, batch_sizes, batch_first, workspace):  # fmt: skip
    order = _REVERSE if reverse else lambda v: v
    gy, gh, gc = (
        constant(0, x.dtype, tuple(like.shape)) if g is None else read(g)
        for g, like in ((grad_y, y), (grad_h, hy), (grad_c, cy))
    )
    states = [_RESHAPE(v, (1, *v.shape[-2:])) for v in (read(hy), read(cy))]
    grads = [_RESHAPE(v, (1, *v.shape[-2:])) for v in (gh, gc)]
    dx, dh, dc, dw = _lstm(True, x.shape[-1], hidden)(
        order(read(x)), _state(hx), _state(cx), _packed(w_ih, w_hh, b_ih, b_hh), order(read(y)), *states, order(gy), *grads,
        read(workspace),
    )  # fmt: skip
    flat = _RESHAPE(dw, (dw.size,))
    sizes = (w_ih.numel(), w_hh.numel(), b_ih.numel())
    a, b, bias = prim.SplitWithSize()(flat, sizes, 0)
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


# --------------------------------------------------------------------------------------------------------- all layers


def _run(step, x, hx, sizes, params, has_biases, num_layers, dropout, train, bidirectional):
    """(output, *final states) of stacked layers; hx is a tuple of stacked initial states."""
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
                y, state = _stepwise(step, x, states[k], sizes, weights, d == 1)
            outputs.append(y)
            finals.append(state)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < num_layers - 1:
            x = torch.dropout(x, dropout, train)
    return x, *(torch.stack(s) for s in zip(*finals))


def _dense(step, x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
    y, *states = _run(
        step, x.transpose(0, 1) if batch_first else x, hx, None, params, has_biases, num_layers, dropout, train, bidirectional
    )
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
