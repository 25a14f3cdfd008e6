"""Measures torch on the training steps of `cargo xtask bench gpu training_`; one line each with name, milliseconds, tokens or
images per second, and peak MiB.

The names are those of the Tercet bench (`tests/src/steps`). Steps run in eager mode, with autocast for mixed precision
and torch's fused kernels for attention and AdamW. Times are wall-clock times from inputs on the device to the loss on
the host, medians over several steps after the GPU has left its idle clock. Models are plain modules with random weights.
Run the script within an hour of the Tercet bench. Needs torch with CUDA, and torchvision for ResNet-50.

    python3 xtask/peers/steps_torch.py [--small] [--compile] [--cpu] [FILTER]
"""

import argparse
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

WARM_SECONDS = 1.0
RUNS = 12
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def heads_of(x, heads):
    """Splits [rows, len, width] into heads: [rows, heads, len, width / heads]."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


class BertLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))

    def forward(self, x, mask):
        q, k, v = (heads_of(part(x), self.heads) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm_1(x + self.out(joined(y)))
        return self.norm_2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self, width, layers, heads, vocab, classes):
        super().__init__()
        self.words, self.places, self.types = nn.Embedding(vocab, width), nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, ids, types, mask, labels):
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.words(ids) + self.places(places) + self.types(types))
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        logits = self.classifier(torch.tanh(self.pooler(x[:, 0])))
        return F.cross_entropy(logits.float(), labels)


class GptLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(joined(y))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, width, layers, heads, vocab, length):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(GptLayer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens, labels):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layers(self.wte(tokens) + self.wpe(places))
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class LoraLinear(nn.Module):
    """LoRA: a frozen 16-bit matrix, and two trained low-rank matrices in F32."""

    def __init__(self, inner, out, rank, dtype):
        super().__init__()
        self.base = nn.Linear(inner, out, bias=False).to(dtype).requires_grad_(False)
        self.a, self.b = nn.Linear(inner, rank, bias=False), nn.Linear(rank, out, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + 2.0 * self.b(self.a(x))


class LlamaLayer(nn.Module):
    def __init__(self, width, heads, groups, inner, rank, dtype):
        super().__init__()
        self.heads, self.groups = heads, groups
        low = width // heads * groups
        self.norm_1, self.norm_2 = (nn.RMSNorm(width, eps=1e-5).to(dtype).requires_grad_(False) for _ in range(2))
        self.q, self.out = (LoraLinear(width, width, rank, dtype) for _ in range(2))
        self.k, self.v = (LoraLinear(width, low, rank, dtype) for _ in range(2))
        self.gate, self.up = (LoraLinear(width, inner, rank, dtype) for _ in range(2))
        self.down = LoraLinear(inner, width, rank, dtype)

    def forward(self, x, cos, sin):
        h = self.norm_1(x)
        q, k, v = heads_of(self.q(h), self.heads), heads_of(self.k(h), self.groups), heads_of(self.v(h), self.groups)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(joined(y))
        h = self.norm_2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Llama(nn.Module):
    def __init__(self, width, inner, layers, heads, groups, vocab, length, rank, dtype):
        super().__init__()
        frozen = {"dtype": dtype}
        self.table = nn.Embedding(vocab, width, **frozen).requires_grad_(False)
        layer = (width, heads, groups, inner, rank, dtype)
        self.layers = nn.ModuleList(LlamaLayer(*layer) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5, **frozen).requires_grad_(False)
        self.head = nn.Linear(width, vocab, bias=False, **frozen).requires_grad_(False)
        dims = width // heads
        angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, dims, 2) / dims)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos().to(dtype))
        self.register_buffer("sin", angles.sin().to(dtype))

    def forward(self, tokens, labels):
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def bert(small, dtype, device):
    width, layers, heads, vocab, rows, length = (32, 2, 2, 60, 4, 16) if small else (768, 12, 12, 30522, 32, 128)
    ids = torch.randint(0, vocab, (rows, length), device=device)
    mask = torch.ones((rows, length), dtype=torch.bool, device=device)
    labels = torch.randint(0, 2, (rows,), device=device)
    return Bert(width, layers, heads, vocab, 2), (ids, torch.zeros_like(ids), mask, labels), rows * length


def gpt2(small, dtype, device):
    width, layers, heads, vocab, rows, length = (32, 2, 2, 61, 2, 16) if small else (768, 12, 12, 50257, 8, 1024)
    return Gpt(width, layers, heads, vocab, length), pair(rows, length, vocab, device), rows * length


def small_gpt(small, dtype, device):
    return Gpt(256, 4, 4, 1024, 128), pair(8, 128, 1024, device), 8 * 128


def llama(small, dtype, device):
    sizes = (256, 256, 1, 4, 2, 60, 8, 4) if small else (2048, 5632, 22, 32, 4, 32000, 512, 16)
    rows = 2 if small else 4
    return Llama(*sizes, DTYPES[dtype]), pair(rows, sizes[6], sizes[5], device), rows * sizes[6]


def pair(rows, length, vocab, device):
    return tuple(torch.randint(0, vocab, (rows, length), device=device) for _ in range(2))


class Classifier(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, images, labels):
        return F.cross_entropy(self.net(images).float(), labels)


def resnet50(small, dtype, device):
    from torchvision.models import resnet50

    rows, side = (4, 64) if small else (64, 224)
    images = torch.randn(rows, 3, side, side, device=device)
    labels = torch.randint(0, 1000, (rows,), device=device)
    return Classifier(resnet50()), (images, labels), rows


STEPS = [
    ("bert_f32", bert, "f32"),
    ("bert_f16", bert, "f16"),
    ("bert_bf16", bert, "bf16"),
    ("gpt2_f16", gpt2, "f16"),
    ("gpt2_bf16", gpt2, "bf16"),
    ("llama_f16", llama, "f16"),
    ("llama_bf16", llama, "bf16"),
    ("resnet50_f16", resnet50, "f16"),
    ("small_gpt_f32", small_gpt, "f32"),
]


def measured(make, dtype, small, compiled, device):
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model, batch, count = make(small, dtype, device)
    model = model.to(device)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    scaler = torch.amp.GradScaler(device, enabled=dtype == "f16")
    forward = torch.compile(model) if compiled else model

    def step():
        with torch.autocast(device, DTYPES[dtype], enabled=dtype != "f32"):
            loss = forward(*batch)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    def synchronized():
        loss = step()
        if device == "cuda":
            torch.cuda.synchronize()
        return loss

    seconds = median_of(synchronized)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return seconds, count, peak / 2**20


def median_of(step):
    for _ in range(3):
        step()
    began, times = time.monotonic(), []
    while len(times) < RUNS:
        start = time.perf_counter()
        step()
        if time.monotonic() - began > WARM_SECONDS:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="run on two CPU threads")
    parser.add_argument("filter", nargs="?", default="")
    args = parser.parse_args()
    device = "cpu" if args.cpu else "cuda"
    torch.set_num_threads(2)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    name = "cpu" if args.cpu else torch.cuda.get_device_name()
    print(f"device {name}, torch {torch.__version__}")
    for name, make, dtype in STEPS:
        if args.filter not in f"training_{name}":
            continue
        try:
            seconds, count, peak = measured(make, dtype, args.small, args.compile, device)
            print(f"training {name}\t{seconds * 1e3:.2f} ms\t{count / seconds:.0f}/s\t{peak:.0f} MiB", flush=True)
        except (RuntimeError, ImportError) as error:
            print(f"training {name}\tFAILED: {str(error).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
