"""Tiny recognizers of the Moonshine family with random weights, and what transformers makes of `speech.flac`.

    pip install torch transformers tokenizers safetensors soundfile
    python moonshine.py [NAME ...]

Each folder has config.json, model.safetensors (F16), generation_config.json, preprocessor_config.json, tokenizer.json, and
reference.json: rows of the encoder's output and of the decoder's logits in F32, and runs of `generate` over the recording, repeated
`repeat` times, with 6.5 tokens of a second at most. Longer recordings are cut where they are quietest, as our own rule has it, and each
piece is given to the library by itself. Seeds are chosen so that no greedy token is nearly another one.
"""

import copy
import json
import pathlib
import sys

import numpy
import soundfile
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

torch.set_num_threads(1)
HERE = pathlib.Path(__file__).parent
RATE = 16000
TEXT = "The quick brown fox jumps over the lazy dog. Speech becomes words, word by word."
# Minimum difference of the two greatest logits, relative to the standard deviation of all logits.
GAP = 4e-3


def model(**more):
    return {
        "model_type": "moonshine", "hidden_size": 16, "intermediate_size": 24, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
        "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2, "encoder_num_key_value_heads": 2, "decoder_num_key_value_heads": 2,
        "encoder_hidden_act": "gelu", "decoder_hidden_act": "silu", "max_position_embeddings": 96, "pad_head_dim_to_multiple_of": 8,
        "partial_rotary_factor": 0.9, "rope_theta": 10000.0, "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1, "is_encoder_decoder": True, "initializer_range": 0.02, "use_cache": True,
    } | more


# By name: the configuration, and the style of the files, as in published folders (`hub`) or as transformers writes
# them (`library`).
CONFIGS = {
    "moonshine-a": (model(partial_rotary_factor=0.75, rope_scaling=None), "hub"),
    "moonshine-b": (model(hidden_size=20, encoder_num_hidden_layers=1, decoder_num_hidden_layers=3, attention_bias=True, partial_rotary_factor=0.8), "library"),
    "moonshine-c": (
        model(
            hidden_size=12, encoder_num_attention_heads=1, decoder_num_attention_heads=1, encoder_num_key_value_heads=1,
            decoder_num_key_value_heads=1, rope_theta=500.0, max_position_embeddings=60, encoder_hidden_act="relu", partial_rotary_factor=1.0,
        ), "hub",
    ),
}


def tokenizer():
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    names = ["<unk>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=270, initial_alphabet=sorted(alphabet), special_tokens=names, show_progress=False)
    tok.train_from_iterator([TEXT], trainer)
    return tok


def randomize(net, seed, ascii_only):
    draw = torch.Generator().manual_seed(seed)
    for name, p in net.named_parameters():
        x = torch.randn(p.shape, generator=draw)
        if "embed_tokens" in name:
            x = 0.7 * x
            # Make tokens of bytes beyond ASCII unlikely, which would be incomplete characters.
            x[~ascii_only] *= 0.1
            x[2] *= 1.6
        elif p.dim() > 1:
            x = (3 if name.endswith(("fc2.weight", "o_proj.weight")) else 1.6) * x / p[0].numel() ** 0.5
        elif name.endswith("weight"):
            x = 1 + 0.3 * x
        else:
            x = 0.3 * x
        p.data.copy_(x.half().float())


def pieces(samples):
    """Up to 30 s; longer ones to the middle of the quietest tenth of a second among the last ten, the latest among equals."""
    found = []
    while len(samples) > 30 * RATE:
        quiet = RATE // 10
        places = list(range(20 * RATE, 30 * RATE - quiet, quiet // 2))
        energy = [float((samples[p : p + quiet].astype("float64") ** 2).sum()) for p in places]
        best = max(p for p, e in zip(places, energy) if e == min(energy)) + quiet // 2
        found.append(samples[:best])
        samples = samples[best:]
    return found + [samples]


@torch.no_grad()
def written(net, samples):
    most = max(int(len(samples) / RATE * 6.5), 2)
    out = net.generate(torch.tensor(samples)[None], max_length=min(most, net.config.max_position_embeddings), do_sample=False, output_logits=True, return_dict_in_generate=True)
    gap = min(((top := s[0].topk(2).values)[0] - top[1]).item() / s[0].std().item() for s in out.logits)
    tokens = out.sequences[0].tolist()[1:]
    return [t for t in tokens if t != 2], gap, tokens[-1] == 2


def listed(t, digits=6):
    return [float(f"{x:.{digits}g}") for x in t.flatten().tolist()]


@torch.no_grad()
def make(name, samples):
    fields, style = CONFIGS[name]
    tok = tokenizer()
    fields = fields | {"vocab_size": tok.get_vocab_size()}
    config = transformers.MoonshineConfig(**copy.deepcopy({k: v for k, v in fields.items() if k != "model_type"}))
    net = transformers.MoonshineForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    text = [tok.decode([i]) for i in range(tok.get_vocab_size())]
    ascii_only = torch.tensor([t.isascii() and t.isprintable() for t in text])
    recordings = {repeat: numpy.tile(samples, repeat) for repeat in (1, 4, 17)}
    for seed in range(400):
        randomize(net, seed, ascii_only)
        runs, gaps, ends = [], [], 0
        for repeat, recording in recordings.items():
            segments = []
            for piece in pieces(recording):
                tokens, gap, ended = written(net, piece)
                segments.append({"samples": len(piece), "tokens": tokens, "text": tok.decode(tokens)})
                gaps.append(gap)
                ends += ended
            runs.append({"repeat": repeat, "segments": segments})
        varied = len({t for r in runs for s in r["segments"] for t in s["tokens"]})
        if min(gaps) > GAP and ends and varied > 8 and all(s["tokens"] for r in runs for s in r["segments"]):
            break
    else:
        raise SystemExit(f"{name}: no seed")
    out = HERE / name
    out.mkdir(exist_ok=True)
    own = fields if style == "hub" else json.loads(config.to_json_string())
    own = own | {"architectures": ["MoonshineForConditionalGeneration"]}
    (out / "config.json").write_text(json.dumps(own, indent=1) + "\n")
    tensors = {n: t.half().contiguous() for n, t in net.state_dict().items() if n != "proj_out.weight" and "inv_freq" not in n}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    generate = {"_from_model_config": True, "bos_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 2, "max_length": config.max_position_embeddings}
    (out / "generation_config.json").write_text(json.dumps(generate) + "\n")
    extract = transformers.Wav2Vec2FeatureExtractor(feature_size=1, sampling_rate=RATE, do_normalize=False, return_attention_mask=True)
    (out / "preprocessor_config.json").write_text(extract.to_json_string())
    (out / "tokenizer.json").write_text(tok.to_str())
    hidden = net.model.encoder(torch.tensor(samples)[None]).last_hidden_state[0]
    positions = [0, 1, 17, len(hidden) - 1]
    prompt = [1, 30, 41, 52, 99, 7]
    logits = net(torch.tensor(samples)[None], decoder_input_ids=torch.tensor([prompt])).logits[0]
    reference = {
        "positions": positions, "hidden": [listed(hidden[i]) for i in positions], "prompt": prompt,
        "logits": [listed(logits[i]) for i in (-2, -1)], "runs": runs,
    }
    (out / "reference.json").write_text(json.dumps(reference) + "\n")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{name}: seed {seed}, gap {min(gaps):.4f}, {ends} ended, {[len(s['tokens']) for r in runs for s in r['segments']]}, {size / 1024:.1f} KiB", flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    recording = soundfile.read(HERE / "speech.flac", dtype="float32")[0]
    for name in CONFIGS:
        if len(sys.argv) < 2 or any(name.startswith(a) for a in sys.argv[1:]):
            make(name, recording)
