"""Small models in torch's words, whose weights and data are a formula of their names (`tests/src/suites/curves` has the same)."""

import math

import numpy as np
import torch
from torch.nn import functional as F

MASK = (1 << 64) - 1


def mixed(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def words(name, n):
    """16 bits for each of `n` elements, by SplitMix64 from the FNV hash of the name."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    steps = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed(steps + np.uint64(h)) >> np.uint64(48)).astype(np.int64)


def numbers(name, *shape):
    """Within 1 either way, exact in F32."""
    return torch.from_numpy((words(name, math.prod(shape)) / 32768.0 - 1.0).reshape(shape))


def integers(name, below, *shape):
    return torch.from_numpy((words(name, math.prod(shape)) % below).reshape(shape))


class Weights(dict):
    """What is trained, made when it is first asked for."""

    def __call__(self, name, *shape):
        if name not in self:
            first = numbers(name, *shape) / 4
            if "norm" in name.lower() and name.endswith("weight"):
                first = first + 1
            if name.endswith("lora_B"):
                first = first * 0
            self[name] = first.requires_grad_()
        return self[name]


class Frozen(Weights):
    """Weights that stay, beside low-rank matrices that do not."""

    def __init__(self):
        self.trained = Weights()

    def __call__(self, name, *shape):
        return super().__call__(name, *shape).detach()


def rope(x, positions):
    """Halves of a head rotated together; x [b, s, h, d], positions [b, s]."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = (positions[..., None] * frequencies)[:, :, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def attend(q, k, v, seen):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    return y.transpose(1, 2).flatten(2)


def llama(w, step, rank=None):
    vocab, width, heads, kv, dim, ffn, b, s = 29, 16, 4, 2, 4, 24, 2, 8
    tokens, labels = integers(f"tokens.{step}", vocab, b, s), integers(f"labels.{step}", vocab, b, s)
    segments = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1]])
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 0, 1, 2, 3, 4]])
    labels[:, 7] = -100
    seen = (segments[:, :, None] == segments[:, None]).tril()[:, None]

    def project(x, name, out, inner):
        y = x @ w(f"{name}.weight", out, inner).T
        if rank is None:
            return y
        a, b = w.trained(f"{name}.lora_A", rank, inner), w.trained(f"{name}.lora_B", out, rank)
        return y + 2 * (x @ a.T) @ b.T

    x = w("model.embed_tokens.weight", vocab, width)[tokens]
    for n in range(2):
        at = f"model.layers.{n}."
        h = F.rms_norm(x, (width,), w(at + "input_layernorm.weight", width), 1e-5)
        q = project(h, at + "self_attn.q_proj", width, width).unflatten(-1, (heads, dim))
        k = project(h, at + "self_attn.k_proj", kv * dim, width).unflatten(-1, (kv, dim))
        v = project(h, at + "self_attn.v_proj", kv * dim, width).unflatten(-1, (kv, dim))
        y = attend(rope(q, positions), rope(k, positions), v, seen)
        x = x + project(y, at + "self_attn.o_proj", width, width)
        h = F.rms_norm(x, (width,), w(at + "post_attention_layernorm.weight", width), 1e-5)
        h = F.silu(project(h, at + "mlp.gate_proj", ffn, width)) * project(h, at + "mlp.up_proj", ffn, width)
        x = x + project(h, at + "mlp.down_proj", width, ffn)
    x = F.rms_norm(x, (width,), w("model.norm.weight", width), 1e-5)
    return F.cross_entropy((x @ w("lm_head.weight", vocab, width).T).flatten(0, 1), labels.flatten())


def bert(w, step, pairs):
    vocab, width, heads, ffn, s = 29, 16, 4, 24, 6
    b = 8 if pairs else 4
    ids, types = integers(f"ids.{step}", vocab, b, s), integers(f"types.{step}", 2, b, s)
    mask = torch.arange(s) < 3 + torch.arange(b)[:, None] % 4

    def linear(x, name, out, inner):
        return F.linear(x, w(f"{name}.weight", out, inner), w(f"{name}.bias", out))

    def norm(x, name):
        return F.layer_norm(x, (width,), w(f"{name}.weight", width), w(f"{name}.bias", width), 1e-12)

    table = lambda what, n: w(f"embeddings.{what}_embeddings.weight", n, width)
    x = norm(table("word", vocab)[ids] + table("token_type", 2)[types] + table("position", 8)[:s], "embeddings.LayerNorm")
    for n in range(2):
        at = f"encoder.layer.{n}."
        q, k, v = (linear(x, at + f"attention.self.{p}", width, width).unflatten(-1, (heads, -1)) for p in ("query", "key", "value"))
        y = attend(q, k, v, mask[:, None, None])
        x = norm(x + linear(y, at + "attention.output.dense", width, width), at + "attention.output.LayerNorm")
        h = F.gelu(linear(x, at + "intermediate.dense", ffn, width))
        x = norm(x + linear(h, at + "output.dense", width, ffn), at + "output.LayerNorm")
    if not pairs:
        labels = integers(f"labels.{step}", 3, b)
        pooled = torch.tanh(linear(x[:, 0], "pooler.dense", width, width))
        return F.cross_entropy(linear(pooled, "classifier", 3, width), labels)
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    anchors, others = F.normalize(mean).chunk(2)
    return F.cross_entropy(anchors @ others.T / 0.5, torch.arange(4))


def gpt2(w, step):
    vocab, width, heads, s = 29, 16, 4, 8
    tokens = integers(f"tokens.{step}", vocab, 2, s + 1)

    def linear(x, name, inner, out):
        return x @ w(f"{name}.weight", inner, out) + w(f"{name}.bias", out)

    def norm(x, name):
        return F.layer_norm(x, (width,), w(f"{name}.weight", width), w(f"{name}.bias", width), 1e-5)

    wte = w("wte", vocab, width)
    x = wte[tokens[:, :s]] + w("wpe", s, width)
    for n in range(2):
        at = f"h.{n}."
        qkv = linear(norm(x, at + "norm_1"), at + "attn.c_attn", width, 3 * width)
        q, k, v = (t.unflatten(-1, (heads, -1)) for t in qkv.chunk(3, -1))
        y = attend(q, k, v, torch.ones(s, s, dtype=torch.bool).tril())
        x = x + linear(y, at + "attn.c_proj", width, width)
        h = F.gelu(linear(norm(x, at + "norm_2"), at + "mlp.c_fc", width, 4 * width), approximate="tanh")
        x = x + linear(h, at + "mlp.c_proj", 4 * width, width)
    return F.cross_entropy((norm(x, "norm_f") @ wte.T).flatten(0, 1), tokens[:, 1:].flatten())


def resnet(w, step, running):
    x, labels = numbers(f"x.{step}", 4, 3, 6, 6), integers(f"labels.{step}", 3, 4)

    def norm(x, name):
        n = x.shape[1]
        mean = running.setdefault(f"{name}.running_mean", torch.zeros(n, dtype=x.dtype))
        variance = running.setdefault(f"{name}.running_var", torch.ones(n, dtype=x.dtype))
        return F.batch_norm(x, mean, variance, w(f"{name}.weight", n), w(f"{name}.bias", n), training=True)

    h = F.relu(norm(F.conv2d(x, w("conv1.weight", 8, 3, 3, 3), padding=1, stride=2), "norm1"))
    h = norm(F.conv2d(h, w("conv2.weight", 8, 8, 3, 3), padding=1), "norm2")
    h = F.relu(h + norm(F.conv2d(x, w("shortcut.weight", 8, 3, 1, 1), stride=2), "norm3"))
    return F.cross_entropy(F.linear(h.mean((2, 3)), w("fc.weight", 3, 8), w("fc.bias", 3)), labels)


def gru(w, step):
    vocab, width, s = 29, 12, 8
    tokens = integers(f"tokens.{step}", vocab, 2, s + 1)
    x = w("embedding", vocab, width)[tokens[:, :s]]
    own = torch.nn.GRU(width, width, batch_first=True, dtype=torch.float64)
    bias = w("gru.bias", 2, 3 * width)
    given = {
        "weight_ih_l0": w("gru.w_x", width, 3 * width).T, "weight_hh_l0": w("gru.w_h", width, 3 * width).T,
        "bias_ih_l0": bias[0], "bias_hh_l0": bias[1],
    }
    y, _ = torch.func.functional_call(own, given, (x, torch.zeros(1, 2, width, dtype=x.dtype)))
    logits = y @ w("head.weight", width, vocab) + w("head.bias", vocab)
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def mamba2(w, step):
    """One block as in Dao and Gu, 2024, with a convolution before and a gated norm after; the scan step by step."""
    vocab, width, b, s, heads, p, n = 29, 16, 2, 8, 4, 8, 4
    inner = heads * p
    tokens = integers(f"tokens.{step}", vocab, b, s + 1)
    table = w("embedding", vocab, width)
    u = table[tokens[:, :s]]
    h = F.rms_norm(u, (width,), w("norm.weight", width), 1e-5)
    z, xbc, dt = (h @ w("in_proj", width, 2 * inner + 2 * n + heads)).split([inner, inner + 2 * n, heads], -1)
    xbc = F.conv1d(F.pad(xbc.transpose(1, 2), (2, 0)), w("conv.weight", inner + 2 * n, 1, 3), w("conv.bias", inner + 2 * n), groups=inner + 2 * n)
    x, bb, c = F.silu(xbc.transpose(1, 2)).split([inner, n, n], -1)
    x, dt, a = x.unflatten(-1, (heads, p)), F.softplus(dt + w("dt_bias", heads)), -torch.exp(w("a_log", heads))
    state, ys = torch.zeros(b, heads, p, n, dtype=x.dtype), []
    for t in range(s):
        update = torch.einsum("bh,bhp,bn->bhpn", dt[:, t], x[:, t], bb[:, t])
        state = torch.exp(dt[:, t] * a)[..., None, None] * state + update
        ys.append(torch.einsum("bhpn,bn->bhp", state, c[:, t]))
    y = torch.stack(ys, 1) + w("d", heads)[:, None] * x
    y = F.rms_norm(y.flatten(2) * F.silu(z), (inner,), w("gated_norm.weight", inner), 1e-5)
    x = F.rms_norm(u + y @ w("out_proj", inner, width), (width,), w("norm_f.weight", width), 1e-5)
    return F.cross_entropy((x @ table.T).flatten(0, 1), tokens[:, 1:].flatten())
