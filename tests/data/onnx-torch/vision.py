"""Models of images, each small and written by hand in the shape of a family."""

import torch
import torch.nn.functional as F
from torch import nn


def conv_bn(i, o, k=3, stride=1, groups=1, act=nn.ReLU):
    layers = [nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]
    return nn.Sequential(*layers, *([act()] if act else []))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 3, 5, padding=2), nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4 * 9, 5)

    def forward(self, x):
        x = F.avg_pool2d(torch.tanh(self.c1(x)), 2)
        x = F.max_pool2d(F.leaky_relu(self.c2(x)), 2)
        return F.log_softmax(self.fc(torch.flatten(x, 1)), -1)


class Bottleneck(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.body = nn.Sequential(conv_bn(i, 4, 1), conv_bn(4, 4, 3, stride), conv_bn(4, o, 1, act=None))
        self.short = conv_bn(i, o, 1, stride, act=None) if i != o or stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 6, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.body = nn.Sequential(Bottleneck(6, 8, 1), Bottleneck(8, 8, 1), Bottleneck(8, 12, 2))
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.body(self.stem(x)), 1)
        return self.head(torch.flatten(x, 1))


class InvertedResidual(nn.Module):
    """MobileNetV2's block; with `se` that of EfficientNet."""

    def __init__(self, i, o, stride, act=nn.ReLU6, se=False):
        super().__init__()
        wide = 2 * i
        self.expand = nn.Sequential(conv_bn(i, wide, 1, act=act), conv_bn(wide, wide, 3, stride, wide, act))
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 2, 1), nn.SiLU(), nn.Conv2d(2, wide, 1), nn.Sigmoid()
        ) if se else None
        self.project = conv_bn(wide, o, 1, act=None)
        self.same = i == o and stride == 1

    def forward(self, x):
        y = self.expand(x)
        if self.squeeze is not None:
            y = y * self.squeeze(y)
        y = self.project(y)
        return x + y if self.same else y


class MobileNet(nn.Module):
    def __init__(self, act=nn.ReLU6, se=False):
        super().__init__()
        block = InvertedResidual
        self.body = nn.Sequential(
            conv_bn(3, 4, 3, 2, act=act), block(4, 4, 1, act, se), block(4, 6, 2, act, se), conv_bn(6, 10, 1, act=act)
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(10, 5))

    def forward(self, x):
        return self.head(self.body(x).mean([2, 3]))


class Vgg(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2),
            nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2, ceil_mode=True),
        )
        self.pool = nn.AdaptiveAvgPool2d((2, 2))
        self.head = nn.Sequential(nn.Linear(24, 8), nn.ReLU(True), nn.Dropout(), nn.Linear(8, 5))

    def forward(self, x):
        x = self.pool(self.body(x))
        return self.head(x.view(x.size(0), -1))


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        layer = lambda i: nn.Sequential(nn.BatchNorm2d(i), nn.ReLU(), nn.Conv2d(i, 4, 3, padding=1, bias=False))
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleList([layer(4), layer(8), layer(12)])
        self.transition = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 6, 1), nn.AvgPool2d(2))
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        parts = [self.stem(x)]
        for layer in self.layers:
            parts.append(layer(torch.cat(parts, 1)))
        x = self.transition(torch.cat(parts, 1))
        return self.head(x.mean(dim=(-2, -1)))


class ShuffleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv_bn(3, 8, 3, 2)
        self.branch = nn.Sequential(conv_bn(4, 4, 1), conv_bn(4, 4, 3, groups=4, act=None), conv_bn(4, 4, 1))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        a, b = x.chunk(2, dim=1)
        x = torch.cat((a, self.branch(b)), 1)
        n, c, h, w = x.size()
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return self.head(x.amax(dim=(2, 3)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = conv_bn(1, 4), conv_bn(4, 6), conv_bn(6, 8)
        self.up2, self.up1 = nn.ConvTranspose2d(8, 6, 2, 2), nn.ConvTranspose2d(6, 4, 2, 2)
        self.join2, self.join1, self.out = conv_bn(12, 6), conv_bn(8, 4), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        b = self.join2(torch.cat([self.up2(c), b], 1))
        a = self.join1(torch.cat([self.up1(b), a], 1))
        return torch.sigmoid(self.out(a))


class Segmenter(nn.Module):
    """A feature pyramid; a mask at the size of the image."""

    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.c3 = conv_bn(3, 4, 3, 2), conv_bn(4, 6, 3, 2), conv_bn(6, 8, 3, 2)
        self.l1, self.l2, self.l3 = nn.Conv2d(4, 4, 1), nn.Conv2d(6, 4, 1), nn.Conv2d(8, 4, 1)
        self.out = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x):
        a = self.c1(x)
        b = self.c2(a)
        c = self.c3(b)
        y = self.l3(c)
        y = self.l2(b) + F.interpolate(y, size=b.shape[-2:], mode="nearest")
        y = self.l1(a) + F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        return F.interpolate(self.out(y), size=x.shape[-2:], mode="bilinear", align_corners=False)


class Aspp(nn.Module):
    """DeepLab's head: dilated convolutions, and the image's mean at every place."""

    def __init__(self):
        super().__init__()
        self.stem = conv_bn(3, 4, 3, 2)
        self.branches = nn.ModuleList(nn.Conv2d(4, 3, 3, padding=d, dilation=d) for d in (1, 2, 3))
        self.pooled = nn.Conv2d(4, 3, 1)
        self.out = nn.Conv2d(12, 2, 1)

    def forward(self, x):
        size = x.shape[-2:]
        x = self.stem(x)
        parts = [F.relu(b(x)) for b in self.branches]
        mean = self.pooled(F.adaptive_avg_pool2d(x, 1))
        parts.append(F.interpolate(mean, size=x.shape[-2:], mode="bilinear", align_corners=False))
        y = F.interpolate(self.out(torch.cat(parts, 1)), size=size, mode="bilinear", align_corners=True)
        return y.argmax(1), y


class Yolo(nn.Module):
    """Two scales of boxes, decoded on a grid, without suppression."""

    def __init__(self):
        super().__init__()
        act = nn.SiLU
        self.c1, self.c2 = conv_bn(3, 4, 3, 2, act=act), conv_bn(4, 6, 3, 2, act=act)
        self.spp = nn.MaxPool2d(5, 1, 2)
        self.mix, self.up = conv_bn(18, 6, 1, act=act), nn.Upsample(scale_factor=2, mode="nearest")
        self.h1, self.h2 = nn.Conv2d(10, 14, 1), nn.Conv2d(6, 14, 1)
        self.register_buffer("anchors", torch.tensor([[[1.0, 2.0], [2.0, 1.5]], [[4.0, 3.0], [5.0, 6.0]]]))

    def decode(self, y, stride, anchors):
        n, _, h, w = y.shape
        y = y.view(n, 2, 7, h, w).permute(0, 1, 3, 4, 2).sigmoid()
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack((columns, rows), 2).to(y.dtype)
        centre = (y[..., 0:2] * 2 - 0.5 + grid) * stride
        size = (y[..., 2:4] * 2) ** 2 * anchors.view(1, 2, 1, 1, 2)
        return torch.cat((centre, size, y[..., 4:]), -1).view(n, -1, 7)

    def forward(self, x):
        a = self.c1(x)
        b = self.c2(a)
        p = self.spp(b)
        b = self.mix(torch.cat([b, p, self.spp(p)], 1))
        a = torch.cat([self.up(b), a], 1)
        return torch.cat([self.decode(self.h1(a), 2, self.anchors[0]), self.decode(self.h2(b), 4, self.anchors[1])], 1)


class Ssd(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = conv_bn(3, 4, 3, 2), conv_bn(4, 6, 3, 2)
        self.boxes = nn.ModuleList([nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)])
        self.classes = nn.ModuleList([nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)])
        self.register_buffer("priors", torch.rand(2 * (16 + 4), 4))

    def forward(self, x):
        a = self.c1(x)
        maps = [a, self.c2(a)]
        flat = lambda y, n: y.permute(0, 2, 3, 1).contiguous().view(y.size(0), -1, n)
        boxes = torch.cat([flat(f(m), 4) for f, m in zip(self.boxes, maps)], 1)
        scores = torch.cat([flat(f(m), 3) for f, m in zip(self.classes, maps)], 1).softmax(-1)
        centre = self.priors[:, :2] + boxes[..., :2] * 0.1 * self.priors[:, 2:]
        size = self.priors[:, 2:] * torch.exp(boxes[..., 2:] * 0.2)
        corners = torch.cat((centre - size / 2, centre + size / 2), -1).clamp(min=0, max=1)
        best, label = scores[..., 1:].max(-1)
        return corners, best, label


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 4, 4)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, 12)), nn.Parameter(torch.randn(1, 10, 12))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(12), nn.LayerNorm(12), nn.LayerNorm(12)
        self.qkv, self.proj = nn.Linear(12, 36), nn.Linear(12, 12)
        self.mlp, self.head = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 12)), nn.Linear(12, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), 1) + self.pos
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, c))
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm3(x)[:, 0])


class Swin(nn.Module):
    """Attention in shifted windows with relative positions and a mask."""

    def __init__(self, side=8, window=4, width=8, heads=2):
        super().__init__()
        self.side, self.window, self.heads = side, window, heads
        self.embed, self.norm = nn.Conv2d(3, width, 2, 2), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.merge, self.head = nn.Linear(4 * width, width, bias=False), nn.Linear(width, 5)
        self.bias = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        by = (at[:, :, None] - at[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("relative", by[..., 0] * (2 * window - 1) + by[..., 1])
        image = torch.zeros(1, side, side, 1)
        parts = (slice(0, -window), slice(-window, -window // 2), slice(-window // 2, None))
        for i, rows in enumerate(parts):
            for j, columns in enumerate(parts):
                image[:, rows, columns] = 3 * i + j
        ids = self.windows(image).squeeze(-1)
        self.register_buffer("mask", (ids[:, None, :] != ids[:, :, None]).to(image) * -100.0)

    def windows(self, x):
        b, h, w, c = x.shape
        m = self.window
        return x.view(b, h // m, m, w // m, m, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, m * m, c)

    def attend(self, x, shift):
        b, h, w, c = x.shape
        y = self.windows(torch.roll(self.norm(x), (-shift, -shift), (1, 2)))
        n, t, _ = y.shape
        q, k, v = self.qkv(y).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.bias[self.relative.view(-1)].view(t, t, -1).permute(2, 0, 1).unsqueeze(0)
        if shift:
            m = self.mask.shape[0]
            scores = (scores.view(n // m, m, self.heads, t, t) + self.mask[:, None]).view(-1, self.heads, t, t)
        y = self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, c))
        m = self.window
        y = y.view(b, h // m, w // m, m, m, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x + torch.roll(y, (shift, shift), (1, 2))

    def forward(self, x):
        x = self.attend(self.attend(self.embed(x).permute(0, 2, 3, 1), 0), self.window // 2)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.head(self.merge(x).flatten(1, 2).mean(1))


class ConvNext(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.mix, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))
        self.scale = nn.Parameter(torch.rand(width))
        self.final, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        x = x + (self.scale * self.mlp(y)).permute(0, 3, 1, 2)
        return self.head(self.final(x.mean([-2, -1])))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, 4)
        self.n1, self.n2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.tokens = nn.Sequential(nn.Linear(9, 12), nn.GELU(approximate="tanh"), nn.Linear(12, 9))
        self.channels = nn.Sequential(nn.Linear(8, 12), nn.Hardswish(), nn.Linear(12, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.n2(x))
        return self.head(x.mean(1))


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ELU(), nn.Conv2d(4, 6, 3, 2, 1), nn.PReLU(6))
        self.mean, self.deviation, self.back = nn.Linear(24, 3), nn.Linear(24, 3), nn.Linear(3, 24)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1), nn.InstanceNorm2d(4, affine=True), nn.Softplus(),
            nn.ConvTranspose2d(4, 1, 4, 2, 1, bias=False), nn.Tanh(),
        )

    def forward(self, x, noise):
        h = self.down(x).flatten(1)
        mean, deviation = self.mean(h), self.deviation(h)
        z = mean + noise * torch.exp(0.5 * deviation)
        return self.up(self.back(z).unflatten(1, (6, 2, 2))), mean


class SuperResolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 9, 3, padding=1)
        self.shuffle, self.fold = nn.PixelShuffle(3), nn.PixelUnshuffle(1)

    def forward(self, x):
        y = self.shuffle(self.c2(F.relu(self.c1(F.pad(x, (1, 1, 1, 1), mode="reflect")))))
        y = y[:, :, 3:-3, 3:-3]
        return torch.clamp(y + F.interpolate(x, scale_factor=3, mode="bicubic", align_corners=False), 0, 1)


class Transformer2d(nn.Module):
    """A spatial transformer: a grid from an affine matrix, and samples on it."""

    def __init__(self):
        super().__init__()
        self.where = nn.Sequential(nn.Flatten(), nn.Linear(2 * 36, 6))
        self.conv = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")

    def forward(self, x):
        theta = self.where(x).view(-1, 2, 3) * 0.3
        grid = F.affine_grid(theta, [x.size(0), 2, 6, 6], align_corners=False)
        warped = F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        return self.conv(warped), grid


class Detr(nn.Module):
    """Learnt queries attend to an image's places."""

    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Conv2d(3, width, 4, 4)
        self.decoder = nn.TransformerDecoderLayer(width, 2, 12, batch_first=True, norm_first=True)
        self.queries = nn.Parameter(torch.randn(5, width))
        self.rows, self.columns = nn.Parameter(torch.rand(8, width // 2)), nn.Parameter(torch.rand(8, width // 2))
        self.classes, self.boxes = nn.Linear(width, 4), nn.Linear(width, 4)

    def forward(self, x):
        x = self.body(x)
        h, w = x.shape[-2:]
        pos = torch.cat([
            self.columns[:w].unsqueeze(0).repeat(h, 1, 1), self.rows[:h].unsqueeze(1).repeat(1, w, 1),
        ], -1).flatten(0, 1).unsqueeze(0)
        y = self.decoder(self.queries.unsqueeze(0).repeat(x.shape[0], 1, 1), pos + x.flatten(2).permute(0, 2, 1))
        return self.classes(y).topk(2, dim=-1).values, self.boxes(y).sigmoid()
