"""Makes the cases in this folder: models of one operator of com.microsoft with inputs, and what ONNX Runtime gives.

python3 make.py    # needs numpy, onnx and onnxruntime

Each case is a folder as the node suite of ONNX has them: model.onnx, input_0.pb and on, output_0.pb and on.
"""

import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).parent
random = np.random.default_rng(0)


def floats(*shape):
    return random.standard_normal(shape).astype(np.float32)


def case(name, op, inputs, outputs=("y",), domain="com.microsoft", **attributes):
    """`inputs` are arrays, or None for those that are left out; so is an output called ''."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    given = [(n, x) for n, x in zip(names, inputs) if x is not None]
    node = helper.make_node(op, names, list(outputs), domain=domain, **attributes)
    info = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(
        [node],
        name,
        [info(n, x.shape) for n, x in given],
        [info(n, None) for n in outputs if n],
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
