"""Tiny encoders as GGUF files, and what transformers makes of texts with the same weights.

    pip install torch transformers gguf
    python make.py [NAME ...]

Architectures, keys and names of tensors are those of llama.cpp's converter (names by the map of the package `gguf`). Each NAME.gguf has
NAME.json beside it, in the manner of `sentences.json`: texts and their vectors, pooled and normalized. Tokens are found here by other
means than tokenizers: words that are one token, letter by letter otherwise. Packed weights are given to transformers as they decode.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from make import listed, randomize  # noqa: E402

torch.set_num_threads(1)
TEXTS = ["a cat sleeps", "the dog sees a red bird", "two birds fly high above the old house and the green tree", "cat cat dog"]
WORDS = "a the cat dog bird birds house tree red green old two sees sleeps fly high above and".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL = gguf.TokenType.NORMAL, gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL


class Tokens:
    """A vocabulary: its metadata, and the tokens of a text."""

    def __init__(self, model, special, words, **more):
        self.model, self.special, self.more = model, special, more
        self.tokens = special + words
        self.ids = {t: i for i, t in enumerate(self.tokens)}

    def write(self, writer):
        writer.add_tokenizer_model(self.model)
        writer.add_token_list(self.tokens)
        types = [UNKNOWN if "unk" in t.lower() else CONTROL for t in self.special] + [NORMAL] * (len(self.tokens) - len(self.special))
        writer.add_token_types(types)
        for key, value in self.more.items():
            if key == "merges":
                writer.add_token_merges(value)
            elif isinstance(value, bool):
                writer.add_bool(f"tokenizer.ggml.{key}", value)
            elif isinstance(value, int):
                writer.add_uint32(f"tokenizer.ggml.{key}", value)
            elif isinstance(value, str):
                writer.add_string(f"tokenizer.ggml.{key}", value)
            else:
                writer.add_token_scores(value)


def word_piece():
    """Words begin with the mark, letters that continue one have none; one word is in pieces."""
    whole = [w for w in WORDS if w != "sleeps"]
    words = [SPACE + w for w in whole] + [SPACE + "sleep"] + [SPACE + c for c in LETTERS if c not in whole] + list(LETTERS)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokens(
        "bert", special, words, padding_token_id=0, unknown_token_id=1, cls_token_id=2, seperator_token_id=3, mask_token_id=4,
        pre="default", token_type_count=2,
    )

    def encode(text):
        ids = [2]
        for word in text.split():
            pieces = [SPACE + "sleep", "s"] if word == "sleeps" else [SPACE + word]
            ids += [made.ids[p] for p in pieces]
        return ids + [3]

    made.encode = encode
    return made


def unigram(bos, eos):
    """Pieces of words; a text begins with a space."""
    special = ["<s>", "<pad>", "</s>", "<unk>"] if bos else ["<pad>", "</s>", "<unk>"]
    words = [SPACE + w for w in WORDS] + [SPACE] + list(LETTERS)
    scores = [0.0] * len(special) + [-2.0] * len(WORDS) + [-9.0] * (1 + len(LETTERS))
    ids = {t: i for i, t in enumerate(special)}
    around = {"bos_token_id": ids["<s>"], "add_bos_token": True} if bos else {"add_bos_token": False}
    made = Tokens(
        "t5", special, words, scores=scores, eos_token_id=ids["</s>"], add_eos_token=True, padding_token_id=ids["<pad>"],
        unknown_token_id=ids["<unk>"], add_space_prefix=True, remove_extra_whitespaces=True, pre="default", **around,
    )
    made.encode = lambda text: [ids.get("<s>")] * bos + [made.ids[SPACE + w] for w in text.split()] + [ids["</s>"]] * eos
    return made


def byte_level(pre, **more):
    """Every byte a token, without merges but one."""
    # Bytes that are not printable Latin-1 characters are spelled with code points from 256 on.
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    spelled = [chr(b if b in shown else next(others)) for b in range(256)]
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    made = Tokens(
        "gpt2", special, [spelled[b] for b in range(256)] + ["th"], pre=pre, merges=["t h"], bos_token_id=0, padding_token_id=1,
        eos_token_id=2, unknown_token_id=3, **more,
    )
    th, first = 4 + 256, not more.get("add_bos_token") is False

    def encode(text):
        ids = [0] if first else []
        for part in text.replace("th", "\0").encode():
            ids.append(th if part == 0 else 4 + part)
        return ids + [2]

    made.encode = encode
    return made


def merged():
    """SentencePiece's BPE: every beginning of a word is a piece, longer ones are likelier."""
    words = [SPACE + w for w in WORDS]
    beginnings = sorted({w[:n] for w in words for n in range(2, len(w) + 1)}, key=lambda w: (-len(w), w))
    letters = [SPACE, *LETTERS]
    special = ["<pad>", "</s>", "<s>", "<unk>"]
    scores = [0.0] * len(special) + [-1.0 - i for i in range(len(beginnings) + len(letters))]
    made = Tokens(
        "llama", special, beginnings + letters, scores=scores, bos_token_id=2, eos_token_id=1, padding_token_id=0, unknown_token_id=3,
        add_bos_token=True, add_eos_token=True, add_space_prefix=True, pre="default",
    )
    made.encode = lambda text: [2] + [made.ids[SPACE + w] for w in text.split()] + [1]
    return made


def packed(values, kind):
    """Blocks of these values; of Q4_K, which the package does not make, random ones."""
    if kind != Q.Q4_K:
        return gguf.quants.quantize(values, kind)
    draw = np.random.default_rng(4)
    rows, blocks = values.shape[0], values.shape[1] // 256
    raw = draw.integers(0, 256, (rows, blocks, 144), dtype=np.uint8)
    # The factors of block scales and of block minima, chosen so that weights have a usual range around 0.
    raw[..., 0:2] = np.full((rows, blocks, 1), 0.0006, np.float16).view(np.uint8)
    raw[..., 2:4] = np.full((rows, blocks, 1), 0.0045, np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


def make(name, arch, model, tokens, pooling, keys, modules=None, kind=None, renamed=lambda tensors: tensors, skip=(), dense=()):
    if len(sys.argv) > 1 and name not in sys.argv[1:]:
        return
    randomize(model, sum(map(ord, name)))
    model = model.float().eval()
    writer = gguf.GGUFWriter(HERE / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[arch])
    config = model.config
    layers = config.num_hidden_layers
    writer.add_name(name)
    writer.add_block_count(layers)
    keys(writer, config)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    tokens.write(writer)
    names = gguf.get_tensor_name_map(arch, layers)
    state = {k: v for k, v in model.state_dict().items() if not any(s in k for s in ("pooler", "position_ids", "rotary", *skip))}
    decoded = {}
    for key, value in renamed(state).items():
        found = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert found, key
        value = value.numpy()
        small = value.ndim < 2 or any(s in found for s in ("position_embd", "token_types", "attn_rel_b"))
        if small or kind is None:
            writer.add_tensor(found, value.astype(np.float32 if small else np.float16))
            continue
        own = Q.Q8_0 if found == "token_embd.weight" else kind
        blocks = packed(value, own)
        writer.add_tensor(found, blocks, raw_dtype=own)
        decoded[key] = torch.from_numpy(gguf.quants.dequantize(blocks, own).reshape(value.shape).copy())
    layers_after = []
    torch.manual_seed(5)
    for i, width in enumerate(dense):
        weight = torch.randn(width, layers_after[-1].shape[0] if layers_after else config.hidden_size) / 4
        layers_after.append(weight.half().float())
        writer.add_tensor(f"dense_{i + 2}.weight", layers_after[-1].numpy())
    if decoded:
        model.load_state_dict(decoded, strict=False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    want = []
    with torch.no_grad():
        for text in TEXTS:
            ids = torch.tensor([tokens.encode(text)])
            hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
            vector = {gguf.PoolingType.CLS: hidden[0], gguf.PoolingType.LAST: hidden[-1]}.get(pooling, hidden.mean(0))
            for weight in layers_after:
                vector = weight @ vector
            want += listed(torch.nn.functional.normalize(vector, dim=0), 7)
    (HERE / f"{name}.json").write_text(json.dumps({"texts": TEXTS, "cases": [{"prompt": None, "dims": None, "want": want}]}) + "\n")
    print(name, (HERE / f"{name}.gguf").stat().st_size // 1024, "KiB")


def common(writer, config, context, ffn=None):
    writer.add_context_length(context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(ffn or config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)


def bert_keys(writer, config, context=32):
    common(writer, config, context)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)


def bert(vocab, width=32, **more):
    fields = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 32} | more
    return transformers.BertModel(transformers.BertConfig(vocab_size=vocab, hidden_size=width, **fields), add_pooling_layer=False)


def after_padding(state):
    """Positions without the rows before that of the first token."""
    return {k: v[2:] if "position_embeddings" in k else v for k, v in state.items()}


def roberta(vocab):
    config = transformers.XLMRobertaConfig(
        vocab_size=vocab, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=82,
        type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5,
    )
    return transformers.XLMRobertaModel(config, add_pooling_layer=False)


def fused(state):
    """Q, K and V in one, and the names of Nomic's first folders."""
    found = {}
    for key, value in state.items():
        if ".k_proj" in key or ".v_proj" in key:
            continue
        if ".q_proj" in key:
            value = torch.cat([state[key.replace("q_proj", f"{p}_proj")] for p in "qkv"])
        for new, old in {
            "layers.": "encoder.layers.", "self_attn.q_proj": "attn.Wqkv", "self_attn.o_proj": "attn.out_proj", "mlp.up_proj": "mlp.fc11",
            "mlp.gate_proj": "mlp.fc12", "mlp.down_proj": "mlp.fc2", "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2",
            "embeddings.LayerNorm": "emb_ln",
        }.items():
            key = key.replace(new, old)
        found[key] = value
    return found


def one_plus(state):
    """Gains as they are used, under the names of folders with a head."""
    return {f"model.{k}": v + 1 if k.endswith("norm.weight") else v for k, v in state.items()}


def main():
    pools = gguf.PoolingType
    pieces = word_piece()
    n = len(pieces.tokens)
    make("bert", gguf.MODEL_ARCH.BERT, bert(n), pieces, pools.MEAN, bert_keys)
    make("bert-q8_0", gguf.MODEL_ARCH.BERT, bert(n), pieces, pools.CLS, bert_keys, kind=Q.Q8_0)
    wide = {"num_hidden_layers": 1, "intermediate_size": 256}
    make("bert-q4_k", gguf.MODEL_ARCH.BERT, bert(n, 256, **wide), pieces, pools.MEAN, bert_keys, kind=Q.Q4_K)

    words = unigram(True, True)
    keys = lambda writer, config: bert_keys(writer, config, 80)
    make("xlm-roberta", gguf.MODEL_ARCH.BERT, roberta(len(words.tokens)), words, pools.CLS, keys, renamed=after_padding)
    letters = byte_level("roberta-bpe")
    make("roberta", gguf.MODEL_ARCH.BERT, roberta(len(letters.tokens)), letters, None, keys, renamed=after_padding)

    config = transformers.AutoConfig.for_model(
        "nomic_bert", vocab_size=n, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64, type_vocab_size=2, rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )
    nomic = transformers.AutoModel.from_config(config, attn_implementation="eager")

    def nomic_keys(writer, config):
        bert_keys(writer, config, 64)
        writer.add_rope_freq_base(1000.0)

    make("nomic-bert", gguf.MODEL_ARCH.NOMIC_BERT, nomic, pieces, pools.MEAN, nomic_keys, renamed=fused)

    letters = byte_level("modern-bert", cls_token_id=0, seperator_token_id=2)
    config = transformers.ModernBertConfig(
        vocab_size=len(letters.tokens), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, local_attention=8,
        max_position_embeddings=96, pad_token_id=1, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2,
    )
    modern = transformers.ModernBertModel._from_config(config, attn_implementation="eager")

    def modern_keys(writer, config):
        common(writer, config, 96)
        writer.add_layer_norm_eps(config.norm_eps)
        writer.add_causal_attention(False)
        writer.add_rope_freq_base(160000.0)
        writer.add_rope_freq_base_swa(10000.0)
        writer.add_sliding_window(8)
        writer.add_sliding_window_pattern(3)

    make("modern-bert", gguf.MODEL_ARCH.MODERN_BERT, modern, letters, pools.CLS, modern_keys)

    words = unigram(False, True)
    config = transformers.T5Config(
        vocab_size=len(words.tokens), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=3, feed_forward_proj="gated-gelu",
        pad_token_id=0, eos_token_id=1,
    )

    def t5_keys(writer, config):
        common(writer, config, 512, config.d_ff)
        writer.add_key_length(config.d_kv)
        writer.add_value_length(config.d_kv)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        writer.add_relative_attn_buckets_count(32)
        writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)

    t5 = transformers.T5EncoderModel(config)
    make("t5", gguf.MODEL_ARCH.T5ENCODER, t5, words, None, t5_keys, skip=("encoder.embed_tokens",))

    letters = byte_level("qwen2", add_bos_token=False, add_eos_token=True)
    config = transformers.Qwen3Config(
        vocab_size=len(letters.tokens), hidden_size=32, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=16,
        intermediate_size=48, max_position_embeddings=128, pad_token_id=1,
    )

    def qwen_keys(writer, config):
        common(writer, config, 128)
        writer.add_head_count_kv(1)
        writer.add_key_length(16)
        writer.add_value_length(16)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(10000.0)

    headed = lambda state: {f"model.{k}": v for k, v in state.items()}
    make("qwen3", gguf.MODEL_ARCH.QWEN3, transformers.Qwen3Model(config), letters, pools.LAST, qwen_keys, renamed=headed)

    words = merged()
    config = transformers.Gemma3TextConfig(
        vocab_size=len(words.tokens), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
        intermediate_size=48, max_position_embeddings=64, pad_token_id=0, sliding_window=6, query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "sliding_attention"], use_bidirectional_attention=True,
    )

    def gemma_keys(writer, config):
        common(writer, config, 64)
        writer.add_head_count_kv(1)
        writer.add_key_length(16)
        writer.add_value_length(16)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(1000000.0)
        writer.add_sliding_window(6)
        writer.add_causal_attention(False)
        writer.add_dense_features_dims("dense_2", 32, 40)
        writer.add_dense_features_dims("dense_3", 40, 24)

    model = transformers.Gemma3TextModel._from_config(config, attn_implementation="eager")
    make("embedding-gemma", gguf.MODEL_ARCH.GEMMA_EMBEDDING, model, words, pools.MEAN, gemma_keys, renamed=one_plus, dense=(40, 24))


if __name__ == "__main__":
    main()
