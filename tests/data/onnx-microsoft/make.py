"""Makes the cases in this folder: models of one operator of com.microsoft with inputs, and what ONNX Runtime gives.

python3 make.py    # needs numpy, onnx and onnxruntime

Each case is a folder as the node suite of ONNX has them: model.onnx, input_0.pb and on, output_0.pb and on.
"""

import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

HERE = pathlib.Path(__file__).parent
random = np.random.default_rng(0)


def floats(*shape):
    return random.standard_normal(shape).astype(np.float32)


def case(name, op, inputs, outputs=("y",), domain="com.microsoft", types={}, constants=None, **attributes):
    """`inputs` are arrays, or None for those that are left out; so is an output called ''. Outputs are F32 but for `types`;
    the operands of the numbers `constants` are initializers."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    given = [(n, x) for n, x in zip(names, inputs) if x is not None]
    node = helper.make_node(op, names, list(outputs), domain=domain, **attributes)
    elem = helper.np_dtype_to_tensor_dtype
    fixed = [] if constants is None else [(n, x) for n, x in given if int(n[1:]) in constants]
    given = [(n, x) for n, x in given if n not in dict(fixed)]
    graph = helper.make_graph(
        [node],
        name,
        [helper.make_tensor_value_info(n, elem(x.dtype), x.shape) for n, x in given],
        [helper.make_tensor_value_info(n, elem(np.dtype(types.get(n, "f4"))), None) for n in outputs if n],
        [numpy_helper.from_array(x, n) for n, x in fixed],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(None, dict(given))
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    for kind, arrays in (("input", [x for _, x in given]), ("output", results)):
        for i, array in enumerate(arrays):
            proto = numpy_helper.from_array(array)
            (folder / f"{kind}_{i}.pb").write_bytes(proto.SerializeToString())


x, skip, gamma, beta, bias = floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)
case("gelu", "Gelu", [x])
case("bias_gelu", "BiasGelu", [x, bias])
case("fast_gelu", "FastGelu", [x])
case("fast_gelu_bias", "FastGelu", [x, bias])
case("fused_mat_mul", "FusedMatMul", [floats(2, 3, 4), floats(2, 4, 5)])
case("fused_mat_mul_transposed", "FusedMatMul", [floats(2, 4, 3), floats(5, 4)], transA=1, transB=1, alpha=0.25)
case("skip_layer_norm", "SkipLayerNormalization", [x, skip, gamma, beta], epsilon=1e-5)
case("skip_layer_norm_default", "SkipLayerNormalization", [x * 1e-5, skip * 1e-5, gamma])
case("skip_layer_norm_sum", "SkipLayerNormalization", [x, skip, gamma, None, bias], ("y", "", "", "sum"), epsilon=0.1)
case("skip_rms_norm", "SkipSimplifiedLayerNormalization", [x, skip, gamma], epsilon=1e-5)
case("skip_rms_norm_sum", "SkipSimplifiedLayerNormalization", [x, skip, gamma, bias], ("y", "", "", "sum"), epsilon=0.1)
case("rms_norm", "SimplifiedLayerNormalization", [x, gamma], domain="", axis=-1, epsilon=0.01, stash_type=1)


# Attention with batch size 2, 2 heads of size 4, and 3 queries.
q, key, value = floats(2, 3, 8), floats(2, 5, 8), floats(2, 5, 8)
past = floats(2, 2, 4, 4), floats(2, 2, 4, 4)
three = ("y", "key", "value")
case("mha", "MultiHeadAttention", [q, key, value], num_heads=2)
case("mha_bias", "MultiHeadAttention", [q, key, value, floats(24)], num_heads=2, scale=0.3)
lens = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], np.int32)
case("mha_padding", "MultiHeadAttention", [q, key, value, None, lens, floats(1, 2, 3, 5)], num_heads=2)
case("mha_past", "MultiHeadAttention", [q, q + 1, q - 1, None, None, None, *past], three, num_heads=2)
case("mha_past_causal", "MultiHeadAttention", [q, q + 1, q - 1, None, None, None, *past], three, num_heads=2, unidirectional=1)
weights, bias24 = floats(8, 24) * 0.4, floats(24)
case("attention", "Attention", [q, weights, bias24], num_heads=2)
case("attention_lengths", "Attention", [q, weights, bias24, np.array([2, 3], np.int32)], num_heads=2)
case("attention_mask", "Attention", [q, weights, bias24, lens[:, 1:4].copy()], num_heads=2, mask_filter_value=-5.0)
case("attention_causal", "Attention", [q, weights, bias24], num_heads=2, unidirectional=1)
case("attention_past", "Attention", [q, weights, bias24, None, floats(2, 2, 2, 4, 4)], ("y", "present"), num_heads=2, unidirectional=1)
sizes = dict(num_heads=2, qkv_hidden_sizes=[8, 8, 12])
case("attention_sizes", "Attention", [q, floats(8, 28), floats(28), None, None, floats(2, 2, 3, 3)], **sizes)
angles = floats(16, 2)
cos, sin = np.cos(angles), np.sin(angles)
ids = np.array([[3, 4, 5], [0, 1, 2]], np.int64)
case("rotary", "RotaryEmbedding", [q, ids, cos, sin])
case("rotary_from", "RotaryEmbedding", [q.reshape(2, 3, 2, 4).transpose(0, 2, 1, 3).copy(), np.array([2], np.int64), cos, sin], interleaved=1)
case("rotary_part", "RotaryEmbedding", [floats(2, 3, 12), ids, cos, sin], num_heads=2, rotary_embedding_dim=4)
# Grouped-query attention: 4 query heads and 2 key heads of size 16.
gq, gk, gv = floats(2, 3, 64), floats(2, 3, 32), floats(2, 3, 32)
none, total = floats(2, 2, 0, 16), np.array([2, 2], np.int32)
angles, past = floats(16, 8), (floats(2, 2, 4, 16), floats(2, 2, 4, 16))
cos, sin = np.cos(angles), np.sin(angles)
scalar = lambda n: np.array(n, np.int32)
grouped = dict(num_heads=4, kv_num_heads=2)
case("gqa", "GroupQueryAttention", [gq, gk, gv, none, none, total, scalar(3)], three, **grouped)
case("gqa_rotary", "GroupQueryAttention", [gq, gk, gv, none, none, total, scalar(3), cos, sin], three, do_rotary=1, **grouped)
late = np.array([6], np.int32)
long = [*(x[:1].copy() for x in (gq, gk, gv, *past)), late, scalar(7), cos, sin]
case("gqa_past", "GroupQueryAttention", long, three, do_rotary=1, rotary_interleaved=1, **grouped)
case("gqa_window", "GroupQueryAttention", long, three, do_rotary=1, local_window_size=2, softcap=2.0, scale=0.7, **grouped)
ragged = [gq[:, :1].copy(), gk[:, :1].copy(), gv[:, :1].copy(), *past, np.array([4, 2], np.int32), scalar(5), cos, sin]
case("gqa_ragged", "GroupQueryAttention", ragged, three, do_rotary=1, **grouped)
packed = np.concatenate([gq, gk, gv], -1)
case("gqa_packed", "GroupQueryAttention", [packed, None, None, none, none, total, scalar(3), cos, sin], three, do_rotary=1, **grouped)

# Matmuls with weights of 2 to 8 bits.
for bits, block, zeros in ((4, 16, None), (4, 16, "packed"), (4, 32, "floats"), (8, 16, "packed"), (2, 16, None)):
    k, n = 40, 6
    blocks = -(-k // block)
    codes = random.integers(0, 256, (n, blocks, block * bits // 8), dtype=np.uint8)
    scales = (random.random(n * blocks) * 0.1 + 0.02).astype(np.float32)
    zero = {
        None: None,
        "packed": random.integers(0, 256, n * -(-blocks * bits // 8), dtype=np.uint8),
        "floats": (random.random(n * blocks) * 15).astype(np.float32),
    }[zeros]
    given = [floats(2, 3, k), codes, scales, zero, None, floats(n)]
    case(
        f"mat_mul_{bits}_bits" + ("" if zeros is None else f"_{zeros}"), "MatMulNBits", given, constants=range(1, 6),
        K=k, N=n, bits=bits, block_size=block,
    )

ids, segments = random.integers(0, 9, (2, 3), dtype=np.int32), random.integers(0, 2, (2, 3), dtype=np.int32)
tables = floats(9, 8), floats(5, 8), floats(2, 8)
mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
counted = dict(outputs=("y", "kept", "sum"), types={"kept": "i4"})
case("embed_layer_norm", "EmbedLayerNormalization", [ids, segments, *tables, gamma, beta, mask], epsilon=1e-5, **counted)
case("embed_layer_norm_plain", "EmbedLayerNormalization", [ids, None, *tables[:2], None, gamma, beta], ("y", "kept"), types={"kept": "i4"})

case("quick_gelu", "QuickGelu", [x])
case("quick_gelu_alpha", "QuickGelu", [x], alpha=1.0)
image, kernel = floats(1, 2, 5, 5), floats(3, 2, 3, 3)
case("fused_conv_relu", "FusedConv", [image, kernel, floats(3)], activation="Relu", pads=[1, 1, 1, 1])
case("fused_conv_sum", "FusedConv", [image, kernel, floats(3), floats(1, 3, 3, 3)], activation="Relu")
case("fused_conv_leaky", "FusedConv", [image, kernel], activation="LeakyRelu", activation_params=[0.3])
case("fused_conv_clip", "FusedConv", [image, kernel], activation="Clip", activation_params=[-0.5, 1.5], strides=[2, 2])
case("fused_gemm", "FusedGemm", [floats(3, 4), floats(5, 4), floats(5)], activation="LeakyRelu", activation_alpha=0.2, transB=1)

# Operators on 8-bit quantized values.
u8 = lambda *shape: random.integers(0, 256, shape, dtype=np.uint8)
# Weights have 7 bits: with 8 bits, sums of two products saturate in ONNX Runtime on processors without VNNI.
i8 = lambda *shape: random.integers(-63, 64, shape, dtype=np.int8)
scale, zero_u, zero_i = lambda s: np.array(s, np.float32), lambda z: np.array(z, np.uint8), lambda z: np.array(z, np.int8)
out8 = dict(types={"y": "u1"})
a, b = (u8(2, 3, 8), scale(0.02), zero_u(120)), (u8(3, 8), scale(0.03), zero_u(99))
result = scale(0.05), zero_u(110)
case("q_add", "QLinearAdd", [*a, *b, *result], **out8)
case("q_mul", "QLinearMul", [*a, *b, *result], **out8)
case("q_sigmoid", "QLinearSigmoid", [*a, scale(1 / 256), zero_u(0)], constants=(1, 2, 3, 4), **out8)
case("q_leaky_relu", "QLinearLeakyRelu", [*a, *result], constants=(1, 2, 3, 4), alpha=0.2, **out8)
picture = u8(1, 2, 6, 5), scale(0.02), zero_u(120)
case("q_average_pool", "QLinearAveragePool", [*picture, *result], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 0], **out8)
case("q_global_average_pool", "QLinearGlobalAveragePool", [*picture, *result], **out8)
case("q_concat", "QLinearConcat", [*result, *a, u8(2, 1, 8), scale(0.03), zero_u(99)], axis=1, constants=(0, 1, 3, 4, 6, 7), **out8)
case("q_softmax", "QLinearSoftmax", [*a, scale(1 / 256), zero_u(0)], constants=(1, 2, 3, 4), axis=-1, opset=13, **out8)
rows, columns = (u8(3, 8), scale(0.02), zero_u(120)), (i8(8, 5), scale(0.01), zero_i(3))
case("q_gemm", "QGemm", [*rows, *columns, random.integers(-9000, 9000, 5, dtype=np.int32), *result], **out8)
case("q_gemm_float", "QGemm", [*rows, i8(5, 8), scale(0.01), zero_i(3)], transB=1, alpha=0.5)
each = (random.random(5) * 0.02 + 0.01).astype(np.float32)
case("dynamic_mat_mul", "DynamicQuantizeMatMul", [floats(2, 3, 8), columns[0], scale(0.01), zero_i(3), floats(5)], constants=(1, 2, 3))
case("dynamic_mat_mul_columns", "DynamicQuantizeMatMul", [floats(3, 8), columns[0], each, i8(5)], constants=(1, 2, 3))
case("mat_mul_to_float", "MatMulIntegerToFloat", [rows[0], columns[0], scale(0.02), scale(0.01), zero_u(120), zero_i(3), floats(5)])
case("mat_mul_to_float_columns", "MatMulIntegerToFloat", [rows[0], columns[0], scale(0.02), each, zero_u(120), None])
attended = [u8(2, 3, 8), i8(8, 24), floats(24), scale(0.02), scale(0.01), None, zero_u(120), zero_i(0)]
case("q_attention", "QAttention", attended, num_heads=2, constants=(1, 3, 4, 6, 7))

# Scales that F16 represents exactly: Tercet converts such weights to its own blocks.
for bits, k, block in [(4, 64, 32), (4, 96, 64), (8, 64, 32)]:
    n, blocks = 5, -(-k // block)
    codes = random.integers(0, 256, (n, blocks, block * bits // 8), dtype=np.uint8)
    scales = (np.abs(floats(n, blocks)) * 0.1).astype(np.float16).astype(np.float32)
    given = [floats(2, 3, k), codes, scales]
    case(f"mat_mul_{bits}_bits_blocks_{k}", "MatMulNBits", given, constants=range(1, 3), K=k, N=n, bits=bits, block_size=block)

# Causal masks with more and with fewer keys than queries, and key masks of ends and starts.
def causal(name, queries, keys, past=0, bias=False):
    q, k, v = floats(2, queries, 8), floats(2, keys, 8), floats(2, keys, 8)
    given = [q, k, v, None, None, floats(1, 1, queries, past + keys) if bias else None]
    if past:
        given += [floats(2, 2, past, 4), floats(2, 2, past, 4)]
    while given[-1] is None:
        given.pop()
    case(name, "MultiHeadAttention", given, ["y"] + (["k", "v"] if past else []), num_heads=2, unidirectional=1)


causal("mha_causal_more_keys", 3, 5)
causal("mha_causal_fewer_keys", 5, 3)
causal("mha_causal_bias", 3, 5, bias=True)
causal("mha_causal_past", 2, 4, past=3)
packed = [floats(2, 5, 8), floats(8, 24), floats(24)]
case("attention_ends_starts", "Attention", [*packed, np.array([5, 4, 1, 2], np.int32)], num_heads=2)

# The operators of ONNX, under the same names.
case("quantize_linear", "QuantizeLinear", [floats(3, 8), scale(0.02), np.array(3000, np.uint16)], types={"y": "u2"}, constants=(1, 2))
case("dequantize_linear", "DequantizeLinear", [random.integers(-9000, 9000, (3, 8), dtype=np.int16), scale(0.02), np.array(30, np.int16)],
     constants=(1, 2))
case("dequantize_linear_axis", "DequantizeLinear", [u8(3, 8), floats(8), u8(8)], constants=(1, 2), axis=1)
kernel = i8(4, 2, 3, 3), floats(4) ** 2 * 0.01, np.zeros(4, np.int8)
case("q_conv", "QLinearConv", [u8(1, 2, 6, 5), scale(0.02), zero_u(120), *kernel, scale(0.5), zero_u(110)], constants=range(1, 8),
     pads=[1, 1, 1, 1], **out8)
case("gather_nd", "GatherND", [floats(3, 4, 5), np.array([[0, 1], [2, 3]], np.int64)])
case("trilu", "Trilu", [floats(2, 4, 5), np.array(1, np.int64)], constants=(1,), upper=0)
