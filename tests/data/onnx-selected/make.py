"""Makes the cases in this folder: models of which data decides the size of the results, and what ONNX Runtime gives.

python3 make.py    # needs numpy, onnx and onnxruntime

Each case is a folder as the node suite of ONNX has them: model.onnx, input_0.pb and on, output_0.pb and on.
"""

import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper, parser

HERE = pathlib.Path(__file__).parent
random = np.random.default_rng(0)


def case(name, text, *inputs):
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [i.name for i in model.graph.input]
    results = session.run(None, dict(zip(names, inputs)))
    print(name, [y.shape for y in results])
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    for kind, arrays in (("input", inputs), ("output", results)):
        for i, array in enumerate(arrays):
            (folder / f"{kind}_{i}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())


x = (random.standard_normal((4, 5)) * (random.random((4, 5)) < 0.4)).astype(np.float32)
case("non_zero", "g (float[n, m] x) => (int64[r, k] y) { y = NonZero(x) }", x)
case("non_zero_none", "g (float[n, m] x) => (int64[r, k] y) { y = NonZero(x) }", x * 0)
kept = """g (float[n, m] x, float[n, m] z) => (float[k] y, float[k, 1] w) {
    zero = Constant<value = float {0.0}>() one = Constant<value = int64[1] {1}>()
    mask = Greater(x, zero) at = NonZero(mask) rows = Transpose<perm = [1, 0]>(at)
    picked = GatherND(z, rows) y = Mul(picked, picked) w = Unsqueeze(y, one) }"""
case("elements_of_a_mask", kept, x, random.standard_normal((4, 5)).astype(np.float32))
case("compress", "g (float[n, m] x, bool[m] c) => (float[n, k] y) { y = Compress<axis = 1>(x, c) }", x, x[0] != 0)
flat = """g (float[n, m] x) => (float[k] y) {
    zero = Constant<value = float {0.0}>() all = Constant<value = int64[1] {-1}>()
    c = Less(x, zero) f = Reshape(c, all) y = Compress(x, f) }"""
case("compress_all", flat, x)

corner = random.random((2, 12, 2)).astype(np.float32)
boxes = np.concatenate([corner, corner + random.random((2, 12, 2)).astype(np.float32) * 0.6], -1)
scores = random.random((2, 3, 12)).astype(np.float32)
limits = "most = Constant<value = int64[1] {%d}>() iou = Constant<value = float[1] {%f}>() score = Constant<value = float[1] {%f}>()"
nms = "g (float[b, s, 4] boxes, float[b, c, s] scores) => (int64[k, 3] y) { " + limits + " y = NonMaxSuppression%s(boxes, scores, most%s) }"
case("nms", nms % (20, 0.3, 0.0, "", ", iou"), boxes, scores)
case("nms_of_two", nms % (2, 0.5, 0.4, "", ", iou, score"), boxes, scores)
case("nms_none", nms % (5, 0.5, 2.0, "", ", iou, score"), boxes, scores)
swapped = boxes[..., [2, 1, 0, 3]].copy()
case("nms_other_corners", nms % (5, 0.4, 0.2, "", ", iou, score"), swapped, scores)
centre = np.concatenate([corner, random.random((2, 12, 2)).astype(np.float32) * 0.6], -1)
case("nms_centre", nms % (5, 0.4, 0.2, "<center_point_box = 1>", ", iou, score"), centre, scores)
# The end of a detector: the boxes that are left, and their scores and classes.
tail = "g (float[1, s, 4] boxes, float[1, c, s] scores) => (float[k, 4] left, float[k] best, int64[k, 1] class) { " + limits + """
    one = Constant<value = int64[1] {1}>() two = Constant<value = int64 {2}>()
    behind = Constant<value = int64[1] {2}>() first = Constant<value = int64 {0}>()
    y = NonMaxSuppression(boxes, scores, most, iou, score)
    at = Gather<axis = 1>(y, two) row = Gather(boxes, first) left = Gather(row, at)
    best = GatherND(scores, y) class = Slice(y, one, behind, one) }"""
case("detector", tail % (10, 0.3, 0.3), boxes[:1], scores[:1])
