"""The configurations: of each family the first, in the manner of its hub's files, was used while its row was written. The second
is written in the manner of the library's files of today, the third in that of the hub, both after the row."""

CONFIGS = {}


def add(name, head, style="hub", **fields):
    """`head`: classes of texts, classes of tokens, or none (a bare encoder)."""
    CONFIGS[name] = (fields, head, style)


def base(model_type, **more):
    return {
        "model_type": model_type, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
        "vocab_size": 40, "max_position_embeddings": 40, "hidden_act": "gelu", "pad_token_id": 0, "layer_norm_eps": 1e-12,
    } | more


def distilbert(**more):
    return {
        "model_type": "distilbert", "dim": 12, "n_layers": 2, "n_heads": 2, "hidden_dim": 20, "vocab_size": 40,
        "max_position_embeddings": 40, "activation": "gelu", "pad_token_id": 0, "dropout": 0.1, "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
    } | more


ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5}
MPNET = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "relative_attention_num_buckets": 32, "layer_norm_eps": 1e-5}

add("bert-a", "texts", **base("bert", type_vocab_size=2, position_embedding_type="absolute", use_cache=True))
add("roberta-a", "texts", **base("roberta", **ROBERTA))
add("xlm-roberta-a", "texts", **base("xlm-roberta", output_past=True, **ROBERTA))
add("mpnet-a", "texts", **base("mpnet", **MPNET))
add("distilbert-a", "texts", **distilbert())
add("electra-a", "texts", **base("electra", embedding_size=8, type_vocab_size=2, summary_type="first", summary_use_proj=True, summary_activation="gelu", summary_last_dropout=0.1))

# Further models, to which the implementation of the families was not fitted.
add("bert-b", "tokens", "library", **base("bert", num_attention_heads=4, hidden_act="gelu_new", type_vocab_size=3, layer_norm_eps=1e-5))
add("bert-c", None, **base("bert", hidden_size=15, num_attention_heads=3, num_hidden_layers=3, hidden_act="relu", type_vocab_size=2, pad_token_id=5))
add("roberta-b", "tokens", "library", **base("roberta", **(ROBERTA | {"type_vocab_size": 2, "pad_token_id": 4, "num_attention_heads": 4})))
add("roberta-c", None, **base("roberta", hidden_size=15, num_attention_heads=3, hidden_act="gelu_new", **(ROBERTA | {"layer_norm_eps": 1e-4})))
add("xlm-roberta-b", "tokens", "library", **base("xlm-roberta", num_attention_heads=4, num_hidden_layers=1, **(ROBERTA | {"pad_token_id": 0})))
add("xlm-roberta-c", None, **base("xlm-roberta", hidden_size=20, num_attention_heads=5, hidden_act="silu", **ROBERTA))
add("mpnet-b", "tokens", "library", **base("mpnet", num_attention_heads=4, **MPNET))
add("mpnet-c", None, **base("mpnet", hidden_size=15, num_attention_heads=3, hidden_act="gelu_new", max_position_embeddings=200, **(MPNET | {"layer_norm_eps": 1e-12})))
add("distilbert-b", "tokens", "library", **distilbert(n_heads=4, activation="relu", sinusoidal_pos_embds=True))
add("distilbert-c", None, **distilbert(dim=15, n_heads=3, n_layers=3))
add("electra-b", "tokens", "library", **base("electra", embedding_size=12, num_attention_heads=4, type_vocab_size=2))
add("electra-c", None, **base("electra", hidden_size=12, embedding_size=20, num_attention_heads=3, type_vocab_size=4, layer_norm_eps=1e-5))


def modernbert(**more):
    fields = base("modernbert", num_hidden_layers=4, hidden_activation="gelu", norm_eps=1e-5, pad_token_id=3, **more)
    return {k: v for k, v in fields.items() if k not in ("hidden_act", "layer_norm_eps")}


NOMIC_OLD = {
    "model_type": "nomic_bert", "activation_function": "swiglu", "attn_pdrop": 0.0, "causal": False, "dense_seq_output": True,
    "embd_pdrop": 0.0, "fused_bias_fc": True, "fused_dropout_add_ln": True, "layer_norm_epsilon": 1e-12, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "n_embd": 12, "n_head": 2, "n_inner": 20, "n_layer": 2, "n_positions": 40, "pad_vocab_size_multiple": 8,
    "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False, "resid_pdrop": 0.0, "rotary_emb_base": 500, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True, "summary_type": "cls_index", "summary_use_proj": True,
    "type_vocab_size": 2, "use_cache": True, "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True, "vocab_size": 40,
}

add("modernbert-a", "texts", **modernbert(global_attn_every_n_layers=3, global_rope_theta=160000.0, local_rope_theta=10000.0, local_attention=6, attention_bias=False, mlp_bias=False, norm_bias=False, classifier_pooling="mean", classifier_bias=False, classifier_activation="gelu", decoder_bias=True, deterministic_flash_attn=False, reference_compile=False, embedding_dropout=0.0, mlp_dropout=0.0, sparse_prediction=False, sparse_pred_ignore_index=-100, initializer_cutoff_factor=2.0, cls_token_id=1, sep_token_id=2))
add("modernbert-b", "tokens", "library", **modernbert(local_attention=8, attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True, classifier_activation="silu", rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 5000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}, layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"]))
add("modernbert-c", None, **(modernbert(local_attention=5) | {"hidden_size": 20, "num_attention_heads": 5, "num_hidden_layers": 3, "hidden_activation": "gelu_pytorch_tanh", "global_attn_every_n_layers": 2}))
add("nomic_bert-a", None, "old", **NOMIC_OLD)
add("nomic_bert-b", "texts", "library", **base("nomic_bert", hidden_act="silu", type_vocab_size=3, num_attention_heads=3, rope_parameters={"rope_type": "default", "rope_theta": 2000.0}))
add("nomic_bert-c", "tokens", **(base("nomic_bert", hidden_act="gelu", type_vocab_size=2, head_dim=8, layer_norm_eps=1e-5)))


def embedding_gemma(**more):
    return {
        "model_type": "gemma3_text", "attention_bias": False, "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": 1,
        "final_logit_softcapping": None, "head_dim": 8, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 12,
        "intermediate_size": 20, "max_position_embeddings": 40, "num_attention_heads": 3, "num_hidden_layers": 4,
        "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 8, "rms_norm_eps": 1e-6, "sliding_window": 6,
        "use_bidirectional_attention": True, "vocab_size": 40,
    } | more


PATTERN = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
OLD_ROPES = {"rope_local_base_freq": 10000.0, "rope_theta": 1000000.0, "rope_scaling": None}
add("embedding_gemma-a", None, **embedding_gemma(layer_types=PATTERN, _sliding_window_pattern=6, **OLD_ROPES))
add("embedding_gemma-b", None, "library", **embedding_gemma(head_dim=4, num_attention_heads=4, num_key_value_heads=2, query_pre_attn_scalar=16, sliding_window=7, layer_types=PATTERN[::-1], rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}))
add("embedding_gemma-c", None, **embedding_gemma(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, sliding_window=1, rms_norm_eps=1e-4, layer_types=PATTERN[1:], **(OLD_ROPES | {"rope_theta": 2000.0, "rope_local_base_freq": 50.0})))
