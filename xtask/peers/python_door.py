"""Compares the Python module with other packages: calls of a tiny graph with ONNX Runtime, and 1,000 sentences with
sentence-transformers. Prints JSON on standard output.

Needs the wheel, numpy, onnx and onnxruntime; for sentences also torch, sentence-transformers and MiniLM's folder. The
programs alternate, so that other load on the machine affects them equally; the median counts.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np

import tercet

GRAPH = """graph {
  %x = input{name="x", ty=f32[n, 8]}()
  %y = unary{f=tanh}(%x)
  %z = binary{f=add}(%x, %y)
  return %z as "z"
}"""


def tiny_model():
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Tanh", ["x"], ["y"]), helper.make_node("Add", ["x", "y"], ["z"])]
    io = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "xz"]
    graph = helper.make_graph(nodes, "tiny", io[:1], io[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def calls(threads, rounds=30, calls_of_round=2000):
    import onnxruntime

    model = tiny_model()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    peer = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    own = tercet.Graph(GRAPH).compile("cpu", {"n": 64})
    x = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
    feed = {"x": x}
    np.testing.assert_allclose(own.run(feed)["z"], peer.run(None, feed)[0], rtol=1e-6, atol=1e-6)

    def timed(call):
        began = time.perf_counter()
        for _ in range(calls_of_round):
            call()
        return (time.perf_counter() - began) / calls_of_round

    times = {"tercet": [], "onnxruntime": []}
    for _ in range(rounds):
        times["onnxruntime"].append(timed(lambda: peer.run(None, feed)))
        times["tercet"].append(timed(lambda: own.run(feed)))
    micros = {name: statistics.median(all_) * 1e6 for name, all_ in times.items()}
    return {"microseconds": micros, "ratio": micros["tercet"] / micros["onnxruntime"]}


def sentences(count=1000):
    """Sentences of 4 to about 60 words, most of them short, like questions and passages."""
    rng = np.random.default_rng(3)
    words = (Path(__file__).parents[2] / "README.md").read_text().split()
    words = [word for word in words if word.isalpha()]
    lengths = np.minimum(4 + rng.gamma(2.0, 7.0, count).astype(int), 60)
    return [" ".join(rng.choice(words, n)) for n in lengths]


def embedding(folder, threads, rounds=5):
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    peer = SentenceTransformer(str(folder), device="cpu")
    own = tercet.load(folder, device="cpu")
    texts = sentences()

    def of_peer():
        return peer.encode(texts, batch_size=32, normalize_embeddings=True, show_progress_bar=False)

    worst = float(np.abs(own.embed(texts) - of_peer()).max())
    times = {"tercet": [], "sentence-transformers": []}
    for _ in range(rounds):
        for name, run in (("sentence-transformers", of_peer), ("tercet", lambda: own.embed(texts))):
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    seconds = {name: statistics.median(all_) for name, all_ in times.items()}
    return {"seconds": seconds, "ratio": seconds["tercet"] / seconds["sentence-transformers"], "apart": worst}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minilm", type=Path, help="folder of all-MiniLM-L6-v2 in the layout of sentence-transformers; without it the sentences are skipped")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-calls", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("RAYON_NUM_THREADS", str(args.threads))
    report = {"threads": args.threads}
    if not args.skip_calls:
        report["calls"] = calls(args.threads)
    if args.minilm:
        report["sentences"] = embedding(args.minilm, args.threads, args.rounds)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
