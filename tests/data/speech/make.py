"""Tiny speech recognizers with random weights, as Hugging Face folders, speech, and what transformers makes of it.

    apt install espeak-ng
    pip install torch transformers safetensors soundfile
    python make.py [NAME ...]

`speech.flac` (16 kHz, one channel) and `stereo.mp3` (22.05 kHz, two channels) are spoken by eSpeak NG. Each folder has config.json,
model.safetensors (F16), generation_config.json, preprocessor_config.json, tokenizer.json, and reference.json: rows of the features,
of the encoder's output and of the decoder's logits in F32, and runs of `generate` with their options: tokens and segments.
A recording is repeated `repeat` times, one after the other. Tokens of runs are those of F64 as well, so that no choice is as near
as rounding.
"""

import copy
import io
import json
import pathlib
import subprocess
import sys

import numpy
import soundfile
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

import configs

torch.set_num_threads(1)
HERE = pathlib.Path(__file__).parent
TEXT = "The quick brown fox jumps over the lazy dog. Speech becomes words, word by word."


def spoken(text, *options):
    wav = subprocess.run(["espeak-ng", "--stdout", *options, text], check=True, capture_output=True).stdout
    # Skip the WAV header, whose length field is invalid because the program writes to a pipe.
    samples = numpy.frombuffer(wav[44:], "<i2") / 32768
    rate = int.from_bytes(wav[24:28], "little")
    return samples, rate


def resampled(x, rate, to):
    """By a windowed sinc; only to make a recording."""
    at = numpy.arange(int(len(x) * to / rate)) * rate / to
    near = numpy.floor(at).astype(int)[:, None] + numpy.arange(-31, 33)
    cut = min(1.0, to / rate)
    d = at[:, None] - near
    taps = cut * numpy.sinc(cut * d) * (0.5 + 0.5 * numpy.cos(numpy.pi * numpy.clip(d / 32, -1, 1)))
    return (x[numpy.clip(near, 0, len(x) - 1)] * taps).sum(1)


def audio():
    first, rate = spoken("Good morning. How are you today?", "-v", "en", "-s", "150")
    first = resampled(first, rate, 16000)
    soundfile.write(HERE / "speech.flac", (first * 32768).round().clip(-32768, 32767).astype("int16"), 16000)
    second, rate = spoken("Guten Tag.", "-v", "de")
    sides = numpy.stack([second, 0.5 * numpy.roll(second, 200)], 1)
    soundfile.write(HERE / "stereo.mp3", sides, rate, format="MP3", bitrate_mode="CONSTANT", compression_level=0.8)
    return soundfile.read(HERE / "speech.flac", dtype="float32")[0]


def tokenizer(seconds, multilingual, with_times):
    """Byte-level BPE with a few merges, the special tokens, and timestamps where `with_times`."""
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=280, initial_alphabet=sorted(alphabet), show_progress=False)
    tok.train_from_iterator([TEXT], trainer)
    languages = [f"<|{code}|>" for code in configs.LANGUAGES] if multilingual else []
    names = ["<|endoftext|>", "<|startoftranscript|>", *languages, "<|translate|>", "<|transcribe|>", "<|startoflm|>"]
    names += ["<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    tok.add_special_tokens(names)
    ids = {name: tok.token_to_id(name) for name in names}
    if with_times:
        times = [f"<|{i * 0.02:.2f}|>" for i in range(50 * seconds + 1)]
        tok.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in times])
    return tok, ids


def generation(tok, ids, config, multilingual, style):
    # Suppress tokens of bytes beyond ASCII, which would be incomplete characters.
    text = [(i, tok.decode([i])) for i in range(280)]
    suppressed = [i for i, t in text if not t.isascii() or not t.isprintable()] + [ids["<|startofprev|>"], ids["<|nospeech|>"]]
    fields = {
        "begin_suppress_tokens": [tok.token_to_id("\u0120"), ids["<|endoftext|>"]], "bos_token_id": ids["<|endoftext|>"],
        "decoder_start_token_id": ids["<|startoftranscript|>"], "eos_token_id": ids["<|endoftext|>"],
        "is_multilingual": multilingual, "max_initial_timestamp_index": 50 if style == "hub" else 1,
        "max_length": config.max_target_positions, "no_timestamps_token_id": ids["<|notimestamps|>"],
        "pad_token_id": ids["<|endoftext|>"], "prev_sot_token_id": ids["<|startofprev|>"], "return_timestamps": False,
        "suppress_tokens": sorted(suppressed), "transformers_version": "4.31.0.dev0",
    }
    if multilingual:
        fields["lang_to_id"] = {f"<|{code}|>": ids[f"<|{code}|>"] for code in configs.LANGUAGES}
        fields["task_to_id"] = {t: ids[f"<|{t}|>"] for t in ("transcribe", "translate")}
    if style == "hub":
        first = [[1, None], [2, ids["<|transcribe|>"]]] if multilingual else [[1, ids["<|notimestamps|>"]]]
        fields |= {"forced_decoder_ids": first, "alignment_heads": [[1, 0]]}
    return fields


def randomize(model, ids, seed, length, times):
    """Weights as wide as trained ones are for their inputs, so that text, timestamps and the end all occur."""
    draw = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if name.endswith("encoder.embed_positions.weight"):
            x = p.data
        else:
            x = torch.randn(p.shape, generator=draw)
            if "embed" in name:
                x = 1.5 * x
            elif p.dim() > 1:
                # Make the layers' contributions larger than the embeddings, so that tokens do not predict themselves.
                x = (3 if "fc2" in name or "out_proj" in name else 1.6) * x / p[0].numel() ** 0.5
            elif name.endswith("weight"):
                x = 1 + 0.3 * x
            else:
                # Keep the bias of the last norm small, because it adds the same logits at every position.
                x = (0.03 if "decoder.layer_norm" in name else 0.3) * x
        if name.endswith("embed_tokens.weight"):
            x = length * x / x.norm(dim=1, keepdim=True)
            # Scale the timestamp embeddings so that all timestamps together are about as likely as the most likely
            # word.
            x[ids["<|notimestamps|>"] + 1 :] *= times
            x[ids["<|endoftext|>"]] *= 1.4
        p.data.copy_(x.half().float())


def listed(t, digits=6):
    return [float(f"{x:.{digits}g}") for x in t.flatten().tolist()]


def options(multilingual, seconds, length):
    """Of each run: how often the recording is repeated, and what `generate` is told."""
    long = int(2.6 * seconds / length) + 1
    several = [
        (1, {"language": "de", "task": "translate"}), (1, {"language": "fr", "return_timestamps": True}),
        (1, {"task": "transcribe", "return_timestamps": True}),
    ]
    return [(1, {}), (1, {"return_timestamps": True})] + (several if multilingual else []) + [
        (long, {"return_timestamps": True}),
        (long, {"return_timestamps": True, "condition_on_prev_tokens": True, "temperature": 0.0}),
        (long, {"return_timestamps": True, "temperature": 0.0, "logprob_threshold": None, "no_speech_threshold": None}),
    ]


def features_of(extract, samples, window):
    if len(samples) <= window:
        return extract(samples, sampling_rate=16000, return_tensors="pt").input_features
    return extract(samples, sampling_rate=16000, return_tensors="pt", truncation=False, padding="longest").input_features


@torch.no_grad()
def run(model, config, features, asked):
    model.generation_config = transformers.GenerationConfig(**copy.deepcopy(config))
    asked = dict(asked)
    out = model.generate(features, return_segments=True, **asked)
    segments = [
        {"start": round(float(s["start"]), 2), "end": round(float(s["end"]), 2), "tokens": s["tokens"].tolist()}
        for s in out["segments"][0]
    ]
    return segments


@torch.no_grad()
def scores(model, fields, features, asked):
    """The average logarithms of probabilities, and probabilities that there is no speech, of the windows of a run."""
    found = []
    kept = type(model)._need_fallback

    def need(self, sequence, outputs, index, processors, config, vocab, temperature):
        logprob = self._retrieve_avg_logprobs(outputs[index]["scores"], sequence, temperature)
        [silent] = [float(p.no_speech_prob[index]) for p in processors if hasattr(p, "no_speech_prob")]
        ratio = self._retrieve_compression_ratio(sequence, vocab)
        found.append((float(logprob), silent, ratio))
        return kept(self, sequence, outputs, index, processors, config, vocab, temperature)

    type(model)._need_fallback = need
    try:
        run(model, fields, features, asked | {"logprob_threshold": -1e9, "no_speech_threshold": 2.0, "temperature": 0.0})
    finally:
        type(model)._need_fallback = kept
    return found


def make(name, samples):
    fields, seconds, multilingual, style, drawn = configs.CONFIGS[name]
    out = HERE / name
    out.mkdir(exist_ok=True)
    tok, ids = tokenizer(seconds, multilingual, style == "library")
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    times = ids["<|notimestamps|>"] + 1
    fields = fields | {
        "vocab_size": times + 50 * seconds + 1, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end,
        "decoder_start_token_id": start, "begin_suppress_tokens": None, "suppress_tokens": None,
    }
    config = transformers.WhisperConfig(**{k: v for k, v in fields.items() if k not in ("model_type", "max_length")})
    model = transformers.WhisperForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    randomize(model, ids, *drawn)
    text = fields if style == "hub" else json.loads(config.to_json_string())
    text = text | {"architectures": ["WhisperForConditionalGeneration"]}
    (out / "config.json").write_text(json.dumps(text, indent=1) + "\n")
    tensors = {n: t.half().contiguous() for n, t in model.state_dict().items() if n != "proj_out.weight"}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    generate = generation(tok, ids, config, multilingual, style)
    (out / "generation_config.json").write_text(json.dumps(generate) + "\n")
    extract = transformers.WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=seconds)
    (out / "preprocessor_config.json").write_text(extract.to_json_string())
    (out / "tokenizer.json").write_text(tok.to_str())

    window = 16000 * seconds
    features = features_of(extract, samples, window)
    positions = [0, 1, 77, config.max_source_positions - 1]
    prompt = [start, *[ids[n] for n in ("<|de|>", "<|translate|>") if n in ids], times - 1, 30, 41, 52, times + 3]
    with torch.no_grad():
        hidden = model.model.encoder(features).last_hidden_state[0]
        logits = model(features, decoder_input_ids=torch.tensor([prompt])).logits[0]
    reference = {
        "positions": positions, "features": [listed(features[0, :, i]) for i in (0, 9, 100, 2 * positions[-1])],
        "frames": [0, 9, 100, 2 * positions[-1]], "hidden": [listed(hidden[i]) for i in positions],
        "prompt": prompt, "logits": [listed(logits[i]) for i in (0, -1)], "runs": [],
    }
    noise = torch.Generator().manual_seed(5)
    double = copy.deepcopy(model).double()
    asked = options(multilingual, seconds, len(samples) / 16000)
    for at, (repeat, told) in enumerate(asked):
        features = features_of(extract, numpy.tile(samples, repeat), window)
        if at == len(asked) - 1:
            # Choose the no-speech threshold so that exactly the window with the highest no-speech probability is
            # skipped.
            found = scores(model, generate, features, told)
            silent = sorted(s for _, s, _ in found)
            middle = (silent[-2] + silent[-1]) / 2
            print("  windows:", [tuple(round(x, 4) for x in f) for f in found])
            told = told | {"logprob_threshold": 0.0, "no_speech_threshold": middle}
        segments = run(model, generate, features, told)
        other = run(double, generate, features.double(), told)
        noisy = features * (1 + 3e-5 * torch.randn(features.shape, generator=noise))
        third = run(model, generate, noisy, told)
        same = segments == other == third
        ends = [s["end"] for s in segments]
        print(f"  {repeat} {told}: {len(segments)} segments to {max(ends, default=0)} s, "
              f"{sum(len(s['tokens']) for s in segments)} tokens" + ("" if same else "  TOO NEAR"))
        reference["runs"].append({"repeat": repeat, "options": told, "segments": segments, "text": tok.decode(
            [t for s in segments for t in s["tokens"] if t < times])} | ({} if same else {"near": True}))
    (out / "reference.json").write_text(json.dumps(reference) + "\n")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{name}: {size / 1024:.1f} KiB")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    samples = audio()
    for name in configs.CONFIGS:
        if len(sys.argv) < 2 or any(name.startswith(a) for a in sys.argv[1:]):
            make(name, samples)
