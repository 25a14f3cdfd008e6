"""Makes models of one `Attention` operator, with results of ONNX's reference evaluator.

python3 make.py    # needs numpy and onnx 1.23

NAME.pb is a GraphProto whose initializers are inputs and results, called `RUN/in/NAME` and `RUN/out/INDEX`.
"""

import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

HERE = pathlib.Path(__file__).parent
OPERANDS = ["q", "k", "v", "mask", "past_k", "past_v", "valid"]
RESULTS = ["y", "present_k", "present_v", "scores"]
random = np.random.default_rng(7)


def some(*shape):
    return random.standard_normal(shape).astype(np.float32)


def valid(*lens):
    return np.array(lens, np.int64)


def write(name, opset, results, runs, **attributes):
    """A model with the operands that the runs give and the named results."""
    given = runs[0]
    node = helper.make_node("Attention", [n if n in given else "" for n in OPERANDS],
                            [n if n in results else "" for n in RESULTS], **attributes)
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64,
             np.dtype(np.bool_): TensorProto.BOOL}
    inputs = [helper.make_tensor_value_info(n, kinds[x.dtype], x.shape) for n, x in given.items()]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in RESULTS if n in results]
    graph = helper.make_graph([node], name, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    evaluator = ReferenceEvaluator(model)
    data = onnx.GraphProto(name=name)
    for i, run in enumerate(runs):
        for key, x in run.items():
            data.initializer.append(numpy_helper.from_array(x, f"{i}/in/{key}"))
        for at, y in enumerate(evaluator.run(None, run)):
            data.initializer.append(numpy_helper.from_array(np.asarray(y, np.float32), f"{i}/out/{at}"))
    (HERE / f"{name}.onnx").write_bytes(model.SerializeToString())
    (HERE / f"{name}.pb").write_bytes(data.SerializeToString())


# A query block of 3 at the end of the valid keys of each sequence; the last sequence is shorter than its queries.
prefill = {"q": some(3, 2, 3, 8), "k": some(3, 2, 6, 8), "v": some(3, 2, 6, 8)}
lens = [{"valid": valid(6, 4, 2)}, {"valid": valid(3, 1, 5)}]
with_lens = lambda given: [{**given, **one} for one in lens]
write("nonpad_causal", 24, ["y"], with_lens(prefill), is_causal=1)
write("nonpad_padded", 24, ["y"], with_lens(prefill), is_causal=0)
write("nonpad_causal_scores", 24, ["y", "scores"], with_lens(prefill), is_causal=1, qk_matmul_output_mode=3)
masked = {**prefill, "mask": some(3, 1, 3, 6)}
write("nonpad_causal_mask", 24, ["y"], with_lens(masked), is_causal=1)
kept = {**prefill, "mask": random.random((2, 3, 6)) < 0.6}
write("nonpad_causal_kept_by_head", 24, ["y"], with_lens(kept), is_causal=1)
narrow = {**prefill, "mask": some(3, 4)}
write("nonpad_causal_narrow_mask", 24, ["y"], with_lens(narrow), is_causal=1)
decode = {"q": some(3, 4, 1, 8), "k": some(3, 2, 6, 8), "v": some(3, 2, 6, 8)}
write("nonpad_causal_decode_gqa", 24, ["y"], with_lens(decode), is_causal=1)
flat = {"q": some(3, 3, 16), "k": some(3, 6, 8), "v": some(3, 6, 8)}
write("nonpad_causal_flat", 24, ["y"], with_lens(flat), is_causal=1, q_num_heads=4, kv_num_heads=2)
# Windows.
own = {"q": some(2, 2, 6, 8), "k": some(2, 2, 6, 8), "v": some(2, 2, 6, 8)}
write("window_left", 25, ["y"], [own], left_window_size=2, is_causal=1)
write("window_left_open", 25, ["y"], [own], left_window_size=1)
write("window_right", 25, ["y"], [own], right_window_size=1)
write("window_both", 25, ["y"], [own], left_window_size=2, right_window_size=0)
write("window_none", 25, ["y"], [own], left_window_size=-1, right_window_size=-1, is_causal=1)
past = {"q": some(2, 4, 2, 8), "k": some(2, 2, 2, 8), "v": some(2, 2, 2, 8),
        "past_k": some(2, 2, 5, 8), "past_v": some(2, 2, 5, 8)}
write("window_past", 25, ["y", "present_k", "present_v"], [past], left_window_size=3, is_causal=1)
write("window_nonpad", 25, ["y"], with_lens(masked), left_window_size=2, right_window_size=1)
row = {**own, "mask": np.array([True, False, True, True, True, False])}
write("window_row_mask", 25, ["y"], [row], left_window_size=2, is_causal=1)
