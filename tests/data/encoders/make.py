"""Tiny text encoders with random weights, as Hugging Face folders, and what transformers computes of them.

    pip install torch transformers safetensors
    python make.py [NAME ...]

Each folder has config.json, model.safetensors (F16), and reference.json: two texts as tokens, of which the second is shorter,
the hidden states of their tokens in F32, and the logits of the head where the model has one. `sentence.py` makes the folders of
sentence encoders.
"""

import copy
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

import configs

torch.set_num_threads(1)
HERE = pathlib.Path(__file__).parent
LENS = (15, 6)
CLASSES = {"texts": 3, "tokens": 4}
MODELS = {
    "texts": transformers.AutoModelForSequenceClassification,
    "tokens": transformers.AutoModelForTokenClassification,
    None: transformers.AutoModel,
}


def randomize(model, seed):
    """Weights as wide as trained ones are for their inputs, gains about 1, biases about 0."""
    draw = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=draw)
        if p.dim() > 1:
            wide = "embed" in name or "bias" in name
            x = x if wide else 1.5 * x / p.shape[-1] ** 0.5
        elif name.endswith("weight"):
            x = 1 + 0.3 * x
        else:
            x = 0.3 * x
        p.data.copy_(x.half().float())


def texts(config, seed):
    """Tokens, segments and mask; the second text has a padding token in its middle, as texts may."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(6, config.vocab_size, (2, max(LENS)), generator=draw)
    types = torch.zeros_like(ids)
    mask = torch.zeros_like(ids)
    for row, n in enumerate(LENS):
        mask[row, :n] = 1
        ids[row, n:] = config.pad_token_id
        types[row, n // 2 : n] = 1
    ids[1, 3] = config.pad_token_id
    return ids, types, mask


def listed(t, digits=5):
    return [float(f"{x:.{digits}g}") for x in t.flatten().tolist()]


@torch.no_grad()
def reference(model, head, seed):
    config = model.config
    ids, types, mask = texts(config, seed)
    # Pass segment ids only for the families whose tokenizers in transformers return them.
    segments = config.model_type in ("bert", "electra", "nomic_bert")
    inputs = {"input_ids": ids, "attention_mask": mask}
    if segments:
        inputs["token_type_ids"] = types
    hidden = model.base_model(**inputs).last_hidden_state
    found = {
        "ids": [row[:n].tolist() for row, n in zip(ids, LENS)],
        "type_ids": [row[:n].tolist() for row, n in zip(types, LENS)] if segments else None,
        "hidden": [listed(row[:n]) for row, n in zip(hidden, LENS)],
    }
    if head:
        logits = model(**inputs).logits
        rows = logits if head == "texts" else [row[:n] for row, n in zip(logits, LENS)]
        found["logits"] = [listed(row, 7) for row in rows]
    return found


def first_nomic(fields):
    """The library's fields for those of the family's first folders."""
    return {
        "model_type": "nomic_bert", "hidden_size": fields["n_embd"], "num_attention_heads": fields["n_head"],
        "intermediate_size": fields["n_inner"], "num_hidden_layers": fields["n_layer"], "vocab_size": fields["vocab_size"],
        "max_position_embeddings": fields["n_positions"], "layer_norm_eps": fields["layer_norm_epsilon"], "hidden_act": "silu",
        "type_vocab_size": fields["type_vocab_size"],
        "rope_parameters": {"rope_type": "default", "rope_theta": float(fields["rotary_emb_base"])},
    }


def first_names(tensors):
    """Their names, with Q, K and V in one."""
    renamed = {
        "layers.": "encoder.layers.", "embeddings.LayerNorm": "emb_ln", "self_attn.o_proj": "attn.out_proj", "up_proj": "fc11",
        "gate_proj": "fc12", "down_proj": "fc2", "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2",
    }
    old = {}
    for name, t in tensors.items():
        if "k_proj" in name or "v_proj" in name or name.startswith("pooler"):
            continue
        if "q_proj" in name:
            t = torch.cat([tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
            name = name.replace("self_attn.q_proj", "attn.Wqkv")
        for new, first in renamed.items():
            name = name.replace(new, first)
        old[name] = t
    return old


def make(name, fields, head, style):
    out = HERE / name
    out.mkdir(exist_ok=True)
    labels = [f"{head}-{i}" for i in range(CLASSES[head])] if head else []
    fields = dict(fields)
    if head:
        fields |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    own = first_nomic(fields) if style == "old" else fields
    config = transformers.AutoConfig.for_model(**copy.deepcopy(own))
    model = MODELS[head].from_config(config, attn_implementation="eager").float().eval()
    seed = sum(map(ord, name))
    randomize(model, seed)
    # `config.json` as in published folders, or as transformers writes it.
    text = fields if style != "library" else json.loads(config.to_json_string())
    text = {k: v for k, v in text.items() if not k.startswith("_")} | {"architectures": [type(model).__name__]}
    (out / "config.json").write_text(json.dumps(text, indent=1) + "\n")
    tensors = {n: t.half().contiguous() for n, t in model.state_dict().items() if t.is_floating_point()}
    if style == "old":
        tensors = first_names(tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "reference.json").write_text(json.dumps(reference(model, head, seed)) + "\n")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{name}: {size / 1024:.1f} KiB")


if __name__ == "__main__":
    for name, (fields, head, style) in configs.CONFIGS.items():
        if len(sys.argv) < 2 or any(name.startswith(a) for a in sys.argv[1:]):
            make(name, fields, head, style)
