"""Runs exported cases (`TERCET_EXPORTED=DIR cargo test --release -p tercet-onnx --test export`) with ONNX Runtime.

python3 xtask/peers/exported_ort.py DIR

Prints the differences, and for each operator the number of models that agree with Tercet, differ, or have no kernel in
ONNX Runtime. Needs onnx, onnxruntime and numpy.
"""

import collections
import os
import pathlib
import pickle
import sys

import numpy as np
import onnx
import onnxruntime as ort

TOLERANCE = {"float32": 2e-4, "float64": 1e-9, "float16": 2e-2}


def run(path):
    data = onnx.load(str(path.with_suffix(".data.onnx")))
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in data.graph.initializer}
    model = onnx.load(str(path))
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = {i.name: tensors[i.name] for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs() if "out:" + o.name in tensors]
    for name, got in zip(names, session.run(names, given)):
        want = tensors["out:" + name]
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"{name} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        off = TOLERANCE.get(str(want.dtype), 0)
        if not np.allclose(got, want, rtol=off, atol=off, equal_nan=True):
            return f"{name} is {got.ravel()[:6]}, not {want.ravel()[:6]}"
    return None


def run_alone(path):
    """Calls `run` in a separate process, because ONNX Runtime crashes on some operands."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        try:
            said = ("wrong", run(path))
        except Exception as e:  # noqa: BLE001
            said = ("failed", str(e).splitlines()[0])
        os.write(writes, pickle.dumps(said))
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read()
    os.wait()
    return pickle.loads(said) if said else ("failed", "the process died")


def main():
    counts = collections.defaultdict(lambda: [0, 0, 0])
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.onnx")):
        if path.name.endswith(".data.onnx"):
            continue
        count = counts[path.name.split("-")[0]]
        how, wrong = run_alone(path)
        if how == "failed":
            count[2] += 1
            if "NOT_IMPLEMENTED" not in wrong:
                print(f"{path.stem}: {wrong[:300]}")
            continue
        count[1 if wrong else 0] += 1
        if wrong:
            print(f"{path.stem}: {wrong}")
    for name, (right, wrong, absent) in counts.items():
        print(f"{name}: {right} right, {wrong} differ, {absent} not run")
    total = [sum(c[i] for c in counts.values()) for i in range(3)]
    print(f"in all: {total[0]} right, {total[1]} differ, {total[2]} not run")


main()
