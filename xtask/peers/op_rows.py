"""The rows of `cargo xtask bench ops`: each ONNX operator on typical and on odd shapes.

A row is one node with its inputs. An input that a model stores is wrapped in `Stored`; the others are given to each
run. `WITHOUT` lists the operators without a row, with the reasons; `unlisted()` finds those that neither names.
"""

import dataclasses

import numpy as np
from onnx import defs, helper

RNG = np.random.default_rng(0)
OPSET = 22


@dataclasses.dataclass
class Stored:
    """An input that is stored in the model."""

    array: np.ndarray


@dataclasses.dataclass
class Row:
    op: str
    name: str
    inputs: list
    attributes: dict
    outputs: int
    opset: int

    @property
    def work(self):
        return f"{self.op}/{self.name}"


ROWS = []

# Operators without a row.
WITHOUT = {
    **dict.fromkeys(
        "If Loop Scan SequenceMap Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct "
        "SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence ConcatFromSequence".split(),
        "control flow and sequences: the time is that of the graphs inside, or of nothing",
    ),
    **dict.fromkeys(
        "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer ImageDecoder".split(),
        "texts and files: outside of Tercet's dtypes",
    ),
    **dict.fromkeys(
        "Constant Dropout Identity Shape Size Flatten Reshape Squeeze Unsqueeze".split(),
        "no work: a view or a constant",
    ),
    **dict.fromkeys(
        "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split(),
        "random values: no equal results to compare",
    ),
    **dict.fromkeys(
        "AffineGrid BitCast BlackmanWindow CausalConvWithState HammingWindow HannWindow LinearAttention MelWeightMatrix "
        "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss SwiGLU TensorScatter Unique CenterCropPad CumProd".split(),
        "ONNX Runtime's CPU has no kernel of its own, or the result has no bounded size",
    ),
}


def floats(*shape, scale=1.0):
    return (RNG.standard_normal(shape, np.float32) * np.float32(scale)).astype(np.float32)


def unit(*shape, low=0.05, high=0.95):
    return RNG.uniform(low, high, shape).astype(np.float32)


def ints(*shape, low=0, high=100, dtype=np.int64):
    return RNG.integers(low, high, shape, dtype=dtype)


def bools(*shape):
    return RNG.integers(0, 2, shape).astype(bool)


def row(op, name, *inputs, outputs=1, opset=OPSET, **attributes):
    ROWS.append(Row(op, name, list(inputs), attributes, outputs, opset))


def stored(*values, dtype=np.int64):
    return Stored(np.array(values, dtype))


def shape_name(shape):
    return "x".join(map(str, shape)) or "scalar"


# Typical and odd: a million elements, and as many whose rows no vector divides.
PLANES = [(1024, 1024), (7, 379, 401)]


def unary():
    inside = "Asin Acos Atanh".split()
    above = {"Acosh": (1.05, 9.0), "Log": (0.05, 9.0), "Sqrt": (0.0, 9.0), "Reciprocal": (0.1, 9.0)}
    plain = (
        "Abs Asinh Atan Ceil Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Mish Neg Relu Round Selu "
        "Sigmoid Sign Sin Sinh Softplus Softsign Tan Tanh ThresholdedRelu Celu Shrink IsInf IsNaN Swish"
    ).split()
    for shape in PLANES:
        for op in inside:
            row(op, shape_name(shape), unit(*shape, low=-0.95))
        for op, (low, high) in above.items():
            row(op, shape_name(shape), unit(*shape, low=low, high=high))
        for op in plain:
            row(op, shape_name(shape), floats(*shape), opset=24 if op == "Swish" else OPSET)
    row("Gelu", "tanh", floats(1024, 1024), approximate="tanh")
    row("Not", "1024x1024", bools(1024, 1024))
    row("Not", "7x379x401", bools(7, 379, 401))
    row("Abs", "i32", ints(1024, 1024, low=-99, dtype=np.int32))
    row("Neg", "i64", ints(1024, 1024, low=-99))
    row("Sign", "i64", ints(1024, 1024, low=-99))
    row("Exp", "f64", floats(512, 1024).astype(np.float64))
    row("BitwiseNot", "i32", ints(1024, 1024, dtype=np.int32))
    row("Clip", "1024x1024", floats(1024, 1024), stored(-0.5, dtype=np.float32).array[0], np.float32(0.5))
    row("Clip", "stored", floats(7, 379, 401), Stored(np.float32(-0.5)), Stored(np.float32(0.5)))
    row("Clip", "i64", ints(1024, 1024), Stored(np.int64(10)), Stored(np.int64(50)))


def binary():
    operands = [
        ("equal", floats(1024, 1024), floats(1024, 1024)),
        ("rows", floats(1024, 1024), floats(1024)),
        ("columns", floats(1024, 1024), floats(1024, 1)),
        ("scalar", floats(7, 379, 401), Stored(np.float32(1.5))),
        ("outer", floats(8, 1, 257), floats(8, 129, 1)),
        ("channels", floats(2, 64, 79, 79), Stored(floats(64, 1, 1))),
    ]
    for name, a, b in operands:
        for op in "Add Sub Mul Div Max Min PRelu".split():
            if op == "PRelu" and name == "outer":
                continue
            row(op, name, a, b)
        for op in "Greater GreaterOrEqual Less LessOrEqual Equal".split():
            row(op, name, a, b)
    for name, a, b in operands[:2]:
        row("Mean", name, a, b)
        row("Sum", name, a, b)
        row("Mod", f"{name}/f32", a, b, fmod=1)
    integers = [
        ("equal", ints(1024, 1024, low=1), ints(1024, 1024, low=1)),
        ("scalar", ints(1024, 1024, low=-99), Stored(np.int64(7))),
        ("power", ints(1024, 1024, low=-99), Stored(np.int64(8))),
        ("given", ints(1024, 1024, low=-99), np.int64(7)),
    ]
    for name, a, b in integers:
        for op in "Div Mod Mul Add Equal Less Max".split():
            row(op, f"i64/{name}", a, b)
    for dtype in (np.int32, np.uint8, np.int8, np.uint32):
        a, b = ints(1024, 1024, low=1, dtype=dtype), ints(1024, 1024, low=1, dtype=dtype)
        for op in "Div Mod Add Max".split():
            row(op, np.dtype(dtype).name, a, b)
        row("Div", f"{np.dtype(dtype).name}/scalar", a, Stored(dtype(7)))
    for op in "And Or Xor Equal".split():
        row(op, "bool", bools(1024, 1024), bools(1024, 1024))
        row(op, "bool/rows", bools(7, 379, 401), bools(379, 1))
    for op in "BitwiseAnd BitwiseOr BitwiseXor".split():
        row(op, "i32", ints(1024, 1024, dtype=np.int32), ints(1024, 1024, dtype=np.int32))
    row("BitShift", "u32", ints(1024, 1024, dtype=np.uint32), ints(1024, 1024, high=7, dtype=np.uint32), direction="LEFT")
    base = unit(1024, 1024, low=0.1, high=4.0)
    for exponent in (2.0, 3.0, 4.0, 0.5, -1.0, -0.5, 1.7):
        row("Pow", f"{exponent}", base, Stored(np.float32(exponent)))
    row("Pow", "given2", base, np.float32(2))
    row("Pow", "equal", base, unit(1024, 1024, low=-2.0, high=2.0))
    row("Pow", "rows", base, unit(1024, low=-2.0, high=2.0))
    row("Pow", "odd2", floats(7, 379, 401), Stored(np.float32(2)))
    row("Pow", "i64", ints(1024, 1024, high=9), Stored(np.int64(2)))
    row("Pow", "i64exponent", base, Stored(np.int64(2)))
    row("Where", "equal", bools(1024, 1024), floats(1024, 1024), floats(1024, 1024))
    row("Where", "scalar", bools(1024, 1024), floats(1024, 1024), Stored(np.float32(0)))
    row("Where", "mask", bools(1, 1, 512, 512), floats(2, 8, 512, 512), Stored(np.float32(-1e9)))
    row("Where", "i64", bools(7, 379, 401), ints(7, 379, 401), ints(7, 379, 401))
    row("Where", "bool", bools(1024, 1024), bools(1024, 1024), bools(1024, 1024))


def casts():
    f, i = floats(1024, 1024, scale=50), ints(1024, 1024)
    codes = dict(f32=1, u8=2, i8=3, i32=6, i64=7, bool=9, f16=10, f64=11)
    sources = dict(f32=f, i64=i, i32=i.astype(np.int32), u8=i.astype(np.uint8), bool=bools(1024, 1024), f16=f.astype(np.float16), f64=f.astype(np.float64))
    pairs = "f32-u8 f32-i8 f32-i32 f32-i64 f32-bool f32-f16 f32-f64 i64-f32 i64-i32 i64-bool i32-f32 i32-i64 u8-f32 bool-f32 bool-i64 f16-f32 f64-f32"
    for pair in pairs.split():
        a, b = pair.split("-")
        values = np.abs(sources[a]) if b == "u8" and a == "f32" else sources[a]
        row("Cast", pair, values, to=codes[b])
    row("CastLike", "f32-i32", f, Stored(np.int32(1)))
    image = unit(1, 64, 112, 112)
    for dtype in (np.uint8, np.int8):
        name = np.dtype(dtype).name
        zero = dtype(3)
        row("QuantizeLinear", name, image, Stored(np.float32(0.02)), Stored(zero))
        row("QuantizeLinear", f"{name}/axis", image, Stored(unit(64)), Stored(ints(64, dtype=dtype)), axis=1)
        row("DequantizeLinear", name, ints(1, 64, 112, 112, dtype=dtype), Stored(np.float32(0.02)), Stored(zero))
        row("DequantizeLinear", f"{name}/axis", ints(1, 64, 112, 112, dtype=dtype), Stored(unit(64)), Stored(ints(64, dtype=dtype)), axis=1)
    row("DynamicQuantizeLinear", "128x768", floats(128, 768), outputs=3)
    row("DynamicQuantizeLinear", "odd", floats(77, 1021), outputs=3)


def moving():
    square, image, tokens = floats(1024, 1024), floats(2, 64, 56, 56), floats(2, 12, 128, 64)
    row("Transpose", "1024x1024", square, perm=[1, 0])
    row("Transpose", "odd", floats(1021, 771), perm=[1, 0])
    row("Transpose", "nchw-nhwc", image, perm=[0, 2, 3, 1])
    row("Transpose", "nhwc-nchw", floats(2, 56, 56, 64), perm=[0, 3, 1, 2])
    row("Transpose", "hwc3-chw", floats(1, 640, 480, 3), perm=[0, 3, 1, 2])
    row("Transpose", "heads", floats(2, 128, 12, 64), perm=[0, 2, 1, 3])
    row("Transpose", "keys", tokens, perm=[0, 1, 3, 2])
    row("Transpose", "window", floats(8, 7, 8, 7, 96), perm=[0, 2, 1, 3, 4])
    row("Transpose", "reverse", floats(40, 50, 30, 20), perm=[3, 2, 1, 0])
    row("Transpose", "i64", ints(1024, 512), perm=[1, 0])
    row("Transpose", "u8", ints(1, 640, 480, 3, dtype=np.uint8), perm=[0, 3, 1, 2])
    row("Transpose", "bool", bools(1024, 1024), perm=[1, 0])
    row("Transpose", "f16", square.astype(np.float16), perm=[1, 0])
    row("Transpose", "f64", floats(512, 512).astype(np.float64), perm=[1, 0])
    row("Concat", "channels", image, image, axis=1)
    row("Concat", "last", floats(1024, 257), floats(1024, 255), axis=1)
    row("Concat", "first", square, square, axis=0)
    row("Concat", "four", *[floats(1000, 31) for _ in range(4)], axis=-1)
    row("Concat", "i64", ints(512, 512), ints(512, 512), axis=1)
    row("Split", "last3", floats(512, 2304), Stored(np.array([768, 768, 768])), outputs=3, axis=-1)
    row("Split", "channels", image, Stored(np.array([16, 48])), outputs=2, axis=1)
    row("Slice", "rows", square, stored(10), stored(1000), stored(0), stored(1))
    row("Slice", "columns", square, stored(10), stored(1000), stored(1), stored(1))
    row("Slice", "stride2", image, stored(0, 1), stored(56, 56), stored(2, 3), stored(2, 2))
    row("Slice", "reverse", square, stored(-1), stored(-2000), stored(1), stored(-1))
    row("Gather", "embedding", Stored(floats(30522, 384)), ints(4, 128, high=30522), axis=0)
    row("Gather", "embedding768", Stored(floats(8000, 768)), ints(1, 512, high=8000), axis=0)
    row("Gather", "axis1", floats(512, 1000), Stored(ints(500, high=1000)), axis=1)
    row("Gather", "last1", floats(256, 197, 64), Stored(np.int64(0)), axis=1)
    row("Gather", "scalars", floats(100000), ints(100000, high=100000), axis=0)
    row("Gather", "i64", ints(5000, 8), ints(5000, high=5000), axis=0)
    row("GatherElements", "last", floats(1024, 512), ints(1024, 512, high=512), axis=1)
    row("GatherElements", "first", floats(1024, 512), ints(1024, 512, high=1024), axis=0)
    row("GatherND", "pairs", floats(256, 256, 16), ints(10000, 2, high=256))
    row("GatherND", "batch", floats(8, 1000, 32), ints(8, 500, 1, high=1000), batch_dims=1)
    row("Expand", "rows", floats(1, 1024), stored(1024, 1024))
    row("Expand", "columns", floats(1024, 1), stored(1024, 1024))
    row("Expand", "middle", floats(8, 1, 64, 64), stored(8, 32, 64, 64))
    row("Expand", "bool", bools(1, 1, 512), stored(8, 512, 512))
    row("Tile", "rows", floats(64, 512), stored(16, 1))
    row("Tile", "columns", floats(512, 64), stored(1, 16))
    row("Tile", "odd", floats(3, 37, 41), stored(2, 7, 3))
    row("Pad", "image", image, stored(0, 0, 1, 1, 0, 0, 1, 1))
    for mode in ("reflect", "edge", "wrap"):
        row("Pad", mode, image, stored(0, 0, 3, 3, 0, 0, 3, 3), mode=mode)
    row("Pad", "sequence", floats(8, 1000, 80), stored(0, 5, 0, 0, 5, 0))
    row("DepthToSpace", "dcr", floats(1, 64, 120, 120), blocksize=2)
    row("DepthToSpace", "crd", floats(1, 48, 120, 120), blocksize=4, mode="CRD")
    row("SpaceToDepth", "2", floats(1, 16, 240, 240), blocksize=2)
    row("ReverseSequence", "time", floats(100, 16, 256), ints(16, low=1, high=100), time_axis=0, batch_axis=1)
    row("Trilu", "upper", square, upper=1)
    row("Trilu", "lower", floats(8, 257, 255), upper=0)
    row("OneHot", "classes", ints(4096, high=256), Stored(np.int64(256)), Stored(np.array([0, 1], np.float32)))
    row("OneHot", "axis0", ints(4096, high=64), Stored(np.int64(64)), Stored(np.array([0, 1], np.float32)), axis=0)
    row("EyeLike", "1024", square)
    row("Range", "i64", Stored(np.int64(0)), Stored(np.int64(500000)), Stored(np.int64(1)))
    row("ConstantOfShape", "1024", stored(1024, 1024))
    row("Compress", "rows", square, Stored(bools(1024)), axis=0)
    row("NonZero", "half", bools(512, 512))
    row("NonZero", "few", (unit(1024, 1024, low=0.0, high=1.0) > 0.99).astype(np.float32))
    row("Col2Im", "3x3", floats(1, 64 * 9, 56 * 56), stored(56, 56), stored(3, 3), pads=[1, 1, 1, 1], opset=18)


def scatters():
    for reduction in ("none", "add", "mul", "max"):
        index = np.stack([RNG.permutation(1024)[:512] for _ in range(512)])
        row("ScatterElements", reduction, floats(512, 1024), index, floats(512, 512), axis=1, reduction=reduction)
        pairs = np.stack([RNG.permutation(4096)[:2048]], axis=1)
        row("ScatterND", f"rows/{reduction}", floats(4096, 256), pairs, floats(2048, 256), reduction=reduction)
    row("ScatterElements", "first/add", floats(1024, 256), ints(512, 256, high=1024), floats(512, 256), axis=0, reduction="add")
    cells = np.unique(ints(20000, 2, high=512), axis=0)
    row("ScatterND", "cells", floats(512, 512), cells, floats(len(cells)))
    row("ScatterND", "cells/add", floats(512, 512), ints(20000, 2, high=512), floats(20000), reduction="add")


def reductions():
    x, image = unit(1024, 1024, low=0.1), unit(2, 64, 79, 77, low=0.1)
    for op in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split():
        op = f"Reduce{op}"
        row(op, "last", x, stored(1))
        row(op, "first", x, stored(0))
        row(op, "image", image, stored(2, 3))
        row(op, "all", x)
        if op in ("ReduceMax", "ReduceMean", "ReduceSum"):
            row(op, "channels", image, stored(1))
            row(op, "batch", image, stored(0, 2, 3))
    row("ReduceSum", "i64", ints(1024, 1024), stored(1))
    row("ReduceMax", "i32", ints(1024, 1024, dtype=np.int32), stored(1))
    row("ReduceMax", "u8", ints(1024, 1024, dtype=np.uint8), stored(1))
    row("ReduceSum", "f64", unit(512, 1024).astype(np.float64), stored(1))
    for op in ("ArgMax", "ArgMin"):
        row(op, "last", x, axis=1)
        row(op, "first", x, axis=0)
        row(op, "channels", image, axis=1)
    row("CumSum", "last", floats(1024, 1024), Stored(np.int64(1)))
    row("CumSum", "first", floats(1024, 1024), Stored(np.int64(0)))
    row("CumSum", "middle", floats(8, 257, 129), Stored(np.int64(1)))
    row("CumSum", "reverse", floats(512, 771), Stored(np.int64(1)), reverse=1, exclusive=1)
    row("CumSum", "i64", ints(8, 50000, high=2), Stored(np.int64(1)))
    for k in (1, 5, 50, 500):
        row("TopK", f"{k}of1000", floats(256, 1000), stored(k), outputs=2)
    row("TopK", "100of100000", floats(1, 100000), stored(100), outputs=2)
    row("TopK", "axis1", floats(64, 300, 20), stored(10), outputs=2, axis=1)
    row("TopK", "smallest", floats(256, 1000), stored(5), outputs=2, largest=0)
    row("TopK", "sort", floats(256, 1000), stored(1000), outputs=2)
    row("TopK", "i64", ints(256, 1000, high=100000), stored(5), outputs=2)


def norms():
    x, image = floats(512, 768), floats(2, 64, 56, 56)
    for shape in [(512, 768), (4, 12, 128, 128), (64, 1000), (7, 101, 203)]:
        for op in "Softmax LogSoftmax Hardmax".split():
            row(op, shape_name(shape), floats(*shape), axis=-1)
    row("Softmax", "channels", floats(1, 21, 128, 128), axis=1)
    row("LogSoftmax", "channels", floats(1, 21, 128, 128), axis=1)
    row("LayerNormalization", "512x768", x, Stored(unit(768)), Stored(floats(768)))
    row("LayerNormalization", "odd", floats(199, 387), Stored(unit(387)), Stored(floats(387)))
    row("RMSNormalization", "512x768", x, Stored(unit(768)), opset=23)
    row("InstanceNormalization", "image", image, Stored(unit(64)), Stored(floats(64)))
    row("InstanceNormalization", "sequence", floats(2, 64, 3001), Stored(unit(64)), Stored(floats(64)))
    row("GroupNormalization", "8", image, Stored(unit(64)), Stored(floats(64)), num_groups=8, opset=21)
    row("BatchNormalization", "image", image, *[Stored(unit(64)) for _ in range(4)])
    row("BatchNormalization", "rows", floats(4096, 257), *[Stored(unit(257)) for _ in range(4)])
    row("LpNormalization", "2", floats(1024, 512), axis=1, p=2)
    row("LpNormalization", "1", floats(4, 64, 1000), axis=1, p=1)
    row("MeanVarianceNormalization", "image", image)
    row("LRN", "5", image, size=5)


def images():
    x = floats(1, 64, 112, 112)
    windows = [
        ("3x3s2", x, dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])),
        ("2x2s2", x, dict(kernel_shape=[2, 2], strides=[2, 2])),
        ("3x3s1", floats(1, 64, 56, 56), dict(kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])),
        ("5x5s1", floats(1, 128, 20, 20), dict(kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2])),
        ("7x7s7", floats(1, 256, 49, 49), dict(kernel_shape=[7, 7], strides=[7, 7])),
        ("1x3s1x2", floats(2, 32, 31, 257), dict(kernel_shape=[1, 3], strides=[1, 2])),
        ("1d", floats(4, 64, 3001), dict(kernel_shape=[3], strides=[2])),
        ("3d", floats(1, 16, 16, 56, 56), dict(kernel_shape=[2, 2, 2], strides=[2, 2, 2])),
    ]
    for name, value, attributes in windows:
        for op in "MaxPool AveragePool LpPool".split():
            row(op, name, value, **attributes)
    row("MaxPool", "indices", x, kernel_shape=[2, 2], strides=[2, 2], outputs=2)
    row("MaxPool", "u8", ints(1, 64, 112, 112, dtype=np.uint8), kernel_shape=[2, 2], strides=[2, 2])
    row("MaxPool", "dilated", x, kernel_shape=[3, 3], dilations=[2, 2])
    row("AveragePool", "counted", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    for op in "GlobalAveragePool GlobalMaxPool GlobalLpPool".split():
        row(op, "112", x)
        row(op, "7", floats(8, 1280, 7, 7))
    row("MaxUnpool", "2x2", floats(1, 32, 40, 40), np.arange(32 * 40 * 40).reshape(1, 32, 40, 40) * 4, kernel_shape=[2, 2], strides=[2, 2])
    small, big = floats(1, 64, 56, 56), floats(1, 3, 480, 640)
    up = Stored(np.array([1, 1, 2, 2], np.float32))
    none = Stored(np.array([], np.float32))
    for mode in ("nearest", "linear", "cubic"):
        row("Resize", f"{mode}/2x", small, None, up, mode=mode)
        row("Resize", f"{mode}/down", big, None, None, stored(1, 3, 224, 299), mode=mode)
        row("Resize", f"{mode}/asymmetric", small, None, up, mode=mode, coordinate_transformation_mode="asymmetric")
        row("Resize", f"{mode}/corners", floats(1, 17, 31, 45), None, None, stored(1, 17, 67, 101), mode=mode, coordinate_transformation_mode="align_corners")
    row("Resize", "antialias", big, None, None, stored(1, 3, 224, 224), mode="linear", antialias=1)
    row("Resize", "1d", floats(4, 64, 500), None, Stored(np.array([1, 1, 3], np.float32)), mode="linear")
    row("Resize", "u8", ints(1, 3, 480, 640, dtype=np.uint8), None, None, stored(1, 3, 224, 224), mode="nearest")
    del none
    for mode in ("linear", "nearest", "cubic"):
        grid = unit(1, 64, 64, 2, low=-1.1, high=1.1)
        row("GridSample", mode, floats(1, 64, 64, 64), grid, mode=mode, padding_mode="zeros")
    row("GridSample", "border", floats(2, 16, 129, 97), unit(2, 101, 87, 2, low=-1.2, high=1.2), padding_mode="border")
    row("GridSample", "reflection", floats(1, 32, 64, 64), unit(1, 64, 64, 2, low=-1.5, high=1.5), padding_mode="reflection", align_corners=1)
    boxes = np.concatenate([unit(32, 2, high=20), unit(32, 2, low=25, high=50)], axis=1).astype(np.float32)
    row("RoiAlign", "7x7", floats(1, 128, 56, 56), boxes, np.zeros(32, np.int64), output_height=7, output_width=7, sampling_ratio=2)
    rois = np.concatenate([np.zeros((32, 1)), np.floor(boxes)], axis=1).astype(np.float32)
    row("MaxRoiPool", "7x7", floats(1, 128, 56, 56), rois, pooled_shape=[7, 7])
    row("DeformConv", "3x3", floats(1, 32, 28, 28), Stored(floats(32, 32, 3, 3)), floats(1, 18, 28, 28, scale=0.3), pads=[1, 1, 1, 1], opset=22)
    corners = unit(1, 500, 2, high=500)
    boxes = np.concatenate([corners, corners + unit(1, 500, 2, low=5, high=60)], axis=2).astype(np.float32)
    row("NonMaxSuppression", "500", boxes, unit(1, 4, 500), stored(50), Stored(np.float32(0.5)), Stored(np.float32(0.3)))
    # A detector of 640 pixels and 80 classes; few scores are above the threshold.
    corners = unit(1, 8400, 2, high=600)
    boxes = np.concatenate([corners, corners + unit(1, 8400, 2, low=5, high=60)], axis=2).astype(np.float32)
    row("NonMaxSuppression", "8400x80", boxes, unit(1, 80, 8400) ** 24, stored(100), Stored(np.float32(0.45)), Stored(np.float32(0.25)))


def products():
    for shape in [(128, 512, 1024), (1, 768, 3072), (197, 768, 768), (1024, 1024, 1024), (37, 101, 203), (8, 4096, 1000)]:
        m, k, n = shape
        a, b = floats(m, k), floats(k, n, scale=0.1)
        row("MatMul", shape_name(shape), a, Stored(b))
        if m > 1 and m < 1000:
            row("MatMul", f"{shape_name(shape)}/given", a, b)
            row("Gemm", f"{shape_name(shape)}/bt", a, Stored(np.ascontiguousarray(b.T)), Stored(floats(n)), transB=1)
        ia, ib = ints(m, k, high=255, dtype=np.uint8), Stored(ints(k, n, low=-127, high=127, dtype=np.int8))
        row("MatMulInteger", shape_name(shape), ia, ib, Stored(np.uint8(128)))
        scale, zero = Stored(np.float32(0.02)), Stored(np.uint8(128))
        row("QLinearMatMul", shape_name(shape), ia, scale, zero, ib, scale, Stored(np.int8(0)), Stored(np.float32(2)), zero)
    row("MatMulInteger", "given", ints(128, 512, high=255, dtype=np.uint8), ints(512, 1024, low=-127, high=127, dtype=np.int8))
    row("MatMulInteger", "batch", ints(8, 128, 64, high=255, dtype=np.uint8), ints(8, 64, 128, high=255, dtype=np.uint8), np.uint8(128), np.uint8(120))
    row("MatMul", "scores", floats(12, 128, 64), floats(12, 64, 128))
    row("MatMul", "vector", floats(1024, 1024), floats(1024))
    row("MatMul", "f64", floats(128, 256).astype(np.float64), floats(256, 128).astype(np.float64))
    row("MatMul", "i32", ints(128, 128, dtype=np.int32), ints(128, 128, dtype=np.int32))
    row("Gemm", "ta", floats(256, 128), floats(256, 512), floats(512), transA=1, alpha=0.5)
    row("Einsum", "heads", floats(2, 128, 12, 64), floats(2, 128, 12, 64), equation="bqhd,bkhd->bhqk")
    row("Einsum", "outer", floats(512), floats(512), equation="i,j->ij")
    row("Einsum", "trace", floats(64, 128, 128), equation="bii->b")
    row("Einsum", "columns", floats(32, 64, 64), floats(64, 64), equation="bij,jk->bik")
    row("Det", "small", floats(1000, 4, 4))
    convolutions = [
        ("3x3", (1, 64, 56, 56), (64, 64, 3, 3), dict(pads=[1, 1, 1, 1])),
        ("1x1", (1, 256, 28, 28), (128, 256, 1, 1), {}),
        ("7x7s2", (1, 3, 224, 224), (64, 3, 7, 7), dict(pads=[3, 3, 3, 3], strides=[2, 2])),
        ("depthwise", (1, 96, 56, 56), (96, 1, 3, 3), dict(pads=[1, 1, 1, 1], group=96)),
        ("grouped", (1, 64, 28, 28), (64, 16, 3, 3), dict(pads=[1, 1, 1, 1], group=4)),
        ("dilated", (1, 32, 56, 56), (32, 32, 3, 3), dict(pads=[2, 2, 2, 2], dilations=[2, 2])),
        ("1d", (1, 80, 1000), (256, 80, 3), dict(pads=[1, 1])),
        ("1ddepthwise", (1, 256, 500), (256, 1, 31), dict(pads=[15, 15], group=256)),
        ("3d", (1, 8, 16, 32, 32), (16, 8, 3, 3, 3), dict(pads=[1] * 6)),
        ("odd", (1, 13, 37, 41), (17, 13, 3, 5), {}),
    ]
    for name, x, w, attributes in convolutions:
        weight = floats(*w, scale=0.1)
        row("Conv", name, floats(*x), Stored(weight), Stored(floats(w[0])), **attributes)
        if len(x) == 4:
            ix, iw = ints(*x, high=255, dtype=np.uint8), ints(*w, low=-127, high=127, dtype=np.int8)
            row("ConvInteger", name, ix, Stored(iw.view(np.uint8)), Stored(np.uint8(128)), Stored(np.uint8(128)), **attributes)
            scale, zero = Stored(np.float32(0.02)), Stored(np.uint8(128))
            codes = (ix, scale, zero, Stored(iw), scale, Stored(np.int8(0)), Stored(np.float32(1.5)), zero)
            row("QLinearConv", name, *codes, Stored(ints(w[0], low=-999, high=999, dtype=np.int32)), **attributes)
            if name == "3x3":
                row("QLinearConv", f"{name}/no bias", *codes, **attributes)
    transposed = [
        ("4x4s2", (1, 64, 28, 28), (64, 32, 4, 4), dict(strides=[2, 2], pads=[1, 1, 1, 1])),
        ("2x2s2", (1, 128, 28, 28), (128, 64, 2, 2), dict(strides=[2, 2])),
        ("3x3s1", (1, 32, 56, 56), (32, 32, 3, 3), dict(pads=[1, 1, 1, 1])),
        ("3x3s2", (1, 64, 31, 29), (64, 48, 3, 3), dict(strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])),
        ("depthwise", (1, 64, 56, 56), (64, 1, 4, 4), dict(strides=[2, 2], pads=[1, 1, 1, 1], group=64)),
        ("1d", (1, 256, 100), (256, 128, 16), dict(strides=[8], pads=[4, 4])),
    ]
    for name, x, w, attributes in transposed:
        row("ConvTranspose", name, floats(*x), Stored(floats(*w, scale=0.1)), **attributes)


def sequences():
    recurrences = [
        ("128", 100, 1, 128, 128, "forward"),
        ("256x2", 50, 1, 256, 256, "bidirectional"),
        ("64x8", 80, 8, 64, 64, "forward"),
        ("odd", 37, 3, 57, 101, "reverse"),
        ("512", 20, 1, 512, 512, "forward"),
        ("one", 1, 1, 256, 256, "forward"),
    ]
    for name, steps, batch, size, hidden, direction in recurrences:
        ways = 2 if direction == "bidirectional" else 1
        for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
            w = Stored(floats(ways, gates * hidden, size, scale=0.1))
            r = Stored(floats(ways, gates * hidden, hidden, scale=0.1))
            b = Stored(floats(ways, 2 * gates * hidden, scale=0.1))
            attributes = dict(linear_before_reset=1) if op == "GRU" else {}
            row(op, name, floats(steps, batch, size), w, r, b, outputs=2, hidden_size=hidden, direction=direction, **attributes)
    q, k = floats(1, 12, 128, 64), floats(1, 12, 128, 64)
    row("Attention", "128", q, k, k, opset=23)
    row("Attention", "one", floats(1, 12, 1, 64), floats(1, 12, 500, 64), floats(1, 12, 500, 64), opset=23)
    row("Attention", "causal", q, k, k, opset=23, is_causal=1)
    angles = floats(128, 32)
    row("RotaryEmbedding", "12x64", floats(1, 12, 128, 64), Stored(np.cos(angles)), Stored(np.sin(angles)), ints(1, 128, high=128), opset=23)
    wave = floats(4, 4096, 1)
    row("DFT", "4096", wave, None, Stored(np.int64(1)), opset=20, onesided=1)
    row("DFT", "1000", floats(16, 1000, 1), None, Stored(np.int64(1)), opset=20)
    row("STFT", "400", floats(1, 16000, 1), Stored(np.int64(160)), Stored(np.hanning(400).astype(np.float32)), Stored(np.int64(400)), opset=17)


for add in (unary, binary, casts, moving, scatters, reductions, norms, images, products, sequences):
    add()


def unlisted():
    """Operators of ONNX's default domain that have neither a row nor a reason."""
    known = {r.op for r in ROWS} | set(WITHOUT)
    schemas = (s for s in defs.get_all_schemas() if s.domain == "" and not s.deprecated)
    return sorted({s.name for s in schemas} - known)


def model(one):
    """The model of a row, and the arrays that a run needs."""
    nodes, names, given, kept = [], [], [], []
    for index, value in enumerate(one.inputs):
        if value is None:
            names.append("")
            continue
        name = f"i{index}"
        names.append(name)
        if isinstance(value, Stored):
            kept.append(helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(value.array.dtype), value.array.shape, value.array.tobytes(), raw=True))
        else:
            array = np.asarray(value)
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            given.append((helper.make_tensor_value_info(name, kind, array.shape), array))
    outputs = [f"o{i}" for i in range(one.outputs)]
    nodes.append(helper.make_node(one.op, names, outputs, **one.attributes))
    results = [helper.make_empty_tensor_value_info(o) for o in outputs]
    graph = helper.make_graph(nodes, "row", [g for g, _ in given], results, kept)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", one.opset)], ir_version=10)
    return made, [a for _, a in given]
