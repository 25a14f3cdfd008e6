"""Tiny vision-language models with random weights, as Hugging Face folders, and what transformers makes of pictures and prompts.

    pip install torch transformers safetensors pillow tokenizers
    python ../vision/pictures.py
    python make.py [NAME ...]

Each folder has config.json, preprocessor_config.json and processor_config.json, a tokenizer, chat_template.json or .jinja,
model.safetensors (F16), and reference.json: for each prompt its text, the pictures, their pixels after preprocessing by the
library's Pillow processors, rows and columns of tiles, what the connector gives, the ids, the logits of the last position and
greedy tokens.
"""

import copy
import json
import pathlib
import sys

import torch
import transformers
from PIL import Image, ImageOps
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

import configs

torch.set_num_threads(1)
HERE = pathlib.Path(__file__).parent
PICTURES = HERE.parent / "vision" / "pictures"
# Maximum number of pixel values stored per image; of more, only every n-th is stored.
MOST = 1500
TOKENS = 16
IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
ENDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPECIAL = [AROUND, IMAGE, WHOLE, "<end_of_utterance>"] + [f"<row_{i}_col_{j}>" for i in range(1, 4) for j in range(1, 4)]
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}"
    "{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
PROMPTS = ["{}What is this?", "Here {}and here {}are two.", "No picture at all."]


def tokenizer():
    """Bytes, a few merges, and the tokens that stand around pictures."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, special_tokens=ENDS, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["What is this?\n\nThese are pictures.\n\n A picture of\n\n a cat and a dog\n"] * 9, trainer)
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return made


def randomize(model, seed):
    """Weights as wide as trained ones are for their inputs, gains about 1, biases about 0."""
    draw = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=draw)
        if p.dim() > 1:
            x = x if "embed" in name and "patch_embed" not in name else 1.5 * x / p[0].numel() ** 0.5
        elif name.endswith("weight"):
            x = 1 + 0.3 * x
        else:
            x = 0.3 * x
        p.data.copy_(x.half().float())


def listed(t, digits=7):
    return [float(f"{x:.{digits}g}") for x in t.flatten().tolist()]


def opened(name):
    return ImageOps.exif_transpose(Image.open(PICTURES / name)).convert("RGB")


@torch.no_grad()
def of_prompt(model, processor, made, prompt, names, per_tile, chat):
    """What is made of a prompt with these pictures."""
    found = {"prompt": prompt, "pictures": names, "chat": chat}
    given = {}
    if names:
        out = processor([opened(name) for name in names], return_tensors="pt", return_row_col_info=True)
        pixels = out["pixel_values"][0].float()
        given = {"pixel_values": out["pixel_values"].float(), "pixel_attention_mask": out["pixel_attention_mask"]}
        step = -(-pixels.numel() // MOST)
        found["tiles"] = list(zip(out["rows"][0], out["cols"][0]))
        found["step"], found["pixels"] = step, listed(pixels.flatten()[::step], 5)
        features = torch.cat(model.get_image_features(**given).pooler_output)
        found["features"] = listed(features)
        parts = prompt.split(IMAGE)
        prompt = parts[0]
        for (rows, columns), rest in zip(found["tiles"], parts[1:]):
            prompt += get_image_prompt_string(rows, columns, per_tile, AROUND, IMAGE, WHOLE) + rest
    ids = made.encode(prompt).ids
    row = torch.tensor([ids])
    found["ids"] = ids
    found["logits"] = listed(model(input_ids=row, **given).logits[0, -1])
    out = model.generate(input_ids=row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=TOKENS,
                         min_new_tokens=TOKENS, eos_token_id=None, pad_token_id=2, **given)
    found["greedy"] = out[0, len(ids):].tolist()
    return found


def conversation(names):
    from transformers.utils.chat_template_utils import render_jinja_template

    parts = [{"type": "image"} for _ in names] + [{"type": "text", "text": "What is this?"}]
    messages = [{"role": "user", "content": parts}]
    return render_jinja_template([messages], chat_template=TEMPLATE, add_generation_prompt=True)[0][0]


def make(name, fields, own, style, pictures):
    out = HERE / name
    out.mkdir(exist_ok=True)
    made = tokenizer()
    made.save(str(out / "tokenizer.json"), pretty=False)
    fields = copy.deepcopy(fields)
    fields["image_token_id"] = made.token_to_id(IMAGE)
    fields["text_config"]["vocab_size"] = made.get_vocab_size()
    if style == "hub":
        fields["vocab_size"] = made.get_vocab_size()
    config = transformers.AutoConfig.for_model(**copy.deepcopy(fields))
    model = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float().eval()
    randomize(model, sum(map(ord, name)))
    if config.tie_word_embeddings:
        model.tie_weights()
    kind = own["image_processor_type"].removesuffix("ImageProcessor")
    given = {k: v for k, v in own.items() if k not in ("image_processor_type", "processor_class", "video_sampling")}
    processor = getattr(transformers, kind + "ImageProcessorPil")(**copy.deepcopy(given))
    vision = fields["vision_config"]
    per_tile = (vision["image_size"] // vision["patch_size"] // fields["scale_factor"]) ** 2
    found = {"byte": processor.rescale_factor / min(processor.image_std), "prompts": []}
    for text, names in zip(PROMPTS, pictures):
        prompt = text.format(*[IMAGE] * len(names))
        found["prompts"].append(of_prompt(model, processor, made, prompt, names, per_tile, None))
    asked = conversation(pictures[0])
    found["prompts"].append(of_prompt(model, processor, made, asked, pictures[0], per_tile, "What is this?"))
    (out / "reference.json").write_text(json.dumps(found) + "\n")
    model.half().save_pretrained(out)
    end = made.token_to_id("<end_of_utterance>")
    around = {"image_seq_len": per_tile, "processor_class": kind + "Processor"}
    if style == "library":
        written = {k: v for k, v in json.loads(processor.to_json_string()).items() if not k.startswith("_")}
        written |= {"image_processor_type": own["image_processor_type"]}
        (out / "processor_config.json").write_text(json.dumps({"image_processor": written} | around, indent=1) + "\n")
        (out / "chat_template.jinja").write_text(TEMPLATE)
    else:
        text = fields | {"architectures": [type(model).__name__]}
        (out / "config.json").write_text(json.dumps(text, indent=1) + "\n")
        (out / "preprocessor_config.json").write_text(json.dumps(own, indent=1) + "\n")
        (out / "processor_config.json").write_text(json.dumps(around, indent=1) + "\n")
        (out / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}, indent=1) + "\n")
    generation = {"_from_model_config": True, "bos_token_id": 0, "eos_token_id": end, "pad_token_id": 2}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{name}: {size / 1024:.1f} KiB")


if __name__ == "__main__":
    for name, (fields, own, style, pictures) in configs.CONFIGS.items():
        if len(sys.argv) < 2 or any(name.startswith(a) for a in sys.argv[1:]):
            make(name, fields, own, style, pictures)
