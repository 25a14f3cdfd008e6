"""Makes the cases in this folder: less common forms of operators, and what ONNX Runtime gives.

python3 make.py [NAME...]    # needs numpy, onnx and onnxruntime

Each case is a folder as the node suite of ONNX has them: model.onnx, input_0.pb and on, output_0.pb and on.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).parent
only = set(sys.argv[1:])
MICROSOFT = "com.microsoft"


def tensor(folder, kind, i, array):
    (folder / f"{kind}_{i}.pb").write_bytes(numpy_helper.from_array(np.asarray(array)).SerializeToString())


def case(name, nodes, inputs, outputs, opset=17, weights=(), shapes=None, declared=None):
    """A model of `nodes`; `inputs` are arrays by name, `weights` initializers. `shapes` replaces declared shapes."""
    if only and name not in only:
        return
    infos = []
    for key, x in inputs.items():
        shape = (shapes or {}).get(key, x.shape)
        infos.append(helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(x.dtype), shape))
    results = [helper.make_empty_tensor_value_info(key) for key in outputs]
    for info in results:
        if declared and info.name in declared:
            info.CopyFrom(declared[info.name])
    initializers = [numpy_helper.from_array(np.asarray(x), key) for key, x in dict(weights).items()]
    graph = helper.make_graph(nodes, "g", infos, results, initializers)
    opsets = [helper.make_opsetid("", opset)]
    if any(n.domain == MICROSOFT for n in nodes):
        opsets.append(helper.make_opsetid(MICROSOFT, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, inputs)
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    onnx.save(model, folder / "model.onnx")
    for i, x in enumerate(inputs.values()):
        tensor(folder, "input", i, x)
    for i, y in enumerate(expected):
        tensor(folder, "output", i, y)
    print(name, [np.asarray(y).shape for y in expected])


def floats(*shape, seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, WIDTH, HIDDEN = 6, 4, 3, 5


def layer(name, op, lens=None, dirs=1, peepholes=False, states=True, const_lens=False, scale=1.0, **attributes):
    gates = GATES[op]
    inputs = {"x": floats(STEPS, BATCH, WIDTH) * scale}
    weights = {
        "w": floats(dirs, gates * HIDDEN, WIDTH, seed=1) * 0.5,
        "r": floats(dirs, gates * HIDDEN, HIDDEN, seed=2) * 0.5,
        "b": floats(dirs, 2 * gates * HIDDEN, seed=3) * 0.3,
    }
    names = ["x", "w", "r", "b", "", "", "", ""]
    if lens is not None:
        (weights if const_lens else inputs)["lens"] = np.array(lens, np.int32)
        names[4] = "lens"
    if states:
        inputs["h0"] = floats(dirs, BATCH, HIDDEN, seed=4) * 0.5
        names[5] = "h0"
        if op == "LSTM":
            inputs["c0"] = floats(dirs, BATCH, HIDDEN, seed=5)
            names[6] = "c0"
    if peepholes:
        weights["p"] = floats(dirs, 3 * HIDDEN, seed=6) * 0.3
        names[7] = "p"
    while names[-1] == "":
        names.pop()
    outputs = ["y", "h", "c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, names, outputs, hidden_size=HIDDEN, **attributes)
    case(name, [node], inputs, outputs, weights=weights)


MIXED = [6, 3, 1, 4]
for op in GATES:
    low = op.lower()
    after = {"linear_before_reset": 1} if op == "GRU" else {}
    layer(f"{low}_lens", op, MIXED, **after)
    layer(f"{low}_lens_reverse", op, MIXED, direction="reverse", **after)
    layer(f"{low}_lens_both", op, MIXED, 2, direction="bidirectional", states=False, const_lens=True, **after)
    layer(f"{low}_clip", op, clip=0.4, scale=3.0, **after)
    layer(f"{low}_clip_lens", op, MIXED, 2, direction="bidirectional", clip=0.4, scale=3.0, **after)
layer("gru_before_lens", "GRU", MIXED, 2, direction="bidirectional")
layer("gru_before_clip", "GRU", clip=0.4, scale=3.0)
layer("lstm_peepholes_lens", "LSTM", MIXED, 2, direction="bidirectional", peepholes=True)
layer("lstm_peepholes_clip", "LSTM", peepholes=True, clip=0.3, scale=3.0)
layer("lstm_coupled", "LSTM", input_forget=1)
layer("lstm_activations", "LSTM", dirs=2, direction="bidirectional",
      activations=["HardSigmoid", "Softsign", "Tanh", "Sigmoid", "ScaledTanh", "Affine"],
      activation_alpha=[0.3, 1.5, 0.8], activation_beta=[0.4, 0.7, 0.1])
layer("gru_activations", "GRU", activations=["HardSigmoid", "LeakyRelu"], activation_alpha=[0.3, 0.05], activation_beta=[0.4])
layer("rnn_activations", "RNN", activations=["Elu"], activation_alpha=[0.7])
layer("rnn_softplus", "RNN", activations=["Softplus"])


def quantized_lstm(name, dirs, per_column, kind, **attributes):
    def codes(w):
        """Weights `[directions, K, 4 H]` as integers with their scale and zero point."""
        axes = (1,) if per_column else (1, 2)
        low, high = (-128, 127) if kind == np.int8 else (0, 255)
        most = np.maximum(w.max(axes), 0)
        least = np.minimum(w.min(axes), 0)
        step = ((most - least) / 255).astype(np.float32)
        zero = np.round(low - least / step).astype(kind)
        if per_column:
            # With per-column scales, ONNX Runtime requires zero points of 0.
            step, zero = (np.maximum(most, -least) / 127).astype(np.float32), np.zeros_like(zero)
        wide = (lambda v: v[:, None, :]) if per_column else (lambda v: v[:, None, None])
        code = np.clip(np.round(w / wide(step)) + wide(zero.astype(np.float32)), low, high)
        return code.astype(kind), step, zero

    w, w_step, w_zero = codes(floats(dirs, WIDTH, 4 * HIDDEN, seed=1) * 0.5)
    r, r_step, r_zero = codes(floats(dirs, HIDDEN, 4 * HIDDEN, seed=2) * 0.5)
    weights = {"w": w, "r": r, "b": floats(dirs, 8 * HIDDEN, seed=3) * 0.3,
               "ws": w_step, "wz": w_zero, "rs": r_step, "rz": r_zero}
    inputs = {"x": floats(STEPS, 1, WIDTH), "h0": floats(dirs, 1, HIDDEN, seed=4) * 0.5, "c0": floats(dirs, 1, HIDDEN, seed=5)}
    names = ["x", "w", "r", "b", "", "h0", "c0", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y", "h", "c"], domain=MICROSOFT, hidden_size=HIDDEN, **attributes)
    case(name, [node], inputs, ["y", "h", "c"], weights=weights)


quantized_lstm("quantized_lstm", 1, False, np.uint8)
quantized_lstm("quantized_lstm_both", 2, False, np.int8, direction="bidirectional")
quantized_lstm("quantized_lstm_columns", 1, True, np.int8)


def resize(name, x, scales, opset=18, **attributes):
    inputs = ["x", "region", "s"] if opset >= 11 else ["x", "s"]
    weights = {"s": np.array(scales, np.float32)}
    if opset >= 11:
        weights["region"] = np.zeros(0, np.float32)
    node = helper.make_node("Resize", inputs, ["y"], **attributes)
    case(name, [node], {"x": x}, ["y"], opset, weights)


picture = (np.arange(2 * 5 * 7) * 37 % 251).reshape(1, 2, 5, 7)
for kind in (np.uint8, np.int8, np.int32):
    own = (picture - (0 if kind == np.uint8 else 120)).astype(kind)
    short = np.dtype(kind).name
    resize(f"resize_{short}", own, [1, 1, 2, 2], mode="linear")
    resize(f"resize_{short}_smaller", own, [1, 1, 0.6, 0.5], mode="linear", coordinate_transformation_mode="asymmetric")
resize("resize_uint8_antialias", picture.astype(np.uint8), [1, 1, 0.5, 0.5], mode="linear", antialias=1)
for nearest in ("floor", "round_prefer_ceil"):
    for scale in ([1, 1, 2, 3], [1, 1, 0.6, 0.6]):
        name = f"resize_centres_{nearest}_{'down' if scale[2] < 1 else 'up'}"
        resize(name, floats(1, 2, 5, 7), scale, 11, mode="nearest", nearest_mode=nearest,
               coordinate_transformation_mode="tf_half_pixel_for_nn")
for scale in ([1, 1, 0.6, 0.6], [1, 1, 0.7, 2.5], [1, 1, 2, 1.5], [1, 1, 0.3, 1]):
    resize("resize_10_" + "_".join(str(s).replace(".", "") for s in scale[2:]), floats(1, 2, 5, 7), scale, 10, mode="nearest")
resize("resize_10_linear_down", floats(1, 2, 5, 7), [1, 1, 0.6, 0.6], 10, mode="linear")


def pad(name, mode, pads, shape=(3, 5)):
    node = helper.make_node("Pad", ["x", "p"], ["y"], mode=mode)
    case(name, [node], {"x": floats(*shape)}, ["y"], 19, {"p": np.array(pads, np.int64)})


pad("pad_reflect_crop", "reflect", [0, -1, 2, 3])
pad("pad_reflect_crop_both", "reflect", [-1, 2, 0, -1])
pad("pad_edge_crop", "edge", [2, -2, -1, 4])
pad("pad_wrap_crop", "wrap", [0, -1, 0, 3])
pad("pad_wrap_long", "wrap", [7, 5, 3, 12])
pad("pad_wrap_long_crop", "wrap", [0, -2, 0, 9])


def tokens(name, x, mode, skips, lengths, **attributes):
    pool = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 3, 5, 5, 6, 2, 3, 4]
    # The pool has three single tokens, four pairs and two triples.
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], mode=mode, max_skip_count=skips, min_gram_length=lengths[0],
                            max_gram_length=lengths[1], ngram_counts=[0, 3, 11], ngram_indexes=[0, 1, 7, 2, 3, 4, 5, 6, 8],
                            pool_int64s=pool, **attributes)
    case(name, [node], {"x": x}, ["y"])


line = np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8, 2, 3, 4], np.int64)
lines = np.stack([line, line[::-1], np.roll(line, 3)]).astype(np.int32)
weights = [0.5, 2.0, 1.5, 0.25, 3.0, 1.0, 0.75, 4.0, 0.125]
tokens("ngrams", line, "TF", 0, (1, 3))
tokens("ngrams_of_rows", lines, "TF", 5, (1, 2))
tokens("ngrams_pairs", lines, "TF", 2, (2, 2))
tokens("ngrams_idf", lines, "IDF", 1, (1, 3), weights=weights)
tokens("ngrams_tfidf", lines, "TFIDF", 1, (1, 3), weights=weights)


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def loop_body(nodes, carried, scanned, extra=()):
    inputs = [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL)]
    inputs += [value(n, s, k) for n, s, k in carried]
    return helper.make_graph(nodes, "body", inputs, [value("on", [], TensorProto.BOOL), *scanned], list(extra))


node = helper.make_node
F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
true = numpy_helper.from_array(np.array(True), "true")
ten = numpy_helper.from_array(np.array(10, np.float32), "ten")
# A loop without iterations: its stacked results are empty, and the carried value is the initial one.
still = loop_body([node("Identity", ["go"], ["on"]), node("Add", ["v", "x"], ["w"]), node("Transpose", ["w"], ["row"])],
                  [("v", [2, 3], F)], [value("w", [2, 3]), value("row", [3, 2])])
for most, name in ((0, "loop_no_turns"), (2, "loop_two_turns")):
    case(name, [node("Loop", ["most", "true", "x"], ["last", "rows"], body=still)], {"x": floats(2, 3)}, ["last", "rows"],
         weights={"most": np.array(most, np.int64), "true": np.array(True)})
# A loop that doubles a value until its sum is at least 10, so the data decides the number of iterations.
grow = [node("Add", ["v", "v"], ["w"]), node("ReduceSum", ["w"], ["sum"], keepdims=0), node("Less", ["sum", "ten"], ["on"]),
        node("Add", ["w", "offset"], ["row"])]
until = loop_body(grow, [("v", [3], F)], [value("w", [3])], [ten])
stacked = loop_body(grow, [("v", [3], F)], [value("w", [3]), value("row", [3])], [ten])
given = {"x": np.array([0.1, 0.2, 0.3], np.float32), "offset": floats(3)}
case("loop_until", [node("Loop", ["", "", "x"], ["y"], body=until)], given, ["y"])
case("loop_until_at_most", [node("Loop", ["most", "", "x"], ["y"], body=until)], given, ["y"],
     weights={"most": np.array(2, np.int64)})
case("loop_until_rows", [node("Loop", ["most", "", "x"], ["y", "rows"], body=stacked)], given, ["y", "rows"],
     weights={"most": np.array(40, np.int64)})
count = [node("Identity", ["go"], ["on"]), node("Mul", ["v", "x"], ["w"])]
case("loop_of_data_turns", [node("ReduceSum", ["k"], ["n"], keepdims=0), node("Loop", ["n", "", "x"], ["y"],
     body=loop_body(count, [("v", [3], F)], [value("w", [3])]))], {"x": given["x"], "k": np.array([1, 2], np.int64)}, ["y"])
start = [node("ReduceSum", ["x"], ["first"], keepdims=0), node("Less", ["first", "zero"], ["go0"])]
case("loop_that_does_not_start", start + [node("Loop", ["most", "go0", "x"], ["y", "rows"], body=stacked)], given, ["y", "rows"],
     weights={"most": np.array(9, np.int64), "zero": np.array(0, np.float32)})

# A value inside a subgraph has the same name as an output of the node with the subgraph.
case("if_same_name", [node("Greater", ["x", "zero"], ["c"]), node("If", ["c"], ["y"],
     then_branch=helper.make_graph([node("Neg", ["x"], ["y"])], "then", [], [value("y", [])]),
     else_branch=helper.make_graph([node("Abs", ["x"], ["y"])], "else", [], [value("y", [])]))],
     {"x": np.array(2.5, np.float32)}, ["y"], weights={"zero": np.array(0, np.float32)})
inner = loop_body([node("Identity", ["go"], ["on"]), node("Add", ["v", "x"], ["y"])], [("v", [3], F)], [value("y", [3])])
case("loop_same_name", [node("Loop", ["most", "", "x"], ["y"], body=inner)], {"x": given["x"]}, ["y"],
     weights={"most": np.array(3, np.int64)})
sums = helper.make_graph([node("Add", ["s", "e"], ["y"]), node("Mul", ["y", "e"], ["z"])], "body",
                         [value("s", [3]), value("e", [3])], [value("y", [3]), value("z", [3])])
case("scan_same_name", [node("Scan", ["x0", "x"], ["y", "z"], body=sums, num_scan_inputs=1)],
     {"x0": given["x"], "x": floats(4, 3)}, ["y", "z"])

# Shapes in which one symbol stands for different sizes (4 and 1, which broadcast; unknown axes with one name), or
# sizes of -1 as Paddle writes them.
case("symbol_of_two_sizes", [node("Add", ["a", "b"], ["y"])], {"a": floats(4, 3), "b": floats(1, 3)}, ["y"],
     shapes={"a": ["batch", 3], "b": ["batch", 3]})
case("unknown_axes_named_alike", [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], {"x": floats(2, 3, 6, 9)}, ["y"],
     weights={"w": floats(4, 3, 3, 3)}, shapes={"x": ["?", 3, "?", "?"]})
case("negative_sizes", [node("Conv", ["x", "w"], ["y"], strides=[2, 2]), node("GlobalAveragePool", ["y"], ["z"])],
     {"x": floats(2, 3, 6, 9)}, ["z"], weights={"w": floats(4, 3, 3, 3)}, shapes={"x": [-1, 3, -1, -1]})
case("no_shape", [node("MatMul", ["x", "w"], ["y"])], {"x": floats(2, 3, 4)}, ["y"], weights={"w": floats(4, 5)},
     shapes={"x": None})

# Sizes and nearest positions that depend on rounding the scale and its products to F32.
SCALES = [0.35, 0.6, 0.7, 1.1, 1.4, 1.7, 2.0, 2.3]
COORDINATES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"]


def scaled(name, sizes, modes, opset=17, **attributes):
    """Resizes a vector of each size by each scale, with each mode: keyword arguments of the node."""
    inputs = {f"x{n}": np.arange(n, dtype=np.float32).reshape(1, 1, 1, n) / 8 for n in sizes}
    weights = {f"s{i}": np.array([1, 1, 1, s], np.float32) for i, s in enumerate(SCALES)}
    nodes = [node("Resize", [x, "", s], [f"{x}_{s}_{i}"], **mode, **attributes)
             for x in inputs for s in weights for i, mode in enumerate(modes)]
    nodes.append(node("Concat", [n.output[0] for n in nodes], ["y"], axis=3))
    case(name, nodes, inputs, ["y"], weights=weights, opset=opset)


roundings = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]
scaled("resize_scales_nearest", [13, 20, 34], [dict(mode="nearest", coordinate_transformation_mode=c, nearest_mode=r)
       for c in COORDINATES for r in roundings])
for mode in ("linear", "cubic"):
    scaled(f"resize_scales_{mode}", [15, 20], [dict(mode=mode, coordinate_transformation_mode=c) for c in COORDINATES])
scaled("resize_scales_antialias", [15, 20], [dict(mode="linear")], opset=18, antialias=1)
scaled("resize_scales_centres", [10, 15, 20], [dict(mode="nearest", coordinate_transformation_mode="tf_half_pixel_for_nn",
       nearest_mode=r) for r in roundings])

# Options without a meaning for the mode, and integers in reductions that are defined by floats.
for mode in ("edge", "reflect", "wrap"):
    case(f"pad_{mode}_value", [node("Pad", ["x", "pads", "v"], ["y"], mode=mode)], {"x": floats(3, 4)}, ["y"], opset=19,
         weights={"pads": np.array([1, 2, 1, 0], np.int64), "v": np.array(7, np.float32)})
rows = np.array([[-7, 2, -3, -1], [7, 2, 3, 1], [100000, 70000, 1, 2], [5, 5, 5, 4], [1, 1, 0, 0], [30, 0, 0, 0]])
for op in ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
    # Logarithms of sums that are not positive are undefined as integers.
    x = rows[1:] if op == "ReduceLogSum" else rows
    case(f"{op.lower()}_int32", [node(op, ["x"], ["y"], axes=[1]), node(op, ["x"], ["z"], keepdims=0)],
         {"x": x.astype(np.int32)}, ["y", "z"])
    case(f"{op.lower()}_int64", [node(op, ["x"], ["y"], axes=[0])], {"x": np.abs(x).astype(np.int64)}, ["y"])

# Backward slices whose bounds are beyond the axis.
bounds = {"far": -100, "last": -1, "beyond": 100, "third": 2, "least": -(1 << 63), "most": (1 << 63) - 1, "most32": (1 << 31) - 1}
slices = [("far", "least", -1), ("far", "last", -1), ("beyond", "third", -2), ("last", "most", -1), ("last", "most32", -3),
          ("third", "far", -1), ("last", "beyond", -1)]
steps = {f"step{-n}": np.array([n], np.int64) for n in (-1, -2, -3)}
case("slice_backward", [node("Slice", ["x", a, b, "axis", f"step{-s}"], [f"y{i}"]) for i, (a, b, s) in enumerate(slices)],
     {"x": floats(3, 5)}, [f"y{i}" for i in range(len(slices))],
     weights={"axis": np.array([1], np.int64), **steps, **{k: np.array([v], np.int64) for k, v in bounds.items()}})

# Scales per column, sparse constants, and unsigned integers that the graph does not have.
columns = {"b": np.random.default_rng(1).integers(-128, 128, (8, 5), dtype=np.int8),
           "bs": (np.arange(5) + 1).astype(np.float32) / 300, "bz": np.array([0, 1, -2, 3, 4], np.int8),
           "as": np.array(0.02, np.float32), "az": np.array(120, np.uint8), "ys": np.array(0.07, np.float32),
           "yz": np.array(99, np.uint8)}
case("q_mat_mul_columns", [node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])],
     {"a": np.random.default_rng(2).integers(0, 256, (3, 8), dtype=np.uint8)}, ["y"], weights=columns)
sparse = helper.make_sparse_tensor(helper.make_tensor("v", TensorProto.FLOAT, [2], [2.0, -3.0]),
                                   helper.make_tensor("i", TensorProto.INT64, [2], [1, 5]), [2, 3])
case("constant_sparse", [node("Constant", [], ["c"], sparse_value=sparse), node("Add", ["x", "c"], ["y"])],
     {"x": floats(2, 3)}, ["y"])
case("clip_uint64", [node("Cast", ["x"], ["u"], to=TensorProto.UINT64), node("Clip", ["u", "a", "b"], ["c"]),
     node("Sign", ["u"], ["s"]), node("Abs", ["u"], ["p"]), node("Sum", ["cf", "sf", "pf"], ["y"]),
     *[node("Cast", [v], [f"{v}f"], to=TensorProto.FLOAT) for v in "csp"]],
     {"x": np.array([0, 1, 5, 1e6, 1.6e19], np.float32)}, ["y"],
     weights={"a": np.array(3, np.uint64), "b": np.array((1 << 63) + 5, np.uint64)})

# Inverse transforms of one-sided spectra, and filters of the mel scale.
for name, n in (("dft_inverse_onesided", 16), ("dft_inverse_onesided_odd", 9)):
    case(name, [node("DFT", ["x", "n", "at"], ["y"], inverse=1, onesided=1)], {"x": floats(2, n // 2 + 1, 3, 2)}, ["y"],
         opset=20, weights={"n": np.array(n, np.int64), "at": np.array(1, np.int64)})
mel = {"bins": 8, "length": 64, "rate": 16000, "low": 0.0, "high": 7900.0}
mel = {k: np.array(v, np.float32 if isinstance(v, float) else np.int64) for k, v in mel.items()}
case("mel_weights", [node("MelWeightMatrix", list(mel), ["m"]), node("MatMul", ["x", "m"], ["y"])], {"x": floats(2, 33)}, ["y"],
     weights=mel)

# A subgraph for each element of a sequence.
body = helper.make_graph([node("Mul", ["e", "f"], ["g"]), node("Add", ["g", "w"], ["h"])], "body",
                         [value("e", [3]), value("f", [3])], [value("h", [3]), value("g", [3])])
case("sequence_map", [node("SequenceConstruct", ["a", "b"], ["s"]), node("SequenceMap", ["s", "a"], ["t", "u"], body=body),
     node("ConcatFromSequence", ["t"], ["y"], axis=0), node("ConcatFromSequence", ["u"], ["z"], axis=0)],
     {"a": floats(3), "b": floats(3, seed=1), "w": floats(3, seed=2)}, ["y", "z"])
