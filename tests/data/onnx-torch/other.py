"""Models of sound, series, graphs, points and tables, and parts of diffusion models."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.SELU(), nn.Linear(8, 3))

    def forward(self, x):
        return F.softmax(self.body(x), dim=1)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(20, 6), nn.LSTM(6, 5, 2, batch_first=True), nn.Linear(5, 3)

    def forward(self, ids):
        y, (h, c) = self.rnn(self.embed(ids))
        return self.head(y[:, -1]), h, c


class LstmStep(nn.Module):
    """One piece of a stream, with states in and out."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 5), nn.Linear(5, 1)

    def forward(self, x, h, c):
        y, (h, c) = self.rnn(x, (h, c))
        return torch.sigmoid(self.head(y)), h, c


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 5, batch_first=True, bidirectional=True), nn.Linear(10, 3)

    def forward(self, x):
        y, h = self.rnn(x)
        return self.head(y).argmax(-1), y, h


class Rnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(4, 5, 2, nonlinearity="relu", bidirectional=True)

    def forward(self, x):
        y, h = self.rnn(x)
        return y.mean(0), h


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv1d(1, 4, 1)
        self.filters = nn.ModuleList(nn.Conv1d(4, 4, 2, dilation=d) for d in (1, 2, 4))
        self.gates = nn.ModuleList(nn.Conv1d(4, 4, 2, dilation=d) for d in (1, 2, 4))
        self.skips = nn.ModuleList(nn.Conv1d(4, 3, 1) for _ in range(3))
        self.out = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 2, 1))

    def forward(self, x):
        x, total = self.inp(x), 0
        for filt, gate, skip in zip(self.filters, self.gates, self.skips):
            padded = F.pad(x, (filt.dilation[0], 0))
            y = torch.tanh(filt(padded)) * torch.sigmoid(gate(padded))
            total, x = total + skip(y), x + y
        return self.out(F.relu(total))


class Spectrogram(nn.Module):
    """A Fourier transform by convolution, mel bands, a recurrent net."""

    def __init__(self, n=16, hop=4):
        super().__init__()
        self.hop = hop
        at = torch.arange(n) * 2 * math.pi / n
        waves = torch.stack([f(at * i) for i in range(n // 2 + 1) for f in (torch.cos, torch.sin)])
        self.register_buffer("waves", (waves * torch.hann_window(n))[:, None])
        self.register_buffer("mel", torch.rand(n // 2 + 1, 5))
        self.body = nn.Sequential(nn.Conv1d(5, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.AdaptiveMaxPool1d(1))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        y = F.conv1d(x.unsqueeze(1), self.waves, stride=self.hop)
        power = y[:, 0::2].square() + y[:, 1::2].square()
        bands = torch.log(torch.clamp(power.transpose(1, 2) @ self.mel, min=1e-5))
        bands = (bands - bands.mean(1, keepdim=True)) / (bands.std(1, keepdim=True) + 1e-5)
        return self.head(self.body(bands.transpose(1, 2)).squeeze(-1))


class Stft(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, x):
        y = torch.stft(x, 16, 4, window=self.window, center=False, return_complex=False)
        return torch.log1p(y.pow(2).sum(-1).sqrt())


class WhisperLike(nn.Module):
    """The conv stem with sine positions, and a layer of the encoder."""

    def __init__(self, width=8):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(6, width, 3, padding=1), nn.Conv1d(width, width, 3, stride=2, padding=1)
        angles = torch.arange(32)[:, None] * torch.exp(-torch.arange(width // 2) * 0.9)
        self.register_buffer("pos", torch.cat([angles.sin(), angles.cos()], 1))
        self.n1, self.attn = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.n2, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, mel):
        x = F.gelu(self.c2(F.gelu(self.c1(mel)))).permute(0, 2, 1)
        x = x + self.pos[: x.shape[1]]
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class DiffusionBlock(nn.Module):
    """A residual block with group norms and the time, and attention over places."""

    def __init__(self, width=8):
        super().__init__()
        self.inp = nn.Conv2d(3, width, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 2 * width))
        self.n1, self.c1 = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)
        self.n3, self.qkv, self.proj = nn.GroupNorm(2, width), nn.Conv1d(width, 3 * width, 1), nn.Conv1d(width, width, 1)
        self.down, self.out = nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        rates = torch.exp(torch.arange(4, device=t.device) * (-math.log(10000.0) / 4))
        angles = t[:, None].to(x.dtype) * rates[None].to(x.dtype)
        scale, shift = self.time(torch.cat([angles.cos(), angles.sin()], -1))[:, :, None, None].chunk(2, 1)
        h = self.inp(x)
        y = self.c1(F.silu(self.n1(h)))
        y = self.c2(F.silu(self.n2(y) * (1 + scale) + shift))
        h = self.down(h + y)
        b, c, rows, columns = h.shape
        q, k, v = self.qkv(self.n3(h).reshape(b, c, -1)).chunk(3, 1)
        weights = torch.softmax(torch.einsum("bct,bcs->bts", q, k) * c**-0.5, -1)
        h = h + self.proj(torch.einsum("bts,bcs->bct", weights, v)).reshape(b, c, rows, columns)
        return self.out(F.interpolate(h, scale_factor=2, mode="nearest"))


class GraphConv(nn.Module):
    """Messages along edges, added at their ends, divided by how many there are."""

    def __init__(self):
        super().__init__()
        self.message, self.own, self.head = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x, edges):
        source, target = edges[0], edges[1]
        sums = torch.zeros(x.shape[0], 6, dtype=x.dtype).index_add(0, target, self.message(x[source]))
        ones = torch.ones(edges.shape[1], dtype=x.dtype)
        count = torch.zeros(x.shape[0], dtype=x.dtype).scatter_add(0, target, ones)
        h = F.relu(self.own(x) + sums / count.clamp(min=1).unsqueeze(-1))
        return self.head(h)


class Gat(nn.Module):
    """Attention over the edges that end in a node: a softmax by segments."""

    def __init__(self):
        super().__init__()
        self.lin, self.score = nn.Linear(4, 6, bias=False), nn.Linear(12, 1)

    def forward(self, x, edges):
        h = self.lin(x)
        source, target = edges
        score = F.leaky_relu(self.score(torch.cat([h[source], h[target]], -1)), 0.2).squeeze(-1)
        most = torch.full((x.shape[0],), -1e4, dtype=x.dtype).scatter_reduce(0, target, score, "amax")
        e = torch.exp(score - most[target])
        total = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, target, e)
        weight = (e / (total[target] + 1e-9)).unsqueeze(-1)
        return torch.zeros_like(h).index_add(0, target, weight * h[source])


class Nerf(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(4))
        self.l1, self.l2, self.out = nn.Linear(27, 8), nn.Linear(35, 8), nn.Linear(8, 4)

    def forward(self, p):
        angles = (p[..., None] * self.bands).flatten(-2)
        x = torch.cat([p, angles.sin(), angles.cos()], -1)
        h = F.relu(self.l1(x))
        h = F.relu(self.l2(torch.cat([x, h], -1)))
        y = self.out(h)
        return torch.sigmoid(y[..., :3]), F.softplus(y[..., 3:] - 1)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(3, 6, 1), nn.Conv1d(6, 8, 1)
        self.b1, self.fc, self.head = nn.BatchNorm1d(6), nn.Linear(8, 9), nn.Linear(8, 3)
        nn.init.normal_(self.fc.bias)

    def features(self, x):
        return torch.max(self.c2(F.relu(self.b1(self.c1(x)))), 2, keepdim=False)[0]

    def forward(self, x):
        turn = self.fc(self.features(x)).view(-1, 3, 3) + torch.eye(3, dtype=x.dtype)
        x = torch.bmm(x.transpose(2, 1), turn).transpose(2, 1)
        return self.head(self.features(x))


class Dlrm(nn.Module):
    """Tables of embeddings and numbers, and products of every two of them."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 4) for n in (10, 7, 5))
        self.dense, self.top = nn.Linear(3, 4), nn.Linear(4 + 6, 1)
        rows, columns = torch.tril_indices(4, 4, offset=-1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, x, ids):
        d = F.relu(self.dense(x))
        all_ = torch.stack([d] + [t(ids[:, i]) for i, t in enumerate(self.tables)], 1)
        products = torch.bmm(all_, all_.transpose(1, 2))[:, self.rows, self.columns]
        return torch.sigmoid(self.top(torch.cat([d, products], 1))).squeeze(1)


class Experts(nn.Module):
    """The two best of four experts for each token, their results weighted."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.w1, self.w2 = nn.Parameter(torch.randn(4, 6, 8) * 0.4), nn.Parameter(torch.randn(4, 8, 6) * 0.4)

    def forward(self, x):
        weight, which = torch.topk(F.softmax(self.gate(x), -1), 2, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        full = torch.zeros(x.shape[0], 4, dtype=x.dtype).scatter(1, which, weight)
        h = F.silu(torch.einsum("ti,eio->eto", x, self.w1))
        y = torch.einsum("eto,eoi->eti", h, self.w2)
        return torch.einsum("te,eti->ti", full, y), which


class Vq(nn.Module):
    """The nearest entry of a codebook."""

    def __init__(self):
        super().__init__()
        self.enc, self.book = nn.Conv1d(2, 4, 4, 2, 1), nn.Parameter(torch.randn(9, 4))

    def forward(self, x):
        z = self.enc(x).transpose(1, 2)
        code = torch.cdist(z, self.book.expand(z.shape[0], -1, -1)).argmin(-1)
        near = F.embedding(code, self.book)
        return code, F.cosine_similarity(z, near, dim=-1), F.normalize(near, dim=-1)


class Scripted(nn.Module):
    """A loop over time of as many steps as the sequence has, by TorchScript."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.Linear(7, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = torch.zeros(x.size(1), 4, dtype=x.dtype)
        for i in range(x.size(0)):
            h = torch.tanh(self.cell(torch.cat([x[i], h], 1)))
        return self.head(h)


class Branches(nn.Module):
    """One of two ways, by the data, by TorchScript."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        if x.sum() > 0:
            y = self.a(x)
        else:
            y = torch.relu(self.b(x))
        return y
