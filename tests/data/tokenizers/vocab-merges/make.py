"""Generates the folders of vocab.json and merges.txt, and the ids that transformers computes.

Requires: pip install transformers tokenizers
"""
import json
import pathlib
import shutil
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, Qwen2Tokenizer, RobertaTokenizer

OUT = pathlib.Path(sys.argv[1])
CORPUS = [
    "the cat sat on the mat, and the other cat sat on the hat",
    "Numbers such as 12, 345 and 2024 are in the text; so are cafe\u0301s and caf\u00e9s.",
    "fn main() {\n    println!(\"the end\");\n}\n",
    "they're here, we'll see, it's the cat's hat",
]
TEXTS = CORPUS + [
    "",
    " leading and trailing ",
    "a  b\t\tc\n\n\nd",
    "12345 \u4e16\u754c \U0001f600 na\u0130ve",
    "<s>the</s> <mask> cat<pad> <|endoftext|> <|im_start|>user<tool>x",
]


def trained(special, pattern):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pattern
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 50 + len(special),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [" ".join(m) for m in model["merges"]]


def write(name, kind, special, config, files, pattern=None):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    vocab, merges = trained(special, pattern or pre_tokenizers.ByteLevel(add_prefix_space=False))
    dump = lambda path, value: path.write_text(json.dumps(value, ensure_ascii=False) + "\n")
    dump(folder / "vocab.json", vocab)
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    if config is not None:
        dump(folder / "tokenizer_config.json", config)
    for file, value in files.items():
        dump(folder / file, value)
    tokenizer = kind.from_pretrained(folder)
    cases = [
        {
            "text": text,
            "ids": tokenizer.encode(text),
            "plain": tokenizer.encode(text, add_special_tokens=False),
        }
        for text in TEXTS
    ]
    dump(folder / "reference.json", {"vocab": len(tokenizer), "cases": cases})


SPECIAL = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>",
    "pad_token": "<pad>", "cls_token": "<s>",
    "mask_token": {"content": "<mask>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": False},
}
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
write("gpt2", GPT2Tokenizer, ["<|endoftext|>"], {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, {})
write("roberta", RobertaTokenizer, ROBERTA, {"tokenizer_class": "RobertaTokenizer"}, {"special_tokens_map.json": SPECIAL})
write(
    "qwen2", Qwen2Tokenizer, [],
    {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {
            str(306 + i): {"content": c, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": s}
            for i, (c, s) in enumerate([("<|endoftext|>", True), ("<|im_start|>", True), ("<tool>", False)])
        },
        "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
    },
    {},
)
write(
    "added", GPT2Tokenizer, ["<|endoftext|>"], {"tokenizer_class": "GPT2Tokenizer"},
    {"added_tokens.json": {"<|im_start|>": 307, "<tool>": 308}, "special_tokens_map.json": {"additional_special_tokens": ["<|im_start|>"], "eos_token": "<|endoftext|>"}},
)
