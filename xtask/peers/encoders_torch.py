"""Compares image, text and speech encoders with torch in one run: `tercet bench` and torch on the same model folders.

    python3 xtask/peers/encoders_torch.py --tercet target/release/tercet [--device cuda] [--executors vulkan,wgpu]
        [--only vit,clip,minilm,whisper] [--folders DIR] [--json FILE]

On a machine without a GPU use `--device cpu --executors cpu --threads 2`, which also times `faster-whisper` if it is
installed. `--small` tries the script with tiny models in seconds. `encoders_folders.py` creates missing model folders
(in `--folders`, default: the temporary folder). `--minilm FOLDER` uses real weights instead of random ones. No network
is needed. Needs torch, transformers and sentence-transformers.

Times are wall-clock times from inputs (images on the device, texts and samples in host memory) to results in host
memory. They are medians over several runs after the device has left its idle clock. On a GPU torch computes in F16 with
the fastest of eager mode, a CUDA graph and `torch.compile`; on a CPU in eager mode and F32. The rows compare:

| row | Tercet | peer |
|---|---|---|
| vit | ViT-B/16, 32 images | `ViTModel`, the class token's state |
| clip | text tower of ViT-B/32, 64 texts of 77 tokens | `get_text_features` |
| minilm | 1,000 sentences of mixed length, from text to vector | `SentenceTransformer.encode`, its best batch size |
| whisper | 30 s with Whisper-base's shape: features, encoder, 128 tokens | features and `generate` of transformers; faster-whisper |
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WARM_SECONDS = 0.7
RUNS = 7
TOKENS = 128
PARTS = ("vit", "clip", "minilm", "whisper")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tercet", type=pathlib.Path)
    p.add_argument("--device", default="cuda")
    p.add_argument("--executors", default="vulkan,wgpu")
    p.add_argument("--only", default=",".join(PARTS))
    p.add_argument("--folders", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "tercet-encoders")
    p.add_argument("--minilm", type=pathlib.Path)
    p.add_argument("--threads", type=int)
    p.add_argument("--sentences", type=int)
    p.add_argument("--small", action="store_true")
    p.add_argument("--json", type=pathlib.Path)
    return p.parse_args()


ARGS = arguments()
if ARGS.threads:
    # These variables must be set before torch is imported.
    os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = str(ARGS.threads)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402

import encoders_folders  # noqa: E402

GPU = ARGS.device != "cpu"
DTYPE = torch.float16 if GPU else torch.float32
PICTURES, TEXTS = (2, 4) if ARGS.small else ((32, 64) if GPU else (8, 16))
SENTENCES = ARGS.sentences or (40 if ARGS.small else 1000)
if ARGS.small:
    TOKENS = 8
if not GPU:
    RUNS = 3
ROWS = []


def row(part, who, ms, note=""):
    ROWS.append({"part": part, "who": who, "milliseconds": round(ms, 3), "note": note})
    print(f"| {part} | {who} | {ms:.2f} | {note} |", flush=True)


def folder_of(part):
    if part == "minilm" and ARGS.minilm:
        return ARGS.minilm
    folder = ARGS.folders / (part + ("-small" if ARGS.small else ""))
    if not (folder / "model.safetensors").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        getattr(encoders_folders, part)(folder, ARGS.small)
    return folder


def median_ms(once):
    """The time of a call that returns its result in host memory."""
    started = time.perf_counter()
    once()
    while time.perf_counter() - started < WARM_SECONDS:
        once()
    times = []
    for _ in range(RUNS):
        started, runs = time.perf_counter(), 0
        while runs == 0 or time.perf_counter() - started < 0.1:
            once()
            runs += 1
        times.append((time.perf_counter() - started) / runs)
    return statistics.median(times) * 1e3


def ours(part, folder, *options, tests):
    """The times of `tercet bench` on every executor; `tests` selects the rows."""
    if not ARGS.tercet:
        return
    for executor in ARGS.executors.split(","):
        for dtype in ("f16", "auto") if GPU and part != "whisper" else ("auto",):
            command = [str(ARGS.tercet), "bench", "-m", str(folder), "--device", executor, "--dtype", dtype, "--json"]
            done = subprocess.run([*command, "--repetitions", str(RUNS), *options], capture_output=True, text=True)
            if done.returncode:
                print(f"{' '.join(command)}: {done.stderr.strip()}", file=sys.stderr)
                continue
            report = json.loads(done.stdout)
            for test in report["tests"]:
                if test["test"] in tests:
                    ms = statistics.median(test["seconds"]) * 1e3
                    row(part, f"tercet {executor}, {report['dtype']}", ms, f"{test['test']} {' '.join(options[:2])}")


def ways(run, inputs):
    """Variants of `run(*inputs)` with inputs on the device that work on this machine: a name and a callable."""
    def in_memory(result):
        return result.float().cpu()

    yield "eager", lambda: in_memory(run(*inputs))
    if GPU:
        try:
            for _ in range(3):
                run(*inputs)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = run(*inputs)

            def replay():
                graph.replay()
                return in_memory(result)

            yield "CUDA graph", replay
        except RuntimeError as e:
            print(f"no CUDA graph: {e}", file=sys.stderr)
    if GPU and not ARGS.small:
        try:
            compiled = torch.compile(run, mode="reduce-overhead")
            compiled(*inputs)
            yield "torch.compile", lambda: in_memory(compiled(*inputs))
        except Exception as e:  # The compiler may be unavailable for any reason.
            print(f"no torch.compile: {str(e).splitlines()[:1]}", file=sys.stderr)


def best(part, run, inputs, note):
    found = [(median_ms(once), name) for name, once in ways(run, inputs)]
    for ms, name in sorted(found):
        row(part, f"torch {torch.__version__}, {name}", ms, note)


@torch.inference_mode()
def vit():
    folder = folder_of("vit")
    ours("vit", folder, "--batch", str(PICTURES), tests=("pictures on the device", "pictures"))
    model = transformers.ViTModel.from_pretrained(folder, add_pooling_layer=False).to(ARGS.device, DTYPE).eval()
    pixels = torch.rand(PICTURES, 3, 224, 224, device=ARGS.device, dtype=DTYPE) * 2 - 1
    best("vit", lambda x: model(x).last_hidden_state[:, 0], (pixels,), f"batch {PICTURES}")


@torch.inference_mode()
def clip():
    folder = folder_of("clip")
    ours("clip", folder, "--batch", str(TEXTS), tests=("texts",))
    model = transformers.CLIPModel.from_pretrained(folder).to(ARGS.device, DTYPE).eval()
    ids = torch.randint(0, 49000, (TEXTS, 77), device=ARGS.device)
    ids[:, -1] = 49407
    mask = torch.ones_like(ids)

    def vectors(ids, mask):
        result = model.get_text_features(input_ids=ids, attention_mask=mask)
        return result if isinstance(result, torch.Tensor) else result.pooler_output

    best("clip", vectors, (ids, mask), f"batch {TEXTS}")


def minilm():
    import sentence_transformers

    folder = folder_of("minilm")
    words = encoders_folders.words_of(15000)
    if ARGS.minilm:
        # Frequent words of the model's own vocabulary.
        vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        words = [w for w, _ in sorted(vocab.items(), key=lambda of: of[1]) if w.isalpha() and w.isascii() and len(w) > 1]
    texts = encoders_folders.sentences(SENTENCES, words)
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "sentences.txt"
        path.write_text("\n".join(texts) + "\n")
        for batch in ("32", "128") if GPU else ("32",):
            ours("minilm", folder, "--batch", batch, "--file", str(path), "--prompt", "16", tests=("file",))
    model = sentence_transformers.SentenceTransformer(str(folder), device=ARGS.device)
    if GPU:
        model.half()
    for batch in (32, 128, 512) if GPU else (32,):
        ms = median_ms(lambda batch=batch: model.encode(texts, batch_size=batch))
        row("minilm", f"sentence-transformers {sentence_transformers.__version__}", ms, f"batch {batch}")


@torch.inference_mode()
def whisper():
    folder = folder_of("whisper")
    ours("whisper", folder, "-n", str(TOKENS), tests=("features", "encoder", "text", "recording"))
    samples = (torch.rand(480000, generator=torch.Generator().manual_seed(1)) - 0.5).numpy() * 0.2
    if not GPU:
        faster_whisper(folder, samples)
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).to(ARGS.device, DTYPE).eval()
    start = torch.tensor([[encoders_folders.START, encoders_folders.ENGLISH, encoders_folders.TRANSCRIBE, encoders_folders.NO_TIMES]])
    start = start.to(ARGS.device)

    def once():
        features = extractor(samples, sampling_rate=16000, return_tensors="pt", device=ARGS.device).input_features
        asked = {"decoder_input_ids": start, "max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
        return model.generate(features.to(ARGS.device, DTYPE), **asked).cpu()

    got = once().shape[-1]
    row("whisper", f"transformers {transformers.__version__}", median_ms(once), f"features, encoder, {got} tokens")


def faster_whisper(folder, samples):
    """Times ctranslate2 with the features of faster-whisper, if both are installed."""
    try:
        import ctranslate2
        from faster_whisper.feature_extractor import FeatureExtractor
    except ImportError as e:
        print(f"no faster-whisper: {e}", file=sys.stderr)
        return
    made = ARGS.folders / ("ct2" + ("-small" if ARGS.small else ""))
    if not (made / "model.bin").is_file():
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(made), force=True)
    extractor = FeatureExtractor(feature_size=80)
    start = [encoders_folders.START, encoders_folders.ENGLISH, encoders_folders.TRANSCRIBE, encoders_folders.NO_TIMES]
    for kind in ("float32", "int8"):
        model = ctranslate2.models.Whisper(str(made), compute_type=kind, intra_threads=ARGS.threads or 0, inter_threads=1)

        def once(parts=None):
            started = time.perf_counter()
            features = extractor(samples)[:, :3000]
            features = ctranslate2.StorageView.from_array(features[None].copy())
            heard = time.perf_counter()
            states = model.encode(features, to_cpu=False)
            encoded = time.perf_counter()
            # CTranslate2's function generates half of `max_length` tokens, so request twice the number.
            asked = {"beam_size": 1, "max_length": 2 * TOKENS, "suppress_tokens": [encoders_folders.END, 50361, 50362]}
            result = model.generate(states, [start], **asked)
            if parts is not None:
                parts.append((heard - started, encoded - heard, time.perf_counter() - encoded))
            return len(result[0].sequences_ids[0])

        got, parts = once(), []
        ms = median_ms(lambda once=once, parts=parts: once(parts))
        each = " / ".join(f"{statistics.median(p) * 1e3:.0f}" for p in zip(*parts))
        row("whisper", f"faster-whisper, ctranslate2 {ctranslate2.__version__}, {kind}", ms, f"{got} tokens; {each} ms")


def main():
    if ARGS.threads:
        torch.set_num_threads(ARGS.threads)
    where = torch.cuda.get_device_name() if GPU else f"CPU, {torch.get_num_threads()} threads"
    print(f"{where}, torch {torch.__version__}, transformers {transformers.__version__}\n")
    print("| part | who | ms | |\n|---|---|---:|---|", flush=True)
    failed = 0
    for part in ARGS.only.split(","):
        try:
            globals()[part]()
        except Exception as e:  # Continue with the other rows.
            failed += 1
            print(f"{part}: {type(e).__name__}: {e}", file=sys.stderr)
    if ARGS.json:
        ARGS.json.write_text(json.dumps({"device": where, "torch": torch.__version__, "rows": ROWS}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    sys.exit(main())
