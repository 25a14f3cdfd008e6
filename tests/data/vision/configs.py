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
    # Beside the processor's own fields.
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
