"""The configurations: the first, in the manner of its hub's files, was used while the family was written; the second is written as the
library writes files today, the third in the manner of the hub."""

CONFIGS = {}

HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def vision(**more):
    return {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2} | more


def text(**more):
    return {
        "bos_token_id": 0, "eos_token_id": 0, "hidden_size": 24, "intermediate_size": 40, "max_position_embeddings": 512,
        "model_type": "llama", "num_attention_heads": 3, "num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": 2,
        "rms_norm_eps": 1e-5,
    } | more


def processor(kind, longest, tile, **more):
    return {
        "do_convert_rgb": True, "do_image_splitting": True, "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True,
        "image_processor_type": kind + "ImageProcessor", "max_image_size": {"longest_edge": tile}, "processor_class": kind + "Processor",
        "resample": 1, "rescale_factor": 0.00392156862745098, "size": {"longest_edge": longest},
    } | HALF | more


# Further fields that the `text_config` of published folders has.
OLD_TEXT = {
    "_flash_attn_2_enabled": True, "_name_or_path": "None", "architectures": ["VLlama3ForCausalLM"], "head_dim": 8,
    "is_llama_config": True, "neftune_noise_alpha": 0.0, "perceiver_config": {"resampler_depth": 6, "hidden_act": "silu"},
    "pixel_shuffle_factor": 2, "qk_layer_norms": False, "rope_interleaved": False, "rope_theta": 100000, "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "use_resampler": False,
}
OLD_VISION = {
    "max_image_size": {"longest_edge": 16}, "model_type": "idefics3", "size": {"longest_edge": 32}, "tie_word_embeddings": False,
    "use_base_siglip": False,
}

# By name: the configuration, the processor, the style of the files, and the images of each prompt.
CONFIGS["idefics3-a"] = (
    {"model_type": "idefics3", "scale_factor": 2, "text_config": text(**OLD_TEXT), "tie_word_embeddings": False, "use_cache": True,
     "vision_config": vision(image_size=16, patch_size=4, **OLD_VISION)},
    processor("Idefics3", 32, 16), "hub", [["wide.png"], ["gray.png", "tall.png"], []])
CONFIGS["smolvlm-b"] = (
    {"model_type": "smolvlm", "scale_factor": 3, "text_config": text(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True),
     "tie_word_embeddings": True,
     "vision_config": vision(image_size=18, patch_size=3, num_attention_heads=4, hidden_act="gelu", layer_norm_eps=1e-5)},
    processor("SmolVLM", 54, 18, do_image_splitting=False, resample=3, image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225]),
    "library", [["palette.png"], ["clear.png", "wide.png"], []])
CONFIGS["smolvlm-c"] = (
    {"model_type": "smolvlm", "scale_factor": 2,
     "text_config": text(hidden_size=32, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=3, rope_theta=10000.0,
                         rope_scaling={"rope_type": "linear", "factor": 2.0}, attention_bias=True),
     "tie_word_embeddings": False, "use_reentrant_checkpoints": False,
     "vision_config": vision(image_size=24, patch_size=4, hidden_size=18, num_attention_heads=3, num_hidden_layers=1,
                             model_type="smolvlm_vision")},
    processor("SmolVLM", 72, 24, resample=2, video_sampling={"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 24}}),
    "hub", [["tall.png"], ["palette.png", "gray.png"], []])
