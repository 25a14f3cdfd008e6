"""Inputs and outputs of sessions."""

import array
import gc
import re
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tercet

DTYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i32": np.int32,
    "i64": np.int64, "u32": np.uint32, "i16": np.int16, "i8": np.int8, "u8": np.uint8, "bool": np.bool_,
}  # fmt: skip


def identity(ty: str) -> tercet.Session:
    g = tercet.Graph()
    x = g.input("x", ty)
    g.output("x", x)
    return g.compile("cpu", {symbol: 64 for symbol in g.symbols})


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back_as_it_went(name: str) -> None:
    x = np.array([[0, 1, 2], [3, 4, 100]]).astype(DTYPES[name])
    y = identity(f"{name}[2, 3]")(x=x)["x"]
    assert y.dtype == x.dtype and y.shape == x.shape
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3, 4, 5)])
def test_every_shape(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    y = identity("f32[" + ", ".join(map(str, shape)) + "]")(x=x)["x"]
    assert y.shape == shape
    np.testing.assert_array_equal(y, x)


def test_layouts_other_than_rows_are_read_by_rows() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (x.T, x[::2, ::-1], np.asfortranarray(x), x[:, 1:3]):
        y = identity(f"f32[{view.shape[0]}, {view.shape[1]}]")(x=view)["x"]
        np.testing.assert_array_equal(y, view)


class Lent:
    """An object that exposes its memory only through DLPack."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def test_buffers_dlpack_and_numbers() -> None:
    session = identity("f32[n]")
    want = np.array([1, 2, 3], np.float32)
    lenders: list[Any] = [array.array("f", [1, 2, 3]), memoryview(want.tobytes()).cast("f"), Lent(want.copy())]
    for x in [[1, 2, 3], (1.0, 2.0, 3.0), *lenders]:
        np.testing.assert_array_equal(session(x=x)["x"], want)
    assert session(x=[])["x"].shape == (0,)
    assert identity("i32[]")(x=7)["x"] == 7


@pytest.mark.parametrize(
    ("ty", "x", "error", "message"),
    [
        ("f32[2]", np.zeros(2), tercet.RunError, "x"),
        ("i32[2]", [0.5, 1.0], tercet.RunError, "x"),
        ("u8[1]", [300], OverflowError, "300"),
        ("f32[2]", np.array(["a", "b"]), tercet.TensorError, "`x` has dtype"),
        ("f32[2]", np.zeros(2, np.complex64), tercet.TensorError, "complex64"),
        ("f32[2]", np.zeros(2, ">i4"), tercet.RunError, "x"),
        ("f32[2]", np.zeros(3, np.float32), tercet.RunError, "x"),
        ("f32[2]", None, tercet.TensorError, "object"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(ty: str, x: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        identity(ty)(x=x)


def test_names_that_are_not_there_and_inputs_that_are_missing() -> None:
    session = identity("f32[2]")
    with pytest.raises(tercet.RunError, match="one of: x"):
        session(z=[1, 2])
    with pytest.raises(tercet.RunError, match="`x`"):
        session()
    with pytest.raises(tercet.RunError, match="y"):
        session.run({"x": [1, 2]}, ["y"])


def test_results_belong_to_the_caller() -> None:
    session = identity("f32[2]")
    first = session(x=[1, 2])["x"]
    first[0] = 9
    second = session(x=[3, 4])["x"]
    np.testing.assert_array_equal(first, [9, 2])
    np.testing.assert_array_equal(second, [3, 4])


def test_other_threads_of_python_go_on_during_a_run() -> None:
    g = tercet.Graph()
    x = g.input("x", "f32[768, 768]")
    y = x
    for _ in range(12):
        y = y @ x
    g.output("y", y)
    session = g.compile("cpu")
    done = threading.Event()
    counted = 0

    def run() -> None:
        session(x=np.eye(768, dtype=np.float32))
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not done.is_set():
        counted += 1
        done.wait(0.0005)
    thread.join()
    assert counted > 3


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("name", DTYPES)
def test_results_are_arrays_over_the_memory_of_the_run(name: str) -> None:
    x = np.array([[0, 1, 2], [3, 4, 100]]).astype(DTYPES[name])
    y = identity(f"{name}[2, 3]")(x=x)["x"]
    base = y
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert type(base.base).__name__ == "Memory" and address(base) == address(y)
    assert y.flags.writeable and y.flags.c_contiguous and y.flags.aligned
    # Views, buffers and other libraries share the memory and keep it alive.
    assert address(np.asarray(y)) == address(y)
    raw: Any = y.view(np.uint8)
    assert address(np.frombuffer(memoryview(raw), np.uint8)) == address(y)
    assert address(np.from_dlpack(raw)) == address(y)
    want = x.copy()
    del y, base
    gc.collect()
    np.testing.assert_array_equal(raw.view(x.dtype), want)


def held(session: tercet.Session, x: Any) -> int:
    """Peak memory of a run without its result, in bytes, as Linux reports it."""
    Path("/proc/self/clear_refs").write_text("5")
    before = kilobytes("VmRSS")
    y = session(x=x)["y"]
    peak = kilobytes("VmHWM")
    return (peak - before) * 1024 - int(y.nbytes)


def kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found.group(1))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux says what a run takes")
def test_inputs_are_read_where_they_are() -> None:
    g = tercet.Graph()
    x = g.input("x", "f32[n]")
    g.output("y", x.sum(axes=[0], keep_dim=False))
    n = 16 << 20
    session = g.compile("cpu", {"n": n})
    array_of_floats: Any = np.ones(n, np.float32)
    session(x=array_of_floats)
    assert held(session, array_of_floats) < array_of_floats.nbytes // 4
    for lender in (memoryview(array_of_floats), Lent(array_of_floats)):
        assert held(session, lender) < array_of_floats.nbytes // 4
        assert session(x=lender)["y"] == n
    # The next run reads the current contents of the array.
    array_of_floats[:] = 2
    assert session(x=array_of_floats)["y"] == 2 * n
    # An array that is not row-major is copied.
    assert held(session, np.ones(2 * n, np.float32)[::2]) >= array_of_floats.nbytes // 2


def test_what_is_kept_is_a_copy() -> None:
    g = tercet.Graph()
    x = g.input("x", "f32[2]")
    w = g.param("w", "f32[2]")
    h = g.state("h", "f32[2]")
    g.output("y", x * w + h)
    session = g.compile("cpu")
    kept = np.array([2, 3], np.float32)
    session.set_param("w", kept)
    session.write_state("h", kept)
    kept[:] = 100
    np.testing.assert_array_equal(session(x=[1, 1])["y"], [4, 6])
    constant = np.array([1, 2], np.float32)
    g = tercet.Graph()
    g.output("y", g.input("x", "f32[2]") + g.constant(constant))
    constant[:] = 100
    np.testing.assert_array_equal(g.compile("cpu")(x=[0, 0])["y"], [1, 2])


def test_results_outlive_their_session_and_later_runs() -> None:
    session = identity("f32[1000]")
    results = [session(x=np.full(1000, i, np.float32))["x"] for i in range(20)]
    del session
    gc.collect()
    assert len({address(y) for y in results}) == 20
    for i, y in enumerate(results):
        y += 1
        assert (y == i + 1).all()


def test_bytes_of_truth_values_are_made_0_or_1() -> None:
    odd = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    y = identity("bool[4]")(x=odd)["x"]
    assert y.view(np.uint8).tolist() == [0, 1, 1, 1] and odd.view(np.uint8).tolist() == [0, 1, 2, 255]
