"""Writes curves.json beside it: the losses of 30 steps of small models by torch, in F64 on a CPU.

python3 make_curves.py [folder]; made with torch 2.15.0. Weights and data are those of models.py; four batches take turns.
"""

import json
import pathlib
import sys

import torch

from models import Frozen, Weights, bert, gpt2, gru, llama, mamba2, resnet

STEPS = 30


def decays(name, tensor):
    """As tercet::train does by default."""
    name = name.lower()
    return not (tensor.ndim <= 1 or name.endswith("bias") or "norm" in name)


def curve(loss_of, weights, make, trained=None):
    """`loss_of` gives the loss of a batch; the first call makes the weights."""
    loss_of(weights, 0)
    trained = weights if trained is None else trained
    groups = [
        {"params": [t for n, t in trained.items() if decays(n, t) == wanted], **({} if wanted else {"weight_decay": 0.0})}
        for wanted in (True, False)
    ]
    optimizer = make([g for g in groups if g["params"]])
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(weights, step % 4)
        loss.backward()
        losses.append(float(f"{loss.item():.9g}"))
        optimizer.step()
    return losses


def adamw(groups):
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)


def sgd(groups):
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01)


running = {}


def resnet_once(w, step):
    """The call that makes the weights must not move running statistics."""
    return resnet(w, step, running if w else {})


frozen = Frozen()
curves = {
    "bert_classes": curve(lambda w, step: bert(w, step, False), Weights(), adamw),
    "bert_pairs": curve(lambda w, step: bert(w, step, True), Weights(), adamw),
    "gpt2": curve(gpt2, Weights(), adamw),
    "llama": curve(llama, Weights(), adamw),
    "llama_lora": curve(lambda w, step: llama(w, step, 2), frozen, adamw, frozen.trained),
    "resnet_block": curve(resnet_once, Weights(), sgd),
    "gru": curve(gru, Weights(), adamw),
    "mamba2": curve(mamba2, Weights(), adamw),
}
states = {name: [float(f"{x:.9g}") for x in tensor.tolist()] for name, tensor in running.items()}
for name, losses in curves.items():
    print(name, losses[0], losses[-1])
folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
data = {"torch": torch.__version__.split("+")[0], "curves": curves, "running statistics of resnet_block": states}
(folder / "curves.json").write_text(json.dumps(data, indent=1) + "\n")
