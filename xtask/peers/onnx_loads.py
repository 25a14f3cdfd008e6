"""Compares the load times of ONNX models with ONNX Runtime on the CPU. Both use two threads and alternate; every load runs in
a separate process.

    python3 xtask/peers/onnx_models.py FOLDER          # and onnx_int8.py for the 8-bit models
    cargo build --release -p tercet-onnx --example model_times
    python3 xtask/peers/onnx_loads.py FOLDER [--only NAME,NAME] [--suffix .int8] [--rounds 7]

A load time starts with the file in the page cache and includes the first run, minus the time of a later run. The
interpreter and libraries are loaded before the clock starts. Needs onnxruntime, onnx and numpy.
"""

import argparse
import statistics
import subprocess
import sys
import time

import onnx
from onnx import numpy_helper

import onnx_ort

LATER_RUNS = 3


def ours(args, model, inputs):
    process = onnx_ort.Ours(args.binary, model, "cpu", inputs)
    later = min(process.times(LATER_RUNS)) * 1e-6
    process.close()
    return process.load - later


def peer(model, inputs):
    """Loads one model in this process and prints the seconds."""
    tensors = [numpy_helper.to_array(onnx.load_tensor(path)) for path in inputs]
    session = onnx_ort.Peer(model, tensors)
    return session.load - min(session.times(LATER_RUNS)) * 1e-6


def peer_of_its_own(model, inputs):
    command = [sys.executable, __file__, "--peer", str(model), *map(str, inputs)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(said)


def milliseconds(seconds):
    return f"{min(seconds) * 1e3:7.0f} {statistics.median(seconds) * 1e3:7.0f}"


def main():
    if sys.argv[1:2] == ["--peer"]:
        print(peer(sys.argv[2], sys.argv[3:]))
        return
    parser = argparse.ArgumentParser()
    onnx_ort.add_choice(parser)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    print("ms, minimum and median: Tercet; ONNX Runtime; ratios of both")
    for name in onnx_ort.chosen(args):
        model, inputs = args.folder / f"{name}{args.suffix}.onnx", onnx_ort.files(args.folder, name)
        mine, others = [], []
        for _ in range(args.rounds):
            # Wait, because the threads of the other program may still spin after its run.
            time.sleep(0.05)
            mine.append(ours(args, model, inputs))
            time.sleep(0.05)
            others.append(peer_of_its_own(model, inputs))
        ratios = [of(mine) / of(others) for of in (min, statistics.median)]
        row = f"{milliseconds(mine)}  {milliseconds(others)}  {ratios[0]:5.2f} {ratios[1]:5.2f}"
        print(f"{name + args.suffix:22} {row}", flush=True)


if __name__ == "__main__":
    main()
