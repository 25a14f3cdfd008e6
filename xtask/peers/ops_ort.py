"""Measures each row of `op_rows.py` with Tercet and with ONNX Runtime on the CPU by turns.

    python3 xtask/peers/ops_ort.py --binary PATH/model_times [--threads 2] [--only PART] [--tercet-only]

Prints a JSON line per row: both times in microseconds (the least, as other programs disturb the rest) and the largest
difference of the results, divided by the peer's largest; or the reason why one of the two has no time. `model_times`
is the example of `tercet-onnx`. Needs numpy, onnx and onnxruntime.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper, shape_inference

import op_rows

ROUNDS = 5
# The work of a round, in microseconds.
ROUND_US = 12_000


class Ours:
    """The Tercet process, controlled through lines on standard input."""

    def __init__(self, binary, model, inputs, threads):
        env = dict(os.environ, RAYON_NUM_THREADS=str(threads))
        command = [binary, str(model), "cpu", *map(str, inputs)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        if not self.process.stdout.readline():
            raise RuntimeError(self.process.stderr.read().strip().replace("\n", " ")[:300])

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def times(self, n):
        return [float(t) for t in self.ask(f"run {n}")]

    def outputs(self, like):
        with tempfile.TemporaryDirectory() as folder:
            said = self.ask(f"write {folder}")
            shapes = [[int(n) for n in s.split(":")[1].split("x") if n] for s in said]
            read = lambda i: np.fromfile(f"{folder}/{i}.bin", like[i].dtype)  # noqa: E731
            return [read(i).reshape(shapes[i]) for i in range(len(like))]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Peer:
    def __init__(self, model, inputs, threads):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self.session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self.given = {i.name: v for i, v in zip(self.session.get_inputs(), inputs)}
        self.results = self.session.run(None, self.given)
        # Results stay in the runtime's memory, as Tercet reuses that of its own.
        self.binding = self.session.io_binding()
        for name, value in self.given.items():
            self.binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value)))
        for output, value in zip(self.session.get_outputs(), self.results):
            # A result whose size depends on data is allocated in each run.
            if output.shape and all(isinstance(n, int) for n in output.shape):
                self.binding.bind_ortvalue_output(output.name, ort.OrtValue.ortvalue_from_numpy(value))
            else:
                self.binding.bind_output(output.name, "cpu")

    def times(self, n):
        times = []
        for _ in range(n):
            started = time.perf_counter_ns()
            self.session.run_with_iobinding(self.binding)
            times.append((time.perf_counter_ns() - started) / 1e3)
        return times


def difference(ours, peers):
    worst = 0.0
    for a, b in zip(ours, peers):
        if a.shape != b.shape:
            return float("inf")
        if a.size:
            a, b = a.astype(np.float64), b.astype(np.float64)
            worst = max(worst, float(np.nanmax(np.abs(a - b))) / (float(np.nanmax(np.abs(b))) + 1e-30))
    return worst


def rounds(program):
    once = min(program.times(3))
    n = max(3, min(400, int(ROUND_US / max(once, 1.0))))
    return lambda: min(program.times(n))


def measure(row, folder, args):
    made, arrays = op_rows.model(row)
    try:
        made = shape_inference.infer_shapes(made)
    except Exception:  # noqa: BLE001  The programs infer shapes for themselves.
        pass
    path = folder / "model.onnx"
    onnx.save(made, str(path))
    files = []
    for index, array in enumerate(arrays):
        files.append(folder / f"{index}.pb")
        files[-1].write_bytes(numpy_helper.from_array(array).SerializeToString())
    said = {"work": row.work}
    peer = ours = None
    if not args.tercet_only:
        try:
            peer = Peer(path, arrays, args.threads)
        except Exception as error:  # noqa: BLE001  Any reason of the peer is a result.
            said["peer_refused"] = str(error).replace("\n", " ")[:200]
    try:
        ours = Ours(args.binary, path, files, args.threads)
    except RuntimeError as error:
        said["refused"] = str(error)
        return said
    if peer:
        said["difference"] = difference(ours.outputs(peer.results), peer.results)
    programs = {"tercet_us": ours, "peer_us": peer}
    turns = {name: rounds(program) for name, program in programs.items() if program}
    times = {name: [] for name in turns}
    for _ in range(ROUNDS):
        for name, turn in turns.items():
            # The threads of the other program may still spin after their last run.
            time.sleep(0.01)
            times[name].append(turn())
    said.update({name: min(values) for name, values in times.items()})
    ours.close()
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="only rows with one of these texts, separated by commas, in their names")
    parser.add_argument("--tercet-only", action="store_true")
    args = parser.parse_args()
    if missing := op_rows.unlisted():
        sys.exit(f"error: op_rows.py has neither rows nor reasons for {', '.join(missing)}")
    rows = [r for r in op_rows.ROWS if any(part in r.work for part in args.only.split(","))]
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            print(json.dumps(measure(row, pathlib.Path(folder), args)), flush=True)


if __name__ == "__main__":
    main()
