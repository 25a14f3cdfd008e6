"""Tiny encoder-decoders of texts with random weights, as Hugging Face folders, and what transformers computes of them.

    pip install torch transformers safetensors
    python make.py [NAME ...]

Each folder has config.json, model.safetensors (F16), and reference.json: two texts as tokens, and of each the encoder's hidden states,
32 tokens of the greatest logits (ends of texts are written like others), and the logits of the first and of the last of them, all
in F32. The first folder has a tokenizer of words as well.
"""

import copy
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import configs

torch.set_num_threads(1)
HERE = pathlib.Path(__file__).parent
LENS = (17, 3)
WRITTEN = 32
WORDS = "translate to : the a cat dog bird sees house red green old two fly high".split()


def randomize(model, seed):
    """Weights as wide as trained ones are for their inputs, gains about 1; queries of heads whose scores are not scaled."""
    draw = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=draw)
        if name.endswith("layer_norm.weight"):
            x = 1 + 0.3 * x
        elif name.endswith(".q.weight"):
            x = x / (p.shape[-1] * model.config.d_kv) ** 0.5
        elif "relative" in name:
            x = 2 * x
        elif "shared" in name:
            # Keep embeddings small compared with the layers' contributions, so that tokens do not predict themselves.
            x = 0.3 * x
        else:
            x = 2.5 * x / p.shape[-1] ** 0.5
        p.data.copy_(x.half().float())


def listed(t, digits=6):
    return [float(f"{x:.{digits}g}") for x in t.flatten().tolist()]


@torch.no_grad()
def text(model, n, draw):
    ids = torch.randint(2, model.config.vocab_size, (1, n), generator=draw)
    encoded = model.encoder(input_ids=ids)
    tokens, logits = [model.config.decoder_start_token_id], []
    for _ in range(WRITTEN):
        out = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([tokens]), use_cache=False)
        logits.append(out.logits[0, -1])
        tokens.append(int(logits[-1].argmax()))
    return {
        "ids": ids[0].tolist(), "hidden": listed(encoded.last_hidden_state), "tokens": tokens[1:],
        "first": listed(logits[0]), "last": listed(logits[-1]),
    }


def tokenizer(out, size):
    vocab = ["<pad>", "</s>", "<unk>"] + WORDS + [f"w{i}" for i in range(size - 3 - len(WORDS))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocab)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    made.add_special_tokens(["<pad>", "</s>", "<unk>"])
    (out / "tokenizer.json").write_text(json.dumps(json.loads(made.to_str())) + "\n")


def make(name, fields, style, own_output):
    out = HERE / name
    out.mkdir(exist_ok=True)
    config = transformers.AutoConfig.for_model(**copy.deepcopy(fields))
    model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    if own_output:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    seed = sum(map(ord, name))
    randomize(model, seed)
    written = fields if style != "library" else json.loads(config.to_json_string())
    written = written | {"architectures": [type(model).__name__]}
    (out / "config.json").write_text(json.dumps(written, indent=1) + "\n")
    tensors = {n: t.half().contiguous() for n, t in model.state_dict().items()}
    twice = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"] + ([] if own_output else ["lm_head.weight"])
    # Older published folders store the shared embedding table under all of its names, newer ones under one.
    kept = {n: t.clone() for n, t in tensors.items() if n not in twice or (name.endswith("-a") and n != "lm_head.weight")}
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})
    draw = torch.Generator().manual_seed(seed)
    texts = [text(model, n, draw) for n in LENS]
    (out / "reference.json").write_text(json.dumps({"texts": texts}) + "\n")
    if name.endswith("-a"):
        tokenizer(out, config.vocab_size)
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{name}: {size / 1024:.1f} KiB", [len(set(t["tokens"])) for t in texts])


if __name__ == "__main__":
    for name, (fields, style, own_output) in configs.CONFIGS.items():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            make(name, fields, style, own_output)
