"""Measures language models of four shapes on a GPU in tokens per second: prefill, decode, and batched decode.

    python3 xtask/peers/decoders_gpu.py --tercet target/release/tercet [--devices vulkan,wgpu] [--shapes 8b,1.1b,moe,mamba2]
        [--folder DIR] [--keep]

The model files have random weights. They are written to DIR (default: the temporary folder) and removed after the
measurement unless `--keep` is set. The format is Q4_K with half of the value and down projections and the output in
Q6_K, as in llama.cpp's Q4_K_M. Mamba-2 is F16. Each row is one run of `tercet bench -c 1024` with default options in a
separate process. The goals are for an H200. Needs gguf and numpy.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import gguf
import numpy as np

TYPES = gguf.GGMLQuantizationType
# Random bytes; all blocks are slices of them.
POOL = 1 << 26


class File:
    """Writes a GGUF file of one architecture."""

    def __init__(self, path, architecture, hidden, layers, vocab):
        self.out, self.hidden, self.layers = gguf.GGUFWriter(str(path), architecture), hidden, layers
        self.rng = np.random.default_rng(7)
        self.pool = self.rng.integers(0, 256, POOL, dtype=np.uint8)
        out = self.out
        out.add_context_length(4096)
        out.add_embedding_length(hidden)
        out.add_block_count(layers)
        out.add_layer_norm_rms_eps(1e-5)
        out.add_vocab_size(vocab)
        out.add_tokenizer_model("llama")
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
        kinds = [2, 3, 3] + [6] * 256
        tokens += [f"t{i}" for i in range(vocab - len(tokens))]
        out.add_token_list(tokens)
        out.add_token_scores([-float(i) for i in range(vocab)])
        out.add_token_types(kinds + [1] * (vocab - len(kinds)))
        out.add_bos_token_id(1)
        out.add_eos_token_id(2)

    def blocks(self, kind, shape):
        """Random blocks whose weights have a mean near 0 and a magnitude of a few hundredths."""
        if kind == TYPES.F16:
            normal = self.rng.normal(0.0, 0.02, 1 << 20).astype(np.float16)
            return np.resize(normal, shape)
        length, size = gguf.GGML_QUANT_SIZES[kind]
        count = int(np.prod(shape)) // length
        start = int(self.rng.integers(0, 1 << 16))
        data = np.resize(self.pool[start:], (count, size))
        half = lambda x: np.frombuffer(np.float16(x).tobytes(), np.uint8)
        if kind == TYPES.Q4_K:
            data[:, 0:2], data[:, 2:4] = half(1e-4), half(7.5e-4)
        elif kind == TYPES.Q6_K:
            scales = self.rng.integers(-60, 60, (count, 1), dtype=np.int8).view(np.uint8)
            data[:, 192:208], data[:, 208:210] = scales, half(2e-5)
        return data.reshape(*shape[:-1], -1)

    def matrix(self, name, *shape, of=TYPES.Q4_K):
        self.out.add_tensor(f"{name}.weight", self.blocks(of, shape), raw_dtype=of)

    def numbers(self, name, values):
        self.out.add_tensor(name, np.asarray(values, np.float32))

    def ones(self, name, *shape):
        self.numbers(f"{name}.weight", np.ones(shape or self.hidden))

    def close(self):
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


def attention(file, layer, heads, kv_heads, head):
    at = lambda part: f"blk.{layer}.{part}"
    file.ones(at("attn_norm"))
    file.ones(at("ffn_norm"))
    file.matrix(at("attn_q"), heads * head, file.hidden)
    file.matrix(at("attn_k"), kv_heads * head, file.hidden)
    file.matrix(at("attn_v"), kv_heads * head, file.hidden, of=better(layer))
    file.matrix(at("attn_output"), file.hidden, heads * head)


def better(layer):
    return TYPES.Q6_K if layer % 2 else TYPES.Q4_K


def ends(file, vocab, of):
    file.matrix("token_embd", vocab, file.hidden, of=TYPES.Q4_K if of == TYPES.Q6_K else of)
    file.ones("output_norm")
    file.matrix("output", vocab, file.hidden, of=of)


def llama(path, hidden, layers, heads, kv_heads, ffn, vocab):
    file = File(path, "llama", hidden, layers, vocab)
    file.out.add_feed_forward_length(ffn)
    file.out.add_head_count(heads)
    file.out.add_head_count_kv(kv_heads)
    file.out.add_rope_dimension_count(hidden // heads)
    file.out.add_rope_freq_base(10000.0)
    ends(file, vocab, TYPES.Q6_K)
    for layer in range(layers):
        attention(file, layer, heads, kv_heads, hidden // heads)
        for part, shape in {"gate": (ffn, hidden), "up": (ffn, hidden)}.items():
            file.matrix(f"blk.{layer}.ffn_{part}", *shape)
        file.matrix(f"blk.{layer}.ffn_down", hidden, ffn, of=better(layer))
    file.close()


def moe(path, hidden=2048, layers=48, heads=32, kv_heads=4, head=128, experts=128, used=8, ffn=768, vocab=151936):
    """The shape of Qwen3-30B-A3B."""
    file = File(path, "qwen3moe", hidden, layers, vocab)
    out = file.out
    out.add_feed_forward_length(6144)
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_key_length(head)
    out.add_value_length(head)
    out.add_rope_freq_base(1e6)
    out.add_expert_count(experts)
    out.add_expert_used_count(used)
    out.add_expert_feed_forward_length(ffn)
    ends(file, vocab, TYPES.Q6_K)
    for layer in range(layers):
        at = lambda part: f"blk.{layer}.{part}"
        attention(file, layer, heads, kv_heads, head)
        file.ones(at("attn_q_norm"), head)
        file.ones(at("attn_k_norm"), head)
        router = file.rng.normal(0.0, 0.02, (experts, hidden))
        file.numbers(f"{at('ffn_gate_inp')}.weight", router)
        for part in ("gate", "up"):
            file.matrix(at(f"ffn_{part}_exps"), experts, ffn, hidden)
        file.matrix(at("ffn_down_exps"), experts, hidden, ffn, of=better(layer))
    file.close()


def mamba2(path, hidden=2560, layers=64, states=128, head=64, kernel=4, vocab=50288):
    inner = 2 * hidden
    heads, mixed = inner // head, inner + 2 * states
    file = File(path, "mamba2", hidden, layers, vocab)
    out = file.out
    out.add_feed_forward_length(0)
    out.add_head_count(0)
    out.add_ssm_conv_kernel(kernel)
    out.add_ssm_inner_size(inner)
    out.add_ssm_state_size(states)
    out.add_ssm_time_step_rank(heads)
    out.add_ssm_group_count(1)
    ends(file, vocab, TYPES.F16)
    for layer in range(layers):
        at = lambda part: f"blk.{layer}.{part}"
        file.ones(at("attn_norm"))
        file.matrix(at("ssm_in"), inner + mixed + heads, hidden, of=TYPES.F16)
        file.numbers(at("ssm_conv1d.weight"), file.rng.normal(0.0, 0.3, (mixed, kernel)))
        file.numbers(at("ssm_conv1d.bias"), np.zeros(mixed))
        file.numbers(at("ssm_dt.bias"), np.full(heads, -3.0))
        file.numbers(at("ssm_a"), np.full((heads, 1), -1.0))
        file.numbers(at("ssm_d"), np.ones((heads, 1)))
        file.numbers(at("ssm_norm.weight"), np.ones((1, inner)))
        file.matrix(at("ssm_out"), hidden, inner, of=TYPES.F16)
    file.close()


# By name: the function that writes the model, the goals of prefill and decode in tokens per second, and the batch
# size and goal of batched decode.
SHAPES = {
    "8b": (lambda path: llama(path, 4096, 32, 32, 8, 14336, 128256), 13000, 400, (32, 3500)),
    "1.1b": (lambda path: llama(path, 2048, 22, 32, 4, 5632, 32000), None, 1250, None),
    "moe": (moe, None, 250, None),
    "mamba2": (mamba2, None, 300, None),
}


def bench(args, path, device, *more):
    command = [args.tercet, "bench", "-m", path, "--device", device, "-c", "1024", "--json", *more]
    told = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if told.returncode:
        return {"error": told.stderr.strip().splitlines()[-1:]}
    return {f"{row['test']} x {row['sequences']}": round(row["tokens_per_second"], 1) for row in json.loads(told.stdout)["tests"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tercet", required=True)
    p.add_argument("--devices", default="vulkan,wgpu")
    p.add_argument("--shapes", default=",".join(SHAPES))
    p.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    p.add_argument("--keep", action="store_true", help="keep the files")
    args = p.parse_args()
    for shape in args.shapes.split(","):
        make, prompt, decode, batch = SHAPES[shape]
        path = args.folder / f"made-up-{shape}.gguf"
        if not path.exists():
            make(path)
        print(f"{shape}: goals {prompt} / {decode}, side by side {batch}", flush=True)
        for device in args.devices.split(","):
            print(f"  {device}: {bench(args, path, device)}", flush=True)
            if batch:
                print(f"  {device} x {batch[0]}: {bench(args, path, device, '--batch', str(batch[0]))}", flush=True)
        if not args.keep:
            path.unlink()


if __name__ == "__main__":
    main()
