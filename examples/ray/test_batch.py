"""Two nodes on this machine, one of which is killed half-way. The output still has every row once, with correct results."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
import ray
import ray.data
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import tercet

sys.path.insert(0, str(Path(__file__).parent))
import batch as example

DATA = Path(__file__).parents[2] / "tests" / "data"
GGUF = DATA / "tiny-rust-llama" / "tiny-rust-llama-q8_0.gguf"
BLOCKS, ROWS_OF_BLOCK = 20, 8
ROWS = BLOCKS * ROWS_OF_BLOCK


@ray.remote(num_cpus=0)
class Progress:
    """Counts computed rows per node. It runs on the node that is not killed."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def add(self, node: str, rows: int) -> None:
        self.rows[node] = self.rows.get(node, 0) + rows

    def counts(self) -> dict[str, int]:
        return self.rows


class Watched:
    """An actor of the example that reports each batch, with a delay so that the other node can be killed half-way."""

    def __init__(self, actor: type, options: dict[str, Any], progress: Any) -> None:
        self.actor = actor(**options)
        self.progress = progress
        self.node = ray.get_runtime_context().get_node_id()

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        done: dict[str, Any] = self.actor(rows)
        time.sleep(0.25)
        ray.get(self.progress.add.remote(self.node, len(rows["id"])))
        return done


@pytest.fixture
def cluster() -> Iterator[Any]:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    store: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**store, "include_dashboard": False})
    other = cluster.add_node(**store)
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield cluster, other
    ray.shutdown()
    cluster.shutdown()  # type: ignore[no-untyped-call]


def sentences() -> list[str]:
    return [f"fn number_{i}() -> u32 {{ {i} }} // the function of {i}" for i in range(ROWS)]


def killed_half_way(cluster: Any, actor: type, options: dict[str, Any], out: Path) -> list[dict[str, Any]]:
    """Processes all rows with actors on both nodes. The second node is killed after it has finished some rows."""
    nodes, other = cluster
    here = NodeAffinitySchedulingStrategy(nodes.head_node.node_id, soft=False)
    progress = Progress.options(scheduling_strategy=here).remote()  # type: ignore[attr-defined]
    rows = [{"id": i, "text": text} for i, text in enumerate(sentences())]
    dataset: ray.data.Dataset = ray.data.from_items(rows, override_num_blocks=BLOCKS)
    watched = {"actor": actor, "options": options, "progress": progress}
    dataset = example.over(dataset, Watched, watched, actors=2, batch=ROWS_OF_BLOCK)
    killed_at: list[int] = []

    def kill() -> None:
        while True:
            counts = ray.get(progress.counts.remote())
            if counts.get(other.node_id, 0) >= 2 * ROWS_OF_BLOCK and sum(counts.values()) >= ROWS // 4:
                break
            time.sleep(0.05)
        killed_at.append(sum(counts.values()))
        nodes.remove_node(other, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    dataset.write_parquet(str(out))
    killer.join(timeout=60)
    assert killed_at and ROWS // 4 <= killed_at[0] < ROWS * 3 // 4, killed_at
    assert sum(node["Alive"] for node in ray.nodes()) == 1  # type: ignore[no-untyped-call]
    done: list[dict[str, Any]] = pyarrow.parquet.read_table(out).to_pylist()
    return done


def test_a_node_is_killed_while_texts_are_embedded(cluster: Any, tmp_path: Path) -> None:
    model = os.environ["TERCET_MINILM_DIR"]
    rows = killed_half_way(cluster, example.Embed, {"model": model, "device": "cpu"}, tmp_path / "out")
    assert sorted(row["id"] for row in rows) == list(range(ROWS))
    vectors = np.array([row["embedding"] for row in sorted(rows, key=lambda row: row["id"])], np.float32)
    alone = tercet.load(model, device="cpu").embed(sentences())
    np.testing.assert_allclose(vectors, alone, atol=1e-5)


def test_a_node_is_killed_while_texts_are_written(cluster: Any, tmp_path: Path) -> None:
    options = {"model": str(GGUF), "device": "cpu", "tokens": 8}
    rows = killed_half_way(cluster, example.Generate, options, tmp_path / "out")
    assert sorted(row["id"] for row in rows) == list(range(ROWS))
    model = tercet.load(str(GGUF), device="cpu")
    for row in rows[:: ROWS // 16]:
        assert row["text"] == sentences()[row["id"]]
        assert row["generated"] == model.generate(row["text"], 8).text()
