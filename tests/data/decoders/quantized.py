"""Tiny decoders whose matrices are stored as GPTQ, AWQ, fp8, compressed-tensors and bitsandbytes store them, and what
transformers computes with the values that they stand for.

    pip install bitsandbytes
    python quantized.py [NAME ...]

Weights are rounded to nearest: how codes were found is not what a reader is tested on.
"""

import json
import pathlib
import sys

import bitsandbytes.functional
import torch
import transformers
from safetensors.torch import save_file

from configs import base
from make import CODES, GAP, randomize, reference

HERE = pathlib.Path(__file__).parent
RMS = {"rms_norm_eps": 1e-5}
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 32, "vocab_size": 64}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def groups_of(w, group):
    return w.reshape(w.shape[0], -1, group)


def ranged(w, group, bits):
    """Codes, scales and zero points of groups of columns, from their ranges."""
    g = groups_of(w, group)
    low, high = g.amin(-1).clamp(max=0), g.amax(-1).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).half().float()
    # Zero points start at 1, because the format stores them minus 1.
    zero = (-low / scale).round().clamp(1, 2**bits - 1)
    codes = (g / scale[..., None] + zero[..., None]).round().clamp(0, 2**bits - 1)
    value = (scale[..., None] * (codes - zero[..., None])).reshape(w.shape)
    return codes.reshape(w.shape).long(), scale, zero.long(), value


def words(codes, bits, order=None):
    """Codes along the last axis in words of 32 bits, the first lowest unless an order says otherwise."""
    per = 32 // bits
    parts = codes.reshape(*codes.shape[:-1], -1, per)
    order = order or range(per)
    word = sum(parts[..., at] << (bits * place) for place, at in enumerate(order))
    return torch.where(word >= 2**31, word - 2**32, word).int().contiguous()


def gptq(w, bits=4, group=32):
    codes, scale, zero, value = ranged(w, group, bits)
    return value, {
        "qweight": words(codes, bits).t().contiguous(),
        "qzeros": words((zero - 1).t().contiguous(), bits),
        "scales": scale.t().half().contiguous(),
        "g_idx": torch.arange(w.shape[1]).int() // group,
    }


def ordered(w, group=32):
    """GPTQ with columns in the order of activations: of each group, the columns are anywhere."""
    order = torch.randperm(w.shape[1], generator=torch.Generator().manual_seed(w.shape[1]))
    value, parts = gptq(w[:, order], 4, group)
    back = torch.argsort(order)
    codes, _, _, _ = ranged(w[:, order], group, 4)
    parts["qweight"] = words(codes[:, back], 4).t().contiguous()
    parts["g_idx"] = parts["g_idx"][back].contiguous()
    return value[:, back].half().float(), parts


def nf4(w):
    codes, state = bitsandbytes.functional.quantize_4bit(w.bfloat16(), quant_type="nf4", compress_statistics=True)
    parts = {f"weight.{end}": part for end, part in state.as_dict(packed=True).items()}
    return bitsandbytes.functional.dequantize_4bit(codes, state).float(), parts | {"weight": codes}


def llm_int8(w):
    codes, rows, _ = bitsandbytes.functional.int8_vectorwise_quant(w.half())
    value = bitsandbytes.functional.int8_vectorwise_dequant(codes, rows).half().float()
    return value, {"weight": codes, "SCB": rows, "weight_format": torch.tensor(0, dtype=torch.uint8)}


def awq(w, group=64):
    codes, scale, zero, value = ranged(w, group, 4)
    return value, {
        "qweight": words(codes.t().contiguous(), 4, AWQ_ORDER),
        "qzeros": words(zero.t().contiguous(), 4, AWQ_ORDER),
        "scales": scale.t().half().contiguous(),
    }


def float8(w, scale, end):
    codes = (w / scale).to(torch.float8_e4m3fn)
    return codes.float() * scale, {"weight": codes, f"weight_{end}": scale}


def tiles(w):
    parts = w.reshape(w.shape[0] // 64 if w.shape[0] < 128 else w.shape[0] // 128, -1, w.shape[1] // 128, 128)
    scale = (parts.abs().amax((1, 3)) / 448).float()
    full = scale.repeat_interleave(parts.shape[1], 0).repeat_interleave(128, 1)
    value, parts = float8(w, full, "scale_inv")
    return value, parts | {"weight_scale_inv": scale}


def channels(w):
    return float8(w, (w.abs().amax(1, keepdim=True) / 448).bfloat16().float(), "scale")


def bf16_scale(w, most, group):
    return (groups_of(w, group).abs().amax(-1) / most).bfloat16().float()


def packed(w, bits=4, group=32):
    scale = bf16_scale(w, 2 ** (bits - 1) - 1, group)
    half = 2 ** (bits - 1)
    codes = (groups_of(w, group) / scale[..., None]).round().clamp(-half, half - 1)
    return (codes * scale[..., None]).reshape(w.shape), {
        "weight_packed": words((codes.reshape(w.shape) + half).long(), bits),
        "weight_scale": scale.bfloat16(),
        "weight_shape": torch.tensor(w.shape),
    }


def int8(w):
    scale = bf16_scale(w, 127, w.shape[1])
    codes = (w / scale).round().clamp(-128, 127)
    return codes * scale, {"weight": codes.to(torch.int8), "weight_scale": scale.bfloat16()}


def nearest_float4(x):
    return (x[..., None] - CODES).abs().argmin(-1)


def pairs(codes):
    codes = codes.to(torch.uint8)
    return (codes[..., ::2] | codes[..., 1::2] << 4).contiguous()


def nvfp4(w):
    g = groups_of(w, 16)
    whole = 448 * 6 / w.abs().max()
    scale = (g.abs().amax(-1) / 6 * whole).to(torch.float8_e4m3fn)
    step = scale.float() / whole
    codes = nearest_float4(g / step[..., None].clamp(min=1e-12))
    return (CODES[codes] * step[..., None]).reshape(w.shape), {
        "weight_packed": pairs(codes.reshape(w.shape)),
        "weight_scale": scale,
        "weight_global_scale": whole.reshape(1),
    }


def mxfp4(w):
    g = groups_of(w, 32)
    exponent = torch.ceil(torch.log2(g.abs().amax(-1).clamp(min=1e-9) / 6))
    codes = nearest_float4(g / torch.exp2(exponent)[..., None])
    return (CODES[codes] * torch.exp2(exponent)[..., None]).reshape(w.shape), {
        "weight_packed": pairs(codes.reshape(w.shape)),
        "weight_scale": (exponent + 127).to(torch.uint8),
    }


def compressed(form, **weights):
    scheme = {"symmetric": True, "dynamic": False, "actorder": None} | weights
    group = {"targets": ["Linear"], "weights": scheme, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
    }


LLAMA = base("llama", rope_theta=10000.0, **(RMS | SIZES))
QWEN2 = base("qwen2", rope_theta=1000000.0, use_sliding_window=False, **({"rms_norm_eps": 1e-6} | SIZES))
MOE = base("mixtral", num_local_experts=2, num_experts_per_tok=1, rope_theta=1000000.0, sliding_window=None, **(RMS | SIZES | {"intermediate_size": 128}))
GPT2 = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 128, "vocab_size": 48,
    "activation_function": "gelu_new", "bos_token_id": 1, "eos_token_id": 2, "layer_norm_epsilon": 1e-5,
}
BNB = {"quant_method": "bitsandbytes", "llm_int8_skip_modules": ["lm_head"], "llm_int8_threshold": 6.0}
FOUR = BNB | {"load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
EIGHT = BNB | {"load_in_4bit": False, "load_in_8bit": True, "bnb_4bit_quant_type": "fp4"}
MODELS = {
    "ordered-b": (LLAMA, ordered, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True}),
    "nf4-b": (QWEN2, nf4, FOUR | {"bnb_4bit_compute_dtype": "bfloat16"}),
    # GPT-2 folders store matrices transposed; the matrices of this model are transposed back before quantization.
    "turned-b": (GPT2, llm_int8, EIGHT),
    "gptq-a": (LLAMA, gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}),
    "gptq-b": (QWEN2, lambda w: gptq(w, 8, 128), {"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": False, "desc_act": False}),
    "awq-b": (MOE, awq, {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}),
    "fp8-b": (LLAMA, tiles, {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}),
    "channels-b": (LLAMA, channels, compressed("float-quantized", num_bits=8, type="float", strategy="channel")),
    "packed-b": (LLAMA, packed, compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32)),
    "int8-b": (QWEN2, int8, compressed("int-quantized", num_bits=8, type="int", strategy="channel")),
    "nvfp4-b": (LLAMA, nvfp4, compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)),
    "mxfp4-b": (LLAMA, mxfp4, compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32)),
}


def matrices(model):
    """The matrices that are quantised, and how to say what they become: names, values, the tensor they are in."""
    for name, p in model.named_parameters():
        if name.endswith("experts.gate_up_proj"):
            base_name = name.replace(".mlp.", ".block_sparse_moe.").removesuffix("gate_up_proj")
            for e in range(p.shape[0]):
                half = p.shape[1] // 2
                yield f"{base_name}{e}.w1", p.data[e, :half], name
                yield f"{base_name}{e}.w3", p.data[e, half:], name
        elif name.endswith("experts.down_proj"):
            base_name = name.replace(".mlp.", ".block_sparse_moe.").removesuffix("down_proj")
            for e in range(p.shape[0]):
                yield f"{base_name}{e}.w2", p.data[e], name
        elif name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            yield name.removesuffix(".weight"), p.data.t(), name
        elif name.endswith("_proj.weight"):
            yield name.removesuffix(".weight"), p.data, name


@torch.no_grad()
def make(name):
    fields, pack, quantization = MODELS[name]
    out = HERE / name
    out.mkdir(exist_ok=True)
    config = transformers.AutoConfig.for_model(**fields)
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager").float().eval()
    for seed in range(200):
        randomize(model, seed)
        tensors, gone = {}, set()
        for base_name, w, owner in matrices(model):
            value, parts = pack(w.float())
            w.copy_(value)
            gone.add(owner)
            tensors |= {f"{base_name}.{end}": t.contiguous() for end, t in parts.items()}
        gap, found = reference(model, config.vocab_size, seed)
        if gap > GAP and len(set(found["greedy"])) > 8:
            break
    else:
        raise SystemExit(f"{name}: no seed without close logits")
    for n, t in model.state_dict().items():
        is_copy = n == "lm_head.weight" and config.tie_word_embeddings
        if n not in gone and "inv_freq" not in n and not is_copy:
            own = n.replace(".mlp.gate.", ".block_sparse_moe.gate.") if config.model_type == "mixtral" else n
            tensors[own] = t.half().contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    text = fields | {"quantization_config": quantization}
    (out / "config.json").write_text(json.dumps(text, indent=1) + "\n")
    (out / "reference.json").write_text(json.dumps(found) + "\n")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{name}: seed {seed}, gap {gap:.4f}, {size // 1024} KiB")


if __name__ == "__main__":
    for name in MODELS:
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            make(name)
