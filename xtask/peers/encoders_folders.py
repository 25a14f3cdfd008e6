"""Writes encoder folders with realistic shapes and random weights in the layout of `transformers`, and texts of mixed length.

`encoders_torch.py` uses and times them. Needs torch, transformers and tokenizers, and no network.
"""

import json
import math
import random

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

SEED = 7
# The number of words per text, uniform in its logarithm: many short texts, as in search and chat.
SHORTEST, LONGEST = 3, 180
SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


def words_of(count):
    """`count` words, the most frequent first."""
    draw = random.Random(SEED)
    found = {}
    while len(found) < count:
        found["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4)))] = None
    return list(found)


def sentences(count, words):
    """Texts of these words with Zipf-distributed frequencies."""
    draw = random.Random(SEED)
    weights = [1 / (rank + 3) for rank in range(len(words))]
    texts = []
    for _ in range(count):
        n = round(math.exp(draw.uniform(math.log(SHORTEST), math.log(LONGEST))))
        texts.append(" ".join(draw.choices(words, weights, k=n)).capitalize() + ".")
    return texts


def save(model, folder, **files):
    """Writes the model and further JSON files, unless the folder exists."""
    draw = torch.Generator().manual_seed(SEED)
    for name, p in model.named_parameters():
        # The deviation of trained matrices, so that F16 does not overflow.
        if p.dim() > 1 and "embed_positions" not in name:
            p.data.copy_(torch.randn(p.shape, generator=draw) * min(0.05, p[0].numel() ** -0.5))
    model.save_pretrained(folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def pictures(size, mean, std):
    return {
        "do_resize": True, "size": {"height": size, "width": size}, "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255,
        "do_normalize": True, "image_mean": mean, "image_std": std, "do_convert_rgb": True,
    }


def vit(folder, small):
    shape = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96} if small else {}
    model = transformers.ViTModel(transformers.ViTConfig(**shape), add_pooling_layer=False)
    save(model, folder, preprocessor_config=pictures(224, [0.5] * 3, [0.5] * 3) | {"image_processor_type": "ViTImageProcessor"})


def clip(folder, small):
    text = {"eos_token_id": 49407, "bos_token_id": 49406, "pad_token_id": 49407}
    vision = {}
    if small:
        shape = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
        text, vision = text | shape, shape
    config = transformers.CLIPConfig(text_config=text, vision_config=vision)
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    processor = pictures(224, mean, std) | {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
    processor |= {"size": {"shortest_edge": 224}, "image_processor_type": "CLIPImageProcessor"}
    save(transformers.CLIPModel(config), folder, preprocessor_config=processor)


def minilm(folder, small):
    """BERT with MiniLM's shape and a WordPiece tokenizer, in the layout of `sentence-transformers`."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz."
    tokens = special + list(letters) + [f"##{c}" for c in letters]
    known = set(tokens)
    # Half of the words are whole tokens, the others are split, like about every fourth word of English.
    pieces = [f"##{a}{b}" for a in SYLLABLES for b in SYLLABLES] + [f"##{a}" for a in SYLLABLES]
    room = (2000 if small else 30522) - len(tokens)
    tokens += [t for t in words_of(12000) + pieces + words_of(40000) if t not in known and not known.add(t)][:room]
    config = transformers.BertConfig(
        vocab_size=len(tokens), hidden_size=384, num_hidden_layers=2 if small else 6, num_attention_heads=12, intermediate_size=1536,
    )
    save(transformers.BertModel(config), folder)
    vocab = {token: i for i, token in enumerate(tokens)}
    tok = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    ends = [(t, vocab[t]) for t in ("[CLS]", "[SEP]")]
    tok.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tok, model_max_length=512, **names).save_pretrained(folder)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256, "do_lower_case": False}))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 384, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "2_Normalize").mkdir()


# Special tokens of Whisper's multilingual vocabulary: end and start of text, the first of 99 languages, and the tokens after them.
END, START, ENGLISH, TRANSLATE, TRANSCRIBE, NO_TIMES = 50257, 50258, 50259, 50358, 50359, 50363
VOCAB = 51865


def whisper(folder, small):
    """Whisper-base with its vocabulary size and generated words."""
    layers, width = (2, 64) if small else (6, 512)
    config = transformers.WhisperConfig(
        vocab_size=VOCAB, d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, num_mel_bins=80,
        decoder_start_token_id=START, bos_token_id=END, eos_token_id=END, pad_token_id=END, max_length=None,
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = alphabet + [f"w{i}" for i in range(END - len(alphabet))]
    tok = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    codes = list(transformers.models.whisper.tokenization_whisper.LANGUAGES)[: TRANSLATE - ENGLISH]
    names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in codes), "<|translate|>", "<|transcribe|>"]
    names += ["<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    tok.add_special_tokens(names)
    tok.add_tokens([tokenizers.AddedToken(f"<|{i * 0.02:.2f}|>", normalized=False) for i in range(1501)])
    assert tok.token_to_id("<|notimestamps|>") == NO_TIMES and tok.get_vocab_size() == VOCAB
    generation = {
        "begin_suppress_tokens": [220, END], "bos_token_id": END, "decoder_start_token_id": START, "eos_token_id": END,
        "is_multilingual": True, "lang_to_id": {f"<|{c}|>": ENGLISH + i for i, c in enumerate(codes)}, "max_initial_timestamp_index": 50,
        "max_length": 448, "no_timestamps_token_id": NO_TIMES, "pad_token_id": END, "prev_sot_token_id": 50361,
        "suppress_tokens": [50361, 50362], "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
        "language": "en", "task": "transcribe",
    }
    features = {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80, "sampling_rate": 16000, "hop_length": 160,
        "chunk_length": 30, "n_fft": 400, "n_samples": 480000, "nb_max_frames": 3000, "padding_side": "right", "padding_value": 0.0,
        "return_attention_mask": False, "processor_class": "WhisperProcessor",
    }
    save(transformers.WhisperForConditionalGeneration(config), folder, preprocessor_config=features)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    fast.save_pretrained(folder)
