"""Batch embedding and generation over a dataset with Ray Data: one Tercet actor per device.

    pip install "ray[data]" ./crates/tercet-python
    python examples/ray/batch.py embed texts.parquet embeddings/ --model all-MiniLM-L6-v2/ --actors 4
    python examples/ray/batch.py generate prompts.parquet answers/ --model model.gguf --tokens 64

The dataset has a column `text` (`--column`). The output is Parquet files with all columns and an additional column `embedding` or
`generated`. An actor compiles its model once. If a node dies, Ray recomputes its rows on another node.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import ray
import ray.data

import tercet

Batch = dict[str, Any]


def device_of_actor(wish: str) -> str:
    """Returns the device `wish`; for `auto`, the GPU that Ray assigned to this actor, or else the CPU."""
    if wish != "auto":
        return wish
    given = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return f"vulkan:{given[0]}" if given else "cpu"


class Embed:
    """Adds a column with the embedding of each text."""

    def __init__(self, model: str, device: str = "auto", column: str = "text") -> None:
        self.encoder = tercet.load(model, device=device_of_actor(device))
        self.column = column

    def __call__(self, batch: Batch) -> Batch:
        vectors = self.encoder.embed(list(batch[self.column]), truncate=True)
        return {**batch, "embedding": vectors}


class Generate:
    """Adds a column with generated text. Decoding is greedy, so that a recomputed row gives the same text."""

    def __init__(self, model: str, tokens: int = 64, device: str = "auto", column: str = "text") -> None:
        self.model = tercet.load(model, device=device_of_actor(device))
        self.tokens = tokens
        self.column = column

    def __call__(self, batch: Batch) -> Batch:
        written = [self.model.generate(text, self.tokens).text() for text in batch[self.column]]
        return {**batch, "generated": np.array(written, dtype=object)}


def over(
    rows: ray.data.Dataset, actor: type, options: Batch, *, actors: int, gpus: int = 0, batch: int = 64
) -> ray.data.Dataset:
    """Maps a dataset with at most `actors` actors, fewer while a node is missing. With `gpus=1` each actor has a GPU, otherwise
    a CPU core."""
    return rows.map_batches(
        actor,
        fn_constructor_kwargs=options,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors, initial_size=actors),
        batch_size=batch,
        num_gpus=gpus or None,
        num_cpus=None if gpus else 1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["embed", "generate"])
    parser.add_argument("rows", help="Parquet file, or a folder of Parquet files, with a text column")
    parser.add_argument("out", help="output folder")
    parser.add_argument("--model", required=True, help="model path for tercet.load(); it must exist on every node")
    parser.add_argument("--column", default="text", help="name of the text column")
    parser.add_argument("--device", default="auto", help="device of an actor; auto: its assigned GPU, or else the CPU")
    parser.add_argument("--actors", type=int, default=1, help="number of actors, one per device")
    parser.add_argument("--gpus", type=int, choices=[0, 1], default=0, help="GPUs per actor")
    parser.add_argument("--batch", type=int, default=64, help="rows per batch")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate per text")
    args = parser.parse_args()
    options: Batch = {"model": args.model, "device": args.device, "column": args.column}
    actor: type = Embed
    if args.task == "generate":
        actor, options = Generate, {**options, "tokens": args.tokens}
    rows = over(ray.data.read_parquet(args.rows), actor, options, actors=args.actors, gpus=args.gpus, batch=args.batch)
    rows.write_parquet(args.out)


if __name__ == "__main__":
    main()
