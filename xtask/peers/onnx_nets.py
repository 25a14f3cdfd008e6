"""The networks of the ONNX benchmarks at full size with random weights. Needs only torch.

`NETS` has the module, its inputs, and the names of inputs and outputs for each network.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

PAST = 255


def conv_bn(i, o, k=1, stride=1, groups=1, act=nn.ReLU):
    layers = [nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]
    return nn.Sequential(*layers, *([act()] if act else []))


class Bottleneck(nn.Module):
    def __init__(self, i, mid, stride):
        super().__init__()
        o = 4 * mid
        self.body = nn.Sequential(conv_bn(i, mid), conv_bn(mid, mid, 3, stride), conv_bn(mid, o, act=None))
        self.short = conv_bn(i, o, 1, stride, act=None) if i != o or stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        blocks, i = [], 64
        for mid, n, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
            for at in range(n):
                blocks.append(Bottleneck(i, mid, stride if at == 0 else 1))
                i = 4 * mid
        self.stem = nn.Sequential(conv_bn(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.body(self.stem(x)), 1)
        return self.head(torch.flatten(x, 1))


class Inverted(nn.Module):
    """The block of MobileNetV2, or of EfficientNet with `squeeze` channels."""

    def __init__(self, i, o, k, stride, expand, act, squeeze=0):
        super().__init__()
        wide = i * expand
        layers = [conv_bn(i, wide, act=act)] if expand > 1 else []
        self.wide = nn.Sequential(*layers, conv_bn(wide, wide, k, stride, wide, act))
        self.gate = None
        if squeeze:
            pool, down, up = nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, squeeze, 1), nn.Conv2d(squeeze, wide, 1)
            self.gate = nn.Sequential(pool, down, act(), up, nn.Sigmoid())
        self.project = conv_bn(wide, o, act=None)
        self.same = i == o and stride == 1

    def forward(self, x):
        y = self.wide(x)
        if self.gate is not None:
            y = self.gate(y) * y
        y = self.project(y)
        return x + y if self.same else y


class Mobile(nn.Module):
    """MobileNetV2 or EfficientNet-B0; the rows are expansion, channels, blocks, stride, kernel."""

    def __init__(self, rows, act, squeeze):
        super().__init__()
        blocks, i = [conv_bn(3, 32, 3, 2, act=act)], 32
        for expand, o, n, stride, k in rows:
            for at in range(n):
                gate = i // 4 if squeeze else 0
                blocks.append(Inverted(i, o, k, stride if at == 0 else 1, expand, act, gate))
                i = o
        self.body = nn.Sequential(*blocks, conv_bn(i, 1280, act=act))
        self.head = nn.Linear(1280, 1000)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.body(x), 1)
        return self.head(torch.flatten(x, 1))


def mobilenet_v2():
    rows = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3)]
    return Mobile(rows + [(6, 160, 3, 2, 3), (6, 320, 1, 1, 3)], nn.ReLU6, False)


def efficientnet_b0():
    rows = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5)]
    return Mobile(rows + [(6, 192, 4, 2, 5), (6, 320, 1, 1, 3)], nn.SiLU, True)


class C2f(nn.Module):
    def __init__(self, i, o, n, short):
        super().__init__()
        self.mid, self.short = o // 2, short
        self.first = conv_bn(i, o, act=nn.SiLU)
        pair = lambda: nn.Sequential(*(conv_bn(self.mid, self.mid, 3, act=nn.SiLU) for _ in range(2)))  # noqa: E731
        self.pairs = nn.ModuleList(pair() for _ in range(n))
        self.last = conv_bn((2 + n) * self.mid, o, act=nn.SiLU)

    def forward(self, x):
        parts = list(self.first(x).chunk(2, 1))
        for pair in self.pairs:
            y = pair(parts[-1])
            parts.append(parts[-1] + y if self.short else y)
        return self.last(torch.cat(parts, 1))


class YoloV8n(nn.Module):
    """YOLOv8n at 640 x 640 with its head: boxes as distances to their sides, classes with sigmoid."""

    def __init__(self, side=640):
        super().__init__()
        cv = lambda i, o, k=3, s=1: conv_bn(i, o, k, s, act=nn.SiLU)  # noqa: E731
        self.p3 = nn.Sequential(
            cv(3, 16, 3, 2), cv(16, 32, 3, 2), C2f(32, 32, 1, True), cv(32, 64, 3, 2), C2f(64, 64, 2, True)
        )
        self.p4 = nn.Sequential(cv(64, 128, 3, 2), C2f(128, 128, 2, True))
        self.p5 = nn.Sequential(cv(128, 256, 3, 2), C2f(256, 256, 1, True))
        self.spp = nn.ModuleList([cv(256, 128, 1), cv(512, 256, 1)])
        self.up4, self.up3 = C2f(384, 128, 1, False), C2f(192, 64, 1, False)
        self.down4, self.down5 = cv(64, 64, 3, 2), cv(128, 128, 3, 2)
        self.out4, self.out5 = C2f(192, 128, 1, False), C2f(384, 256, 1, False)
        head = lambda c, mid, o: nn.Sequential(cv(c, mid), cv(mid, mid), nn.Conv2d(mid, o, 1))  # noqa: E731
        self.boxes = nn.ModuleList(head(c, 64, 64) for c in (64, 128, 256))
        self.classes = nn.ModuleList(head(c, 80, 80) for c in (64, 128, 256))
        anchors, strides = [], []
        for stride in (8, 16, 32):
            n = side // stride
            at = torch.arange(n) + 0.5
            y, x = torch.meshgrid(at, at, indexing="ij")
            anchors.append(torch.stack((x, y), -1).view(-1, 2))
            strides.append(torch.full((n * n, 1), float(stride)))
        self.register_buffer("anchors", torch.cat(anchors).T[None].contiguous())
        self.register_buffer("strides", torch.cat(strides).T.contiguous())
        self.register_buffer("bins", torch.arange(16.0).view(1, 16, 1, 1))

    def forward(self, x):
        p3 = self.p3(x)
        p4 = self.p4(p3)
        p5 = self.spp[0](self.p5(p4))
        pooled = [p5]
        for _ in range(3):
            pooled.append(F.max_pool2d(pooled[-1], 5, 1, 2))
        p5 = self.spp[1](torch.cat(pooled, 1))
        up = lambda t: F.interpolate(t, scale_factor=2.0, mode="nearest")  # noqa: E731
        m4 = self.up4(torch.cat((up(p5), p4), 1))
        o3 = self.up3(torch.cat((up(m4), p3), 1))
        o4 = self.out4(torch.cat((self.down4(o3), m4), 1))
        o5 = self.out5(torch.cat((self.down5(o4), p5), 1))
        levels = []
        for box, kind, t in zip(self.boxes, self.classes, (o3, o4, o5)):
            levels.append(torch.cat((box(t), kind(t)), 1).flatten(2))
        boxes, kinds = torch.cat(levels, 2).split((64, 80), 1)
        sides = boxes.view(1, 4, 16, -1).transpose(1, 2).softmax(1)
        sides = (sides * self.bins).sum(1)
        low, high = sides.chunk(2, 1)
        low, high = self.anchors - low, self.anchors + high
        boxes = torch.cat(((low + high) / 2, high - low), 1) * self.strides
        return torch.cat((boxes, kinds.sigmoid()), 1)


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256, 512)):
        super().__init__()
        two = lambda i, o: nn.Sequential(conv_bn(i, o, 3), conv_bn(o, o, 3))  # noqa: E731
        self.down = nn.ModuleList(two(i, o) for i, o in zip((3, *widths), widths))
        pairs = list(zip(widths[1:], widths))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in pairs)
        self.merge = nn.ModuleList(two(2 * o, o) for _, o in pairs)
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x):
        kept = []
        for down in self.down:
            x = down(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for up, merge, side in zip(self.up, self.merge, kept[-2::-1]):
            x = merge(torch.cat((side, up(x)), 1))
        return self.head(x)


def heads(x, n):
    return x.view(x.shape[0], x.shape[1], n, -1).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


class Layer(nn.Module):
    """A transformer layer with post-norm (BERT) or pre-norm (ViT)."""

    def __init__(self, d, n, first, eps):
        super().__init__()
        self.n, self.first = n, first
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d, eps) for _ in range(2))

    def attend(self, x, mask):
        q, k, v = (heads(p(x), self.n) for p in (self.q, self.k, self.v))
        return self.o(joined(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))

    def forward(self, x, mask=None):
        a, b = self.norms
        if self.first:
            x = x + self.attend(a(x), mask)
            return x + self.down(F.gelu(self.up(b(x))))
        x = a(x + self.attend(x, mask))
        return b(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(30522, 768), nn.Embedding(512, 768), nn.Embedding(2, 768)
        self.norm = nn.LayerNorm(768, 1e-12)
        self.layers = nn.ModuleList(Layer(768, 12, False, 1e-12) for _ in range(12))
        self.register_buffer("at", torch.arange(512)[None])

    def forward(self, ids, mask, kinds):
        x = self.norm(self.words(ids) + self.places(self.at[:, : ids.shape[1]]) + self.kinds(kinds))
        mask = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        return x


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, 768))
        self.places = nn.Parameter(torch.randn(1, 197, 768) * 0.02)
        self.layers = nn.ModuleList(Layer(768, 12, True, 1e-6) for _ in range(12))
        self.norm, self.head = nn.LayerNorm(768, 1e-6), nn.Linear(768, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class GptLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(768, 2304), nn.Linear(768, 768)
        self.up, self.down = nn.Linear(768, 3072), nn.Linear(3072, 768)
        self.a, self.b = nn.LayerNorm(768), nn.LayerNorm(768)

    def forward(self, x, key, value):
        q, k, v = (heads(t, 12) for t in self.qkv(self.a(x)).split(768, -1))
        key, value = torch.cat((key, k), 2), torch.cat((value, v), 2)
        x = x + self.o(joined(F.scaled_dot_product_attention(q, key, value)))
        return x + self.down(F.gelu(self.up(self.b(x)), approximate="tanh")), key, value


class GptStep(nn.Module):
    """GPT-2 small; decodes one token after `PAST` others."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        self.layers = nn.ModuleList(GptLayer() for _ in range(12))
        self.norm = nn.LayerNorm(768)

    def forward(self, ids, at, *past):
        x = self.words(ids) + self.places(at)
        present = []
        for layer, key, value in zip(self.layers, past[::2], past[1::2]):
            x, key, value = layer(x, key, value)
            present += [key, value]
        return (F.linear(self.norm(x), self.words.weight), *present)


class RmsNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        wide = x.float()
        return self.weight * (x * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class T5Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(512, 512, bias=False) for _ in range(4))

    def forward(self, x, key, value, bias):
        scores = heads(self.q(x), 8) @ key.transpose(2, 3)
        weights = (scores + bias if bias is not None else scores).softmax(-1)
        return self.o(joined(weights @ value))


class T5Layer(nn.Module):
    def __init__(self, decodes):
        super().__init__()
        self.own, self.other = T5Attention(), T5Attention() if decodes else None
        self.up, self.down = nn.Linear(512, 2048, bias=False), nn.Linear(2048, 512, bias=False)
        self.norms = nn.ModuleList(RmsNorm(512) for _ in range(3 if decodes else 2))

    def forward(self, x, bias, past=None):
        y = self.norms[0](x)
        key, value = heads(self.own.k(y), 8), heads(self.own.v(y), 8)
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        x = x + self.own(y, key, value, bias)
        if past is not None:
            x = x + self.other(self.norms[1](x), past[2], past[3], None)
        return x + self.down(F.relu(self.up(self.norms[-1](x)))), key, value


def buckets(queries, keys, both_ways):
    """T5's relative position buckets: exact for small distances, logarithmic for large ones."""
    far = keys[None, :] - queries[:, None]
    n, at = (16, (far > 0).long() * 16) if both_ways else (32, torch.zeros_like(far))
    far = far.abs() if both_ways else -far.clamp(max=0)
    near = n // 2
    wide = near + (torch.log(far.float().clamp(min=1) / near) / math.log(128 / near) * (n - near)).long()
    return at + torch.where(far < near, far, wide.clamp(max=n - 1))


class T5Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.bias = nn.Embedding(32128, 512), nn.Embedding(32, 8)
        self.layers = nn.ModuleList(T5Layer(False) for _ in range(6))
        self.norm = RmsNorm(512)

    def forward(self, ids, mask):
        x = self.words(ids)
        at = torch.arange(ids.shape[1], device=ids.device)
        bias = self.bias(buckets(at, at, True)).permute(2, 0, 1)[None]
        bias = bias + (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x, _, _ = layer(x, bias)
        return self.norm(x)


class T5Step(nn.Module):
    """The decoder of T5-small for one token; keys and values of the encoder and of earlier tokens are inputs."""

    def __init__(self):
        super().__init__()
        self.words, self.bias = nn.Embedding(32128, 512), nn.Embedding(32, 8)
        self.layers = nn.ModuleList(T5Layer(True) for _ in range(6))
        self.norm = RmsNorm(512)

    def forward(self, ids, *past):
        x = self.words(ids)
        n = past[0].shape[2]
        at = torch.arange(n + 1, device=ids.device)
        bias = self.bias(buckets(at[n:], at, False)).permute(2, 0, 1)[None]
        present = []
        for i, layer in enumerate(self.layers):
            x, key, value = layer(x, bias, past[4 * i : 4 * i + 4])
            present += [key, value]
        return (F.linear(self.norm(x) * 512**-0.5, self.words.weight), *present)


def picture(side):
    return lambda: (torch.randn(1, 3, side, side),)


def texts(n, vocab, *others):
    return lambda: (torch.randint(0, vocab, (1, n)), torch.ones(1, n, dtype=torch.long), *others)


def gpt_inputs():
    past = [torch.randn(1, 12, PAST, 64) for _ in range(24)]
    return (torch.randint(0, 50257, (1, 1)), torch.tensor([[PAST]]), *past)


def t5_inputs():
    sizes = [63, 63, 128, 128] * 6
    return (torch.randint(0, 32128, (1, 1)), *(torch.randn(1, 8, n, 64) for n in sizes))


# By name: the module and its inputs.
NETS = {
    "resnet50": (ResNet50, picture(224)),
    "mobilenet_v2": (mobilenet_v2, picture(224)),
    "efficientnet_b0": (efficientnet_b0, picture(224)),
    "yolov8n": (YoloV8n, picture(640)),
    "unet": (UNet, picture(256)),
    "vit_b16": (ViT, picture(224)),
    "bert_base": (Bert, texts(128, 30522, torch.zeros(1, 128, dtype=torch.long))),
    "gpt2_step": (GptStep, gpt_inputs),
    "t5_encoder": (T5Encoder, texts(128, 32128)),
    "t5_step": (T5Step, t5_inputs),
}


def net(name, dtype=torch.float32):
    """The module in eval mode with reproducible weights, and its inputs."""
    torch.manual_seed(0)
    make, inputs = NETS[name]
    module, given = make().eval(), inputs()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
            nn.init.uniform_(part.weight, 0.5, 1.5)
    return module.to(dtype), tuple(t.to(dtype) if t.is_floating_point() else t for t in given)
