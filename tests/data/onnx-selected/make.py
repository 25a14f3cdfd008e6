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
# The last operators of an object detector: the boxes that non-maximum suppression keeps, with their scores and classes.
tail = "g (float[1, s, 4] boxes, float[1, c, s] scores) => (float[k, 4] left, float[k] best, int64[k, 1] class) { " + limits + """
    one = Constant<value = int64[1] {1}>() two = Constant<value = int64 {2}>()
    behind = Constant<value = int64[1] {2}>() first = Constant<value = int64 {0}>()
    y = NonMaxSuppression(boxes, scores, most, iou, score)
    at = Gather<axis = 1>(y, two) row = Gather(boxes, first) left = Gather(row, at)
    best = GatherND(scores, y) class = Slice(y, one, behind, one) }"""
case("detector", tail % (10, 0.3, 0.3), boxes[:1], scores[:1])

# Operators on the elements that a mask selects: assignments, sums, filters and concatenations.
mask = """zero = Constant<value = float {0.0}>() one = Constant<value = int64[1] {1}>() first = Constant<value = int64[1] {0}>()
    all = Constant<value = int64[1] {-1}>() m = Greater(x, zero) at = NonZero(m) rows = Transpose<perm = [1, 0]>(at)
    z = GatherND(x, rows) """
y = random.standard_normal((4, 5)).astype(np.float32)


def masked(name, result, body, *more):
    case(name, "g (float[n, m] x" + "".join(f", {m}" for m, _ in more) + f") => ({result}) {{ {mask} {body} }}", x, *(v for _, v in more))


masked("assigned_number", "float[n, m] y", """seven = Constant<value = float {7.0}>() s = Shape(rows) k = Gather(s, first)
    t = Expand(seven, k) y = ScatterND(x, rows, t)""")
masked("assigned_elements", "float[n, m] y", "t = GatherND(o, rows) d = Mul(t, t) y = ScatterND(x, rows, d)", ("float[n, m] o", y))
masked("added_elements", "float[n, m] y", 'y = ScatterND<reduction = "add">(o, rows, z)', ("float[n, m] o", y))
masked("assigned_negative", "float[n, m] y", """minus = Constant<value = int64[2] {-4, -5}>() r = Add(rows, minus)
    y = ScatterND(x, r, z)""")
index_add = """g (float[n, m] x, float[n, 3] o) => (float[6, 3] y) {
    zero = Constant<value = float {0.0}>() one = Constant<value = int64[1] {1}>() first = Constant<value = int64[1] {0}>()
    axes = Constant<value = int64[1] {1}>() target = Constant<value = int64[2] {6, 3}>() all = Constant<value = int64[1] {-1}>()
    last = Constant<value = int64 {4}>() c = Gather<axis = 1>(x, last) m = Greater(c, zero) at = NonZero(m) i = Reshape(at, all)
    t = Gather(o, i) base = ConstantOfShape<value = float[1] {0.5}>(target) s = Shape(t) u = Unsqueeze(i, axes) e = Expand(u, s)
    y = ScatterElements<axis = 0, reduction = "add">(base, e, t) }"""
dense = random.standard_normal((4, 5)).astype(np.float32)
case("index_add", index_add, dense, random.standard_normal((4, 3)).astype(np.float32))
masked("sums", "float a, float b, float c, float d, float e", """a = ReduceSum<keepdims = 0>(z) b = ReduceMax<keepdims = 0>(z)
    c = ReduceMin<keepdims = 0>(z) d = ReduceMean<keepdims = 0>(z) e = ReduceL2<keepdims = 0>(z)""")
masked("products", "float[1] a, float[1] b, float[1] c, int64 d, int64 e", """a = ReduceProd(z) b = ReduceLogSumExp(z) c = ReduceL1(z)
    d = ArgMax<keepdims = 0>(z) e = ArgMin<keepdims = 0>(z)""")
masked("sums_of_rows", "float[r] a, float[r, 1] b, int64[2] c", """g = Gather(o, at2) two = Constant<value = int64 {0}>()
    at2 = Gather<axis = 0>(at, two) a = ReduceSum<keepdims = 0>(g, one) b = ReduceMean<axes = [1]>(g) c = ReduceSum<keepdims = 0>(rows, first)""",
       ("float[n, 3] o", random.standard_normal((4, 3)).astype(np.float32)))
masked("shapes", "int64[2] s, int64 k, int64[1] f, int64[r] p, int64[r] o", """s = Shape(rows) k = Size(rows) f = Gather(s, first)
    start = Constant<value = int64 {0}>() step = Constant<value = int64 {1}>() n = Squeeze(f) p = Range(start, n, step)
    o = ConstantOfShape<value = int64[1] {3}>(f)""")
masked("filtered_twice", "float[r] y, int64[1, r] k", """half = Constant<value = float {0.5}>() c = Less(z, half) k = NonZero(c)
    f = Squeeze(k, first) y = Gather(z, f)""")
masked("compressed_twice", "float[r] y", "half = Constant<value = float {0.5}>() c = Less(z, half) y = Compress<axis = 0>(z, c)")
masked("joined", "float[r] y, float s", """lower = Less(x, zero) at2 = NonZero(lower) rows2 = Transpose<perm = [1, 0]>(at2)
    w = GatherND(x, rows2) tail = Constant<value = float[2] {9.0, 8.0}>() y = Concat<axis = 0>(z, w, tail) s = ReduceSum<keepdims = 0>(y)""")
masked("same_mask_twice", "float[r] y", """m2 = Greater(x, zero) at2 = NonZero(m2) rows2 = Transpose<perm = [1, 0]>(at2)
    w = GatherND(o, rows2) y = Add(z, w)""", ("float[n, m] o", y))
masked("first_and_last", "float[2] y, float[r] h, float[r] t, float[r] e", """two = Constant<value = int64[2] {0, -1}>() y = Gather(z, two)
    ends = Constant<value = int64[1] {3}>() h = Slice(z, first, ends) t = Slice(z, one, all) large = Constant<value = int64[1] {9223372036854775807}>()
    minus = Constant<value = int64[1] {-2}>() e = Slice(z, minus, large)""")
masked("greatest", "float[r] y, int64[r] i", """s = Shape(z) most = Constant<value = int64[1] {3}>() k = Min(s, most)
    y, i = TopK<axis = 0>(z, k)""")
masked("rows_of_products", "float[r, 2] y, float[r, 2] p", """start = Constant<value = int64 {0}>() a = Gather<axis = 0>(at, start)
    g = Gather(o, a) y = MatMul(g, w) p = Softmax<axis = 1>(y)""",
       ("float[n, 3] o", random.standard_normal((4, 3)).astype(np.float32)), ("float[3, 2] w", random.standard_normal((3, 2)).astype(np.float32)))
masked("weights_of_elements", "float[r] y", "y = Softmax<axis = 0>(z)")
masked("regrouped", "int64[r] y, int64[q, 2] w", "y = Reshape(rows, all) two = Constant<value = int64[2] {-1, 2}>() w = Reshape(y, two)")
masked("up_to_the_count", "float[r] y", """all2 = Reshape(x, all) s = Shape(z) y = Slice(all2, first, s)""")
best = "g (float[1, s, 4] boxes, float[1, c, s] scores) => (float[k, 4] left, float[k] best, int64[1] n) { " + limits + """
    one = Constant<value = int64[1] {1}>() two = Constant<value = int64 {2}>() start = Constant<value = int64[1] {0}>()
    most2 = Constant<value = int64[1] {3}>() first = Constant<value = int64 {0}>()
    y = NonMaxSuppression(boxes, scores, most, iou, score)
    at = Gather<axis = 1>(y, two) row = Gather(boxes, first) b = Gather(row, at) s = GatherND(scores, y)
    size = Shape(s) k = Min(size, most2) best, order = TopK<axis = 0>(s, k) left = Gather(b, order) n = Shape(best) }"""
case("detector_with_a_limit", best % (10, 0.3, 0.3), boxes[:1], scores[:1])
again = """g (float[s, 4] boxes, float[s] scores) => (int64[k, 3] y) {
    limit = Constant<value = float {0.4}>() most = Constant<value = int64[1] {5}>() iou = Constant<value = float[1] {0.3}>()
    zero = Constant<value = int64[1] {0}>() both = Constant<value = int64[2] {0, 1}>() good = Greater(scores, limit)
    b = Compress<axis = 0>(boxes, good) s = Compress<axis = 0>(scores, good) b1 = Unsqueeze(b, zero) s1 = Unsqueeze(s, both)
    y = NonMaxSuppression(b1, s1, most, iou) }"""
case("nms_of_a_selection", again, boxes[0], scores[0, 0])
