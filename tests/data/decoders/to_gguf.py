"""GGUF files of tiny decoders, as llama.cpp's converter lays them out: names, permuted rows of Q and K, gains with 1 added."""

import math

import gguf
import numpy as np

# model_type -> architecture, whether rows of Q and K are permuted, whether 1 is added to gains.
FAMILIES = {
    "llama": ("llama", True, False), "mistral": ("llama", True, False), "smollm3": ("smollm3", True, False),
    "qwen2": ("qwen2", False, False), "qwen3": ("qwen3", False, False),
    "gemma": ("gemma", False, True), "gemma2": ("gemma2", False, True), "gemma3_text": ("gemma3", False, True),
    "phi": ("phi2", False, False), "phi3": ("phi3", False, False), "granite": ("granite", True, False),
    "olmo2": ("olmo2", False, False), "cohere": ("command-r", False, False), "cohere2": ("cohere2", False, False),
    "mixtral": ("llama", True, False), "qwen2_moe": ("qwen2moe", False, False), "qwen3_moe": ("qwen3moe", False, False),
    "stablelm": ("stablelm", False, False), "starcoder2": ("starcoder2", False, False),
    "gpt_neox": ("gptneox", False, False),
}

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.final_layernorm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output", "self_attn.dense": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    "gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output",
    "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}


def renamed(name, post_norms):
    base, suffix = name.rsplit(".", 1)
    if base in NAMES:
        return f"{NAMES[base]}.{suffix}"
    _, _, layer, part = base.split(".", 3)
    if part == "post_attention_layernorm":
        return f"blk.{layer}.{'post_attention_norm' if post_norms else 'ffn_norm'}.{suffix}"
    return f"blk.{layer}.{NAMES[part]}.{suffix}"


EXPERTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


def joined_experts(tensors):
    """The matrices of a layer's experts behind each other."""
    joined, experts = {}, {}
    for name, x in tensors.items():
        if ".experts." in name:
            _, _, layer, *_, part, _ = name.split(".")
            experts.setdefault(f"blk.{layer}.ffn_{EXPERTS[part]}_exps.weight", []).append(x)
        else:
            joined[name] = x
    return joined, {name: np.stack(all) for name, all in experts.items()}


def permuted(x, heads):
    """Halves of each head's rows become pairs."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def rope_keys(w, c, arch, head_dim):
    rope = getattr(c, "rope_parameters", None) or {}
    full = rope.get("full_attention", rope)
    w.add_rope_freq_base(float(full.get("rope_theta", 10000.0)))
    if "sliding_attention" in rope:
        w.add_float32(f"{arch}.rope.freq_base_swa", float(rope["sliding_attention"]["rope_theta"]))
    dims = int(head_dim * full.get("partial_rotary_factor", getattr(c, "partial_rotary_factor", None) or 1.0))
    w.add_rope_dimension_count(dims)
    kind = full.get("rope_type", "default")
    freqs = None
    if kind in ("linear", "yarn"):
        w.add_string(f"{arch}.rope.scaling.type", kind)
        w.add_float32(f"{arch}.rope.scaling.factor", float(full["factor"]))
    if kind == "yarn":
        w.add_uint32(f"{arch}.rope.scaling.original_context_length", full["original_max_position_embeddings"])
    if kind == "llama3":
        freqs = []
        for i in range(dims // 2):
            freq = full["rope_theta"] ** -(2 * i / dims)
            turns = full["original_max_position_embeddings"] * freq / (2 * math.pi)
            low, high, factor = full["low_freq_factor"], full["high_freq_factor"], full["factor"]
            smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
            freqs.append(1 / ((1 - smooth) / factor + smooth))
        w.add_tensor("rope_freqs.weight", np.array(freqs, np.float32))
    if kind == "longrope":
        original = full.get("original_max_position_embeddings") or c.original_max_position_embeddings
        w.add_uint32(f"{arch}.rope.scaling.original_context_length", original)
        factor = c.max_position_embeddings / original
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        w.add_float32(f"{arch}.rope.scaling.attn_factor", attention)
        for which in ("long", "short"):
            w.add_tensor(f"rope_factors_{which}.weight", np.array(full[f"{which}_factor"], np.float32))


def write_gguf(path, c, tensors):
    arch, permutes, one_plus = FAMILIES[c.model_type]
    w = gguf.GGUFWriter(path, arch)
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    kv = getattr(c, "num_key_value_heads", None) or c.num_attention_heads
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(kv)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    for field, add in [
        ("rms_norm_eps", w.add_layer_norm_rms_eps), ("layer_norm_eps", w.add_layer_norm_eps), ("norm_epsilon", w.add_layer_norm_eps),
        ("attn_logit_softcapping", w.add_attn_logit_softcapping), ("final_logit_softcapping", w.add_final_logit_softcapping),
        ("embedding_multiplier", w.add_embedding_scale), ("residual_multiplier", w.add_residual_scale),
        ("attention_multiplier", w.add_attention_scale), ("logits_scaling", w.add_logit_scale), ("logit_scale", w.add_logit_scale),
        ("use_parallel_residual", w.add_parallel_residual),
    ]:
        value = getattr(c, field, None)
        if value is None and "softcapping" in field and c.model_type == "gemma2":
            # 0 is none: its files must say.
            value = 0.0
        if value is not None:
            add(value)
    if c.model_type in ("mistral", "mixtral", "gemma2", "gemma3_text", "cohere2", "phi3") and c.sliding_window:
        w.add_sliding_window(c.sliding_window)
    w.add_bos_token_id(c.bos_token_id)
    w.add_eos_token_id(c.eos_token_id)
    rope_keys(w, c, arch, head_dim)
    experts = getattr(c, "num_local_experts", None) or getattr(c, "num_experts", None)
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(c.num_experts_per_tok)
        if getattr(c, "moe_intermediate_size", None):
            w.add_expert_feed_forward_length(c.moe_intermediate_size)
        if getattr(c, "shared_expert_intermediate_size", None):
            w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
    tensors, experts = joined_experts(tensors)
    for name, x in experts.items():
        w.add_tensor(name, x)
    post_norms = "gemma2" in arch or "gemma3" in arch or arch == "olmo2"
    for name, x in tensors.items():
        if permutes and ".q_proj." in name:
            x = permuted(x, c.num_attention_heads)
        if permutes and ".k_proj." in name:
            x = permuted(x, kv)
        if ".query_key_value." in name:
            # Q, K and V of each head become those of all heads.
            x = x.reshape(c.num_attention_heads, 3, head_dim, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
        if x.ndim == 1:
            x = x.astype(np.float32)
            x = x + 1 if one_plus and name.endswith("norm.weight") else x
        if "shared_expert_gate." in name:
            # One row is a vector there.
            x = x.reshape(-1).astype(np.float32)
        w.add_tensor(renamed(name, post_norms), np.ascontiguousarray(x))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
