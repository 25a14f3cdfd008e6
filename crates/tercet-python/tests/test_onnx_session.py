"""ONNX models as ONNX Runtime's users write them, and tensors that stay on the device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tercet
from conftest import DATA
from test_onnx import doubled as doubled

MATMUL = DATA / "onnx-microsoft" / "fused_mat_mul" / "model.onnx"
A = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
B = np.linspace(-1, 1, 40, dtype=np.float32).reshape(2, 4, 5)


def test_a_session_runs_with_the_names_first() -> None:
    session = tercet.InferenceSession(str(MATMUL), providers=["CPUExecutionProvider"])
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [
        ("x0", "tensor(float)", [2, 3, 4]), ("x1", "tensor(float)", [2, 4, 5]),
    ]  # fmt: skip
    assert [output.name for output in session.get_outputs()] == ["y"]
    assert session.get_providers() == ["CPUExecutionProvider"] and session.get_overridable_initializers() == []
    feed = {"x0": A, "x1": B}
    for names in (None, ["y"], ("y",), [], "y"):
        results = session.run(names, feed)
        assert isinstance(results, list)
        np.testing.assert_allclose(results[0], A @ B, rtol=1e-5, atol=1e-5)
    [y] = session.run(None, feed, None)
    [named] = session.run(output_names=["y"], input_feed=feed)
    np.testing.assert_array_equal(named, y)
    np.testing.assert_array_equal(session.run(feed)["y"], y)
    np.testing.assert_array_equal(session.run(feed, ["y"])["y"], y)
    np.testing.assert_array_equal(session.run(inputs=feed, outputs=["y"])["y"], y)
    np.testing.assert_array_equal(session(A, B)["y"], y)
    np.testing.assert_array_equal(session(A, x1=B)["y"], y)
    np.testing.assert_array_equal(tercet.load(MATMUL, kind="onnx", device="cpu").run(None, feed)[0], y)
    np.testing.assert_array_equal(tercet.InferenceSession(MATMUL.read_bytes(), device="cpu").run(None, feed)[0], y)
    swapped = {"x0": A.astype(">f4"), "x1": np.asfortranarray(B)}
    np.testing.assert_array_equal(session.run(None, swapped)[0], y)


def test_symbols_and_metadata(doubled: Path) -> None:
    session = tercet.InferenceSession(doubled, None, [("CPUExecutionProvider", {"arena": 1})], bounds={"rows": 8})
    assert session.get_inputs()[0].shape == ["rows", 3]
    meta = session.get_modelmeta()
    assert meta.producer_name == "hand" and meta.custom_metadata_map == {"license": "MIT"}
    np.testing.assert_array_equal(session.run(["y"], {"x": np.ones((2, 3), np.float32)})[0], np.full((2, 3), 2))


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "no dictionary", lambda s: s.run(None)),
        (TypeError, "no dictionary", lambda s: s.run()),
        (TypeError, "two dictionaries", lambda s: s.run({}, {})),
        (tercet.RunError, "`nothing`", lambda s: s.run(["nothing"], {"x0": A, "x1": B})),
        (tercet.RunError, "`z`", lambda s: s.run(None, {"z": A})),
        (TypeError, "twice", lambda s: s(A, B, x0=A)),
        (TypeError, "at most 2: x0, x1", lambda s: s(A, B, A)),
    ],
)
def test_runs_that_are_refused(error: type[Exception], message: str, call: Any) -> None:
    with pytest.raises(error, match=message):
        call(tercet.InferenceSession(MATMUL, device="cpu"))


def test_providers_select_the_device() -> None:
    with pytest.raises(tercet.DeviceError, match="AbacusExecutionProvider.*CPU"):
        tercet.InferenceSession(MATMUL, providers=["AbacusExecutionProvider"])
    with pytest.raises(tercet.DeviceError, match="abacus"):
        tercet.InferenceSession(MATMUL, providers=["abacus"])
    both = tercet.InferenceSession(MATMUL, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert len(both.get_providers()) == 1
    assert tercet.InferenceSession(MATMUL, providers=["cpu"]).get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(FileNotFoundError, match="nothing.onnx"):
        tercet.InferenceSession("nothing.onnx")


def test_outputs_stay_on_the_device(doubled: Path) -> None:
    session = tercet.InferenceSession(doubled, device="cpu")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "device")
    for turn in range(1, 4):
        session.run_with_iobinding(binding)
        [y] = binding.get_outputs()
        assert isinstance(y, tercet.DeviceTensor) and y.shape == (2, 3) and y.dtype == "float32" and y.device == "cpu"
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], x * 2**turn)
        binding.bind_ortvalue_input("x", y)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    [y] = binding.get_outputs()
    assert isinstance(y, np.ndarray)
    np.testing.assert_array_equal(y, x * 16)
    binding.clear_binding_outputs()
    binding.clear_binding_inputs()
    with pytest.raises(tercet.RunError, match="`x` is missing"):
        session.run_with_iobinding(binding)


def test_tensors_of_a_device(doubled: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = tercet.DeviceTensor(x, "cpu")
    np.testing.assert_array_equal(tensor.numpy(), x)
    np.testing.assert_array_equal(np.asarray(tensor), x)
    np.testing.assert_array_equal(np.from_dlpack(tensor), x)
    assert len(tensor) == 2 and np.asarray(tensor, np.float64).dtype == np.float64
    assert tercet.DeviceTensor([1, 2], "cpu", np.int32).dtype == "int32"
    model = tercet.load(doubled, kind="onnx", device="cpu")
    twice = model.run_on_device({"x": tensor})["y"]
    np.testing.assert_array_equal(model.run({"x": twice})["y"], 4 * x)
    [again] = model.run_on_device(["y"], {"x": twice})
    np.testing.assert_array_equal(again.numpy(), 4 * x)

    g = tercet.Graph()
    value = g.input("x", "f32[rows, 3]")
    g.output("y", value * 2)
    g.output("z", value + g.input("c", "f32[]"))
    session = g.compile("cpu", {"rows": 4})
    results = session.run_on_device({"x": tensor, "c": 1})
    assert list(results) == ["y", "z"]
    np.testing.assert_array_equal(session.run({"x": results["z"], "c": 2}, ["y"])["y"], 2 * (x + 1))
    [y] = session.run("y", {"x": results["y"], "c": 2})
    np.testing.assert_array_equal(y, 4 * x)
    # A binding lasts for one run.
    with pytest.raises(tercet.RunError, match="`x`"):
        session.run({"c": 1})
    np.testing.assert_array_equal(session(x, 1)["z"], x + 1)
    with pytest.raises(tercet.RunError, match="x"):
        session.run({"x": tercet.DeviceTensor([1, 2], "cpu"), "c": 1})
    np.testing.assert_array_equal(session(x, 1)["z"], x + 1)
