"""Tiny folders of sentence encoders, of a reranker and of a model of classes of tokens, and what sentence-transformers and transformers
make of texts with them.

    pip install torch transformers sentence-transformers
    python sentence.py [NAME ...]

Each folder has sentences.json: texts, and for each choice of prompt and dimensions the vectors of all of them, or the scores of
all for a query.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from make import listed, randomize

torch.set_num_threads(1)
HERE = pathlib.Path(__file__).parent
TEXTS = ["A cat sleeps", "the dog sees a red bird", "", "two birds fly high above the old house and the green tree", "cat cat dog"]
WORDS = "a the cat dog bird birds house tree red green old two sees sleeps fly high above and query passage : find".split()
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + WORDS


def tokenizer(single, pair):
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCAB)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase() if "lower" in single else None
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(single=single.replace(" lower", ""), pair=pair, special_tokens=ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", model_max_length=32,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def bert(**more):
    return transformers.BertConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=len(VOCAB),
        max_position_embeddings=32, type_vocab_size=2, pad_token_id=0, **more,
    )


def halved(folder):
    """Weights in F16, as other folders here have them; `model.safetensors` of each module."""
    for path in folder.rglob("model.safetensors"):
        save_file({k: v.half() if v.is_floating_point() else v for k, v in load_file(path).items()}, path, metadata={"format": "pt"})


def first_limits(folder, limits):
    """Limits where folders had them first: later ones have them in the tokenizer's files."""
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits) + "\n")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": None}))
    (folder / "tokenizer_config.json").unlink()


def finish(folder, cases):
    halved(folder)
    kept = {"tokenizer_config.json", "modules.json", "config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.name not in kept:
            path.unlink()
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text())) + "\n")
    (folder / "sentences.json").write_text(json.dumps({"texts": TEXTS, "cases": cases}) + "\n")
    print(folder.name, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1024, "KiB")


def wanted(name):
    return len(sys.argv) < 2 or name in sys.argv[1:]


def sentence(name, model, single, modules, cases, limits=None, first=None, **more):
    if not wanted(name):
        return
    folder, base = HERE / name, HERE / f".{name}"
    shutil.rmtree(folder, ignore_errors=True)
    randomize(model, 5)
    model.half().save_pretrained(base)
    tokenizer(single, "[CLS] $A [SEP] $B:1 [SEP]:1").save_pretrained(base)
    inner = Transformer(str(base), model_kwargs={"dtype": torch.float32}, **(limits or {}))
    made = SentenceTransformer(modules=[inner, *modules], device="cpu", **more)
    for module in modules:
        randomize(module, 6)
    made.save(str(folder), create_model_card=False)
    shutil.rmtree(base)
    found = []
    for prompt, dims in cases:
        got = made.encode(TEXTS, prompt_name=prompt, convert_to_tensor=True)
        if dims:
            got = torch.nn.functional.normalize(got[:, :dims], dim=1)
        found.append({"prompt": prompt, "dims": dims, "want": listed(got, 6)})
    if first:
        first_limits(folder, first)
    finish(folder, found)


def reranker(name):
    if not wanted(name):
        return
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = transformers.BertForSequenceClassification(bert(num_labels=1, id2label={0: "LABEL_0"}, label2id={"LABEL_0": 0}))
    randomize(model, 7)
    model.half().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "4.1.0"}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tokenizer("[CLS] $A [SEP] lower", "[CLS] $A [SEP] $B:1 [SEP]:1").save_pretrained(folder)
    made = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    query = "find the Red bird"
    scores = made.predict([(query, text) for text in TEXTS], convert_to_tensor=True)
    finish(folder, [{"query": query, "want": listed(scores, 7)}])


def tagger(name):
    """Classes of tokens, joined to pieces by the pipeline's simple way."""
    if not wanted(name):
        return
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    labels = dict(enumerate(["O", "B-ANIMAL", "I-ANIMAL", "B-PLACE", "I-PLACE"]))
    model = transformers.BertForTokenClassification(bert(id2label=labels, label2id={v: k for k, v in labels.items()}))
    randomize(model, 9)
    # Make the class of a token depend on its word: remove or shrink the weights that act on all tokens alike.
    for key, p in model.named_parameters():
        if key.endswith("bias"):
            p.data.zero_()
        elif "position" in key or "token_type" in key or "output" in key and p.dim() > 1:
            p.data *= 0.3
    model.half().save_pretrained(folder)
    made = tokenizer("[CLS] $A [SEP] lower", "[CLS] $A [SEP] $B:1 [SEP]:1")
    made.save_pretrained(folder)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tell = transformers.pipeline("token-classification", model=model, tokenizer=made, aggregation_strategy="simple", device="cpu")
    found = [
        [{"name": e["entity_group"], "score": round(float(e["score"]), 6), "start": e["start"], "end": e["end"]} for e in tell(text)]
        for text in TEXTS
    ]
    print(found)
    finish(folder, [{"entities": found}])


if __name__ == "__main__":
    bertish = "[CLS] $A [SEP] lower"
    prompts = {"query": "query: ", "passage": "passage: "}
    sentence(
        "sentence-a", transformers.BertModel(bert(), add_pooling_layer=False), bertish,
        [Pooling(12, "mean"), Dense(12, 10, activation_function=torch.nn.Tanh()), Normalize()],
        [(None, None), ("query", None), ("passage", 4)], prompts=prompts, limits={"max_seq_length": 9},
    )
    # All pooling modes concatenated, without prompt tokens; the folder requests conversion to lower case.
    modes = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    sentence(
        "sentence-b", transformers.BertModel(bert(), add_pooling_layer=False), "[CLS] $A [SEP]",
        [Pooling(12, modes, include_prompt=False)], [(None, None), ("query", None)], prompts=prompts,
        default_prompt_name="passage", limits={"do_lower_case": True}, first={"max_seq_length": 32, "do_lower_case": True},
    )
    # A decoder whose embedding is the state of a text's last token.
    qwen = transformers.Qwen3Config(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=4, intermediate_size=16,
        vocab_size=len(VOCAB), max_position_embeddings=64, pad_token_id=0, tie_word_embeddings=True,
    )
    sentence(
        "sentence-c", transformers.Qwen3Model(qwen), "$A [SEP] lower", [Pooling(12, "lasttoken"), Normalize()],
        [(None, None), ("query", 6)], prompts=prompts,
    )
    # A model like EmbeddingGemma: bidirectional attention, and two dense layers without biases after mean pooling.
    gemma = transformers.Gemma3TextConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=4, intermediate_size=16,
        vocab_size=len(VOCAB), max_position_embeddings=64, pad_token_id=0, sliding_window=6, query_pre_attn_scalar=4,
        layer_types=["sliding_attention", "full_attention"], use_bidirectional_attention=True,
    )
    linear = {"bias": False, "activation_function": torch.nn.Identity()}
    sentence(
        "sentence-d", transformers.Gemma3TextModel(gemma), "[CLS] $A [SEP] lower",
        [Pooling(12, "mean"), Dense(12, 20, **linear), Dense(20, 12, **linear), Normalize()],
        [(None, None), ("query", None), ("passage", 8)], prompts={"query": "query: find ", "passage": "passage: "},
    )
    reranker("reranker-a")
    tagger("tagger-a")
