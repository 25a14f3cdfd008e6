"""Tiny decoders with random weights, as Hugging Face folders and as GGUF files, and what transformers computes of them.

    pip install torch transformers gguf safetensors
    python make.py [NAME ...]
    python make.py --gguf NAME ...

Each folder has config.json, model.safetensors (F16), model.gguf where the converter knows the model, and reference.json:
a prompt, the logits of its last token in F32, 64 greedy tokens, the logits after all of them. Seeds are chosen so that no
greedy token is nearly another one.
"""

import copy
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

import configs
from to_gguf import knows, write_gguf

torch.set_num_threads(1)
HERE = pathlib.Path(__file__).parent
PROMPT, GREEDY = 20, 64
# Minimum difference of the two greatest logits, relative to the standard deviation of all logits.
GAP = 4e-3


def randomize(model, seed):
    """Weights as wide as trained ones are for their inputs, gains about 1, biases about 0."""
    draw = torch.Generator().manual_seed(seed)
    is_gemma = model.config.model_type.startswith("gemma")
    one_plus = is_gemma or model.config.model_type.startswith(("qwen3_next", "qwen3_5"))
    # With a tied embedding, every token predicts itself unless the embedding is small.
    width = 0.3 if model.config.tie_word_embeddings else 1.0
    width = 0.1 if is_gemma else width
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=draw)
        if name.endswith("A_log") and p.dim() > 1:
            x = torch.log(0.2 + 2 * x.abs())
        elif name.endswith("dt_proj.bias"):
            x = x - 1
        elif p.dim() > 1:
            is_table = any(part in name for part in ("embed", "wte", "wpe"))
            x = width * x if is_table else 1.5 * x / p.shape[-1] ** 0.5
        elif name.endswith("A_log"):
            x = torch.log(0.2 + 2 * x.abs())
        elif name.endswith(("weight", ".D")) and (not one_plus or "linear_attn" in name):
            x = 1 + 0.3 * x
        else:
            x = 0.3 * x
        p.data.copy_(x.half().float())
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_((0.3 * torch.randn(buffer.shape, generator=draw)).half().float())


# The values that the codes of MXFP4 stand for.
CODES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
CODES = torch.cat([CODES, -CODES])


def quantized(p):
    """A parameter `[expert, inputs, outputs]` as MXFP4 `[expert, outputs, blocks]`: codes, two in a byte, and scales. It becomes
    what they say."""
    x = p.data.transpose(1, 2)
    x = x.reshape(*x.shape[:2], -1, 32)
    most = x.abs().amax(-1).clamp(min=1e-9)
    exponent = torch.ceil(torch.log2(most / 6))
    scale = torch.exp2(exponent)[..., None]
    codes = (x[..., None] / scale[..., None] - CODES).abs().argmin(-1)
    p.data.copy_((CODES[codes] * scale).flatten(2).transpose(1, 2))
    codes = codes.to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponent + 127).to(torch.uint8)


def quantize(model):
    """Packs the experts and gives their tensors by name."""
    packed = {}
    for name, p in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed[f"{name}_blocks"], packed[f"{name}_scales"] = quantized(p)
    return packed


# Tensor names that differ between transformers' modules and published folders.
RENAMED = {
    "granitemoe": {
        "block_sparse_moe.router.weight": "block_sparse_moe.router.layer.weight",
        "block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear.weight",
        "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear.weight",
    },
    "gpt_oss": {},
}
RENAMED["granitemoeshared"] = RENAMED["granitemoehybrid"] = RENAMED["granitemoe"]
RENAMED["falcon_h1"] = RENAMED["qwen3_5_moe_text"] = {}


def experts_apart(tensors, model_type):
    """The library joins experts in memory; files have each by itself."""
    if model_type in RENAMED:
        def renamed(name):
            for own, of_files in RENAMED[model_type].items():
                name = name.replace(own, of_files)
            return name
        return {renamed(name): t for name, t in tensors.items()}
    if model_type == "nemotron_h":
        tensors = {f"backbone.{n.removeprefix('model.')}" if n.startswith("model.") else n: t for n, t in tensors.items()}
    mixtral = model_type == "mixtral"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    apart = {}
    for name, t in tensors.items():
        base = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(t):
                first, second = both.chunk(2)
                at = base.removesuffix("gate_up_proj")
                apart[f"{at}{e}.{gate}.weight"] = first.contiguous()
                apart[f"{at}{e}.{up}.weight"] = second.contiguous()
        elif name.endswith(("experts.down_proj", "experts.up_proj")):
            own, of_files = base.rsplit(".", 1)[1], {"down_proj": down, "up_proj": up}
            for e, one in enumerate(t):
                apart[f"{base.removesuffix(own)}{e}.{of_files[own]}.weight"] = one.contiguous()
        else:
            apart[base] = t
    return apart


def older_name(name):
    """What hubs' files call a tensor of a model around a language model."""
    for own in ("vision_tower.", "multi_modal_projector."):
        name = name.replace(f"model.{own}", own)
    name = name.replace("model.language_model.", "language_model.model.")
    return name.replace("lm_head.", "language_model.lm_head.")


@torch.no_grad()
def reference(model, vocab, seed):
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab, (PROMPT,), generator=draw).tolist()
    prompt, gap, first = list(tokens), 1e9, None
    for _ in range(GREEDY + 1):
        logits = model(torch.tensor([tokens])).logits[0, -1].float()
        first = logits if first is None else first
        top = logits.topk(2).values
        gap = min(gap, ((top[0] - top[1]) / logits.std()).item())
        last = logits
        tokens.append(int(logits.argmax()))
    # The last generated token is the argmax of the last logits.
    return gap, {
        "prompt": prompt,
        "logits": [round(x, 6) for x in first.tolist()],
        "greedy": tokens[PROMPT : PROMPT + GREEDY],
        "last_logits": [round(x, 6) for x in last.tolist()],
    }


def make(name, fields, style):
    out = HERE / name
    out.mkdir(exist_ok=True)
    built = {k: v for k, v in fields.items() if k != "quantization_config"}
    is_packed = built != fields
    config = transformers.AutoConfig.for_model(**copy.deepcopy(built))
    config._attn_implementation = config._experts_implementation = "eager"
    sees = "vision_config" in fields
    kind = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager", experts_implementation="eager").float().eval()
    for seed in range(200):
        randomize(model, seed)
        packed = quantize(model) if is_packed else {}
        gap, found = reference(model, config.get_text_config().vocab_size, seed)
        if gap > GAP and len(set(found["greedy"])) > 8:
            break
    else:
        raise SystemExit(f"{name}: no seed without close logits")
    # `config.json` as in published folders, or as transformers writes it.
    text = json.loads(config.to_json_string()) if style == "library" else fields
    text = {k: v for k, v in text.items() if not k.startswith("_") or k == "_sliding_window_pattern"}
    (out / "config.json").write_text(json.dumps(text, indent=1) + "\n")
    tied = getattr(config, "tie_word_embeddings", False)
    tensors = {
        n: t.half().contiguous()
        for n, t in model.state_dict().items()
        if not (tied and n == "lm_head.weight") and "inv_freq" not in n and f"{n}_blocks" not in packed
    }
    tensors = experts_apart(tensors, config.model_type) | packed
    if sees and style == "hub":
        tensors = {older_name(n): t for n, t in tensors.items()}
    if style == "bare":
        # As in the first GPT-2 folders: tensor names lack the prefix, and causal masks are stored.
        tensors = {n.removeprefix("transformer."): t for n, t in tensors.items()}
        for layer in range(config.n_layer):
            tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 4, 4).tril()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "reference.json").write_text(json.dumps(found) + "\n")
    if knows(config):
        write_gguf(out / "model.gguf", config, {n: t.numpy() for n, t in tensors.items()}, name in configs.PARTED)
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{name}: seed {seed}, gap {gap:.4f}, {size // 1024} KiB")


def convert(name, fields):
    """Only the GGUF file, of the folder that is there."""
    built = {k: v for k, v in fields.items() if k != "quantization_config"}
    config = transformers.AutoConfig.for_model(**copy.deepcopy(built))
    tensors = load_file(HERE / name / "model.safetensors")
    if knows(config):
        write_gguf(HERE / name / "model.gguf", config, {n: t.numpy() for n, t in tensors.items()}, name in configs.PARTED)
        print(f"{name}: {(HERE / name / 'model.gguf').stat().st_size // 1024} KiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--gguf"]:
        for name in sys.argv[2:]:
            convert(name, dict(configs.CONFIGS[name][0]))
        raise SystemExit
    for name, (fields, style) in configs.CONFIGS.items():
        if len(sys.argv) < 2 or any(name.startswith(a) for a in sys.argv[1:]):
            make(name, dict(fields), style)
