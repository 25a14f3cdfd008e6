"""Batch embedding and generation over a dataset: Ray Data with an actor of Tercet per device.

    pip install "ray[data]" ./crates/tercet-python
    python examples/ray/batch.py embed texts.parquet embeddings/ --model all-MiniLM-L6-v2/ --actors 4
    python examples/ray/batch.py generate prompts.parquet answers/ --model model.gguf --tokens 64

The dataset has a column `text` (`--column`); the result has all columns and `embedding`, or `generated`, as Parquet files. An actor keeps
its compiled model for as long as it lives. Rows that were on a node that died are computed again by Ray, elsewhere.
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
    """The device that `wish` names; for `auto` the GPU that Ray gave this actor, else the CPU."""
    if wish != "auto":
        return wish
    given = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return f"vulkan:{given[0]}" if given else "cpu"


class Embed:
    """Adds the embedding of each text."""

    def __init__(self, model: str, device: str = "auto", column: str = "text") -> None:
        self.encoder = tercet.load(model, device=device_of_actor(device))
        self.column = column

    def __call__(self, batch: Batch) -> Batch:
        vectors = self.encoder.embed(list(batch[self.column]), truncate=True)
        return {**batch, "embedding": vectors}


class Generate:
    """Adds what the model writes after each text: greedily, so that a row that is computed again is the same."""

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
    """The dataset through so many actors, fewer while a node is missing; `gpus` is 1 for an actor per GPU, else each has a
    processor core."""
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
    parser.add_argument("rows", help="a Parquet file or a folder of them, with a column of texts")
    parser.add_argument("out", help="the folder that the results are written to")
    parser.add_argument("--model", required=True, help="what tercet.load() takes; every node has to have it there")
    parser.add_argument("--column", default="text", help="the column of texts")
    parser.add_argument("--device", default="auto", help="the device of an actor: the GPU that it got, else the CPU")
    parser.add_argument("--actors", type=int, default=1, help="one per device")
    parser.add_argument("--gpus", type=int, choices=[0, 1], default=0, help="GPUs of each actor")
    parser.add_argument("--batch", type=int, default=64, help="rows that an actor is given at once")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to write after a text")
    args = parser.parse_args()
    options: Batch = {"model": args.model, "device": args.device, "column": args.column}
    actor: type = Embed
    if args.task == "generate":
        actor, options = Generate, {**options, "tokens": args.tokens}
    rows = over(ray.data.read_parquet(args.rows), actor, options, actors=args.actors, gpus=args.gpus, batch=args.batch)
    rows.write_parquet(args.out)


if __name__ == "__main__":
    main()
