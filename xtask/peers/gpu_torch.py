"""Measures torch on the work of `cargo xtask bench gpu`; one line each with name and microseconds.

The names are those of the Tercet bench. Kernels are captured in CUDA graphs and timed by events. Models are timed by the
wall clock, from inputs on the device to results there. Times are medians after the GPU has left its idle clock. Run the
script within an hour of the Tercet bench. Needs torch with CUDA; the encoders need transformers.

    python3 xtask/peers/gpu_torch.py [FILTER]
"""

import statistics
import sys
import time

import torch
import torch.nn.functional as F

WARM_SECONDS = 0.4
RUNS = 24
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}

CONVOLUTIONS = [
    ("3x3 b32 64x56x56", (32, 64, 56, 56), (64, 64, 3, 3), 1, 1),
    ("3x3 b1 64x56x56", (1, 64, 56, 56), (64, 64, 3, 3), 1, 1),
    ("3x3 b32 512x7x7", (32, 512, 7, 7), (512, 512, 3, 3), 1, 1),
    ("1x1 b32 64->256 56x56", (32, 64, 56, 56), (256, 64, 1, 1), 1, 1),
    ("7x7 s2 b32 3->64 224x224", (32, 3, 224, 224), (64, 3, 7, 7), 2, 1),
    ("depthwise 3x3 b32 32x112x112", (32, 32, 112, 112), (32, 1, 3, 3), 1, 32),
    ("depthwise 3x3 s2 b32 64x112x112", (32, 64, 112, 112), (64, 1, 3, 3), 2, 64),
    ("3x3x3 b2 32->64 16x56x56", (2, 32, 16, 56, 56), (64, 32, 3, 3, 3), 1, 1),
]


def graph_of(run):
    """`run` captured in a CUDA graph, after warm-up runs on a side stream, which capturing requires."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def events_time(graph):
    """The device time of one replay in seconds."""
    began = time.monotonic()
    while time.monotonic() - began < WARM_SECONDS:
        graph.replay()
        torch.cuda.synchronize()
    times = []
    for _ in range(RUNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def wall_time(graph):
    """The wall-clock time of one replay in seconds."""
    began = time.monotonic()
    times = []
    while len(times) < RUNS:
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        if time.monotonic() - began > WARM_SECONDS:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


class Bench:
    def __init__(self, wanted):
        self.wanted = wanted

    def time(self, name, make, clock=events_time):
        """Times the function that `make` returns; `make` creates operands only for selected cases."""
        if self.wanted not in name:
            return
        try:
            with torch.no_grad():
                print(f"{name}\t{clock(graph_of(make())) * 1e6:.1f}", flush=True)
        except RuntimeError as error:
            print(f"{name}\tFAILED: {str(error).splitlines()[0]}", flush=True)


def tensor(shape, dtype):
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(DTYPES[dtype])


def products(bench):
    shapes = [(n, n, n) for n in (1024, 2048, 4096, 8192)]
    shapes += [(4096, 3072, 768), (4096, 768, 768), (4096, 2304, 768)]
    for dtype in DTYPES:
        for m, n, k in shapes:

            def make(m=m, n=n, k=k, dtype=dtype):
                a, b = tensor((m, k), dtype), tensor((k, n), dtype)
                return lambda: a @ b

            bench.time(f"gemm {dtype} {m}x{n}x{k}", make)
    for n in (4096, 14336):

        def make_row(n=n):
            x, w = tensor((1, 4096), "F16"), tensor((n, 4096), "F16")
            return lambda: F.linear(x, w)

        bench.time(f"gemv F16 {n}x4096", make_row)


def rows(bench):
    def of(run, shape=(8192, 4096)):
        def make():
            x = tensor(shape, "F32")
            return lambda: run(x)

        return make

    gain = torch.ones(4096, device="cuda")
    size = "f32 8192x4096"
    bench.time(f"softmax {size}", of(lambda x: torch.softmax(x, 1)))
    bench.time(f"layer_norm {size}", of(lambda x: F.layer_norm(x, (4096,), gain, gain)))
    bench.time(f"rms_norm {size}", of(lambda x: F.rms_norm(x, (4096,), gain)))
    bench.time(f"gelu {size}", of(F.gelu))
    bench.time(f"row sum {size}", of(lambda x: x.sum(1)))
    bench.time(f"transpose {size}", of(lambda x: x.t().contiguous()))
    bench.time(f"cumsum {size}", of(lambda x: x.cumsum(1)))
    bench.time("neg, 67108864 f32", of(torch.neg, (64 << 20,)))


def attention(bench):
    for dtype in ("F16", "F32"):
        for dim in (64, 128):
            for what in ("attention", "causal attention"):

                def make(dtype=dtype, dim=dim, what=what):
                    q, k, v = (tensor((8, 16, 1024, dim), dtype) for _ in range(3))
                    causal = what.startswith("causal")
                    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)

                bench.time(f"{what} {dtype} b8 h16 s1024 d{dim}", make)


def convolutions(bench):
    for dtype in ("F16", "F32"):
        for name, x_shape, w_shape, stride, groups in CONVOLUTIONS:
            run = F.conv3d if len(x_shape) == 5 else F.conv2d
            pads = [k // 2 for k in w_shape[2:]]

            def make(dtype=dtype, x_shape=x_shape, w_shape=w_shape, stride=stride, groups=groups, run=run, pads=pads):
                x, w, bias = tensor(x_shape, dtype), tensor(w_shape, dtype), tensor(w_shape[:1], dtype)
                return lambda: run(x, w, bias, stride=stride, padding=pads, groups=groups)

            bench.time(f"conv {dtype} {name}", make)

        def make_resize(dtype=dtype):
            x = tensor((32, 64, 112, 112), dtype)
            return lambda: F.interpolate(x, scale_factor=2, mode="bilinear")

        bench.time(f"resize {dtype} linear 2x 64x112x112", make_resize)


def spectra(bench):
    def of(shape, run):
        def make():
            x = tensor(shape, "F32")
            return lambda: run(x)

        return make

    bench.time("fft of 4096 F32, 4096 rows", of((4096, 4096, 2), lambda x: torch.fft.fft(torch.view_as_complex(x))))
    bench.time("rfft of 4096 F32, 4096 rows", of((4096, 4096), torch.fft.rfft))
    bench.time(
        "irfft to 4096 F32, 4096 rows", of((4096, 2049, 2), lambda x: torch.fft.irfft(torch.view_as_complex(x), 4096))
    )


def encoders(bench):
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        print("encoders\tFAILED: transformers is not installed")
        return
    sizes = {"bert-base": (768, 12, 12, 3072), "minilm": (384, 6, 12, 1536)}
    for name, (hidden, layers, heads, inner) in sizes.items():
        config = BertConfig(
            hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner
        )
        for dtype in ("F16", "F32"):
            for batch in (1, 32):

                def make(config=config, dtype=dtype, batch=batch):
                    model = BertModel(config, add_pooling_layer=False).to("cuda", DTYPES[dtype]).eval()
                    ids = torch.randint(0, 30000, (batch, 128), device="cuda")
                    return lambda: model(ids)

                bench.time(f"{name} {dtype} b{batch} s128", make, wall_time)


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    bench = Bench(sys.argv[1] if len(sys.argv) > 1 else "")
    print(f"device {torch.cuda.get_device_name()}, torch {torch.__version__}")
    for group in (products, rows, attention, convolutions, spectra, encoders):
        group(bench)


if __name__ == "__main__":
    main()
