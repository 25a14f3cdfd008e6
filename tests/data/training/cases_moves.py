"""Operators that move elements."""

import numpy as np
import torch
from torch.nn import functional as F

from cases import apart, case, floats, indices, rng


def shapes():
    x = floats(2, 3, 4)
    case("reshape", "reshape{shape=[4, 6]}", {"x": x}, lambda x: x.reshape(4, 6))
    case("transpose", "transpose{perm=[2, 0, 1]}", {"x": x}, lambda x: x.permute(2, 0, 1))
    case("slice", "slice{starts=[1, 0], ends=[6, 5], steps=[2, 3]}", {"x": floats(6, 5)}, lambda x: x[1:6:2, 0:5:3])
    case("slice_back", "slice{starts=[-1], ends=[-100], steps=[-1]}", {"x": floats(5)}, lambda x: x.flip(0))
    case("concat", "concat{axis=1}", {"a": floats(2, 3), "b": floats(2, 1)}, lambda a, b: torch.cat([a, b], 1))
    case("expand", "expand{shape=[2, 3, 4]}", {"x": floats(3, 1)}, lambda x: x.expand(2, 3, 4))
    case("tile", "tile{reps=[2, 3]}", {"x": floats(2, 3)}, lambda x: x.tile(2, 3))
    case("roll", "roll{shifts=[1, -2]}", {"x": floats(3, 4)}, lambda x: x.roll((1, -2), (0, 1)))
    case("triu", "trilu{upper=true, k=1}", {"x": floats(3, 4)}, lambda x: x.triu(1))
    case("tril", "trilu{upper=false, k=0}", {"x": floats(3, 4)}, lambda x: x.tril(0))
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    for ours, theirs in modes.items():
        op = f"pad{{before=[0, 0, 1, 2], after=[0, 0, 2, 1], mode={ours}, value=0}}"
        case(f"pad_{ours}", op, {"x": floats(1, 2, 3, 4)}, lambda x: F.pad(x, (2, 1, 1, 2), mode=theirs))


def gathers():
    x = floats(4, 3)
    case("gather_rows", "gather{axis=0}", {"data": x, "idx": indices(4, 2, 3)}, lambda x, i: F.embedding(i, x))
    case("gather_columns", "gather{axis=1}", {"data": x, "idx": indices(3, 5)}, lambda x, i: x.index_select(1, i))
    case("gather_elements", "gather_elements{axis=1}", {"data": x, "idx": indices(3, 4, 5)}, lambda x, i: x.gather(1, i))
    case("gather_nd", "gather_nd{batch_dims=0}", {"data": floats(3, 3, 2), "idx": indices(3, 5, 2)},
         lambda x, i: x[i[:, 0], i[:, 1]])
    starts = np.array([1, 0], np.int32)
    case("dynamic_slice", "dynamic_slice{sizes=[2, 2]}", {"x": x, "starts": starts}, lambda x, s: x[1:3, 0:2])

    def updated(x, u, s):
        x = x.clone()
        x[1:3, 0:2] = u
        return x

    case("dynamic_update_slice", "dynamic_update_slice", {"x": x, "update": floats(2, 2), "starts": starts}, updated)


def scatters():
    data, once = floats(5, 3), np.stack([rng.permutation(5)[:4] for _ in range(3)], 1).astype(np.int32)
    operands = {"data": data, "idx": once, "updates": floats(4, 3)}
    case("scatter_elements", "scatter_elements{axis=0, reduce=none}", operands, lambda x, i, u: x.scatter(0, i, u))
    idx, updates = indices(5, 6, 3), apart(6, 3)
    for ours, theirs in {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}.items():
        operands = {"data": apart(5, 3) + 1 / 512, "idx": idx, "updates": updates}
        case(f"scatter_elements_{ours}", f"scatter_elements{{axis=0, reduce={ours}}}", operands,
             lambda x, i, u: x.scatter_reduce(0, i, u, theirs))
    idx = indices(3, 6, 2)
    case("scatter_nd_add", "scatter_nd{reduce=add}", {"data": floats(3, 3, 2), "idx": idx, "updates": floats(6, 2)},
         lambda x, i, u: x.index_put((i[:, 0], i[:, 1]), u, accumulate=True))
    idx = np.array([[2, 0], [0, 1], [1, 1]], np.int32)
    case("scatter_nd", "scatter_nd{reduce=none}", {"data": floats(3, 3, 2), "idx": idx, "updates": floats(3, 2)},
         lambda x, i, u: x.index_put((i[:, 0], i[:, 1]), u))
    case("scatter_add", "scatter_add{rows=4}", {"updates": floats(6, 3), "idx": indices(4, 6)},
         lambda u, i: torch.zeros(4, 3, dtype=u.dtype).index_add(0, i, u))


def make():
    shapes()
    gathers()
    scatters()
