"""Compares a language model of 1.1 billion parameters with llama.cpp on the CPU: tokens per second of a prompt of 128
tokens and of the tokens after it.

    python3 xtask/peers/decoders_llama_cpp.py --tercet target/release/tercet [--threads 2] [--kinds q4_k_m,q8_0,f16]
        [--folder DIR]

The model files have the shape of TinyLlama and random weights, in DIR (default: the temporary folder). The formats are
F16, Q8_0, and Q4_K with half of the value and down projections and the output in Q6_K, as in llama.cpp's Q4_K_M. Tercet
is measured by `tercet bench --device cpu`. llama.cpp is the package `xllamacpp`, whose server reports its own timings.
Each program is measured before and after the other. Needs gguf, numpy and xllamacpp.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

import gguf
import numpy as np

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, CONTEXT = 22, 2048, 32, 4, 5632, 32000, 2048
PROMPT, TOKENS = 128, 64
TYPES = gguf.GGMLQuantizationType
KINDS = {"q4_k_m": TYPES.Q4_K, "q8_0": TYPES.Q8_0, "f16": TYPES.F16}


def blocks(rng, kind, rows, columns):
    """Random blocks of a matrix whose weights have a mean near 0 and a magnitude of a few hundredths."""
    if kind == TYPES.F16:
        return rng.normal(0.0, 0.02, (rows, columns)).astype(np.float16)
    length, size = gguf.GGML_QUANT_SIZES[kind]
    count = rows * columns // length
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    half = lambda x: np.frombuffer(np.float16(x).tobytes(), np.uint8)
    if kind == TYPES.Q4_K:
        data[:, 0:2], data[:, 2:4] = half(1e-4), half(7.5e-4)
    elif kind == TYPES.Q8_0:
        data[:, 0:2] = half(2e-4)
    elif kind == TYPES.Q6_K:
        data[:, 192:208] = rng.integers(-60, 60, (count, 16), dtype=np.int8).view(np.uint8)
        data[:, 208:210] = half(2e-5)
    return data.reshape(rows, -1)


def write(path, name):
    kind = KINDS[name]
    rng = np.random.default_rng(7)
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(HIDDEN)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(FFN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(HIDDEN // HEADS)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(VOCAB)
    out.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [2, 3, 3] + [6] * 256
    tokens += [f"t{i}" for i in range(VOCAB - len(tokens))]
    out.add_token_list(tokens)
    out.add_token_scores([-float(i) for i in range(VOCAB)])
    out.add_token_types(kinds + [1] * (VOCAB - len(kinds)))
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)

    def matrix(tensor, rows, columns, of=kind):
        out.add_tensor(tensor, blocks(rng, of, rows, columns), raw_dtype=of)

    def ones(tensor):
        out.add_tensor(tensor, np.ones(HIDDEN, np.float32))

    best = TYPES.Q6_K if name == "q4_k_m" else kind
    matrix("token_embd.weight", VOCAB, HIDDEN)
    ones("output_norm.weight")
    matrix("output.weight", VOCAB, HIDDEN, best)
    values = KV_HEADS * HIDDEN // HEADS
    for layer in range(LAYERS):
        more = best if layer % 2 else kind
        at = lambda part: f"blk.{layer}.{part}.weight"
        ones(at("attn_norm"))
        ones(at("ffn_norm"))
        matrix(at("attn_q"), HIDDEN, HIDDEN)
        matrix(at("attn_k"), values, HIDDEN)
        matrix(at("attn_v"), values, HIDDEN, more)
        matrix(at("attn_output"), HIDDEN, HIDDEN)
        matrix(at("ffn_gate"), FFN, HIDDEN)
        matrix(at("ffn_up"), FFN, HIDDEN)
        matrix(at("ffn_down"), HIDDEN, FFN, more)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def ours(args, path):
    command = [args.tercet, "bench", "-m", path, "--device", "cpu", "-c", "512", "-p", PROMPT, "-n", TOKENS, "--json"]
    env = {**os.environ, "RAYON_NUM_THREADS": str(args.threads)}
    told = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, env=env)
    found = json.loads(told.stdout)
    rows = found["tests"]
    speed = {row["test"]: row["tokens_per_second"] for row in rows}
    return speed["prompt"], speed["decode"]


def theirs(args, path):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 512
    params.n_parallel = 1
    params.warmup = True
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    server = xllamacpp.Server(params)
    best = (0.0, 0.0)
    for turn in range(3):
        ids = [300 + (turn * 977 + i * 31) % 30000 for i in range(PROMPT)]
        request = {"prompt": ids, "n_predict": TOKENS, "ignore_eos": True, "temperature": 0.0, "cache_prompt": False}
        told = server.handle_completions(request)
        told = json.loads(told) if isinstance(told, (str, bytes)) else told
        times = (told[0] if isinstance(told, list) else told)["timings"]
        best = tuple(map(max, best, (times["prompt_per_second"], times["predicted_per_second"])))
    del server
    return best


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tercet", required=True)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    p.add_argument("--make-only", action="store_true", help="write the model files without measuring")
    args = p.parse_args()
    print("| file | ours, prompt / decode | llama.cpp | ours again | ratio |\n|---|---|---|---|---|")
    for name in args.kinds.split(","):
        path = args.folder / f"made-up-1.1b-{name}.gguf"
        if not path.exists():
            write(path, name)
        if args.make_only:
            continue
        first, peer, again = ours(args, path), theirs(args, path), ours(args, path)
        show = lambda pair: f"{pair[0]:.1f} / {pair[1]:.2f}"
        ratio = [max(a, b) / c for a, b, c in zip(first, again, peer)]
        print(f"| {name} | {show(first)} | {show(peer)} | {show(again)} | {ratio[0]:.2f} / {ratio[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
