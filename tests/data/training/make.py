"""Writes torch.json beside it: a linear regression trained by torch's own optimizers, in F64 on a CPU.

python3 make.py [folder]; made with torch 2.11.0.
"""

import json
import pathlib
import sys

import torch

STEPS = 8
torch.manual_seed(7)
DTYPE = torch.float64


def rounded(tensor):
    """Numbers that F32 holds, so that both sides start from the same."""
    return tensor.to(torch.float32).to(DTYPE)


x = rounded(torch.randn(8, 3, dtype=DTYPE))
y = rounded(torch.randn(8, 2, dtype=DTYPE) * 3 + 1)
w0 = rounded(torch.randn(3, 2, dtype=DTYPE))
b0 = rounded(torch.randn(2, dtype=DTYPE))


def run(name, make, clip):
    w = w0.clone().requires_grad_()
    b = b0.clone().requires_grad_()
    optimizer = make([w, b])
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(x @ w + b, y)
        loss.backward()
        most = clip if clip is not None else float("inf")
        norms.append(torch.nn.utils.clip_grad_norm_([w, b], most).item())
        losses.append(loss.item())
        optimizer.step()
    return {
        "name": name,
        "clip": clip,
        "loss": losses,
        "gradient_norm": norms,
        "w": w.detach().flatten().tolist(),
        "b": b.tolist(),
    }


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True)


def adamw(params):
    return torch.optim.AdamW(params, lr=0.05, weight_decay=0.1)


folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
data = {
    "torch": torch.__version__.split("+")[0],
    "x": x.flatten().tolist(),
    "y": y.flatten().tolist(),
    "w": w0.flatten().tolist(),
    "b": b0.tolist(),
    "runs": [
        run("sgd", sgd, None),
        run("sgd", sgd, 0.5),
        run("adamw", adamw, None),
        run("adamw", adamw, 0.5),
    ],
}
(folder / "torch.json").write_text(json.dumps(data, indent=1) + "\n")
