"""Measures ONNX Runtime on MiniLM and prints the times as JSON on standard output.

Builds the encoder as an ONNX graph from the folder's `model.safetensors` and `config.json`, and checks its results
against the reference embeddings. Then measures the last hidden state for several (batch, sequence) shapes. Needs numpy,
onnx and onnxruntime.
"""

import argparse
import json
import struct
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

SHAPES = [(1, 16), (1, 128), (8, 128), (32, 128)]
MIN_RUNS = 20
MIN_SECONDS = 2.0
OPSET = 20
IR_VERSION = 10
# The project's error limit for MiniLM.
MAX_ABS_ERROR = 2e-5
# Added to the scores of padding: the minimum finite F32, so that softmax returns zero.
MASKED = np.finfo(np.float32).min


def read_safetensors(path):
    """All tensors of a safetensors file; MiniLM has F32 weights and I64 position ids."""
    dtypes = {"F32": np.float32, "I64": np.int64}
    raw = path.read_bytes()
    (header_len,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + header_len])
    header.pop("__metadata__", None)
    data = memoryview(raw)[8 + header_len :]
    tensors = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        array = np.frombuffer(data[begin:end], dtypes[info["dtype"]])
        tensors[name] = array.reshape(info["shape"])
    return tensors


class Builder:
    """A graph under construction: nodes and initializers; every method returns the name of a value."""

    def __init__(self, weights):
        self.weights = weights
        self.nodes = []
        self.initializers = {}

    def const(self, name, array):
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def weight(self, name):
        return self.const(name, self.weights[name])

    def op(self, op_type, *inputs, **attributes):
        output = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attributes))
        return output

    def linear(self, x, name):
        """x W^T + b: checkpoints store [out, in], MatMul takes [in, out]."""
        weight = self.const(f"{name}.weight_t", self.weights[f"{name}.weight"].T)
        return self.op("Add", self.op("MatMul", x, weight), self.weight(f"{name}.bias"))

    def layer_norm(self, x, name, eps):
        gamma, beta = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=eps)

    def gelu(self, x):
        """GELU with erf, decomposed in the form that the runtime's fusion recognizes."""
        inner = self.op("Div", x, self.const("sqrt2", np.float32(np.sqrt(2.0))))
        cdf2 = self.op("Add", self.op("Erf", inner), self.const("one", np.float32(1)))
        return self.op("Mul", self.op("Mul", x, cdf2), self.const("half", np.float32(0.5)))

    def heads(self, x, n_heads, head_dim, perm):
        """Splits [B, S, H D] into [B, S, H, D] and transposes by `perm`."""
        shape = self.const("split_heads", np.array([0, 0, n_heads, head_dim], np.int64))
        return self.op("Transpose", self.op("Reshape", x, shape), perm=perm)


def embeddings(g, eps):
    words = g.op("Gather", g.weight("embeddings.word_embeddings.weight"), "input_ids")
    table = g.weight("embeddings.position_embeddings.weight")
    seq = g.op("Shape", "input_ids", start=1, end=2)
    first = g.const("axis_0", np.array([0], np.int64))
    positions = g.op("Slice", table, first, seq, first)
    # Each row is a single sentence, so all token types are 0.
    types = g.const("token_type_0", g.weights["embeddings.token_type_embeddings.weight"][0])
    total = g.op("Add", g.op("Add", words, types), positions)
    return g.layer_norm(total, "embeddings.LayerNorm", eps)


def attention_bias(g):
    """Converts a mask [B, S] with 1 for tokens to a score bias [B, 1, 1, S] with 0 for tokens."""
    mask = g.op("Cast", "attention_mask", to=TensorProto.FLOAT)
    mask = g.op("Unsqueeze", mask, g.const("axes_heads_queries", np.array([1, 2], np.int64)))
    return g.op("Mul", g.op("Sub", g.const("one", np.float32(1)), mask), g.const("masked", MASKED))


def layer(g, x, bias, index, config):
    name = f"encoder.layer.{index}"
    n_heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim, eps = hidden // n_heads, config["layer_norm_eps"]
    attention = f"{name}.attention"
    q = g.heads(g.linear(x, f"{attention}.self.query"), n_heads, head_dim, [0, 2, 1, 3])
    k = g.heads(g.linear(x, f"{attention}.self.key"), n_heads, head_dim, [0, 2, 3, 1])
    v = g.heads(g.linear(x, f"{attention}.self.value"), n_heads, head_dim, [0, 2, 1, 3])
    scale = g.const("sqrt_head_dim", np.float32(np.sqrt(head_dim)))
    scores = g.op("Add", g.op("Div", g.op("MatMul", q, k), scale), bias)
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
    mixed = g.op("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = g.op("Reshape", mixed, g.const("join_heads", np.array([0, 0, hidden], np.int64)))
    mixed = g.linear(mixed, f"{attention}.output.dense")
    x = g.layer_norm(g.op("Add", mixed, x), f"{attention}.output.LayerNorm", eps)
    inner = g.gelu(g.linear(x, f"{name}.intermediate.dense"))
    inner = g.linear(inner, f"{name}.output.dense")
    return g.layer_norm(g.op("Add", inner, x), f"{name}.output.LayerNorm", eps)


def build(folder):
    """The encoder: input_ids and attention_mask [B, S] I64 to hidden [B, S, hidden] F32."""
    config = json.loads((folder / "config.json").read_text())
    if config["hidden_act"] != "gelu" or config["position_embedding_type"] != "absolute":
        raise SystemExit("error: only gelu and absolute positions are supported")
    g = Builder(read_safetensors(folder / "model.safetensors"))
    x, bias = embeddings(g, config["layer_norm_eps"]), attention_bias(g)
    for index in range(config["num_hidden_layers"]):
        x = layer(g, x, bias, index, config)
    g.nodes.append(helper.make_node("Identity", [x], ["hidden"]))
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "seq"])
        for name in ("input_ids", "attention_mask")
    ]
    shape = ["batch", "seq", config["hidden_size"]]
    hidden = [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(g.nodes, "minilm", ids, hidden, list(g.initializers.values()))
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model, config


def session(model, threads):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def largest_error(run, reference):
    """The maximum error against the reference embeddings of the sentences, padded into one batch."""
    expected = np.load(reference / "embeddings_f64.npy")
    ids = json.loads((reference / "reference.json").read_text())["token_ids"]
    longest = max(map(len, ids))
    padded = np.array([row + [0] * (longest - len(row)) for row in ids], np.int64)
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in ids], np.int64)
    hidden = run(padded, mask).astype(np.float64)
    mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    ours = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return float(np.abs(ours - expected).max())


def median_ns(run, batch, seq, vocab):
    ids = np.random.default_rng(0).integers(0, vocab, (batch, seq), np.int64)
    mask = np.ones_like(ids)
    for _ in range(3):
        run(ids, mask)
    times = []
    start = time.perf_counter()
    while len(times) < MIN_RUNS or time.perf_counter() - start < MIN_SECONDS:
        before = time.perf_counter_ns()
        run(ids, mask)
        times.append(time.perf_counter_ns() - before)
    return float(np.median(times))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--reference", type=Path, required=True, help="folder with the references")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    model, config = build(arguments.model)
    inference = session(model, arguments.threads)

    def run(ids, mask):
        return inference.run(["hidden"], {"input_ids": ids, "attention_mask": mask})[0]

    error = largest_error(run, arguments.reference)
    print(f"onnxruntime: maximum error against the references {error:.2e}", file=sys.stderr)
    if not error < MAX_ABS_ERROR:
        raise SystemExit(f"error: the ONNX graph is wrong: {error:.2e} is above {MAX_ABS_ERROR}")
    vocab = config["vocab_size"]
    peer = f"onnxruntime {ort.__version__}"
    rows = [
        {
            "peer": peer,
            "work": f"minilm/{batch}x{seq}",
            "median_ns": median_ns(run, batch, seq, vocab),
        }
        for batch, seq in SHAPES
    ]
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
