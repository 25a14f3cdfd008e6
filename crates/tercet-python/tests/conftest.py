"""Paths of the test models: in the repository, and MiniLM in the folder `TERCET_MINILM_DIR`."""

import os
from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "tests" / "data"


@pytest.fixture(scope="session")
def tiny_gguf() -> Path:
    return DATA / "tiny-rust-llama" / "tiny-rust-llama-q8_0.gguf"


@pytest.fixture(scope="session")
def minilm() -> Path:
    folder = os.environ.get("TERCET_MINILM_DIR")
    assert folder, "TERCET_MINILM_DIR is not set; `cargo xtask python` sets it"
    return Path(folder)
