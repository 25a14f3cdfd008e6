"""The configurations: of each family the first, in the manner of its hub's files, was used while its row was written."""

CONFIGS = {}


def add(name, style="hub", **fields):
    CONFIGS[name] = (fields, style)


def base(model_type, **more):
    return {
        "model_type": model_type, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 32, "vocab_size": 48, "max_position_embeddings": 128,
        "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
    } | more


def without_groups(model_type, **more):
    """As many key and value heads as query heads, which its files do not say."""
    fields = base(model_type, **more)
    del fields["num_key_value_heads"]
    return fields


RMS = {"rms_norm_eps": 1e-5}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

add("llama-a", **base("llama", head_dim=8, rope_theta=500000.0, rope_scaling=LLAMA3, **RMS))
add("mistral-a", **base("mistral", head_dim=8, rope_theta=10000.0, sliding_window=9, **RMS))
add("smollm3-a", **base("smollm3", num_hidden_layers=4, rope_theta=50000.0, no_rope_layers=[1, 1, 1, 0], use_sliding_window=False, num_attention_heads=3, num_key_value_heads=1, attention_bias=False, mlp_bias=False, **(RMS | {"tie_word_embeddings": True})))
add("qwen2-a", **base("qwen2", rope_theta=1000000.0, num_attention_heads=3, num_key_value_heads=1, sliding_window=32, max_window_layers=1, use_sliding_window=False, rms_norm_eps=1e-6))
add("qwen3-a", **base("qwen3", head_dim=8, rope_theta=1000000.0, attention_bias=False, rope_scaling=YARN, rms_norm_eps=1e-6))
add("gemma-a", **base("gemma", head_dim=8, hidden_act="gelu", hidden_activation="gelu_pytorch_tanh", rope_theta=10000.0, rms_norm_eps=1e-6, **{"tie_word_embeddings": True}))
add("gemma2-a", **base("gemma2", num_hidden_layers=3, head_dim=8, hidden_activation="gelu_pytorch_tanh", hidden_act="gelu_pytorch_tanh", query_pre_attn_scalar=8, attn_logit_softcapping=5.0, final_logit_softcapping=3.0, sliding_window=7, rope_theta=10000.0, rms_norm_eps=1e-6, **{"tie_word_embeddings": True}))
add("gemma3-a", **base("gemma3_text", num_hidden_layers=7, head_dim=8, hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=8, sliding_window=7, sliding_window_pattern=6, rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0}, rms_norm_eps=1e-6, **{"tie_word_embeddings": True}))
add("phi-a", **base("phi", num_attention_heads=3, num_key_value_heads=3, hidden_act="gelu_new", partial_rotary_factor=0.5, qk_layernorm=False, rope_theta=10000.0, layer_norm_eps=1e-5))
add("phi3-a", **base("phi3", num_attention_heads=3, num_key_value_heads=3, rope_theta=10000.0, original_max_position_embeddings=100, rope_scaling={"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 1.5, 3.0, 6.0]}, sliding_window=9, **RMS))
add("granite-a", **base("granite", num_attention_heads=3, num_key_value_heads=1, embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=2.5, rope_theta=10000.0, attention_bias=False, mlp_bias=False, **RMS))
add("olmo2-a", **base("olmo2", num_attention_heads=3, num_key_value_heads=3, rope_theta=500000.0, attention_bias=False, **RMS))
add("cohere-a", **base("cohere", num_attention_heads=3, num_key_value_heads=1, logit_scale=0.25, rope_theta=10000.0, layer_norm_eps=1e-5, use_qk_norm=False, **{"tie_word_embeddings": True}))
add("cohere2-a", **base("cohere2", num_hidden_layers=4, head_dim=8, logit_scale=0.25, rope_theta=10000.0, layer_norm_eps=1e-5, sliding_window=7, sliding_window_pattern=4, **{"tie_word_embeddings": True}))
add("stablelm-a", **base("stablelm", num_attention_heads=3, num_key_value_heads=3, partial_rotary_factor=0.25, use_qkv_bias=True, use_parallel_residual=False, qk_layernorm=False, rope_theta=10000.0, layer_norm_eps=1e-5))
add("starcoder2-a", **base("starcoder2", num_attention_heads=3, num_key_value_heads=1, hidden_act="gelu_pytorch_tanh", use_bias=True, sliding_window=200, rope_theta=100000.0, norm_epsilon=1e-5, **{"tie_word_embeddings": True}))

QWEN3_MOE = RMS | {"head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 10, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
add("mixtral-a", **base("mixtral", num_attention_heads=3, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2, intermediate_size=12, rope_theta=1000000.0, sliding_window=None, router_aux_loss_coef=0.02, output_router_logits=False, **RMS))
add("qwen2_moe-a", **base("qwen2_moe", num_attention_heads=3, num_key_value_heads=3, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=10, shared_expert_intermediate_size=14, norm_topk_prob=False, decoder_sparse_step=1, use_sliding_window=False, sliding_window=64, max_window_layers=2, rope_theta=1000000.0, rms_norm_eps=1e-6))
add("qwen3_moe-a", **base("qwen3_moe", **QWEN3_MOE))

# Two further models of each family (`-b`, `-c`), to which its implementation was not fitted. Models `-b` have files
# as current transformers writes them.
SMALL = {"hidden_size": 20, "intermediate_size": 28, "vocab_size": 40}
TIED = {"tie_word_embeddings": True}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1], "long_factor": [1.2, 3.5]}


def both(model_type, b, c):
    name = model_type.removesuffix("_text")
    build = without_groups if model_type == "gpt_neox" else base
    add(f"{name}-b", "library", **build(model_type, **b))
    add(f"{name}-c", "hub", **build(model_type, **(SMALL | c)))


both("llama", RMS | TIED | {"num_attention_heads": 6, "num_key_value_heads": 6, "rope_theta": 10000.0, "attention_bias": True, "mlp_bias": True, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
     RMS | {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6, "rope_theta": 500000.0, "rope_scaling": YARN})
both("mistral", RMS | {"num_attention_heads": 6, "num_key_value_heads": 3, "sliding_window": None, "head_dim": 6, "rope_theta": 1000000.0},
     RMS | TIED | {"num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 5, "sliding_window": 30, "rope_theta": 1000000.0})
both("smollm3", RMS | TIED | {"num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 2, "rope_theta": 5000000.0},
     RMS | {"num_hidden_layers": 4, "num_attention_heads": 5, "num_key_value_heads": 5, "rope_theta": 100000.0, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0], "use_sliding_window": False, "layer_types": ["full_attention"] * 4})
both("qwen2", RMS | TIED | {"num_attention_heads": 6, "num_key_value_heads": 2, "rope_theta": 10000.0},
     RMS | {"num_attention_heads": 5, "num_key_value_heads": 5, "rope_theta": 1000000.0, "use_sliding_window": False, "rope_scaling": YARN})
both("qwen3", RMS | TIED | {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 12, "rope_theta": 1000000.0},
     RMS | {"num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 4, "rope_theta": 5000000.0, "attention_bias": True, "max_window_layers": 3, "use_sliding_window": False, "sliding_window": None})
both("gemma", {"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 4, "hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6} | TIED,
     {"num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 10, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": None, "rope_theta": 20000.0, "rms_norm_eps": 1e-6} | TIED)
both("gemma2", {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 4, "sliding_window": 12, "rms_norm_eps": 1e-6} | TIED,
     {"num_hidden_layers": 4, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 6, "attn_logit_softcapping": None, "final_logit_softcapping": 8.0, "sliding_window": 20, "rms_norm_eps": 1e-6} | TIED)
both("gemma3_text", {"num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 4, "sliding_window": 11, "rms_norm_eps": 1e-6} | TIED,
     {"num_hidden_layers": 8, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 6, "sliding_window": 5, "rope_theta": 1000000.0, "rope_local_base_freq": 20000.0, "sliding_window_pattern": 6, "final_logit_softcapping": None, "attn_logit_softcapping": None, "rms_norm_eps": 1e-6} | TIED)
both("phi", {"num_attention_heads": 6, "num_key_value_heads": 6, "hidden_act": "gelu_new", "partial_rotary_factor": 0.5, "layer_norm_eps": 1e-6},
     {"num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 5, "hidden_act": "gelu_new", "partial_rotary_factor": 1.0, "rope_theta": 50000.0, "layer_norm_eps": 1e-5})
both("phi3", RMS | {"num_attention_heads": 6, "num_key_value_heads": 2, "rope_theta": 10000.0, "sliding_window": None},
     RMS | TIED | {"num_attention_heads": 5, "num_key_value_heads": 5, "rope_theta": 10000.0, "sliding_window": None, "original_max_position_embeddings": 16, "rope_scaling": LONG})
both("granite", RMS | TIED | {"num_attention_heads": 6, "num_key_value_heads": 2, "embedding_multiplier": 2.0, "residual_multiplier": 0.7, "attention_multiplier": 0.5, "logits_scaling": 0.5, "attention_bias": True, "rope_theta": 10000000.0},
     RMS | {"num_attention_heads": 5, "num_key_value_heads": 5, "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 0.3, "logits_scaling": 1.0, "mlp_bias": True})
both("olmo2", RMS | {"num_attention_heads": 6, "num_key_value_heads": 2, "rope_theta": 10000.0},
     RMS | {"num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1, "rope_theta": 500000.0, "rope_scaling": YARN})
both("cohere", {"num_attention_heads": 6, "num_key_value_heads": 6, "logit_scale": 0.7, "layer_norm_eps": 1e-5, "use_qk_norm": False} | TIED,
     {"num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1, "logit_scale": 0.1, "layer_norm_eps": 1e-6, "rope_theta": 75000.0} | TIED)
both("cohere2", {"num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4, "logit_scale": 1.0, "layer_norm_eps": 1e-5, "sliding_window": 10} | TIED,
     {"num_hidden_layers": 4, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6, "logit_scale": 0.5, "layer_norm_eps": 1e-5, "sliding_window": 25, "rope_theta": 50000.0, "sliding_window_pattern": 4} | TIED)
both("stablelm", {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "partial_rotary_factor": 0.5, "use_qkv_bias": False, "layer_norm_eps": 1e-5},
     {"num_attention_heads": 5, "num_key_value_heads": 5, "partial_rotary_factor": 1.0, "use_qkv_bias": True, "use_parallel_residual": True, "layer_norm_eps": 1e-5})
both("starcoder2", {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "sliding_window": None, "norm_epsilon": 1e-5} | TIED,
     {"num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh", "use_bias": False, "sliding_window": 200, "rope_theta": 10000.0, "norm_epsilon": 1e-5} | TIED)
both("mixtral", RMS | {"num_attention_heads": 6, "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 1, "intermediate_size": 10},
     RMS | {"num_attention_heads": 5, "num_key_value_heads": 5, "num_local_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 8, "sliding_window": 11, "rope_theta": 10000.0})
both("qwen2_moe", RMS | {"num_attention_heads": 6, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12, "norm_topk_prob": False, "mlp_only_layers": [0]},
     RMS | TIED | {"num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1, "num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "shared_expert_intermediate_size": 6, "norm_topk_prob": False, "decoder_sparse_step": 2, "rope_theta": 50000.0})
both("qwen3_moe", QWEN3_MOE | {"num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "decoder_sparse_step": 2},
     QWEN3_MOE | {"num_attention_heads": 5, "num_key_value_heads": 1, "num_experts": 9, "num_experts_per_tok": 4, "moe_intermediate_size": 5, "mlp_only_layers": [1], "rope_theta": 5000000.0})

NEOX = {"hidden_act": "gelu", "layer_norm_eps": 1e-5}
add("gpt_neox-a", **without_groups("gpt_neox", **(NEOX | {"num_attention_heads": 3, "rotary_pct": 0.25, "rotary_emb_base": 10000, "use_parallel_residual": True})))
both("gpt_neox", NEOX | {"num_attention_heads": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.67}, "use_parallel_residual": False},
     NEOX | {"num_hidden_layers": 3, "num_attention_heads": 5, "rotary_pct": 1.0, "rotary_emb_base": 50000, "attention_bias": False})

# Models with learned position embeddings, with parallel attention and feed-forward network under one norm or two, and
# with other kinds of experts.
TINY = {"hidden_size": 16, "intermediate_size": 20, "vocab_size": 32}
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 96, "n_ctx": 96, "vocab_size": 32, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "bos_token_id": 1, "eos_token_id": 2, "summary_type": "cls_index", "summary_use_proj": True, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}}
add("gpt2-a", **GPT2)
FALCON = {"model_type": "falcon", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32, "layer_norm_epsilon": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0, "alibi": False, "bias": False, "apply_residual_connection_post_layernorm": False}
add("falcon-a", **FALCON, new_decoder_architecture=True, num_kv_heads=2, parallel_attn=True, multi_query=True, ffn_hidden_size=24)
GRANITE_MOE = RMS | TINY | {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.5, "rope_theta": 10000.0, "attention_bias": False, "intermediate_size": 8, "num_local_experts": 5, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001, "output_router_logits": False}
add("granitemoe-a", **base("granitemoe", **GRANITE_MOE))
GPT_OSS = RMS | TINY | {"head_dim": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 3, "num_experts_per_tok": 2, "experts_per_token": 2, "sliding_window": 7, "rope_theta": 150000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 32, "truncate": False}, "attention_bias": True, "swiglu_limit": 1.5, "initial_context_length": 32}
# Sizes for which MXFP4 rows are whole blocks.
MXFP4 = {"hidden_size": 32, "intermediate_size": 32, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}}
add("gpt_oss-a", **base("gpt_oss", **(GPT_OSS | MXFP4 | {"swiglu_limit": 7.0})))
DEEPSEEK = RMS | TINY | {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5, "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "rope_theta": 10000.0, "rms_norm_eps": 1e-6}
DEEP_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}
add("deepseek_v2-a", **base("deepseek_v2", **(DEEPSEEK | {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "scoring_func": "softmax", "norm_topk_prob": False, "routed_scaling_factor": 1.0, "rope_scaling": DEEP_YARN, "aux_loss_alpha": 0.001, "seq_aux": True})))
add("deepseek_v3-a", **base("deepseek_v3", **(DEEPSEEK | {"q_lora_rank": 12, "n_group": 3, "topk_group": 2, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_shared_experts": 1, "num_nextn_predict_layers": 1, "ep_size": 1})))

# Two further models of each of these families, to which its implementation was not fitted. Tensor names of gpt2-c
# lack the prefix. Layers of falcon-b are serial, which GGUF files cannot express.
add("gpt2-b", "library", **{k: v for k, v in GPT2.items() if not k.startswith(("n_ctx", "summary", "task"))} | {"n_head": 2, "n_inner": 20, "activation_function": "gelu"})
add("gpt2-c", "bare", **GPT2 | {"n_embd": 20, "n_head": 5, "n_layer": 1, "n_positions": 100, "n_ctx": 100})
add("falcon-b", "library", **FALCON | {"num_attention_heads": 2, "new_decoder_architecture": False, "multi_query": False, "parallel_attn": False, "bias": True, "tie_word_embeddings": False})
add("falcon-c", **FALCON | {"hidden_size": 20, "num_hidden_layers": 1, "num_attention_heads": 5, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "rope_theta": 20000.0})
add("granitemoe-b", "library", **base("granitemoe", **(GRANITE_MOE | {"num_attention_heads": 8, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 3, "attention_bias": True, "logits_scaling": 0.5, "residual_multiplier": 0.7})))
add("granitemoe-c", **base("granitemoeshared", **(GRANITE_MOE | {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 1, "shared_intermediate_size": 10, "embedding_multiplier": 2.0})))
add("gpt_oss-b", "library", **base("gpt_oss", **(GPT_OSS | {"hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 10, "num_local_experts": 4, "num_experts_per_tok": 3, "experts_per_token": 3})))
add("gpt_oss-c", **base("gpt_oss", **(GPT_OSS | MXFP4 | {"num_key_value_heads": 2, "head_dim": 4, "sliding_window": 11, "num_local_experts": 2, "num_experts_per_tok": 1, "experts_per_token": 1, "swiglu_limit": 7.0, "rope_scaling": GPT_OSS["rope_scaling"] | {"factor": 2.0}})))
add("deepseek_v2-b", "library", **base("deepseek_v2", **(DEEPSEEK | {"q_lora_rank": 10, "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.5, "num_experts_per_tok": 2, "v_head_dim": 8, "rope_scaling": None})))
add("deepseek_v2-c", **base("deepseek_v2", **(DEEPSEEK | {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 12, "qk_nope_head_dim": 4, "qk_rope_head_dim": 6, "topk_method": "greedy", "first_k_dense_replace": 0, "n_routed_experts": 4, "n_shared_experts": 1, "routed_scaling_factor": 2.0, "rope_scaling": DEEP_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}})))
add("deepseek_v3-b", "library", **base("deepseek_v3", **(DEEPSEEK | {"q_lora_rank": None, "n_group": 2, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0, "num_experts_per_tok": 2, "rope_scaling": DEEP_YARN, "qk_rope_head_dim": 6})))
add("deepseek_v3-c", **base("deepseek_v3", **(DEEPSEEK | {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16, "n_group": 1, "topk_group": 1, "n_routed_experts": 5, "num_experts_per_tok": 1, "v_head_dim": 4, "rope_scaling": None})))

# State-space models: for each family, the model that its implementation was written for, then two further ones.
def scanning(model_type, **more):
    fields = base(model_type, **more)
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "max_position_embeddings"):
        del fields[name]
    return fields | {"state_size": 6, "expand": 2, "conv_kernel": 4, "layer_norm_epsilon": 1e-5, "residual_in_fp32": True, "use_cache": True} | more


NO_LIMIT = {"time_step_limit": [0.0, float("inf")]}
add("mamba-a", **scanning("mamba", hidden_size=16, intermediate_size=32, time_step_rank=3, use_bias=False, use_conv_bias=True, time_step_min=0.001, time_step_max=0.1, time_step_floor=1e-4, time_step_scale=1.0, time_step_init_scheme="random", rescale_prenorm_residual=False, tie_word_embeddings=True))
add("mamba2-a", **scanning("mamba2", hidden_size=16, num_heads=4, head_dim=8, n_groups=2, use_bias=False, use_conv_bias=True, chunk_size=8, rms_norm=True, **NO_LIMIT))
HYBRID = RMS | {"hidden_size": 16, "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.5, "attention_bias": False, "mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_d_state": 6, "mamba_d_head": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 8, "mamba_conv_bias": True, "mamba_proj_bias": False, "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 20, "rope_theta": 10000.0}
add("granitehybrid-a", **base("granitemoehybrid", **(HYBRID | {"num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "nope", "tie_word_embeddings": True})))
NEMOTRON = {"hidden_size": 16, "head_dim": 6, "hybrid_override_pattern": "M-*M-", "num_hidden_layers": 5, "mlp_hidden_act": "relu2", "mlp_bias": False, "attention_bias": False, "use_bias": False, "use_conv_bias": True, "mamba_num_heads": 4, "mamba_head_dim": 6, "n_groups": 2, "ssm_state_size": 5, "conv_kernel": 4, "expand": 2, "chunk_size": 8, "layer_norm_epsilon": 1e-5, "mamba_hidden_act": "silu", "mamba_proj_bias": False, "residual_in_fp32": False, "rescale_prenorm_residual": True, "num_logits_to_keep": 1, "use_mamba_kernels": True}
add("nemotron_h-a", **({k: v for k, v in base("nemotron_h", **NEMOTRON).items() if k != "hidden_act"} | NO_LIMIT))
MAMBA = {"hidden_size": 12, "vocab_size": 40, "tie_word_embeddings": True}
add("mamba-b", "library", **scanning("mamba", **(MAMBA | {"num_hidden_layers": 3, "state_size": 3, "expand": 3, "conv_kernel": 2, "use_bias": True, "tie_word_embeddings": False})))
add("mamba-c", **scanning("mamba", **(MAMBA | {"num_hidden_layers": 1, "state_size": 9, "conv_kernel": 5, "use_conv_bias": False, "time_step_rank": "auto", "d_model": 12, "d_inner": 24, "n_layer": 1, "rms_norm": True, "fused_add_norm": True, "ssm_cfg": {}, "pad_vocab_size_multiple": 8})))
add("falcon_mamba-a", **scanning("falcon_mamba", **(MAMBA | {"time_step_rank": 2, "use_falcon_mambapy": False, "mixer_rms_eps": 1e-5})))
add("falcon_mamba-b", "library", **scanning("falcon_mamba", **(MAMBA | {"num_hidden_layers": 1, "state_size": 4, "mixer_rms_eps": 1e-5, "use_bias": True})))
add("falcon_mamba-c", **scanning("falcon_mamba", **(MAMBA | {"hidden_size": 20, "state_size": 2, "expand": 1, "tie_word_embeddings": False, "mixer_rms_eps": 1e-5})))
add("mamba2-b", "library", **scanning("mamba2", **(MAMBA | {"num_heads": 3, "head_dim": 8, "n_groups": 1, "num_hidden_layers": 3, "conv_kernel": 3, "use_bias": True, "tie_word_embeddings": True, "chunk_size": 16})))
add("mamba2-c", **scanning("mamba2", **(MAMBA | {"num_heads": 6, "head_dim": 6, "n_groups": 3, "expand": 3, "state_size": 11, "num_hidden_layers": 1, "use_conv_bias": False, "tie_word_embeddings": False, "time_step_limit": [0.05, 0.4]})))
add("granitehybrid-b", "library", **base("granitemoehybrid", **(HYBRID | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 8, "position_embedding_type": "rope", "attention_bias": True, "mamba_proj_bias": True, "layer_types": ["attention", "mamba", "attention"]})))
add("granitehybrid-c", **base("granitemoehybrid", **(HYBRID | {"num_local_experts": 3, "num_experts_per_tok": 1, "intermediate_size": 10, "position_embedding_type": "nope", "mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_conv": 3, "mamba_conv_bias": False, "num_hidden_layers": 2, "layer_types": ["mamba", "attention"], "logits_scaling": 0.5})))
add("nemotron_h-b", "library", **({k: v for k, v in base("nemotron_h", **(NEMOTRON | {"hidden_size": 20, "num_attention_heads": 2, "num_key_value_heads": 1, "hybrid_override_pattern": "M*-M", "num_hidden_layers": 4, "use_bias": True, "mlp_bias": True, "n_groups": 4, "conv_kernel": 2})).items() if k != "hidden_act"} | NO_LIMIT))
add("nemotron_h-c", **({k: v for k, v in base("nemotron_h", **(NEMOTRON | {"num_key_value_heads": 4, "hybrid_override_pattern": "-M*", "num_hidden_layers": 3, "use_conv_bias": False, "n_groups": 1, "ssm_state_size": 8})).items() if k != "hidden_act"} | NO_LIMIT))

# Models with attention and scans or gated delta rules: for each family, the model that its implementation was written
# for; two further ones follow below.
FALCON_H1 = RMS | TINY | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "mamba_d_ssm": 24, "mamba_n_heads": 4, "mamba_d_head": 6, "mamba_n_groups": 1, "mamba_d_state": 5, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 8, "mamba_conv_bias": True, "mamba_proj_bias": False, "projectors_bias": False, "attention_bias": False, "mlp_bias": False, "mamba_norm_before_gate": False, "mamba_rms_norm": False, "rope_theta": 100000000000.0, "num_logits_to_keep": 1, "embedding_multiplier": 2.0, "lm_head_multiplier": 0.25, "key_multiplier": 0.5, "attention_in_multiplier": 2.0, "attention_out_multiplier": 0.5, "ssm_in_multiplier": 2.0, "ssm_out_multiplier": 0.5, "ssm_multipliers": [0.5, 0.25, 0.5, 1.0, 0.5], "mlp_multipliers": [1.0, 0.5]}
add("falcon_h1-a", **base("falcon_h1", **FALCON_H1), mamba_use_mlp=True, mlp_expansion_factor=8, rope_scaling=None)
QWEN_NEXT = RMS | TINY | {"num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "attention_bias": False, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 5, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "shared_expert_intermediate_size": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.001, "output_router_logits": False, "rms_norm_eps": 1e-6}
add("qwen3_next-a", **base("qwen3_next", **QWEN_NEXT), use_sliding_window=False)
QWEN_5 = {k: v for k, v in QWEN_NEXT.items() if "expert" not in k and k not in ("decoder_sparse_step", "mlp_only_layers", "norm_topk_prob", "moe_intermediate_size", "output_router_logits", "router_aux_loss_coef", "partial_rotary_factor", "rope_theta")}
QWEN_5 |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0], "mrope_interleaved": True}, "attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
add("qwen3_5-a", **base("qwen3_5_text", **QWEN_5))
QWEN_5_MOE = QWEN_5 | {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "shared_expert_intermediate_size": 8, "router_aux_loss_coef": 0.001, "output_router_logits": False}
add("qwen3_5_moe-a", **{k: v for k, v in base("qwen3_5_moe_text", **QWEN_5_MOE).items() if k != "intermediate_size"})
NEMOTRON_MOE = NEMOTRON | TINY | {"hybrid_override_pattern": "ME*EM", "n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "moe_shared_expert_intermediate_size": 9, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "num_nextn_predict_layers": 0}
add("nemotron_moe-a", **({k: v for k, v in base("nemotron_h", **NEMOTRON_MOE).items() if k != "hidden_act"} | NO_LIMIT))

# Models with position-dependent query scale. mistral3-a is a vision-language model around such a decoder, as in the
# published folders.
GROWING = {"rope_type": "yarn", "type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}
VISION = {"model_type": "pixtral", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8, "intermediate_size": 8, "image_size": 16, "patch_size": 8, "num_channels": 3, "hidden_act": "silu", "rope_theta": 10000.0}


def seeing(text, **more):
    return {"model_type": "mistral3", "image_token_index": 10, "spatial_merge_size": 2, "vision_feature_layer": -1, "projector_hidden_act": "gelu", "multimodal_projector_bias": False, "tie_word_embeddings": False, "text_config": text, "vision_config": VISION} | more


add("ministral3-a", **base("ministral3", num_attention_heads=3, num_key_value_heads=1, head_dim=8, rope_parameters=GROWING, sliding_window=None, **RMS))
add("mistral3-a", **seeing(base("ministral3", num_attention_heads=3, num_key_value_heads=1, head_dim=8, rope_parameters=GROWING | {"llama_4_scaling_beta": 0.3, "factor": 8.0}, sliding_window=None, **RMS)))

# Models whose GGUF files have separate tensors for the key and the value projection of the latent row.
PARTED = {"deepseek_v2-c", "deepseek_v3-b"}

# Two further models of each of these families, to which its implementation was not fitted.
add("falcon_h1-b", "library", **base("falcon_h1", **(FALCON_H1 | {"hidden_size": 20, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 4, "mamba_d_ssm": 30, "mamba_n_heads": 6, "mamba_d_head": 5, "mamba_n_groups": 3, "mamba_d_conv": 3, "mamba_conv_bias": False, "mamba_rms_norm": True, "mamba_norm_before_gate": True, "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True, "projectors_bias": True, "key_multiplier": 0.7, "lm_head_multiplier": 1.5, "embedding_multiplier": 2.7, "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.7, 0.4, 0.8, 1.1, 0.6], "mlp_multipliers": [0.9, 0.7], "tie_word_embeddings": True})))
add("falcon_h1-c", **base("falcon_h1", **(FALCON_H1 | {"num_hidden_layers": 1, "mamba_d_ssm": None, "mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 7, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "rope_theta": 10000.0, "ssm_multipliers": [0.5, 1.0, 0.25, 0.5, 2.0], "ssm_in_multiplier": 0.5})), rope_scaling=None)
add("qwen3_next-b", "library", **base("qwen3_next", **(QWEN_NEXT | {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "partial_rotary_factor": 1.0, "attention_bias": True, "full_attention_interval": 3, "linear_key_head_dim": 6, "linear_value_head_dim": 4, "linear_num_key_heads": 3, "linear_num_value_heads": 3, "num_experts": 4, "mlp_only_layers": [1], "tie_word_embeddings": True})))
add("qwen3_next-c", **base("qwen3_next", **(QWEN_NEXT | {"hidden_size": 20, "num_hidden_layers": 2, "partial_rotary_factor": 0.25, "full_attention_interval": 2, "linear_conv_kernel_dim": 2, "linear_key_head_dim": 5, "linear_num_key_heads": 1, "linear_num_value_heads": 5, "num_experts_per_tok": 1, "norm_topk_prob": False, "rope_theta": 5000000.0})))
add("qwen3_5-b", "library", **base("qwen3_5_text", **(QWEN_5 | {"num_hidden_layers": 2, "num_attention_heads": 3, "full_attention_interval": 2, "linear_key_head_dim": 5, "linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_conv_kernel_dim": 3, "tie_word_embeddings": True})))
add("qwen3_5-c", **base("qwen3_5_text", **(QWEN_5 | {"hidden_size": 20, "num_hidden_layers": 3, "attention_bias": True, "layer_types": ["linear_attention", "linear_attention", "full_attention"], "full_attention_interval": 3, "linear_num_key_heads": 3, "linear_num_value_heads": 3, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}})))
add("qwen3_5_moe-b", "library", **{k: v for k, v in base("qwen3_5_moe_text", **(QWEN_5_MOE | {"num_hidden_layers": 2, "full_attention_interval": 2, "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_value_head_dim": 3, "num_experts": 3, "num_experts_per_tok": 1})).items() if k != "intermediate_size"})
add("qwen3_5_moe-c", **{k: v for k, v in base("qwen3_5_moe_text", **(QWEN_5_MOE | {"num_hidden_layers": 2, "full_attention_interval": 2, "head_dim": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 5, "tie_word_embeddings": True})).items() if k != "intermediate_size"})
add("nemotron_moe-b", "library", **({k: v for k, v in base("nemotron_h", **(NEMOTRON_MOE | {"hybrid_override_pattern": "M*E-", "num_hidden_layers": 4, "mlp_bias": True, "n_group": 3, "topk_group": 2, "moe_latent_size": 7, "norm_topk_prob": False})).items() if k != "hidden_act"} | NO_LIMIT))
add("nemotron_moe-c", **({k: v for k, v in base("nemotron_h", **(NEMOTRON_MOE | {"hybrid_override_pattern": "EM*E", "num_hidden_layers": 4, "num_key_value_heads": 4, "n_groups": 1, "moe_latent_size": 10, "n_routed_experts": 4, "num_experts_per_tok": 3, "routed_scaling_factor": 1.0, "n_group": 2, "topk_group": 2})).items() if k != "hidden_act"} | NO_LIMIT))

# Two further models of each of these families, to which its implementation was not fitted.
both("ministral3", RMS | TIED | {"num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "sliding_window": 20, "rope_parameters": GROWING | {"original_max_position_embeddings": 12, "max_position_embeddings": 128, "llama_4_scaling_beta": 0.2, "mscale_all_dim": 0.6, "rope_theta": 10000.0}},
     RMS | {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 6, "rope_parameters": {"rope_type": "yarn", "rope_theta": 100000.0, "factor": 2.0, "original_max_position_embeddings": 24, "mscale": 1.0, "mscale_all_dim": 0, "llama_4_scaling_beta": 1.0}})
add("mistral3-b", "library", **seeing(base("mistral", **(RMS | {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 6, "rope_theta": 1000000000.0, "sliding_window": None}))))
add("mistral3-c", **seeing(base("ministral3", **(RMS | SMALL | TIED | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "sliding_window": 25, "rope_parameters": GROWING | {"original_max_position_embeddings": 20, "factor": 16.0}})), tie_word_embeddings=True))

# Layers with a window have rotary frequencies of their own.
OLMO3_YARN = YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.1386294361119891}
add("olmo3-a", **base("olmo3", num_hidden_layers=5, num_attention_heads=3, num_key_value_heads=3, sliding_window=7, layer_types=["sliding_attention"] * 3 + ["full_attention", "sliding_attention"], rope_theta=500000.0, rope_scaling=OLMO3_YARN, attention_bias=False, rms_norm_eps=1e-6))

# Two further models of this family, to which its implementation was not fitted.
both("olmo3", RMS | {"num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "sliding_window": 12, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 20000.0, "factor": 2.0, "original_max_position_embeddings": 48}, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
     RMS | {"num_hidden_layers": 4, "num_attention_heads": 5, "num_key_value_heads": 1, "sliding_window": 30, "rope_theta": 500000.0})
