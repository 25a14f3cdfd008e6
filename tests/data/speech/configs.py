"""The configurations: in the manner of the hub's files of multilingual models, in the manner of the library's files of today, and
in the manner of the hub's files of English alone. Windows of the second and third are shorter, so that tables are small."""

LANGUAGES = ("en", "de", "fr", "es")


def model(**more):
    return {
        "model_type": "whisper", "d_model": 24, "num_mel_bins": 80, "encoder_layers": 2, "encoder_attention_heads": 3,
        "encoder_ffn_dim": 40, "decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 40,
        "max_source_positions": 1500, "max_target_positions": 96, "activation_function": "gelu", "scale_embedding": False,
        "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
        "init_std": 0.02, "is_encoder_decoder": True, "use_cache": True,
    } | more


# By name: the fields of `config.json`, the window length in seconds, whether the model is multilingual, the style of
# its files, and the parameters of random weights: seed, length of token embeddings, and relative length of timestamp
# embeddings.
CONFIGS = {
    "whisper-a": (model(num_hidden_layers=2, max_length=96), 30, True, "hub", (1, 3.2, 0.55)),
    "whisper-b": (
        model(
            d_model=40, num_mel_bins=128, encoder_layers=1, decoder_layers=3, encoder_ffn_dim=56, decoder_ffn_dim=72,
            encoder_attention_heads=4, decoder_attention_heads=2, max_source_positions=250,
        ), 5, True, "library", (2, 0.5, 0.42),
    ),
    "whisper-c": (
        model(d_model=32, encoder_attention_heads=2, decoder_attention_heads=4, max_source_positions=500, activation_function="relu"),
        10, False, "hub", (3, 3.2, 0.52),
    ),
}
