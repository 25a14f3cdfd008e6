"""The configurations: of each family the first, in the manner of its hub's files, was used while its specification was written. The
second is written as the library writes files today, the third in the manner of the hub."""

import dataclasses

CONFIGS = {}


@dataclasses.dataclass
class Of:
    """How a model is made: the kind of its processor and its fields, whether it tells classes, who wrote its files."""

    kind: str
    processor: dict
    head: bool = False
    style: str = "hub"
    pictures: tuple = ("wide.png", "clear.png")
    # Fields of the processor's file in addition to those of `processor`.
    named: dict = dataclasses.field(default_factory=dict)


def add(name, fields, kind, processor, **more):
    CONFIGS[name] = (fields, Of(kind, processor, **more))


OTHERS = ("tall.png", "palette.png")
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


def vit(**more):
    return {
        "model_type": "vit", "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 16,
        "image_size": 16, "initializer_range": 0.02, "intermediate_size": 24, "layer_norm_eps": 1e-12, "num_attention_heads": 2,
        "num_channels": 3, "num_hidden_layers": 2, "patch_size": 4, "qkv_bias": True,
    } | more


add("vit-a", vit(), "ViT", {"do_normalize": True, "do_resize": True, "size": 16} | HALF, head=True, pictures=("wide.png", "gray.png"))
add("vit-b", vit(hidden_size=15, num_attention_heads=3, image_size=15, patch_size=5, qkv_bias=False, hidden_act="gelu_new", layer_norm_eps=1e-5), "ViT", {"size": {"height": 15, "width": 15}, "resample": 3, "do_rescale": True, "rescale_factor": 0.00392156862745098} | IMAGENET, head=True, style="library", pictures=OTHERS)
add("vit-c", vit(num_hidden_layers=3, image_size=[12, 20], hidden_act="relu", encoder_stride=16), "ViT", {"size": {"height": 12, "width": 20}, "resample": 2, "do_normalize": True} | HALF, named={"image_processor_type": "ViTFeatureExtractor"})


def dinov2(**more):
    return {
        "model_type": "dinov2", "apply_layernorm": True, "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0, "hidden_size": 16, "image_size": 28, "initializer_range": 0.02, "layer_norm_eps": 1e-6,
        "layerscale_value": 1.0, "mlp_ratio": 2, "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2,
        "out_features": ["stage2"], "out_indices": [2], "patch_size": 7, "qkv_bias": True, "reshape_hidden_states": True,
        "stage_names": ["stem", "stage1", "stage2"], "use_swiglu_ffn": False,
    } | more


def bit(crop, edge, **more):
    return {
        "crop_size": crop, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
        "resample": 3, "rescale_factor": 0.00392156862745098, "size": edge,
    } | IMAGENET | more


def small(n):
    return {"height": n, "width": n}


# The images have 21 pixels per side and the position table is for 28, so it is interpolated.
add("dinov2-a", dinov2(), "Bit", bit(small(21), {"shortest_edge": 24}), head=True, named={"image_processor_type": "BitImageProcessor"})
add("dinov2-b", dinov2(use_swiglu_ffn=True, mlp_ratio=3, image_size=16, patch_size=4, layer_norm_eps=1e-5), "Bit", bit(small(16), {"shortest_edge": 16}), style="library", pictures=OTHERS)
add("dinov2-c", dinov2(hidden_size=18, num_attention_heads=3, num_hidden_layers=1, image_size=15, patch_size=5, hidden_act="gelu_new", out_features=["stage1"], out_indices=[1], stage_names=["stem", "stage1"]), "Bit", bit({"height": 12, "width": 31}, {"shortest_edge": 26}, resample=2), pictures=("wide.png", "tall.png"), named={"image_processor_type": "BitImageProcessor", "processor_class": None})

# Further fields that the tower configurations of the first CLIP folders have.
OLD = {
    "_name_or_path": "", "add_cross_attention": False, "architectures": None, "attention_dropout": 0.0, "bad_words_ids": None,
    "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None, "decoder_start_token_id": None, "diversity_penalty": 0.0,
    "do_sample": False, "dropout": 0.0, "early_stopping": False, "encoder_no_repeat_ngram_size": 0, "finetuning_task": None,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "initializer_factor": 1.0, "initializer_range": 0.02, "is_decoder": False,
    "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "length_penalty": 1.0, "max_length": 20, "min_length": 0,
    "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1, "output_attentions": False,
    "output_hidden_states": False, "output_scores": False, "prefix": None, "problem_type": None, "pruned_heads": {},
    "remove_invalid_values": False, "repetition_penalty": 1.0, "return_dict": True, "return_dict_in_generate": False,
    "sep_token_id": None, "task_specific_params": None, "temperature": 1.0, "tie_encoder_decoder": False, "tie_word_embeddings": True,
    "tokenizer_class": None, "top_k": 50, "top_p": 1.0, "torch_dtype": None, "torchscript": False, "transformers_version": "4.16.0.dev0",
    "typical_p": 1.0, "use_bfloat16": False,
}


def side(**more):
    return {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2} | more


def text(**more):
    return side(vocab_size=40, max_position_embeddings=10) | more


def vision(**more):
    return side(image_size=16, patch_size=4) | more


def clip(own_text, own_vision, **more):
    return {"model_type": "clip", "projection_dim": 12, "text_config": own_text, "vision_config": own_vision, "logit_scale_init_value": 2.6592, "initializer_factor": 1.0} | more


def of_clip(crop, edge, **more):
    return {"crop_size": crop, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3, "size": edge} | CLIP | more


add("clip-a", clip(OLD | text(model_type="clip_text_model", eos_token_id=2, bos_token_id=0, pad_token_id=1, hidden_act="quick_gelu", layer_norm_eps=1e-5, projection_dim=12), OLD | vision(model_type="clip_vision_model", hidden_act="quick_gelu", layer_norm_eps=1e-5, projection_dim=12), text_config_dict=None, vision_config_dict=None), "CLIP", of_clip(16, 16), named={"feature_extractor_type": "CLIPFeatureExtractor"})
add("clip-b", clip(text(eos_token_id=39, bos_token_id=38, pad_token_id=39, hidden_act="gelu", hidden_size=18, num_attention_heads=3), vision(hidden_act="gelu", num_hidden_layers=3, image_size=18, patch_size=6), projection_dim=10), "CLIP", of_clip(small(18), {"shortest_edge": 20}), style="library", pictures=OTHERS)
add("clip-c", clip(text(eos_token_id=39, bos_token_id=38, pad_token_id=1, num_hidden_layers=1, layer_norm_eps=1e-4), vision(hidden_size=24, num_attention_heads=3, intermediate_size=30, layer_norm_eps=1e-6)), "CLIP", of_clip(small(16), {"shortest_edge": 13}, resample=2), pictures=("tall.png", "gray.png"), named={"image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True})


def siglip(own_text, own_vision, **more):
    own_text = own_text | {"model_type": "siglip_text_model"}
    return {"model_type": "siglip", "initializer_factor": 1.0, "text_config": own_text, "vision_config": own_vision | {"model_type": "siglip_vision_model"}} | more


TOKENS = {"bos_token_id": 38, "eos_token_id": 39, "pad_token_id": 1}
add("siglip-a", siglip(text(**TOKENS), vision()), "Siglip", {"do_normalize": True, "do_rescale": True, "do_resize": True, "resample": 3, "rescale_factor": 0.00392156862745098, "size": small(16)} | HALF, named={"image_processor_type": "SiglipImageProcessor", "processor_class": "SiglipProcessor"})
add("siglip-b", siglip(text(hidden_act="gelu", num_attention_heads=4, max_position_embeddings=12, **TOKENS), vision(num_hidden_layers=3, patch_size=8, layer_norm_eps=1e-5)), "Siglip", {"size": small(16), "resample": 2} | HALF, style="library", pictures=OTHERS)
add("siglip-c", siglip(text(hidden_size=12, intermediate_size=20, projection_size=18, **(TOKENS | {"pad_token_id": 0})), vision(hidden_size=18, num_attention_heads=3, image_size=15, patch_size=5, num_hidden_layers=1)), "Siglip", {"size": small(15), "do_convert_rgb": None} | HALF, pictures=("gray.png", "clear.png"))


def stages(model_type, **more):
    return {"model_type": model_type, "num_channels": 3, "hidden_sizes": [8, 12, 16], "depths": [1, 2, 1]} | more


def resnet(**more):
    return stages("resnet", downsample_in_first_stage=False, embedding_size=8, hidden_act="relu", layer_type="bottleneck", **more)


def crops(size, **more):
    return {"crop_pct": 0.875, "do_normalize": True, "do_resize": True, "resample": 3, "size": size} | IMAGENET | more


add("resnet-a", resnet(), "ConvNext", crops({"shortest_edge": 32}), head=True, named={"feature_extractor_type": "ConvNextFeatureExtractor"})
add("resnet-b", resnet() | {"layer_type": "basic", "hidden_sizes": [8, 8, 18], "depths": [2, 1, 1], "embedding_size": 8}, "ConvNext", crops({"shortest_edge": 35}), head=True, style="library", pictures=OTHERS)
add("resnet-c", resnet() | {"downsample_in_first_stage": True, "downsample_in_bottleneck": True, "embedding_size": 6, "hidden_act": "gelu"}, "ConvNext", crops({"shortest_edge": 29}, crop_pct=0.95, resample=2), pictures=("wide.png", "gray.png"))


def convnext(**more):
    return stages("convnext", drop_path_rate=0.0, hidden_act="gelu", image_size=224, initializer_range=0.02, layer_norm_eps=1e-12, layer_scale_init_value=1e-6, num_stages=3, patch_size=4, **more)


add("convnext-a", convnext(), "ConvNext", crops({"shortest_edge": 32}), head=True, named={"feature_extractor_type": "ConvNextFeatureExtractor"})
add("convnext-b", convnext() | {"hidden_sizes": [6, 10], "depths": [2, 1], "num_stages": 2, "patch_size": 3, "layer_scale_init_value": 0.0, "layer_norm_eps": 1e-5}, "ConvNext", crops({"shortest_edge": 23}, crop_pct=0.9), head=True, style="library", pictures=OTHERS)
# With a target size of 384 pixels or more, the ConvNeXt processor does not crop.
add("convnext-c", convnext() | {"hidden_sizes": [4, 6, 8], "depths": [1, 1, 1], "hidden_act": "gelu_new"}, "ConvNext", crops({"shortest_edge": 384}), pictures=("wide.png", "gray.png"), named={"image_processor_type": "ConvNextImageProcessor"})
