"""Compares ONNX models on a GPU with torch in a CUDA graph, in F32 and F16: run times and the difference of results.

    cargo build --release -p tercet-onnx --example model_times --features tercet/vulkan,tercet/wgpu
    python3 xtask/peers/onnx_torch.py FOLDER [--devices vulkan,wgpu] [--dtypes f32,f16] [--only NAME,NAME] [--seconds 1]

Missing models are exported to FOLDER (`onnx_models.py`; about 2 GB per dtype). Both programs are timed by the wall clock,
from inputs on the device to results there. They alternate, and the median counts. torch computes F32 matmuls without
TF32. With `--peer cpu` torch runs on the CPU without a graph, to try the script (`--devices cpu`). `--explain NAME`
prints Tercet's kernels of a model instead. Needs torch with CUDA, onnx and onnxscript. Results are compared with torch's.
"""

import argparse
import math
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np
import torch

from onnx_models import export
from onnx_nets import NETS, net

BINARY = "target/release/examples/model_times"
ROUNDS = 4
DTYPES = {"f32": torch.float32, "f16": torch.float16}


class Ours:
    """The Tercet process, controlled through lines on standard input."""

    def __init__(self, binary, model, device, inputs):
        command = [binary, str(model), device, *map(str, inputs)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.load = sum(map(float, self.line()[:2]))

    def line(self):
        said = self.process.stdout.readline()
        if not said:
            raise RuntimeError(self.process.stderr.read().strip())
        return said.split()

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.line()

    def times(self, n):
        return [float(t) for t in self.ask(f"stay {n}")]

    def outputs(self, results):
        with tempfile.TemporaryDirectory() as folder:
            count = len(self.ask(f"write {folder}"))
            dtypes = [r.cpu().numpy().dtype for r in results]
            return [np.fromfile(f"{folder}/{i}.bin", dtypes[i]) for i in range(count)]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Torch:
    """The module on its device, captured in a CUDA graph on a GPU."""

    def __init__(self, name, dtype, device):
        module, given = net(name, dtype)
        self.device, self.module = device, module.to(device)
        self.given = [t.to(device) for t in given]
        self.graph = None
        with torch.no_grad():
            if device == "cuda":
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    for _ in range(3):
                        self.module(*self.given)
                torch.cuda.current_stream().wait_stream(stream)
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph):
                    results = self.module(*self.given)
            else:
                results = self.module(*self.given)
        self.results = results if isinstance(results, tuple) else (results,)
        self.times(1)

    @torch.no_grad()
    def once(self):
        if self.graph is None:
            self.module(*self.given)
        else:
            self.graph.replay()
            torch.cuda.synchronize()

    def times(self, n):
        times = []
        for _ in range(n):
            started = time.perf_counter()
            self.once()
            times.append((time.perf_counter() - started) * 1e6)
        return times


def files(folder, stem):
    count = sum(1 for _ in folder.glob(f"{stem}.[0-9]*.pb"))
    return [folder / f"{stem}.{i}.pb" for i in range(count)]


def compare(args, name, dtype, device):
    model = export(args.folder, name, DTYPES[dtype])
    peer = Torch(name, DTYPES[dtype], args.peer)
    ours = Ours(args.binary, model, device, files(args.folder, model.name.removesuffix(".onnx")))
    apart = 0.0
    for got, result in zip(ours.outputs(peer.results), peer.results):
        want = result.float().cpu().numpy().ravel()
        gap = np.abs(got.astype(np.float32) - want).max() / (np.abs(want).max() + 1e-30)
        # NaN is a failure.
        apart = max(apart, gap) if gap == gap else math.inf
    once = max(statistics.median(peer.times(5)), statistics.median(ours.times(5))) * 1e-6
    n = max(3, int(args.seconds / 2 / ROUNDS / once))
    mine, others = [], []
    for _ in range(ROUNDS):
        mine += ours.times(n)
        others += peer.times(n)
    ours.close()
    return statistics.median(mine), statistics.median(others), ours.load, apart


def explain(args):
    for dtype in args.dtypes.split(","):
        model = export(args.folder, args.explain, DTYPES[dtype])
        inputs = files(args.folder, model.name.removesuffix(".onnx"))
        command = [args.binary, str(model), args.devices.split(",")[0], *map(str, inputs)]
        subprocess.run(command, input="explain\n", text=True, check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--devices", default="vulkan")
    parser.add_argument("--dtypes", default="f32,f16")
    parser.add_argument("--only", default="")
    parser.add_argument("--peer", default="cuda")
    parser.add_argument("--binary", default=BINARY)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--explain", default="")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if args.explain:
        return explain(args)
    names = args.only.split(",") if args.only else list(NETS)
    for dtype in args.dtypes.split(","):
        for device in args.devices.split(","):
            print(f"{device} {dtype}, torch {torch.__version__}: ms Tercet, ms torch, ratio; s to load; difference")
            ratios = []
            for name in names:
                try:
                    mine, others, load, apart = compare(args, name, dtype, device)
                except Exception as e:  # noqa: BLE001
                    print(f"{name:18} {e}", flush=True)
                    continue
                ratios.append(mine / others)
                times = f"{mine / 1e3:9.3f} {others / 1e3:9.3f} {mine / others:6.2f}"
                print(f"{name:18} {times}  {load:6.2f}  {apart:.1e}", flush=True)
            if ratios:
                mean = math.exp(statistics.mean(map(math.log, ratios)))
                print(f"geometric mean {mean:.2f}, worst {max(ratios):.2f}", flush=True)


if __name__ == "__main__":
    main()
