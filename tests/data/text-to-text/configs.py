"""The configurations: the first, in the manner of its hub's files, was used while the family was written; the second is written in
the manner of the library's files of today, the third in that of the hub, both after it."""

CONFIGS = {}


def add(name, style="hub", own_output=False, **fields):
    """`own_output`: whether the output projection has a matrix of its own."""
    CONFIGS[name] = (fields, style, own_output)


def t5(**more):
    return {
        "model_type": "t5", "d_ff": 20, "d_kv": 6, "d_model": 12, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
        "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-6, "n_positions": 64, "num_heads": 2,
        "num_layers": 2, "output_past": True, "pad_token_id": 0, "relative_attention_num_buckets": 32, "use_cache": True, "vocab_size": 60,
        "task_specific_params": {"translation_en_to_de": {"early_stopping": True, "max_length": 300, "num_beams": 4, "prefix": "translate English to German: "}},
    } | more


add("t5-a", **t5())

# Further models, to which the implementation was not fitted.
add("t5-b", "library", True, **t5(d_kv=8, num_heads=3, num_decoder_layers=3, d_ff=24, feed_forward_proj="gated-gelu", tie_word_embeddings=False))
add("t5-c", **t5(num_layers=3, num_decoder_layers=1, num_heads=4, d_kv=4, relative_attention_num_buckets=8, relative_attention_max_distance=20, feed_forward_proj="gated-silu", layer_norm_epsilon=1e-4, decoder_start_token_id=3, vocab_size=50))
