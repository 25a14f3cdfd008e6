"""What the makers of gradients.json share: operands, cases, files."""

import json

import numpy as np
import torch

rng = np.random.default_rng(20261123)
CASES = []
NAMES = {np.dtype("float64"): "f32", np.dtype("int32"): "i32", np.dtype("bool"): "bool"}


def floats(*shape, lo=None, hi=None):
    """Multiples of 1/64, which F32 holds: normal, or uniform in a range."""
    x = rng.normal(size=shape) if lo is None else rng.uniform(lo, hi, size=shape)
    return np.asarray(np.round(np.asarray(x) * 64) / 64)


def apart(*shape):
    """Numbers of which no two are equal, nor near zero: for what has kinks."""
    n = int(np.prod(shape))
    x = (np.arange(n) - n // 2 + 0.5) / n * 4
    return np.round(rng.permutation(x) * 256).reshape(shape) / 256


def indices(n, *shape):
    return rng.integers(0, n, size=shape).astype(np.int32)


def numbers(array):
    """Nine digits: more than F32 has, fewer than would fill a file."""
    array = np.asarray(array)
    if array.dtype == bool:
        return [int(x) for x in array.reshape(-1)]
    if array.dtype == np.int32:
        return array.reshape(-1).tolist()
    spelled = (float(f"{x:.9g}") for x in array.reshape(-1).tolist())
    return [int(x) if x == int(x) else x for x in spelled]


def case(name, op, operands, function):
    """`op` is the operator with its attributes as the text form spells them, or a body of several nodes that ends in `%y`.

    `function` gets the operands as tensors in F64 (indices as integers) and returns the result, or several.
    """
    tensors = {}
    for key, array in operands.items():
        tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
        match NAMES[array.dtype]:
            case "f32":
                tensor.requires_grad_()
            case "i32":
                tensor = tensor.long()
        tensors[key] = tensor
    results = function(*tensors.values())
    results = results if isinstance(results, tuple) else (results,)
    cotangents = [floats(*r.shape) for r in results]
    wanted = {k: t for k, t in tensors.items() if t.requires_grad}
    gradients = torch.autograd.grad(
        results, list(wanted.values()), [torch.from_numpy(c) for c in cotangents]
    )
    lines = []
    for key, array in operands.items():
        ty = f"{NAMES[array.dtype]}[{', '.join(map(str, array.shape))}]"
        lines.append(f'%{key} = input{{name="{key}", ty={ty}}}()')
    body = op if "%y =" in op else f"%y = {op}({', '.join('%' + key for key in operands)})"
    ports = ["%y" if i == 0 else f"%y.{i}" for i in range(len(results))]
    lines += [body, "return " + ", ".join(f'{p} as "y{i}"' for i, p in enumerate(ports))]
    CASES.append({
        "name": name,
        "graph": "graph { " + " ".join(lines) + " }",
        "inputs": {key: numbers(array) for key, array in operands.items()},
        "outputs": [numbers(r.detach().numpy()) for r in results],
        "cotangents": [numbers(c) for c in cotangents],
        "gradients": {k: numbers(g.numpy()) for k, g in zip(wanted, gradients)},
    })


def write(path):
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in CASES)
    path.write_text(f'{{"torch":"{torch.__version__.split("+")[0]}","cases":[\n{lines}\n]}}\n')
    print(len(CASES), "cases,", path.stat().st_size, "bytes")
