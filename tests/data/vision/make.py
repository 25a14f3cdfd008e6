"""Tiny models of pictures with random weights, as Hugging Face folders, and what transformers computes of them.

    pip install torch transformers safetensors pillow
    python pictures.py
    python make.py [NAME ...]

Each folder has config.json, preprocessor_config.json, model.safetensors (F16), and reference.json: of two pictures the pixels after
preprocessing by the library's Pillow processors, the features, and the logits of the head where the model has one; of models with
texts the vectors of two texts and the logits of each pair. Files are opened as the library's `load_image` does.
"""

import copy
import json
import pathlib
import sys

import torch
import transformers
from PIL import Image, ImageOps

import configs

torch.set_num_threads(1)
HERE = pathlib.Path(__file__).parent
CLASSES = 4
# Maximum number of pixel values stored per image; of more, only every n-th is stored.
MOST = 2500


def randomize(model, seed):
    """Weights as wide as trained ones are for their inputs, gains about 1, biases about 0."""
    draw = torch.Generator().manual_seed(seed)
    tensors = list(model.named_parameters()) + list(model.named_buffers())
    for name, p in tensors:
        if not p.is_floating_point():
            continue
        if name.startswith("logit_"):
            # Keep the scale and bias of the similarity, rounded to F16 as in the file.
            p.data.copy_(p.half().float())
            continue
        x = torch.randn(p.shape, generator=draw)
        if name.endswith("running_var"):
            x = 0.7 + 0.2 * x.abs()
        elif p.dim() > 1:
            wide = "embedding" in name and "patch_embed" not in name or "token" in name or "probe" in name
            x = x if wide else 1.5 * x / p[0].numel() ** 0.5
        elif name.endswith(("weight", "lambda1", "layer_scale_parameter")):
            x = 1 + 0.3 * x
        else:
            x = 0.3 * x
        p.data.copy_(x.half().float())


def listed(t, digits=5):
    return [float(f"{x:.{digits}g}") for x in t.flatten().tolist()]


def opened(name):
    return ImageOps.exif_transpose(Image.open(HERE / "pictures" / name)).convert("RGB")


def vector(found):
    return found if isinstance(found, torch.Tensor) else found.pooler_output


def features(model, pixels):
    kind = model.config.model_type
    if kind in ("clip", "siglip"):
        return vector(model.get_image_features(pixel_values=pixels))
    out = model.base_model(pixel_values=pixels)
    if kind in ("vit", "dinov2"):
        return out.last_hidden_state[:, 0]
    return out.pooler_output.flatten(1)


def tokens(config, seed):
    """Two texts; those of SigLIP are filled up. The places of the tokens that stand for them."""
    draw = torch.Generator().manual_seed(seed)
    text = config.text_config
    context = text.max_position_embeddings
    found, places = [], []
    for n in (context, context // 2):
        ids = torch.randint(4, text.vocab_size - 3, (n,), generator=draw).tolist()
        if config.model_type == "siglip":
            ids += [text.pad_token_id] * (context - n)
            places.append(context - 1)
        else:
            end = text.vocab_size - 1 if text.eos_token_id == 2 else text.eos_token_id
            ids[-1] = end
            places.append(n - 1)
        found.append(ids)
    return found, places


WORDS = ["<unk>", "<pad>", "a", "cat", "dog", "two", "on", "grass", "photo", "of"]
TEXTS = ["a photo of a cat", "two dogs on grass"]


def tokenizer(config):
    """A tokenizer of a few words with the tokens that begin and end texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    last = config.text_config.vocab_size - 1
    first, end = "<start>", "<end>"
    vocab = {word: i for i, word in enumerate(WORDS)} | {first: last - 1, end: last}
    made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["<pad>", first, end])
    single = f"{first} $A {end}" if config.model_type == "clip" else f"$A {end}"
    made.post_processor = processors.TemplateProcessing(single=single, special_tokens=[(first, last - 1), (end, last)])
    return made


def words(model, made):
    """The vectors of texts."""
    rows = []
    for text in TEXTS:
        ids = made.encode(text).ids
        if model.config.model_type == "siglip":
            ids += [model.config.text_config.pad_token_id] * (model.config.text_config.max_position_embeddings - len(ids))
        rows.append(listed(vector(model.get_text_features(input_ids=torch.tensor([ids]))), 7))
    return {"texts": TEXTS, "features": rows}


@torch.no_grad()
def reference(name, model, processor, pictures, seed):
    rows = [processor(opened(name), return_tensors="pt")["pixel_values"].float() for name in pictures]
    step = -(-rows[0].numel() // MOST)
    found = {
        "pictures": pictures,
        "step": step,
        "pixels": [listed(row.flatten()[::step]) for row in rows],
        # The difference of normalized pixels that corresponds to one 8-bit step.
        "byte": processor.rescale_factor / min(processor.image_std),
        "features": [listed(features(model, row), 7) for row in rows],
    }
    config = model.config
    if config.model_type in ("clip", "siglip"):
        ids, places = tokens(config, seed)
        all_ids = [torch.tensor([row]) for row in ids]
        found["ids"], found["places"] = ids, places
        found["texts"] = [listed(vector(model.get_text_features(input_ids=row)), 7) for row in all_ids]
        each = [[model(input_ids=i, pixel_values=p).logits_per_image.item() for i in all_ids] for p in rows]
        if name.endswith("-a"):
            made = tokenizer(config)
            made.save(str(HERE / name / "tokenizer.json"), pretty=False)
            found["words"] = words(model, made)
        found["likeness"] = [listed(torch.tensor(row), 7) for row in each]
    elif type(model).__name__.endswith("ForImageClassification"):
        found["logits"] = [listed(model(pixel_values=row).logits, 7) for row in rows]
    return found


def make(name, fields, of):
    out = HERE / name
    out.mkdir(exist_ok=True)
    fields = copy.deepcopy(fields)
    if of.head:
        labels = [f"class-{i}" for i in range(CLASSES)]
        fields |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    config = transformers.AutoConfig.for_model(**copy.deepcopy(fields))
    kind = transformers.AutoModelForImageClassification if of.head else transformers.AutoModel
    model = kind.from_config(config, attn_implementation="eager").float().eval()
    seed = sum(map(ord, name))
    randomize(model, seed)
    processor = getattr(transformers, of.kind + "ImageProcessorPil")(**copy.deepcopy(of.processor))
    found = reference(name, model, processor, list(of.pictures), seed)
    (out / "reference.json").write_text(json.dumps(found) + "\n")
    # Use `save_pretrained`, which renames tensors from the names of transformers' modules to those of folders.
    model.half().save_pretrained(out)
    own = of.processor
    if of.style == "library":
        own = {k: v for k, v in json.loads(processor.to_json_string()).items() if not k.startswith("_")}
    else:
        text = fields | {"architectures": [type(model).__name__]}
        (out / "config.json").write_text(json.dumps(text, indent=1) + "\n")
        own = own | of.named
    (out / "preprocessor_config.json").write_text(json.dumps(own, indent=1) + "\n")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{name}: {size / 1024:.1f} KiB")


if __name__ == "__main__":
    for name, (fields, of) in configs.CONFIGS.items():
        if len(sys.argv) < 2 or any(name.startswith(a) for a in sys.argv[1:]):
            make(name, fields, of)
