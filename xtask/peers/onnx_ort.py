"""Compares ONNX models with ONNX Runtime on the CPU: run times, load times and the difference of results. Both use two
threads and alternate.

    python3 xtask/peers/onnx_models.py FOLDER
    cargo build --release -p tercet-onnx --example model_times
    python3 xtask/peers/onnx_ort.py FOLDER [--only NAME,NAME] [--suffix .int8] [--seconds 2]

The load time is from the file to the end of the first run, minus the time of a later run. Needs onnxruntime, onnx and
numpy.
"""

import argparse
import math
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

THREADS = 2
ROUNDS = 4
BINARY = "target/release/examples/model_times"


class Ours:
    """The Tercet process, controlled through lines on standard input."""

    def __init__(self, binary, model, device, inputs):
        env = dict(os.environ, RAYON_NUM_THREADS=str(THREADS))
        command = [binary, str(model), device, *map(str, inputs)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        compiled, first, _ = self.line()
        self.load = float(compiled) + float(first)

    def line(self):
        return self.process.stdout.readline().split()

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.line()

    def times(self, n):
        return [float(t) for t in self.ask(f"run {n}")]

    def outputs(self, dtypes):
        with tempfile.TemporaryDirectory() as folder:
            said = self.ask(f"write {folder}")
            shapes = [[int(n) for n in s.split(":")[1].split("x") if n] for s in said]
            read = lambda i: np.fromfile(f"{folder}/{i}.bin", dtypes[i]).reshape(shapes[i])  # noqa: E731
            return [read(i) for i in range(len(said))]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Peer:
    def __init__(self, model, inputs):
        options = ort.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.log_severity_level = 3
        started = time.perf_counter()
        self.session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self.given = {i.name: v for i, v in zip(self.session.get_inputs(), inputs)}
        self.results = self.session.run(None, self.given)
        self.load = time.perf_counter() - started

    def times(self, n):
        times = []
        for _ in range(n):
            started = time.perf_counter()
            self.session.run(None, self.given)
            times.append((time.perf_counter() - started) * 1e6)
        return times


def files(folder, name):
    count = sum(1 for _ in folder.glob(f"{name}.*.pb"))
    return [folder / f"{name}.{i}.pb" for i in range(count)]


def compare(args, name):
    model = args.folder / f"{name}{args.suffix}.onnx"
    paths = files(args.folder, name)
    tensors = [numpy_helper.to_array(onnx.load_tensor(str(p))) for p in paths]
    peer = Peer(model, tensors)
    ours = Ours(args.binary, model, args.device, paths)
    got = ours.outputs([r.dtype for r in peer.results])
    apart = max(np.abs(g - r).max() / (np.abs(r).max() + 1e-30) for g, r in zip(got, peer.results) if r.size)
    mine, others = [], []
    once = max(statistics.median(peer.times(2)), statistics.median(ours.times(2))) * 1e-6
    n = max(2, int(args.seconds / 2 / ROUNDS / once))
    for _ in range(ROUNDS):
        # The threads of the other program may still spin after their last run.
        time.sleep(0.05)
        mine += ours.times(n)
        time.sleep(0.05)
        others += peer.times(n)
    mine, others = statistics.median(mine), statistics.median(others)
    loads = ours.load - mine * 1e-6, peer.load - others * 1e-6
    ours.close()
    return mine, others, loads, apart


def add_choice(parser):
    """Selects the models and the Tercet program."""
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--suffix", default="")
    parser.add_argument("--binary", default=BINARY)


def chosen(args):
    end = f"{args.suffix}.onnx"
    names = sorted(p.name.removesuffix(end) for p in args.folder.glob(f"*{end}"))
    return args.only.split(",") if args.only else [n for n in names if args.suffix or "." not in n]


def main():
    parser = argparse.ArgumentParser()
    add_choice(parser)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    names = chosen(args)
    print(f"onnxruntime {ort.__version__}, {THREADS} threads: ms Tercet, ms ONNX Runtime, ratio; s to load Tercet, ONNX Runtime; difference")
    ratios = []
    for name in names:
        mine, others, loads, apart = compare(args, name)
        ratios.append(mine / others)
        times = f"{mine / 1e3:9.2f} {others / 1e3:9.2f} {mine / others:6.2f}"
        print(f"{name:18} {times}  {loads[0]:6.2f} {loads[1]:6.2f}  {apart:.1e}", flush=True)
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    print(f"geometric mean {mean:.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
