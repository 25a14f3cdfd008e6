"""Makes numpy.json: graphs with their operands and what NumPy says the results are.

python3 make.py

Every case is a graph in the text form. NumPy has no operator under several of the names; what is used
instead (np.add.at, a loop over np.ndindex) is written out here and shares nothing with this project.
"""

import json

import numpy as np

rng = np.random.default_rng(20261122)
cases = []


def spelled(array):
    names = {"float32": "f32", "int32": "i32", "bool": "bool"}
    return f"{names[array.dtype.name]}[{', '.join(map(str, array.shape))}]"


def numbers(array):
    words = {np.inf: "inf", -np.inf: "-inf"}
    flat = array.reshape(-1).tolist()
    return ["nan" if x != x else words.get(x, x) for x in flat]


def case(name, op, operands, results):
    """`op` is the operator with its attributes as the text form spells them."""
    lines = []
    for key, array in operands.items():
        lines.append(f'%{key} = input{{name="{key}", ty={spelled(array)}}}()')
    lines.append(f"%result = {op}({', '.join('%' + key for key in operands)})")
    ports = ["%result" if i == 0 else f"%result.{i}" for i in range(len(results))]
    lines.append("return " + ", ".join(f'{p} as "out{i}"' for i, p in enumerate(ports)))
    cases.append({
        "name": name,
        "graph": "graph { " + " ".join(lines) + " }",
        "inputs": {key: numbers(array) for key, array in operands.items()},
        "outputs": [numbers(np.asarray(array)) for array in results],
    })


def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)


def whole(*shape):
    """Few values, so that there are ties; sums of them are exact."""
    return rng.integers(-4, 5, size=shape).astype(np.float32)


def indices(n, *shape):
    return rng.integers(-n, n, size=shape).astype(np.int32)


def shapes():
    x = floats(3, 4)
    case("tile", "tile{reps=[2, 3]}", {"x": x}, [np.tile(x, (2, 3))])
    case("roll", "roll{shifts=[-1, 6]}", {"x": x}, [np.roll(x, (-1, 6), (0, 1))])
    x = floats(2, 4, 5)
    for k in [-2, 0, 3]:
        case(f"triu_{k}", f"trilu{{upper=true, k={k}}}", {"x": x}, [np.triu(x, k)])
        case(f"tril_{k}", f"trilu{{upper=false, k={k}}}", {"x": x}, [np.tril(x, k)])
    x = floats(4, 5)
    for ours, theirs in [("reflect", "reflect"), ("edge", "edge"), ("wrap", "wrap")]:
        padded = np.pad(x, ((2, 1), (3, 4)), theirs)
        op = f"pad{{before=[2, 3], after=[1, 4], mode={ours}, value=0}}"
        case(f"pad_{ours}", op, {"x": x}, [padded])


def gathers():
    x = floats(4, 3, 5)
    for axis, shape in enumerate([(6, 3, 5), (4, 7, 5), (4, 3, 2)]):
        idx = indices(x.shape[axis], *shape)
        taken = np.take_along_axis(x, idx, axis)
        op = f"gather_elements{{axis={axis}}}"
        case(f"take_along_axis_{axis}", op, {"x": x, "idx": idx}, [taken])
    for k in [1, 2, 3]:
        idx = indices(3, 6, k)
        taken = x[tuple(idx[:, c] for c in range(k))]
        case(f"gather_nd_{k}", "gather_nd{batch_dims=0}", {"x": x, "idx": idx}, [taken])
    idx = indices(3, 4, 2, 1)
    taken = np.stack([x[b][idx[b, :, 0]] for b in range(4)])
    case("gather_nd_batch", "gather_nd{batch_dims=1}", {"x": x, "idx": idx}, [taken])
    idx = indices(6, 3, 4)
    case("one_hot", "one_hot{depth=6, to=f32}", {"idx": idx}, [np.eye(6, dtype=np.float32)[idx]])


AT = {"add": np.add.at, "mul": np.multiply.at, "max": np.maximum.at, "min": np.minimum.at}


def scatters():
    for reduce in ["none", *AT]:
        x, idx, updates = whole(5, 4), indices(5, 9, 3), whole(9, 3)
        if reduce == "mul":
            updates = np.sign(updates) * 2
        y = x.copy()
        for at in np.ndindex(*idx.shape):
            place = (idx[at], at[1])
            if reduce == "none":
                y[place] = updates[at]
            else:
                AT[reduce](y, place, updates[at])
        operands = {"x": x, "idx": idx, "updates": updates}
        case(f"scatter_elements_{reduce}", f"scatter_elements{{axis=0, reduce={reduce}}}", operands, [y])
        idx = indices(4, 7, 2)
        x, updates = whole(5, 4, 3), updates[:7]
        y = x.copy()
        for row in range(7):
            place = (idx[row, 0], idx[row, 1])
            if reduce == "none":
                y[place] = updates[row]
            else:
                y[place] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[
                    reduce
                ](y[place], updates[row])
        operands = {"x": x, "idx": idx, "updates": updates}
        case(f"scatter_nd_{reduce}", f"scatter_nd{{reduce={reduce}}}", operands, [y])
    updates, idx = whole(11, 3), indices(4, 11)
    y = np.zeros((4, 3), np.float32)
    np.add.at(y, idx, updates)
    case("add_at", "scatter_add{rows=4}", {"updates": updates, "idx": idx}, [y])


def orders():
    x = whole(4, 9)
    x[1, 3] = np.nan
    x[2, 5] = -np.inf
    for axis in [0, 1]:
        order = np.argsort(x, axis, kind="stable").astype(np.int32)
        op = f"sort{{axis={axis}, descending=false}}"
        case(f"sort_{axis}", op, {"x": x}, [np.take_along_axis(x, order, axis), order])
    x = whole(4, 9)
    order = np.argsort(-x, 1, kind="stable").astype(np.int32)
    op = "sort{axis=1, descending=true}"
    case("sort_down", op, {"x": x}, [np.take_along_axis(x, order, 1), order])
    x = whole(3, 5)
    found = np.argwhere(x).astype(np.int32)
    rows = np.zeros((15, 2), np.int32)
    rows[: len(found)] = found
    case("argwhere", "non_zero", {"x": x}, [rows, np.int32(len(found))])
    values, firsts, numbers_of, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True
    )

    def padded(array, dtype):
        return np.concatenate([array, np.zeros(15 - len(array))]).astype(dtype)

    lists = [padded(values, np.float32), padded(firsts, np.int32), padded(counts, np.int32)]
    inverse = numbers_of.reshape(x.shape).astype(np.int32)
    case("unique", "unique", {"x": x}, [*lists, inverse, np.int32(len(values))])


def scans():
    x = whole(3, 7)
    x[1, 2] = np.nan
    scan = "cum_sum{axis=1, f=%s, exclusive=false, reverse=%s}"
    for f, run in [("max", np.maximum), ("min", np.minimum), ("prod", np.multiply), ("sum", np.add)]:
        case(f"cum_{f}", scan % (f, "false"), {"x": x}, [run.accumulate(x, 1)])
        back = run.accumulate(x[:, ::-1], 1)[:, ::-1]
        case(f"cum_{f}_reverse", scan % (f, "true"), {"x": x}, [back])


def norms():
    x = floats(2, 6, 3, 4)
    gamma, beta, mean = floats(6), floats(6), floats(6)
    variance = np.abs(floats(6)) + np.float32(0.5)
    wide = x.astype(np.float64)
    weights = [w.astype(np.float64)[:, None, None] for w in (gamma, beta, mean, variance)]
    eps = 1e-3

    def normed(x, axes):
        return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)

    operands = {"x": x, "gamma": gamma, "beta": beta}
    groups = normed(wide.reshape(2, 3, 2, 3, 4), (2, 3, 4)).reshape(x.shape)
    y = groups * weights[0] + weights[1]
    case("group_norm", f"group_norm{{groups=3, eps={eps}}}", operands, [y])
    y = normed(wide, (1,)) * weights[0] + weights[1]
    case("layer_norm_2d", f"layer_norm_2d{{eps={eps}}}", operands, [y])
    operands |= {"mean": mean, "variance": variance}
    y = (wide - weights[2]) / np.sqrt(weights[3] + eps) * weights[0] + weights[1]
    case("batch_norm_inference", f"batch_norm_inference{{eps={eps}}}", operands, [y])


def products():
    x, w, expert = floats(7, 5), floats(3, 5, 4), indices(3, 7)
    operands = {"x": x, "w": w, "expert": expert}
    case("grouped_matmul", "grouped_mat_mul", operands, [np.einsum("mk,mkn->mn", x, w[expert])])
    w, a, b = floats(5, 4), floats(5, 2), floats(2, 4)
    operands = {"x": x, "w": w, "a": a, "b": b}
    case("lora_matmul", "lora_mat_mul{scale=0.5}", operands, [x @ w + 0.5 * (x @ a @ b)])


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def turned(x, cos, sin):
    """Halves of the heads of x [B, S, H, D] as real and imaginary parts."""
    half = x.shape[-1] // 2
    angle = (cos + 1j * sin)[:, None, :]
    y = (x[..., :half] + 1j * x[..., half:]) * angle
    return np.concatenate([y.real, y.imag], -1)


def attended(x, w_qkv, w_out, b_qkv, b_out, cos, sin, q_heads, kv_heads):
    """Causal; one loop over batches and heads."""
    b, s, _ = x.shape
    qkv = (x @ w_qkv + b_qkv).reshape(b, s, q_heads + 2 * kv_heads, -1)
    q, k, v = np.split(qkv, [q_heads, q_heads + kv_heads], 2)
    q, k = turned(q, cos, sin), turned(k, cos, sin)
    y = np.empty_like(q)
    seen = np.tril(np.ones((s, s), bool))
    for at in range(b):
        for head in range(q_heads):
            kv = head // (q_heads // kv_heads)
            scores = q[at, :, head] @ k[at, :, kv].T / np.sqrt(q.shape[-1])
            y[at, :, head] = softmax(np.where(seen, scores, -np.inf)) @ v[at, :, kv]
    return y.reshape(b, s, -1) @ w_out + b_out


def blocks():
    heads, angles = (4, 2), floats(3, 2)
    weights = {
        "w_qkv": floats(6, 32) / 2, "w_out": floats(16, 6) / 4, "b_qkv": floats(32), "b_out": floats(6),
        "cos": np.cos(angles), "sin": np.sin(angles),
    }
    x = floats(2, 3, 6)
    wide = {key: array.astype(np.float64) for key, array in weights.items()}
    y = attended(x, *wide.values(), *heads)
    flags = "mask=causal, scale=none, softcap=none, rope=neox"
    op = f"attention_block{{q_heads=4, kv_heads=2, {flags}, qkv_bias=true, out_bias=true}}"
    case("attention_block", op, {"x": x} | weights, [y])

    def normed(x, gamma, beta):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * gamma + beta

    eps = 1e-5
    rest = {
        "gamma_1": floats(6), "beta_1": floats(6), "w_up": floats(6, 9) / 2, "w_down": floats(9, 6) / 3,
        "gamma_2": floats(6), "beta_2": floats(6), "b_up": floats(9), "b_down": floats(6),
    }
    h = normed(x + y, rest["gamma_1"], rest["beta_1"])
    inner = np.maximum(h @ rest["w_up"] + rest["b_up"], 0) @ rest["w_down"] + rest["b_down"]
    y = normed(h + inner, rest["gamma_2"], rest["beta_2"])
    op = (
        f"transformer_layer{{q_heads=4, kv_heads=2, {flags}, activation=relu, eps={eps}, "
        "qkv_bias=true, out_bias=true, ffn_bias=true}"
    )
    order = ["w_qkv", "w_out", *rest, "b_qkv", "b_out", "cos", "sin"]
    case("transformer_layer", op, {"x": x} | {key: (weights | rest)[key] for key in order}, [y])


def searches():
    draw = np.random.default_rng(20261130)
    row = np.sort(draw.integers(-9, 9, 21)).astype(np.float32)
    row[:2], row[-3:] = -np.inf, [np.inf, np.nan, np.nan]
    values = draw.integers(-10, 11, (4, 9)).astype(np.float32)
    values[0, :3] = [np.nan, np.inf, -np.inf]
    rows = np.sort(draw.integers(-9, 9, (4, 13)), 1).astype(np.float32)
    for side in ["left", "right"]:
        op = f"search_sorted{{right={str(side == 'right').lower()}}}"
        found = np.searchsorted(row, values, side).astype(np.int32)
        case(f"searchsorted_{side}", op, {"sorted": row, "values": values}, [found])
        found = [np.searchsorted(x, v, side) for x, v in zip(rows, values)]
        case(f"searchsorted_rows_{side}", op, {"sorted": rows, "values": values}, [np.array(found, np.int32)])


for family in [shapes, gathers, scatters, orders, scans, norms, products, blocks, searches]:
    family()
with open("numpy.json", "w") as file:
    rows = ",\n".join(json.dumps(c) for c in cases)
    file.write(f"[\n{rows}\n]\n")
