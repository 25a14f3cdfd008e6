"""Makes the vocabularies and reference ids of this folder with `sentencepiece` and `tokenizers`.

    python make.py            writes the models and ids.json
    python make.py FILE N     writes only N strings and their ids to FILE (nothing of it is committed)

Texts are made here from a fixed seed, so nothing but this script is their source.
"""

import io
import json
import random
import sys
from pathlib import Path

import sentencepiece as spm
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = Path(__file__).parent
WORDS = """the of and to in a is that for it as was with be by on not he his but at are this have from
or had an they which one you were all her she there would their we him been has when who will no more if
out so said what up its about than into them can only other time new some could these two may first then
do any like my now over such our man me even most made after also did many before must through years where
much your way well down should because each just those people how too little state good very make world
still see own work men day get here old life both between being under three never know same last another
while us off might great go come since against right came take used himself few house American use place
tensor kernel buffer shader compile graph weight gradient token model layer attention softmax matrix""".split()
FOREIGN = """straße größe café naïve Ελληνικά γλώσσα русский язык українська עברית שלום العربية مرحبا
हिन्दी नमस्ते বাংলা தமிழ் తెలుగు ไทยสวัสดี 日本語テキスト 漢字かな 中文字符 你好世界 한국어 안녕하세요
ქართული հայերեն አማርኛ ភាសាខ្មែរ မြန်မာ Tiếng Việt İstanbul ğüşöç łódź""".split()
CODE = """fn main() { println!("{}", x[i] + 1); } | for (int i = 0; i < n; ++i) a[i] += b[i] * 0x1F; |
def f(x, *, y=None):\\n    return x ** 2 if y else -x | SELECT * FROM t WHERE a >= 3.14 AND b != 'c'; |
<div class="a">&nbsp;</div> | #include <stdio.h> | let s = "\\u{1F600}"; // note | a&&b||!c ? d : e""".split(" | ")
EMOJI = ["\U0001F600", "\U0001F469\u200d\U0001F4BB", "\U0001F1E9\U0001F1EA", "\u2764\ufe0f", "\U0001F44D\U0001F3FD", "1\ufe0f\u20e3"]
ODD = ["\t", "\n", "\r\n", "\n\n\n", "\u00a0", "\u3000", "\u200b", "\ufeff", "\x00", "\x01", "\x7f", "\x85", "\u2028",
       "\ufffd", "\u2581", "\u2581\u2581", "e\u0301", "\u00e9", "\ufb01", "\u2160", "\uff21\uff11", "\ufdfa", "\u0130", "\u00df",
       "\u1e9e", "\u00bd", "\u2075", "\u0e33", "\u1100\u1161", "\u212b", "\U0001d400", "\u2126"]
SPECIAL = ["<s>", "</s>", "<unk>", "<0x41>", "<user>", "<|a b|>", "[CLS]", "[SEP]", "##s", "\u2581<user>"]


def sentence(rng):
    words = [rng.choice(WORDS) for _ in range(rng.randint(3, 14))]
    if rng.random() < 0.25:
        words[rng.randrange(len(words))] = rng.choice(FOREIGN)
    if rng.random() < 0.2:
        words.append(str(rng.randrange(10 ** rng.randint(1, 8))))
    text = " ".join(words)
    return text[:1].upper() + text[1:] + rng.choice([".", "!", "?", ",", ";", "...", ""])


def any_character(rng):
    while True:
        limit = rng.choice([0x80, 0x250, 0x3000, 0xFFFF, 0x10FFFF])
        code = rng.randrange(limit + 1)
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def hard(rng, most):
    parts = []
    for _ in range(rng.randint(0, most)):
        kind = rng.randrange(12)
        if kind < 3: parts.append(sentence(rng))
        elif kind == 3: parts.append(rng.choice(FOREIGN))
        elif kind == 4: parts.append(rng.choice(CODE).replace("\\n", "\n"))
        elif kind == 5: parts.append(rng.choice(EMOJI))
        elif kind == 6: parts.append(rng.choice(ODD))
        elif kind == 7: parts.append(" " * rng.randint(1, 20))
        elif kind == 8: parts.append("".join(any_character(rng) for _ in range(rng.randint(1, 12))))
        elif kind == 9: parts.append(rng.choice("aeio 1.=-!") * rng.randint(1, 60))
        elif kind == 10: parts.append("".join(rng.choice("abcdeABC123 .,'\n") for _ in range(rng.randint(1, 20))))
        else: parts.append(rng.choice(SPECIAL))
    return rng.choice(["", "", " "]).join(parts)


def train_pieces(name, corpus, **options):
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=out, num_threads=1,
                                   minloglevel=2, hard_vocab_limit=False, **options)
    (HERE / f"{name}.model").write_bytes(out.getvalue())


PIECES = {
    "bpe": dict(model_type="bpe", vocab_size=900, byte_fallback=True, normalization_rule_name="identity",
                remove_extra_whitespaces=False, character_coverage=0.99,
                user_defined_symbols=["<user>", "<|a b|>"], split_digits=True),
    "bpe_plain": dict(model_type="bpe", vocab_size=500, normalization_rule_name="identity", character_coverage=0.98),
    "unigram": dict(model_type="unigram", vocab_size=900, normalization_rule_name="nmt_nfkc", character_coverage=0.99,
                    user_defined_symbols=["<user>"], control_symbols=["<ctl>"]),
    "unigram_bytes": dict(model_type="unigram", vocab_size=800, byte_fallback=True, add_dummy_prefix=False,
                          normalization_rule_name="identity", remove_extra_whitespaces=False,
                          character_coverage=0.98),
    "suffix": dict(model_type="unigram", vocab_size=500, treat_whitespace_as_suffix=True,
                   normalization_rule_name="identity", character_coverage=0.98),
    "char": dict(model_type="char", vocab_size=120, normalization_rule_name="identity", character_coverage=0.98),
}


def train_json(corpus):
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    byte_level.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<s>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    byte_level.save(str(HERE / "byte_level.json"), pretty=False)
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    words.train_from_iterator(corpus, trainers.WordPieceTrainer(
        vocab_size=700, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    words.save(str(HERE / "word_piece.json"), pretty=False)
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    unigram.train_from_iterator(corpus, trainers.UnigramTrainer(
        vocab_size=500, show_progress=False, special_tokens=["<unk>"], unk_token="<unk>"))
    unigram.save(str(HERE / "unigram.json"), pretty=False)


def runs_around_symbols(rng):
    """Runs of one letter have cuts of the same likelihood: which of them wins shows how sums are rounded."""
    runs = [rng.choice("eaoi1") * rng.randint(1, 60) for _ in range(rng.randint(1, 2))]
    return rng.choice(["<user>", "<|a b|>", "zq<user>"]) + rng.choice(["", "<user>", "the time "]).join(runs)


def references(count, seed, most):
    rng = random.Random(seed)
    texts = [hard(rng, most) for _ in range(count)]
    of_runs = random.Random(seed + 1)
    texts += [runs_around_symbols(of_runs) for _ in range(count // 10)]
    out = {"texts": texts, "ids": {}, "decoded": {}}
    for name in PIECES:
        sp = spm.SentencePieceProcessor(model_file=str(HERE / f"{name}.model"))
        out["ids"][name] = [sp.encode(text) for text in texts]
        pieces = [[rng.randrange(len(sp)) for _ in range(rng.randint(0, 12))] for _ in range(count // 10)]
        out["decoded"][name] = [[ids, sp.decode(ids)] for ids in pieces + out["ids"][name][: count // 10]]
    for name in ["byte_level", "word_piece", "unigram"]:
        tok = Tokenizer.from_file(str(HERE / f"{name}.json"))
        out["ids"][name + ".json"] = [tok.encode(text, add_special_tokens=False).ids for text in texts]
    return out


def main():
    if len(sys.argv) == 3:
        Path(sys.argv[1]).write_text(json.dumps(references(int(sys.argv[2]), 7, 8)))
        return
    rng = random.Random(1)
    corpus = [sentence(rng) for _ in range(4000)] + [" ".join(FOREIGN)] * 3 + CODE * 3
    for name, options in PIECES.items():
        train_pieces(name, corpus, **options)
    train_json(corpus)
    (HERE / "ids.json").write_text(json.dumps(references(500, 2, 3), separators=(",", ":")))


main()
