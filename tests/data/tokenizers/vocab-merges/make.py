"""Generates the folders of vocab.json with merges.txt and of vocab.txt, and the ids that transformers computes.

Requires: pip install transformers tokenizers
"""
import json
import pathlib
import shutil
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertTokenizer, GPT2Tokenizer, MPNetTokenizer, Qwen2Tokenizer, RobertaTokenizer

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


# Accents, scripts without spaces, control and private characters, emoji, long words, special tokens.
WORDS = [
    "The Cats' CAFÉ, café and cafe\u0301",
    "世界world 世 界!\u200bna\u00efve\u0000\ufffd\u0007cat\r\ncat",
    "\U0001f600\U0001f600 cat\U0001f600 \ue000",
    "a" * 100 + " " + "b" * 101,
    "[CLS] the [MASK] cat[SEP][UNK] <s> the <mask> </s>",
    "cat-sat (on) 1,234.5?",
    "\u00a0the\u2003cat\u3000sat \u0130stanbul stra\u00dfe",
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
    reference(folder, kind, TEXTS)


def reference(folder, kind, texts):
    tokenizer = kind.from_pretrained(folder)
    cases = [
        {
            "text": text,
            "ids": tokenizer.encode(text),
            "plain": tokenizer.encode(text, add_special_tokens=False),
        }
        for text in texts
    ]
    value = {"vocab": len(tokenizer), "cases": cases}
    (folder / "reference.json").write_text(json.dumps(value, ensure_ascii=False) + "\n")


def pieces(name, kind, special, config, files):
    """A folder with vocab.txt alone."""
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words = ["the", "cat", "sat", "on", "mat", "Cat", "cafe", "caf", "##é", "na", "##ive", "world", "世", "界", "##界"]
    letters = [c for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
    tokens = special + words + letters + ["##" + c for c in letters] + list(".,!?'()-") + ["\U0001f600", "é"]
    if not files:
        # This token occurs twice: its id is that of the last line.
        tokens.append("##s")
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
    for file, value in files.items():
        (folder / file).write_text(json.dumps(value) + "\n")
    reference(folder, kind, TEXTS + WORDS)


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
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
pieces("bert", BertTokenizer, BERT, {"tokenizer_class": "BertTokenizer", "do_lower_case": True}, {})
pieces("bert-cased", BertTokenizer, BERT, {"do_lower_case": False, "model_max_length": 512}, {})
pieces(
    "bert-kept", BertTokenizer, BERT,
    {"tokenizer_class": "BertTokenizer", "strip_accents": False, "tokenize_chinese_chars": False},
    {"special_tokens_map.json": {"cls_token": "[CLS]", "mask_token": "[MASK]"}, "added_tokens.json": {"<tool>": 102}},
)
pieces("mpnet", MPNetTokenizer, ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"], {"tokenizer_class": "MPNetTokenizer"}, {})
