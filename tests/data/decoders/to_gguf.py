"""GGUF files of tiny decoders, as llama.cpp's converter lays them out: names, permuted rows of Q and K, gains with 1 added."""

import math

import gguf
import numpy as np

# By `model_type`: the GGUF architecture, whether rows of Q and K are permuted, and whether 1 is added to norm gains.
FAMILIES = {
    "llama": ("llama", True, False), "mistral": ("llama", True, False), "ministral3": ("mistral3", True, False), "mistral3": ("mistral3", True, False), "smollm3": ("smollm3", True, False),
    "qwen2": ("qwen2", False, False), "qwen3": ("qwen3", False, False),
    "gemma": ("gemma", False, True), "gemma2": ("gemma2", False, True), "gemma3_text": ("gemma3", False, True),
    "phi": ("phi2", False, False), "phi3": ("phi3", False, False), "granite": ("granite", True, False),
    "olmo2": ("olmo2", False, False), "olmo3": ("olmo2", False, False), "cohere": ("command-r", False, False), "cohere2": ("cohere2", False, False),
    "mixtral": ("llama", True, False), "qwen2_moe": ("qwen2moe", False, False), "qwen3_moe": ("qwen3moe", False, False),
    "stablelm": ("stablelm", False, False), "starcoder2": ("starcoder2", False, False),
    "gpt_neox": ("gptneox", False, False), "gpt2": ("gpt2", False, False), "falcon": ("falcon", False, False),
    "granitemoe": ("granitemoe", True, False), "granitemoeshared": ("granitemoe", True, False), "gpt_oss": ("gpt-oss", False, False),
    "mamba": ("mamba", False, False), "falcon_mamba": ("mamba", False, False), "mamba2": ("mamba2", False, False),
    "granitemoehybrid": ("granitehybrid", True, False), "nemotron_h": ("nemotron_h", False, False),
    "qwen3_5_text": ("qwen35", False, True), "qwen3_5_moe_text": ("qwen35moe", False, True),
    "falcon_h1": ("falcon-h1", False, False), "qwen3_next": ("qwen3next", False, True),
    "deepseek_v2": ("deepseek2", False, False), "deepseek_v3": ("deepseek2", False, False),
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
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "transformer.word_embeddings": "token_embd",
    "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output", "ln_mlp": "attn_norm", "ln_attn": "attn_norm_2",
    "block_sparse_moe.router.layer": "ffn_gate_inp", "block_sparse_moe.output_linear": "ffn_down_exps", "shared_mlp.output_linear": "ffn_down_shexp",
    "mlp.router": "ffn_gate_inp", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm", "norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.conv1d": "ssm_conv1d",
    "mixer.x_proj": "ssm_x", "mixer.dt_proj": "ssm_dt", "mixer.out_proj": "ssm_out", "mixer.norm": "ssm_norm",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output", "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp", "mixer.shared_experts.up_proj": "ffn_up_shexp", "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up",
    "pre_ff_layernorm": "ffn_norm", "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down",
    "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d", "mamba.norm": "ssm_norm", "mamba.out_proj": "ssm_out",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out", "linear_attn.in_proj_ba": "ssm_ba",
    "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}


def knows(c):
    """Whether the converter has this kind of model: not Falcon with halves one after the other, nor gpt-oss with gates bounded by
    another number than 7, nor scans with bounded steps."""
    if c.model_type not in FAMILIES:
        return False
    serial = c.model_type == "falcon" and not c.new_decoder_architecture and not c.parallel_attn
    bounded = list(getattr(c, "time_step_limit", [0.0, math.inf])) != [0.0, math.inf]
    if c.model_type == "falcon_h1":
        # GGUF files of Falcon-H1 contain the scale factors in matrices; biases and tied embeddings cannot contain them.
        bounded = bounded or c.attention_bias or c.mlp_bias or c.mamba_proj_bias or c.projectors_bias or c.tie_word_embeddings
        bounded = bounded or (c.mamba_rms_norm and c.mamba_norm_before_gate)
    if c.model_type == "qwen3_next":
        bounded = bounded or not c.norm_topk_prob
    if c.model_type == "granitemoehybrid":
        # The converter always disables rotary embedding for models with scans.
        bounded = bounded or c.position_embedding_type == "rope"
    if c.model_type == "nemotron_h" and "moe" in c.layer_types:
        bounded = bounded or c.mlp_bias
    return not serial and not bounded and getattr(c, "swiglu_limit", 7.0) == 7.0


def renamed(name, post_norms):
    if name.endswith("e_score_correction_bias"):
        return f"blk.{name.split('.')[2]}.exp_probs_b.bias"
    if name.endswith("sinks"):
        return f"blk.{name.split('.')[2]}.attn_sinks.weight"
    if name.endswith((".A_log", ".D", ".dt_bias")):
        own = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias"}[name.rsplit(".", 1)[1]]
        return f"blk.{name.split('.')[2]}.{own}"
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


def parted(tensors, model_type):
    """Gates and projections up of one tensor as two; experts of gpt-oss with rows as others have them, packed ones as well."""
    apart, packed = {}, {}
    for name, x in tensors.items():
        at = f"blk.{name.split('.')[2]}" if ".layers." in name else ""
        if name.endswith("input_linear.weight"):
            # Without routed experts, the shared expert is stored as the plain feed-forward network.
            shared = "_shexp" if any("block_sparse_moe" in n for n in tensors) else ""
            kind = shared if "shared_mlp" in name else "_exps"
            gate, up = np.split(x, 2, axis=-2)
            apart[f"{at}.ffn_gate{kind}.weight"], apart[f"{at}.ffn_up{kind}.weight"] = gate, up
        elif name.endswith("shared_mlp.output_linear.weight") and not any("block_sparse_moe" in n for n in tensors):
            apart[f"{at}.ffn_down.weight"] = x
        elif name.endswith("experts.gate_up_proj") and model_type != "gpt_oss":
            gate, up = np.split(x, 2, axis=-2)
            apart[f"{at}.ffn_gate_exps.weight"], apart[f"{at}.ffn_up_exps.weight"] = gate, up
        elif name.endswith("experts.down_proj") and model_type != "gpt_oss":
            apart[f"{at}.ffn_down_exps.weight"] = x
        elif name.endswith("experts.gate_up_proj"):
            x = x.swapaxes(1, 2)
            apart[f"{at}.ffn_gate_exps.weight"], apart[f"{at}.ffn_up_exps.weight"] = x[:, ::2], x[:, 1::2]
        elif name.endswith("experts.down_proj"):
            apart[f"{at}.ffn_down_exps.weight"] = x.swapaxes(1, 2)
        elif name.endswith("experts.gate_up_proj_bias"):
            apart[f"{at}.ffn_gate_exps.bias"], apart[f"{at}.ffn_up_exps.bias"] = x[:, ::2], x[:, 1::2]
        elif name.endswith("experts.down_proj_bias"):
            apart[f"{at}.ffn_down_exps.bias"] = x
        elif name.endswith("_blocks"):
            scales = tensors[name.removesuffix("_blocks") + "_scales"]
            # A GGUF block has its first half in the low bits of its bytes, its second half in the high bits.
            codes = np.stack([x & 15, x >> 4], axis=-1).reshape(*x.shape[:-1], 32)
            both = codes[..., :16] | codes[..., 16:] << 4
            both = np.concatenate([scales[..., None], both], axis=-1).reshape(*x.shape[:2], -1)
            if "gate_up" in name:
                packed[f"{at}.ffn_gate_exps.weight"], packed[f"{at}.ffn_up_exps.weight"] = both[:, ::2], both[:, 1::2]
            else:
                packed[f"{at}.ffn_down_exps.weight"] = both
        elif not name.endswith("_scales"):
            apart[name] = x
    return apart, packed


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
    if "llama_4_scaling_beta" in full:
        # For models with position-dependent query scale, the converter writes all parameters of YaRN.
        w.add_rope_scaling_yarn_beta_fast(full.get("beta_fast", 32.0))
        w.add_rope_scaling_yarn_beta_slow(full.get("beta_slow", 1.0))
        w.add_rope_scaling_yarn_log_mul(full["mscale_all_dim"])
        w.add_attn_temperature_scale(full["llama_4_scaling_beta"])
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


def latent_keys(w, c):
    """What the converter wrote before it parted the projection of keys and values."""
    if c.q_lora_rank:
        w.add_q_lora_rank(c.q_lora_rank)
    w.add_kv_lora_rank(c.kv_lora_rank)
    w.add_leading_dense_block_count(c.first_k_dense_replace)
    w.add_expert_shared_count(c.n_shared_experts)
    w.add_expert_weights_scale(c.routed_scaling_factor)
    w.add_expert_weights_norm(c.norm_topk_prob)
    sigmoid = c.model_type == "deepseek_v3"
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
    if sigmoid or c.topk_method == "group_limited_greedy":
        w.add_expert_group_count(c.n_group)
        w.add_expert_group_used_count(c.topk_group)
    rope = c.rope_parameters
    if rope.get("mscale_all_dim"):
        w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def state_space(w, c, tensors):
    """Sizes of scans; rates of decay as they are used, vectors of heads as columns, norms by group."""
    heads = getattr(c, "num_heads", None)
    w.add_context_length(1 << 20)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_ssm_conv_kernel(c.conv_kernel)
    w.add_ssm_inner_size(heads * c.head_dim if heads else c.intermediate_size)
    w.add_ssm_state_size(c.state_size)
    w.add_ssm_time_step_rank(heads or c.time_step_rank)
    if heads:
        w.add_ssm_group_count(c.n_groups)
    else:
        w.add_ssm_dt_b_c_rms(c.model_type == "falcon_mamba")
    w.add_layer_norm_rms_eps(c.layer_norm_epsilon)
    w.add_bos_token_id(c.bos_token_id)
    w.add_eos_token_id(c.eos_token_id)
    for name, x in tensors.items():
        if name.endswith("A_log"):
            x = -np.exp(x.astype(np.float32))
        if name.endswith(("A_log", ".D")) and heads:
            x = x.reshape(-1, 1).astype(np.float32)
        if name.endswith("mixer.norm.weight"):
            x = x.reshape(c.n_groups, -1).astype(np.float32)
        if name.endswith("conv1d.weight"):
            x = x.reshape(x.shape[0], -1).astype(np.float32)
        if x.ndim == 1:
            x = x.astype(np.float32)
        w.add_tensor(renamed(name, False), np.ascontiguousarray(x))


def scan_keys(w, c):
    """Sizes of the scans of models that attend as well."""
    if c.model_type == "falcon_h1":
        w.add_ssm_conv_kernel(c.mamba_d_conv)
        w.add_ssm_inner_size(c.mamba_n_heads * c.mamba_d_head)
        w.add_ssm_state_size(c.mamba_d_state)
        w.add_ssm_time_step_rank(c.mamba_n_heads)
        w.add_ssm_group_count(c.mamba_n_groups)
    if c.model_type == "granitemoehybrid":
        w.add_ssm_conv_kernel(c.mamba_d_conv)
        w.add_ssm_inner_size(c.mamba_expand * c.hidden_size)
        w.add_ssm_state_size(c.mamba_d_state)
        w.add_ssm_time_step_rank(c.mamba_n_heads)
        w.add_ssm_group_count(c.mamba_n_groups)
        w.add_rope_scaling_finetuned(False)
    if c.model_type == "nemotron_h":
        w.add_ssm_conv_kernel(c.conv_kernel)
        w.add_ssm_inner_size(c.mamba_num_heads * c.mamba_head_dim)
        w.add_ssm_state_size(c.ssm_state_size)
        w.add_ssm_time_step_rank(c.mamba_num_heads)
        w.add_ssm_group_count(c.n_groups)
        w.add_rope_scaling_finetuned(False)
        if "moe" in c.layer_types:
            w.add_expert_group_count(c.n_group)
            w.add_expert_group_used_count(c.topk_group)
            w.add_expert_weights_norm(c.norm_topk_prob)
            w.add_expert_weights_scale(c.routed_scaling_factor)
            w.add_expert_shared_count(c.n_shared_experts)
            w.add_expert_shared_feed_forward_length(c.moe_shared_expert_intermediate_size)
            if c.moe_latent_size:
                w.add_moe_latent_size(c.moe_latent_size)
    if c.model_type in ("qwen3_5_text", "qwen3_5_moe_text"):
        w.add_rope_dimension_sections([11, 11, 10, 0])
    if c.model_type.startswith(("qwen3_next", "qwen3_5")):
        w.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
        w.add_ssm_inner_size(c.linear_num_value_heads * c.linear_value_head_dim)
        w.add_ssm_state_size(c.linear_key_head_dim)
        w.add_ssm_time_step_rank(c.linear_num_value_heads)
        w.add_ssm_group_count(c.linear_num_key_heads)
        first = c.layer_types.index("full_attention") + 1
        w.add_full_attention_interval(first)


def scaled(c, name, x):
    """Falcon-H1's factors, in the matrices they belong to, in 16 bits where that is the same."""
    f = factored(c, name, x)
    half = f.astype(np.float16)
    return half if (half == f).all() else f


def factored(c, name, x):
    f = x.astype(np.float32)
    if "down_proj" in name:
        return f * c.mlp_multipliers[1]
    if "gate_proj" in name:
        return f * c.mlp_multipliers[0]
    if "k_proj" in name:
        return f * c.key_multiplier * c.attention_in_multiplier
    if "q_proj" in name or "v_proj" in name:
        return f * c.attention_in_multiplier
    if "o_proj" in name:
        return f * c.attention_out_multiplier
    if "out_proj" in name:
        return f * c.ssm_out_multiplier
    if "in_proj" in name:
        inner, states = c.mamba_n_heads * c.mamba_d_head, c.mamba_n_groups * c.mamba_d_state
        widths = [inner, inner, states, states, c.mamba_n_heads]
        return f * c.ssm_in_multiplier * np.repeat(c.ssm_multipliers, widths)[:, None].astype(np.float32)
    if "lm_head" in name:
        return f * c.lm_head_multiplier
    if "embed_tokens" in name:
        return f * c.embedding_multiplier
    return x


def scan_tensor(c, name, x):
    """A tensor of a scan as files have it: rates of decay as they are used, those of Mamba-2's heads as columns, norms by group."""
    delta = "linear_attn" in name
    if name.endswith("A_log"):
        x = -np.exp(x.astype(np.float32))
    if name.endswith(("A_log", ".D")) and not delta:
        x = x.reshape(-1, 1).astype(np.float32)
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        x = x.reshape(getattr(c, "mamba_n_groups", None) or c.n_groups, -1).astype(np.float32)
    if name.endswith("conv1d.weight"):
        x = x.reshape(x.shape[0], -1).astype(np.float32)
    return x


def by_kind(c, tensors):
    """The projection of queries, keys, values and gates of a delta rule, of which files have the gates apart."""
    apart = {}
    for name, x in tensors.items():
        if not name.endswith("in_proj_qkvz.weight"):
            apart[name] = x
            continue
        key, own = c.linear_key_head_dim, c.linear_value_head_dim * c.linear_num_value_heads // c.linear_num_key_heads
        parts = np.split(x.reshape(c.linear_num_key_heads, -1, x.shape[1]), [key, 2 * key, 2 * key + own], axis=1)
        parts = [p.reshape(-1, x.shape[1]) for p in parts]
        layer = name.split(".")[2]
        apart[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(parts[:3])
        apart[f"blk.{layer}.attn_gate.weight"] = parts[3]
    return apart


def tiled(c, name, x):
    """Heads of values of Qwen3.5, of which files have the first of every key head first."""
    keys, values, size = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_value_head_dim
    own = values // keys

    def moved(x, of, axis=0):
        x = np.moveaxis(x, axis, 0)
        parts = x.reshape(keys, own, of, *x.shape[1:]).swapaxes(0, 1)
        return np.moveaxis(parts.reshape(x.shape), 0, axis)

    first = 2 * keys * c.linear_key_head_dim
    if ".in_proj_qkv." in name or ".conv1d." in name:
        return np.concatenate([x[:first], moved(x[first:], size)])
    if ".in_proj_z." in name:
        return moved(x, size)
    if name.endswith((".in_proj_a.weight", ".in_proj_b.weight", ".A_log", ".dt_bias")):
        return moved(x, 1)
    return moved(x, size, 1) if ".out_proj." in name else x


def by_layer(c, arch, number, kinds):
    """A number for the layers of these kinds, 0 for others."""
    return [number if kind in kinds else 0 for kind in c.layer_types]


def parted_kv(c, tensors):
    """The projection of keys and values of latent attention in two, by head, that of keys the other way round."""
    apart = {}
    for name, x in tensors.items():
        if not name.endswith("kv_b_proj.weight"):
            apart[name] = x
            continue
        k, v = np.split(x.reshape(c.num_attention_heads, -1, x.shape[1]), [c.qk_nope_head_dim], axis=1)
        layer = name.split(".")[2]
        apart[f"blk.{layer}.attn_k_b.weight"] = k.swapaxes(1, 2)
        apart[f"blk.{layer}.attn_v_b.weight"] = v
    return apart


def write_gguf(path, c, tensors, is_parted=False):
    arch, permutes, one_plus = FAMILIES[c.model_type]
    if c.model_type == "mistral3":
        # Convert only the text decoder; the vision tower of such a model is in a separate GGUF file.
        c = c.text_config
        parts = [(n.replace("language_model.", ""), x) for n, x in tensors.items() if "language_model." in n or n == "lm_head.weight"]
        tensors = {n if n.startswith(("model.", "lm_head.")) else f"model.{n}": x for n, x in parts}
    if c.model_type == "nemotron_h" and "moe" in c.layer_types:
        arch = "nemotron_h_moe"
    w = gguf.GGUFWriter(path, arch)
    if arch.startswith("mamba"):
        state_space(w, c, tensors)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    kv = getattr(c, "num_key_value_heads", None) or c.num_attention_heads
    ffn = getattr(c, "intermediate_size", None) or getattr(c, "ffn_hidden_size", None) or getattr(c, "n_inner", None) or 4 * c.hidden_size
    value_dim = head_dim
    if arch == "falcon":
        kv = c.num_kv_heads if c.new_decoder_architecture else 1 if c.multi_query else kv
    if arch == "deepseek2":
        head_dim, value_dim = c.qk_nope_head_dim + c.qk_rope_head_dim, c.v_head_dim
    if arch == "granitehybrid":
        kv = by_layer(c, arch, kv, ("attention", "full_attention"))
    if arch.startswith("nemotron_h"):
        kv = by_layer(c, arch, kv, ("attention", "full_attention"))
        ffn = by_layer(c, arch, c.moe_intermediate_size if arch == "nemotron_h_moe" else ffn, ("moe", "mlp"))
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(ffn)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(1 if is_parted else kv)
    if is_parted:
        w.add_key_length(c.kv_lora_rank + c.qk_rope_head_dim)
        w.add_value_length(c.kv_lora_rank)
        w.add_key_length_mla(head_dim)
        w.add_value_length_mla(value_dim)
        tensors = parted_kv(c, tensors)
    else:
        w.add_key_length(head_dim)
        w.add_value_length(value_dim)
    for field, add in [
        ("rms_norm_eps", w.add_layer_norm_rms_eps), ("layer_norm_eps", w.add_layer_norm_eps), ("norm_epsilon", w.add_layer_norm_eps),
        ("layer_norm_epsilon", w.add_layer_norm_rms_eps if arch.startswith("nemotron_h") else w.add_layer_norm_eps),
        ("attn_logit_softcapping", w.add_attn_logit_softcapping), ("final_logit_softcapping", w.add_final_logit_softcapping),
        ("embedding_multiplier", w.add_embedding_scale), ("residual_multiplier", w.add_residual_scale),
        ("attention_multiplier", w.add_attention_scale), ("logits_scaling", w.add_logit_scale), ("logit_scale", w.add_logit_scale),
        ("use_parallel_residual", w.add_parallel_residual),
    ]:
        value = None if arch == "falcon-h1" and "multiplier" in field else getattr(c, field, None)
        if value is None and "softcapping" in field and c.model_type == "gemma2":
            # Gemma 2 files must have the soft cap keys; 0 means none.
            value = 0.0
        if value is not None:
            add(value)
    if c.model_type in ("mistral", "ministral3", "mixtral", "gemma2", "gemma3_text", "cohere2", "phi3", "gpt_oss", "olmo3") and c.sliding_window:
        w.add_sliding_window(c.sliding_window)
    if c.model_type == "olmo3":
        w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c.layer_types])
    w.add_bos_token_id(c.bos_token_id)
    w.add_eos_token_id(c.eos_token_id)
    if arch == "deepseek2":
        latent_keys(w, c)
        rope_keys(w, c, arch, c.qk_rope_head_dim)
    elif arch != "gpt2":
        rope_keys(w, c, arch, head_dim)
    experts = None if arch == "nemotron_h" else getattr(c, "num_local_experts", None) or getattr(c, "num_experts", None) or getattr(c, "n_routed_experts", None)
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(c.num_experts_per_tok)
        if getattr(c, "moe_intermediate_size", None):
            w.add_expert_feed_forward_length(c.moe_intermediate_size)
        if getattr(c, "shared_expert_intermediate_size", None):
            w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
    if getattr(c, "shared_intermediate_size", None):
        w.add_expert_shared_feed_forward_length(c.shared_intermediate_size)
    scan_keys(w, c)
    tensors, packed = parted(by_kind(c, tensors), c.model_type)
    for name, x in packed.items():
        w.add_tensor(name, np.ascontiguousarray(x), raw_dtype=gguf.GGMLQuantizationType.MXFP4)
    tensors, experts = joined_experts(tensors)
    for name, x in experts.items():
        w.add_tensor(name, x)
    post_norms = "gemma2" in arch or "gemma3" in arch or arch in ("olmo2", "gpt-oss", "qwen3next", "qwen35", "qwen35moe")
    tensors = {n if n.startswith(("blk.", "model.", "lm_head", "embed_out", "gpt_neox.", "transformer.", "backbone.")) else f"transformer.{n}": x for n, x in tensors.items()}
    for name, x in tensors.items():
        if name.endswith(".attn.bias"):
            # Skip the stored causal mask.
            continue
        if arch == "gpt2" and x.ndim == 2 and ".c_" in name:
            x = x.T
        if permutes and ".q_proj." in name:
            x = permuted(x, c.num_attention_heads)
        if permutes and ".k_proj." in name:
            x = permuted(x, c.num_key_value_heads)
        if c.model_type == "falcon_h1":
            x = scaled(c, name, x)
        if "linear_attn" in name and c.model_type.startswith("qwen3_5"):
            x = tiled(c, name, x)
        x = scan_tensor(c, name, x)
        if ".query_key_value." in name:
            # Regroup the fused rows: from Q, K and V per key head to all Q, then all K, then all V rows.
            parts = x.reshape(kv, -1, head_dim, *x.shape[1:])
            x = np.concatenate([p.reshape(-1, *x.shape[1:]) for p in (parts[:, :-2], parts[:, -2:-1], parts[:, -1:])])
        if x.ndim == 1 or name.endswith("_exps.bias"):
            x = x.astype(np.float32)
            x = x + 1 if one_plus and name.endswith("norm.weight") and "linear_attn" not in name else x
        if "shared_expert_gate." in name:
            # GGUF files store a matrix of one row as a vector.
            x = x.reshape(-1).astype(np.float32)
        own = name if name.startswith("blk.") else renamed(name, post_norms)
        w.add_tensor(own, np.ascontiguousarray(x))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
