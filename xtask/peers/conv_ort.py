"""Measures ONNX Runtime's convolutions and prints the times as JSON on standard output.

Reads the shapes from the bench's file and builds an ONNX graph with one convolution with bias for each. Checks a few
elements of the result in float64 and measures the graph. Needs numpy, onnx and onnxruntime.

ONNX Runtime can use internal layouts, which make most convolutions faster but some slower, because inputs and outputs
are converted. Each case is measured with and without them, and the better median counts.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

MIN_RUNS = 20
MIN_SECONDS = 1.0
OPSET = 20
IR_VERSION = 10
MAX_ABS_ERROR = 1e-4
LEVELS = [
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
]


class Case:
    """A convolution: its operands, its graph, and expected elements of the result."""

    def __init__(self, case):
        rng = np.random.default_rng(0)
        self.stride, self.groups = case["stride"], case["groups"]
        self.x = rng.standard_normal(case["x"], np.float32)
        scale = np.float32(1 / np.sqrt(np.prod(case["w"][1:])))
        self.w = rng.standard_normal(case["w"], np.float32) * scale
        self.bias = rng.standard_normal(case["w"][0]).astype(np.float32)
        self.pads = [k // 2 for k in case["w"][2:]]

    def model(self):
        axes = len(self.pads)
        attributes = {"strides": [self.stride] * axes, "pads": self.pads * 2, "group": self.groups}
        node = helper.make_node("Conv", ["x", "w", "bias"], ["y"], **attributes)
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.x.shape)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * self.x.ndim)
        weights = [numpy_helper.from_array(self.w, "w"), numpy_helper.from_array(self.bias, "bias")]
        graph = helper.make_graph([node], "conv", [x], [y], weights)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)

    def error(self, y):
        """The maximum error of some elements, compared with float64 sums."""
        pads = [(0, 0), (0, 0)] + [(p, p) for p in self.pads]
        padded = np.pad(self.x, pads).astype(np.float64)
        rng = np.random.default_rng(1)
        per_group, channels = self.w.shape[0] // self.groups, self.w.shape[1]
        worst = 0.0
        for _ in range(64):
            at = [rng.integers(n) for n in y.shape]
            first = at[1] // per_group * channels
            window = [slice(a * self.stride, a * self.stride + k) for a, k in zip(at[2:], self.w.shape[2:])]
            part = padded[(at[0], slice(first, first + channels), *window)]
            want = (part * self.w[at[1]]).sum() + self.bias[at[1]]
            worst = max(worst, abs(float(y[tuple(at)]) - want))
        return worst


def median_ns(case, level, threads):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = level
    model = case.model().SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    y = session.run(["y"], {"x": case.x})[0]
    error = case.error(y)
    if not error < MAX_ABS_ERROR:
        raise SystemExit(f"error: the ONNX graph is wrong: {error:.2e} is above {MAX_ABS_ERROR}")
    # Preallocate the result, as the Tercet bench does.
    binding = session.io_binding()
    binding.bind_cpu_input("x", case.x)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    times = []
    start = time.perf_counter()
    while len(times) < MIN_RUNS or time.perf_counter() - start < MIN_SECONDS:
        before = time.perf_counter_ns()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter_ns() - before)
    return float(np.median(times))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=Path, required=True, help="file with the shapes")
    parser.add_argument("--group", required=True, help="prefix of the shape names")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    rows = []
    for shapes in json.loads(arguments.cases.read_text()):
        case = Case(shapes)
        best = min(median_ns(case, level, arguments.threads) for level in LEVELS)
        work = f"{arguments.group}/{shapes['name']}"
        rows.append({"peer": f"onnxruntime {ort.__version__}", "work": work, "median_ns": best})
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
