"""Products, norms, attention, transforms, recurrent layers and scans of states."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cases import case, floats, indices


def products():
    case("mat_mul", "mat_mul", {"a": floats(2, 1, 3, 4), "b": floats(3, 4, 2)}, torch.matmul)
    case("linear_gelu", "linear{activation=gelu}", {"x": floats(3, 4), "w": floats(4, 5), "bias": floats(5)},
         lambda x, w, b: F.gelu(F.linear(x, w.T, b)))
    case("dot_general", "dot_general{lhs_contract=[1], rhs_contract=[2], lhs_batch=[0], rhs_batch=[0]}",
         {"lhs": floats(2, 4, 3), "rhs": floats(2, 5, 4)}, lambda a, b: torch.einsum("bki,bjk->bij", a, b))
    case("grouped_mat_mul", "grouped_mat_mul", {"x": floats(5, 4), "w": floats(3, 4, 2), "expert": indices(3, 5)},
         lambda x, w, e: torch.einsum("mk,mkn->mn", x, w[e]))
    case("lora_mat_mul", "lora_mat_mul{scale=0.5}",
         {"x": floats(3, 4), "w": floats(4, 5), "a": floats(4, 2), "b": floats(2, 5)},
         lambda x, w, a, b: x @ w + 0.5 * (x @ a) @ b)


def norms():
    x, gamma, beta = floats(2, 3, 4), floats(4), floats(4)
    case("layer_norm", "layer_norm{axis=2, eps=1e-5}", {"x": x, "gamma": gamma, "beta": beta},
         lambda x, g, b: F.layer_norm(x, (4,), g, b, 1e-5))
    case("layer_norm_two_axes", "layer_norm{axis=1, eps=1e-3}", {"x": x, "gamma": floats(3, 4), "beta": floats(3, 4)},
         lambda x, g, b: F.layer_norm(x, (3, 4), g, b, 1e-3))
    case("rms_norm", "rms_norm{eps=1e-5}", {"x": x, "gamma": gamma}, lambda x, g: F.rms_norm(x, (4,), g, 1e-5))
    case("residual_layer_norm", "residual_layer_norm{eps=1e-5}",
         {"x": x, "residual": floats(2, 3, 4), "gamma": gamma, "beta": beta, "bias": floats(4)},
         lambda x, r, g, b, i: (F.layer_norm(x + r + i, (4,), g, b, 1e-5), x + r + i))
    case("residual_rms_norm", "residual_rms_norm{eps=1e-5}", {"x": x, "residual": floats(2, 3, 4), "gamma": gamma},
         lambda x, r, g: (F.rms_norm(x + r, (4,), g, 1e-5), x + r))
    x, gamma, beta = floats(2, 4, 3, 2), floats(4), floats(4)
    case("group_norm", "group_norm{groups=2, eps=1e-5}", {"x": x, "gamma": gamma, "beta": beta},
         lambda x, g, b: F.group_norm(x, 2, g, b, 1e-5))
    case("layer_norm_2d", "layer_norm_2d{eps=1e-5}", {"x": x, "gamma": gamma, "beta": beta},
         lambda x, g, b: F.layer_norm(x.permute(0, 2, 3, 1), (4,), g, b, 1e-5).permute(0, 3, 1, 2))
    operands = {"x": x, "gamma": gamma, "beta": beta, "mean": floats(4), "variance": floats(4, lo=0.5, hi=2)}
    case("batch_norm_inference", "batch_norm_inference{eps=1e-5}", operands,
         lambda x, g, b, m, v: (x - m[:, None, None]) / (v + 1e-5).sqrt()[:, None, None] * g[:, None, None] + b[:, None, None])


def attentions():
    def attention(name, mask, function, q=(2, 3, 4, 4), kv=(2, 5, 4, 4), more={}, scale="none", softcap="none"):
        op = f"attention{{q_heads={q[2]}, kv_heads={kv[2]}, layout=bshd, mask={mask}, scale={scale}, softcap={softcap}, kv_len=false}}"
        case(name, op, {"q": floats(*q), "k": floats(*kv), "v": floats(*kv), **more}, function)

    def torchs(q, k, v, **options):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)

    def spelled(q, k, v, seen, scale, softcap):
        s = torch.einsum("bihd,bjhd->bhij", q, k) * scale
        s = s if softcap is None else softcap * torch.tanh(s / softcap)
        return torch.einsum("bhij,bjhd->bihd", s.masked_fill(~seen, -torch.inf).softmax(-1), v)

    same = (2, 4, 2, 4)
    attention("attention", "none", torchs)
    attention("attention_scale", "none", lambda q, k, v: torchs(q, k, v, scale=0.25), scale=0.25)
    attention("attention_causal", "causal", lambda q, k, v: torchs(q, k, v, is_causal=True), q=same, kv=same)
    attention("attention_grouped", "none", lambda q, k, v: torchs(q, k, v, enable_gqa=True), kv=(2, 5, 2, 4))
    attention("attention_one_key_head_causal", "causal", lambda q, k, v: torchs(q, k, v, enable_gqa=True, is_causal=True),
              q=(1, 4, 4, 4), kv=(1, 4, 1, 4))
    bias = {"mask": floats(2, 4, 3, 5)}
    attention("attention_bias", "bias", lambda q, k, v, m: torchs(q, k, v, attn_mask=m), more=bias)
    keep = {"mask": np.array([[[1, 0, 1, 1, 0], [0, 1, 1, 0, 1], [1, 1, 1, 1, 1]]] * 2, bool)}
    attention("attention_keep", "keep", lambda q, k, v, m: torchs(q, k, v, attn_mask=m[:, None]), more=keep)
    i = torch.arange(4)
    window = (i[:, None] >= i) & (i[:, None] - i < 2)
    attention("attention_window", "window(2)", lambda q, k, v: spelled(q, k, v, window, 0.5, None), q=same, kv=same)
    everything = torch.ones(4, 4, dtype=torch.bool)
    attention("attention_softcap", "none", lambda q, k, v: spelled(q, k, v, everything, 0.5, 1.5), q=same, kv=same, softcap=1.5)

    def neox(x, cos, sin):
        a, b = x.chunk(2, -1)
        c, s = cos[None, :, None], sin[None, :, None]
        return torch.cat([a * c - b * s, a * s + b * c], -1)

    def gptj(x, cos, sin):
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(z * torch.complex(cos, sin)[None, :, None]).flatten(-2)

    for style, function in {"neox": neox, "gptj": gptj}.items():
        case(f"rope_{style}", f"rope{{style={style}, n_rot=4, layout=bshd}}",
             {"x": floats(1, 3, 2, 4), "cos": floats(3, 2), "sin": floats(3, 2)}, function)


def block(x, qkv, out, b_qkv, b_out):
    q, k, v = (x @ qkv + b_qkv).unflatten(-1, (3, 2, 2)).transpose(1, 3).unbind(2)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2) @ out + b_out


def layers():
    op = "attention_block{q_heads=2, kv_heads=2, mask=none, scale=none, softcap=none, rope=none, qkv_bias=true, out_bias=true}"
    operands = {"x": floats(2, 3, 4), "w_qkv": floats(4, 12), "w_out": floats(4, 4), "b_qkv": floats(12), "b_out": floats(4)}
    case("attention_block", op, operands, block)

    def layer(x, qkv, out, g1, b1, up, down, g2, b2, b_up, b_down, b_qkv, b_out):
        """By torch's own layer, whose weights are transposed."""
        own = nn.TransformerEncoderLayer(4, 2, 6, 0.0, F.gelu, 1e-5, batch_first=True, dtype=torch.float64)
        given = {
            "self_attn.in_proj_weight": qkv.T, "self_attn.in_proj_bias": b_qkv, "self_attn.out_proj.weight": out.T,
            "self_attn.out_proj.bias": b_out, "norm1.weight": g1, "norm1.bias": b1, "linear1.weight": up.T,
            "linear1.bias": b_up, "linear2.weight": down.T, "linear2.bias": b_down, "norm2.weight": g2, "norm2.bias": b2,
        }
        return torch.func.functional_call(own, given, x)

    op = ("transformer_layer{q_heads=2, kv_heads=2, mask=none, scale=none, softcap=none, rope=none, activation=gelu, "
          "eps=1e-5, qkv_bias=true, out_bias=true, ffn_bias=true}")
    half = {"lo": -0.5, "hi": 0.5}
    operands = {
        "x": floats(2, 3, 4), "w_qkv": floats(4, 12, **half), "w_out": floats(4, 4, **half), "gamma_1": floats(4),
        "beta_1": floats(4), "w_up": floats(4, 6, **half), "w_down": floats(6, 4, **half), "gamma_2": floats(4),
        "beta_2": floats(4), "b_up": floats(6), "b_down": floats(4), "b_qkv": floats(12), "b_out": floats(4),
    }
    case("transformer_layer", op, operands, layer)


def recurrent():
    b, s, i, h = 2, 3, 3, 2

    def net(module, gates, layers, directions, states):
        """Weights as Tercet has them, transposed, in torch's own module."""
        own = module(i, h, layers, batch_first=True, bidirectional=directions == 2, dtype=torch.float64)

        def run(x, *rest):
            first, weights, given = rest[:states], rest[states:], {}
            for n in range(layers * directions):
                w_x, w_h, bias = weights[3 * n:3 * n + 3]
                suffix = f"_l{n // directions}" + ("_reverse" if n % directions else "")
                given |= {"weight_ih" + suffix: w_x.T.contiguous(), "weight_hh" + suffix: w_h.T.contiguous(), "bias_ih" + suffix: bias[0], "bias_hh" + suffix: bias[1]}
            y, last = torch.func.functional_call(own, given, (x, first if states == 2 else first[0]))
            return (y, *last) if states == 2 else (y, last)

        operands = {"x": floats(b, s, i)}
        for k in range(states):
            operands["hc"[k] + "0"] = floats(layers * directions, b, h)
        for n in range(layers * directions):
            width = i if n < directions else directions * h
            operands |= {f"w_x{n}": floats(width, gates * h), f"w_h{n}": floats(h, gates * h), f"bias{n}": floats(2, gates * h)}
        return operands, run

    case("lstm", "lstm{layers=1, bidirectional=false}", *net(nn.LSTM, 4, 1, 1, 2))
    case("lstm_two_layers_both_ways", "lstm{layers=2, bidirectional=true}", *net(nn.LSTM, 4, 2, 2, 2))
    case("gru", "gru{layers=1, bidirectional=false}", *net(nn.GRU, 3, 1, 1, 1))
    case("gru_both_ways", "gru{layers=1, bidirectional=true}", *net(nn.GRU, 3, 1, 2, 1))
    case("rnn", "rnn{layers=2, bidirectional=false, f=tanh}", *net(nn.RNN, 1, 2, 1, 1))


def transforms():
    def real(z):
        return torch.view_as_real(z)

    def pairs(x):
        return torch.view_as_complex(x.contiguous())

    case("fft", "fft{inverse=false, norm=backward}", {"x": floats(2, 6, 2)}, lambda x: real(torch.fft.fft(pairs(x))))
    case("fft_inverse", "fft{inverse=true, norm=ortho}", {"x": floats(5, 2)}, lambda x: real(torch.fft.ifft(pairs(x), norm="ortho")))
    case("rfft", "rfft{norm=backward}", {"x": floats(2, 8)}, lambda x: real(torch.fft.rfft(x)))
    case("irfft", "irfft{n=8, norm=backward}", {"x": floats(2, 5, 2)}, lambda x: torch.fft.irfft(pairs(x), 8))
    case("stft", "stft{n=8, hop=4}", {"x": floats(2, 16), "window": floats(8)},
         lambda x, w: real(torch.stft(x, 8, 4, window=w, center=False, return_complex=True)).transpose(1, 2))


def scans():
    b, s, h, n, p = 1, 4, 3, 2, 2

    def selective(x, delta, a, bb, c):
        state, ys = torch.zeros(b, h, n, dtype=x.dtype), []
        for t in range(s):
            state = torch.exp(delta[:, t, :, None] * a) * state + (delta[:, t] * x[:, t])[..., None] * bb[:, t, None]
            ys.append((state * c[:, t, None]).sum(-1))
        return torch.stack(ys, 1)

    case("selective_scan", "selective_scan{n=2, carry=false}",
         {"x": floats(b, s, h), "delta": floats(b, s, h, lo=0.1, hi=1), "a": floats(h, n, lo=-2, hi=-0.1), "b": floats(b, s, n), "c": floats(b, s, n)},
         selective)

    def mamba(x, dt, a, bb, c):
        state, ys = torch.zeros(b, 2, p, n, dtype=x.dtype), []
        for t in range(s):
            update = torch.einsum("bh,bhp,bn->bhpn", dt[:, t], x[:, t], bb[:, t, 0])
            state = torch.exp(dt[:, t] * a)[..., None, None] * state + update
            ys.append(torch.einsum("bhpn,bn->bhp", state, c[:, t, 0]))
        return torch.stack(ys, 1)

    case("mamba2", "mamba2{carry=false}",
         {"x": floats(b, s, 2, p), "dt": floats(b, s, 2, lo=0.1, hi=1), "a": floats(2, lo=-2, hi=-0.1), "b": floats(b, s, 1, n), "c": floats(b, s, 1, n)},
         mamba)

    def delta_net(q, k, v, g, beta):
        state, ys = torch.zeros(b, 2, n, p, dtype=q.dtype), []
        for t in range(s):
            state = torch.exp(g[:, t])[..., None, None] * state
            d = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhnp,bhn->bhp", state, k[:, t]))
            state = state + torch.einsum("bhn,bhp->bhnp", k[:, t], d)
            ys.append(torch.einsum("bhnp,bhn->bhp", state, q[:, t]) / n ** 0.5)
        return torch.stack(ys, 1)

    case("gated_delta_net", "gated_delta_net{carry=false}",
         {"q": floats(b, s, 2, n), "k": floats(b, s, 2, n), "v": floats(b, s, 2, p), "g": floats(b, s, 2, lo=-1, hi=0), "beta": floats(b, s, 2, lo=0, hi=1)},
         delta_net)
    body = (
        "%y = scan{body=graph { %h = input{name=\"h\", ty=f32[2]}() %x = input{name=\"x\", ty=f32[2]}() %w = input{name=\"w\", ty=f32[2]}() "
        "%a = binary{f=mul}(%h, %w) %b = binary{f=add}(%a, %x) %c = unary{f=tanh}(%b) return %c as \"h\", %c as \"y\" }, "
        "carried=1, scanned=1, reverse=[false], reverse_results=[false]}(%h, %x, %w)"
    )

    def loop(h, x, w):
        ys = []
        for row in x:
            h = torch.tanh(h * w + row)
            ys.append(h)
        return h, torch.stack(ys)

    case("scan", body, {"h": floats(2), "x": floats(4, 2), "w": floats(2)}, loop)


def make():
    products()
    norms()
    attentions()
    layers()
    recurrent()
    transforms()
    scans()
