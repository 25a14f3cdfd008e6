"""ONNX models: those of the Rust tests, and one with a symbolic dimension, encoded here byte by byte."""

from pathlib import Path

import numpy as np
import pytest

import tercet
from conftest import DATA


def number(field: int, value: int) -> bytes:
    return bytes([field << 3, value])


def nested(field: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    assert len(data) < 128
    return bytes([field << 3 | 2, len(data)]) + data


def value_info(name: str) -> bytes:
    """Type of an F32 tensor `[rows, 3]`."""
    shape = nested(1, nested(2, "rows")) + nested(1, number(1, 3))
    return nested(1, name) + nested(2, nested(1, number(1, 1) + nested(2, shape)))


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    node = nested(1, "x") + nested(1, "x") + nested(2, "y") + nested(4, "Add")
    graph = nested(1, node) + nested(2, "g") + nested(11, value_info("x")) + nested(12, value_info("y"))
    note = nested(14, nested(1, "license") + nested(2, "MIT"))
    path = tmp_path / "doubled.onnx"
    path.write_bytes(number(1, 8) + nested(2, "hand") + nested(7, graph) + nested(8, number(2, 17)) + note)
    return path


def test_a_model_of_the_engines_tests() -> None:
    model = tercet.load(DATA / "onnx-microsoft" / "fused_mat_mul" / "model.onnx", device="cpu")
    assert isinstance(model, tercet.OnnxModel)
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    b = np.linspace(-1, 1, 40, dtype=np.float32).reshape(2, 4, 5)
    y = model(x0=a, x1=b)["y"]
    np.testing.assert_allclose(y, a @ b, rtol=1e-5, atol=1e-5)
    assert model.opsets == {"ai.onnx": 17, "com.microsoft": 1}
    assert model.inputs == [("x0", "f32[2, 3, 4]"), ("x1", "f32[2, 4, 5]")]


def test_one_compilation_serves_all_sizes_up_to_a_bound(doubled: Path) -> None:
    model = tercet.load(doubled, device="cpu", bounds={"rows": 50})
    for rows in [1, 7, 50, 2]:
        x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
        np.testing.assert_array_equal(model.run({"x": x}, ["y"])["y"], x + x)
    assert model.compilations == 1
    assert model.inputs == [("x", "f32[rows, 3]")]
    assert model.outputs == [("y", "float", ["rows", "3"])]
    assert model.producer == "hand" and model.metadata == {"license": "MIT"}
    with pytest.raises(tercet.RunError, match="rows"):
        model(x=np.zeros((51, 3), np.float32))


def test_what_does_not_fit_is_named(doubled: Path, tmp_path: Path) -> None:
    model = tercet.load(doubled, device="cpu")
    with pytest.raises(tercet.RunError, match="`z`.*x"):
        model(z=[[1.0, 2.0, 3.0]])
    with pytest.raises(tercet.RunError, match="`x` is missing"):
        model()
    with pytest.raises(tercet.RunError, match="`nothing`"):
        model.run({"x": np.zeros((1, 3), np.float32)}, ["nothing"])
    with pytest.raises(tercet.RunError, match="f64"):
        model(x=np.zeros((1, 3)))
    with pytest.raises(ValueError, match="dtype"):
        tercet.load(doubled, dtype="f16")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(doubled.read_bytes()[:40])
    with pytest.raises(tercet.ModelError):
        tercet.load(broken)


def test_strings_are_arrays_of_strings() -> None:
    folder = DATA / "onnx-learned"
    model = tercet.load(folder / "label_texts_to_texts.onnx", device="cpu")
    assert model.strings[:3] == ["a", "b", "c"]
    y = model(x=np.array([["c", "a"], ["unknown", "b"]]))["y0"]
    assert y.tolist() == [["three", "one"], ["_Unused", "two"]]
    maps = tercet.load(folder / "logistic_maps.onnx", device="cpu")
    results = maps(X=np.zeros((2, 6), np.float32))
    label, scores = (results[name] for name, _, _ in maps.outputs)
    keys = maps.columns(maps.outputs[1][0])
    assert keys == ["ash", "birch", "cedar", "oak"]
    assert label.tolist() == [keys[i] for i in scores.argmax(1)]


def test_bounds_are_for_onnx_models(tiny_gguf: Path) -> None:
    with pytest.raises(ValueError, match="bounds"):
        tercet.load(tiny_gguf, bounds={"rows": 4})
