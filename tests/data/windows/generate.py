"""Writes fixtures of convolutions, pooling and resizing from ONNX's reference evaluator.

    pip install onnx numpy
    python3 tests/data/windows/generate.py > tests/data/windows/windows.txt

Each case is a graph in the text form, its inputs and the result, on a few lines:

    case NAME
    graph GRAPH
    input NAME VALUES
    output VALUES

Every value is exact in f32 and printed with enough digits.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

rng = np.random.default_rng(7)


def data(*shape):
    return (rng.integers(-64, 65, size=shape) / 16).astype(np.float32)


def values(x):
    return " ".join(np.format_float_scientific(v, trim="-") for v in np.asarray(x).ravel())


def ints(x):
    return "[" + ", ".join(str(v) for v in x) + "]"


def run(kind, operands, opset, **attrs):
    """The result of one ONNX node."""
    names = [f"i{i}" if x is not None else "" for i, x in enumerate(operands)]
    node = helper.make_node(kind, names, ["y"], **attrs)
    given = [(n, x) for n, x in zip(names, operands) if x is not None]
    types = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
    infos = [helper.make_tensor_value_info(n, types[x.dtype], x.shape) for n, x in given]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", infos, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, dict(given))[0]


def emit(name, op, attrs, operands, y):
    """One case; `operands` are those that Tercet's operator takes."""
    print("case", name)
    leaves = []
    for i, x in enumerate(operands):
        ty = "f32[" + ", ".join(str(n) for n in x.shape) + "]"
        leaves.append(f'%{i} = input{{name="i{i}", ty={ty}}}()')
    args = ", ".join(f"%{i}" for i in range(len(operands)))
    node = f"%y = {op}{{{attrs}}}({args})"
    print("graph", "graph {", " ".join(leaves + [node]), 'return %y as "y" }')
    for i, x in enumerate(operands):
        print(f"input i{i}", values(x))
    print("output", values(y))


def window(axes, stride=None, pads=None, dilation=None):
    stride = stride or [1] * axes
    pads = pads or [0] * (2 * axes)
    dilation = dilation or [1] * axes
    text = (
        f"stride={ints(stride)}, pad_before={ints(pads[:axes])}, "
        f"pad_after={ints(pads[axes:])}, dilation={ints(dilation)}"
    )
    return text, dict(strides=stride, pads=pads, dilations=dilation)


def conv(name, x, w, groups=1, bias=False, **where):
    x, w = data(*x), data(*w)
    text, attrs = window(x.ndim - 2, **where)
    operands = [x, w] + ([data(w.shape[0])] if bias else [])
    y = run("Conv", operands, 22, group=groups, **attrs)
    emit(name, "conv", f"{text}, groups={groups}, activation=none", operands, y)


def conv_transpose(name, x, w, groups=1, bias=False, output_padding=None, **where):
    x, w = data(*x), data(*w)
    axes = x.ndim - 2
    output_padding = output_padding or [0] * axes
    text, attrs = window(axes, **where)
    operands = [x, w] + ([data(w.shape[1] * groups)] if bias else [])
    # Run each group separately, because the ONNX evaluator supports only one result channel per group.
    parts = zip(np.split(x, groups, axis=1), np.split(w, groups, axis=0))
    parts = [run("ConvTranspose", list(p), 22, output_padding=output_padding, **attrs) for p in parts]
    y = np.concatenate(parts, axis=1)
    if bias:
        y = y + operands[2].reshape([-1] + [1] * axes)
    text += f", output_padding={ints(output_padding)}, groups={groups}"
    emit(name, "conv_transpose", text, operands, y)


def pool(name, f, x, kernel, ceil=False, count_pad=False, **where):
    x = data(*x)
    text, attrs = window(len(kernel), **where)
    if f == "mean":
        attrs["count_include_pad"] = int(count_pad)
    kind = {"max": "MaxPool", "mean": "AveragePool"}[f]
    y = run(kind, [x], 22, kernel_shape=kernel, ceil_mode=int(ceil), **attrs)
    flags = f"ceil={str(ceil).lower()}, count_include_pad={str(count_pad).lower()}"
    emit(name, "pool", f"f={f}, kernel={ints(kernel)}, {text}, {flags}", [x], y)


def resize(name, x, mode, coordinates="half_pixel", sizes=None, scales=None,
           rounding="round_prefer_floor", cubic_a=-0.75, exclude_outside=False):
    x = data(*x)
    operands = [
        x,
        None,
        np.array(scales, np.float32) if scales else None,
        np.array(sizes, np.int64) if sizes else None,
    ]
    if not sizes:
        operands.pop()
    y = run("Resize", operands, 19, mode=mode, coordinate_transformation_mode=coordinates,
            nearest_mode=rounding, cubic_coeff_a=cubic_a, exclude_outside=int(exclude_outside))
    exact = [repr(float(np.float32(s))) for s in scales] if scales else []
    attrs = (
        f"sizes={ints(y.shape)}, scales={ints(exact)}, mode={mode}, coordinates={coordinates}, "
        f"rounding={rounding}, cubic_a={cubic_a}, exclude_outside={str(exclude_outside).lower()}"
    )
    emit(name, "resize", attrs, [x], y)


conv("conv_line", (2, 3, 9), (4, 3, 3), stride=[2], pads=[1, 2], bias=True)
conv("conv_plane", (1, 2, 5, 6), (3, 2, 3, 2), pads=[1, 0, 1, 1], bias=True)
conv("conv_asymmetric", (1, 2, 6, 5), (2, 2, 2, 3), stride=[2, 1], pads=[2, 0, 0, 1])
conv("conv_dilated", (1, 2, 7, 7), (2, 2, 3, 2), dilation=[2, 3], pads=[1, 1, 0, 2])
conv("conv_groups", (2, 4, 4, 5), (6, 2, 3, 3), groups=2, pads=[1, 1, 1, 1], bias=True)
conv("conv_depthwise", (1, 3, 5, 4), (6, 1, 3, 3), groups=3, pads=[1, 1, 1, 1], bias=True)
conv("conv_block", (1, 2, 3, 4, 5), (2, 2, 2, 3, 2), stride=[1, 2, 1], pads=[1, 0, 0, 0, 1, 1])
conv_transpose("transpose_line", (2, 2, 5), (2, 3, 4), stride=[3], pads=[1, 0], output_padding=[2])
conv_transpose("transpose_plane", (1, 2, 3, 4), (2, 3, 3, 3), stride=[2, 2], pads=[1, 1, 1, 1],
               output_padding=[1, 1], bias=True)
conv_transpose("transpose_dilated", (1, 2, 4, 3), (2, 2, 2, 3), dilation=[2, 1], stride=[1, 2],
               pads=[0, 1, 1, 0])
conv_transpose("transpose_groups", (1, 4, 3, 3), (4, 2, 2, 2), groups=2, stride=[2, 1], bias=True)
conv_transpose("transpose_block", (1, 2, 2, 3, 2), (2, 2, 2, 2, 3), stride=[2, 1, 2])
for f in ["max", "mean"]:
    pool(f"{f}_line", f, (2, 2, 9), [3], stride=[2])
    pool(f"{f}_plane", f, (1, 2, 6, 7), [3, 2], stride=[2, 2], pads=[1, 0, 1, 1])
    pool(f"{f}_ceil", f, (1, 2, 8, 7), [3, 3], stride=[2, 3], pads=[0, 1, 0, 1], ceil=True)
    pool(f"{f}_dilated", f, (1, 2, 8, 7), [2, 3], dilation=[3, 2])
    pool(f"{f}_block", f, (1, 2, 4, 5, 4), [2, 3, 2], stride=[1, 2, 2], pads=[1, 1, 0, 0, 1, 0])
pool("mean_counting_pad", "mean", (1, 2, 5, 6), [3, 3], stride=[2, 2], pads=[1, 1, 1, 1], count_pad=True)
for mode in ["nearest", "linear", "cubic"]:
    for c in ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]:
        resize(f"{mode}_{c}_up", (1, 1, 4, 3), mode, c, sizes=[1, 1, 7, 6])
        resize(f"{mode}_{c}_down", (1, 1, 7, 8), mode, c, sizes=[1, 1, 3, 5])
    resize(f"{mode}_by_scales", (1, 1, 4, 5), mode, scales=[1, 1, 2, 1.5])
for rounding in ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]:
    resize(f"nearest_{rounding}", (1, 1, 5, 6), "nearest", "asymmetric", sizes=[1, 1, 8, 4], rounding=rounding)
resize("cubic_a", (1, 1, 5, 4), "cubic", sizes=[1, 1, 8, 7], cubic_a=-0.5)
resize("cubic_exclude_outside", (1, 1, 5, 4), "cubic", sizes=[1, 1, 8, 7], exclude_outside=True)
