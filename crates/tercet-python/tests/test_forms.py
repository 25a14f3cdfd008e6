"""Operators and indices of values in the forms in which NumPy and PyTorch write them."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tercet

X = np.random.default_rng(5).normal(size=(2, 3, 4)).astype(np.float32)


def computed(build: Callable[[tercet.Graph, tercet.Value], Any], x: Any = X, ty: str | None = None) -> Any:
    """The result of a graph with one input."""
    g = tercet.Graph()
    dtype = {"float32": "f32", "int32": "i32", "bool": "bool", "float16": "f16"}[x.dtype.name]
    value = g.input("x", ty or f"{dtype}[{', '.join(map(str, x.shape))}]")
    g.output("y", build(g, value))
    return g.compile("cpu", {symbol: 16 for symbol in g.symbols})(x=x)["y"]


# Expressions of users, for values and for arrays alike.
ALIKE: list[Callable[[Any], Any]] = [
    lambda x: np.ones((2, 3, 4), "f4") + x,
    lambda x: x + np.ones((3, 4), "f4"),
    lambda x: np.ones((3, 4), "f4") - x,
    lambda x: x - np.ones((3, 4), "f4"),
    lambda x: np.full((4,), 2, "f4") * x,
    lambda x: np.full((4,), 2, "f4") / x,
    lambda x: x / np.full((4,), 2, "f4"),
    lambda x: np.full((4,), 2, "f4") ** x,
    lambda x: abs(x) ** np.full((4,), 2, "f4"),
    lambda x: x @ np.ones((4, 5), "f4"),
    lambda x: np.ones((2, 5, 3), "f4") @ x,
    lambda x: np.float32(2) * x,
    lambda x: x * np.float64(2),
    lambda x: np.int64(2) - x,
    lambda x: np.array(2.5) * x,
    lambda x: np.float32(2) / x,
    lambda x: 2**x,
    lambda x: x // 0.3,
    lambda x: 1.5 // x,
    lambda x: x % 0.3,
    lambda x: -7.5 % x,
    lambda x: -x + +x,
    lambda x: x.sum(axis=1),
    lambda x: x.sum(axis=-1),
    lambda x: x.sum(axis=(0, 2)),
    lambda x: x.sum(axis=[-1, 0]) if isinstance(x, tercet.Value) else x.sum(axis=(-1, 0)),
    lambda x: x.sum(1),
    lambda x: x.sum((0, 1)),
    lambda x: x.sum(),
    lambda x: x.sum(axis=None),
    lambda x: x.sum(axis=1, keepdims=True),
    lambda x: x.mean(-1),
    lambda x: x.mean(),
    lambda x: x.max(axis=-1),
    lambda x: x.min(axis=0, keepdims=True),
    lambda x: x.prod(axis=1),
    lambda x: np.sum(x),
    lambda x: np.sum(x, axis=1),
    lambda x: np.mean(x, axis=(0, -1)),
    lambda x: np.max(x, axis=2),
    lambda x: x.argmax(axis=-1),
    lambda x: x.argmin(axis=1),
    lambda x: x.argmax(),
    lambda x: np.argmax(x, axis=0),
    lambda x: x.cumsum(axis=-1),
    lambda x: x.cumsum(1),
    lambda x: x.clip(-0.5, 0.5),
    lambda x: x.clip(min=-0.5),
    lambda x: x.T,
    lambda x: x.mT,
    lambda x: x.transpose(),
    lambda x: x.transpose(0, 2, 1),
    lambda x: x.transpose((2, 0, 1)),
    lambda x: np.transpose(x),
    lambda x: np.transpose(x, (-1, 0, 1)),
    lambda x: x.reshape(6, 4),
    lambda x: x.reshape((2, -1)),
    lambda x: x.reshape(-1),
    lambda x: np.reshape(x, (4, -1)),
    lambda x: x.flatten(),
    lambda x: x.ravel(),
    lambda x: x[:, 0:1].squeeze(1),
    lambda x: x[0:1].squeeze(),
    lambda x: x.astype("float16"),
    lambda x: x.astype(np.int32),
    lambda x: x.astype(np.dtype("bool")),
    lambda x: x > 0,
    lambda x: x >= 0.25,
    lambda x: 0 < x,
    lambda x: x <= np.float32(0),
    lambda x: x == 0,
    lambda x: x != x[0],
    lambda x: np.zeros((3, 4), "f4") < x,
    lambda x: np.zeros(4, "f4") == x,
    lambda x: (x > 0) & (x < 1),
    lambda x: (x > 1) | ~(x > 0) ^ (x < 0),
    lambda x: (x > 0).astype("f4") * 2 if not isinstance(x, tercet.Value) else (x > 0).astype("f32") * 2,
    lambda x: math.floor(x) if isinstance(x, tercet.Value) else np.floor(x),
    # Indices.
    lambda x: x[0],
    lambda x: x[-1],
    lambda x: x[1, 2, 3],
    lambda x: x[np.int64(1)],
    lambda x: x[0:1],
    lambda x: x[:, 1:3],
    lambda x: x[:, :-1],
    lambda x: x[..., 0],
    lambda x: x[..., -2:],
    lambda x: x[0, ..., 1],
    lambda x: x[:, None],
    lambda x: x[None, ..., None],
    lambda x: x[::-1],
    lambda x: x[:, ::2],
    lambda x: x[:, 2:0:-1, ::-2],
    lambda x: x[5:],
    lambda x: x[:, [0, 2]],
    lambda x: x[..., np.array([[0, -1], [2, 2]])],
    lambda x: x[1, [2, 0]],
    lambda x: x[[]],
    lambda x: x[...],
    lambda x: x[1:, None, 0],
    lambda x: x[slice(None), slice(0, np.int64(2))],
    lambda x: sum(row for row in x),
]


@pytest.mark.parametrize("at", range(len(ALIKE)))
def test_values_are_written_like_arrays(at: int) -> None:
    with np.errstate(all="ignore"):
        want = np.asarray(ALIKE[at](X))
    y = computed(lambda g, x: ALIKE[at](x))
    assert y.shape == want.shape
    np.testing.assert_allclose(y.astype(np.float64), want.astype(np.float64), rtol=2e-5, atol=2e-6)


def test_an_array_and_a_value_make_one_value() -> None:
    g = tercet.Graph()
    x = g.input("x", "f32[2, 3]")
    before = len(g)
    y = np.ones((1, 3), "f4") + x
    assert isinstance(y, tercet.Value) and y.type == "f32[2, 3]" and len(g) == before + 2
    for scalar in (np.float32(2), np.float64(2), np.int32(2), np.array(2.0), 2, 2.0, True):
        assert isinstance(scalar * x, tercet.Value) and isinstance(x * scalar, tercet.Value)
        assert (scalar * x).dtype == "float32"
    half = g.input("h", "f16[3]")
    assert (half * np.float64(0.5)).dtype == (np.float32(0.5) * half).dtype == "float16"
    with pytest.raises(TypeError, match="ufunc"):
        np.add(np.ones(3, "f4"), x)
    with pytest.raises(TypeError, match="before a run"):
        np.asarray(x)
    with pytest.raises(TypeError, match="where"):
        bool(x > 0)
    with pytest.raises(tercet.GraphError, match="cast"):
        x + np.ones(3)


def test_integers_divide_towards_minus_infinity() -> None:
    a = np.array([7, -7, 7, -7, 6, -6, 0], np.int32)
    b = np.array([2, 2, -2, -2, 3, 3, 5], np.int32)
    np.testing.assert_array_equal(computed(lambda g, x: x // b, a), a // b)
    np.testing.assert_array_equal(computed(lambda g, x: x % b, a), a % b)
    np.testing.assert_array_equal(computed(lambda g, x: 7 // x, b), 7 // b)
    np.testing.assert_array_equal(computed(lambda g, x: (x << 2) >> 1, a), (a << 2) >> 1)
    with np.errstate(all="ignore"):
        for divisor in (0.0, -0.5, 3.0):
            want = np.array([1.0, -1.0, 7.25], np.float32)
            got = computed(lambda g, x: x // divisor, want)
            np.testing.assert_array_equal(got, want // np.float32(divisor))


def test_operators_take_numbers_where_they_take_values() -> None:
    np.testing.assert_array_equal(computed(lambda g, x: g.where(x > 0, x, 0.0)), np.where(X > 0, X, 0))
    np.testing.assert_array_equal(computed(lambda g, x: g.where(x > 0, 0.0, x)), np.where(X > 0, 0, X))
    np.testing.assert_array_equal(computed(lambda g, x: g.where(x > 0, 1.0, 0.0)), np.where(X > 0, 1, 0))
    mask = [[True], [False], [True]]
    np.testing.assert_array_equal(computed(lambda g, x: g.where(mask, x, np.float32(0))), np.where(mask, X, 0))
    np.testing.assert_array_equal(computed(lambda g, x: (x > 0).where(x, -1)), np.where(X > 0, X, -1))
    np.testing.assert_array_equal(computed(lambda g, x: x.gather([0, -1], axis=-1)), X[..., [0, -1]])
    np.testing.assert_array_equal(computed(lambda g, x: x.gather(np.array([2, 0]), 1)), X[:, [2, 0]])
    both = np.concatenate([X, X], axis=-1)
    np.testing.assert_array_equal(computed(lambda g, x: g.concat([x, x], axis=-1)), both)
    np.testing.assert_array_equal(computed(lambda g, x: g.concat(x, x, axis=2)), both)
    parts: Callable[[Any], list[Any]] = lambda x: [x, X[:1]]
    np.testing.assert_array_equal(computed(lambda g, x: g.cat(parts(x))), np.concatenate([X, X[:1]]))


def test_negative_axes_and_names_of_other_libraries() -> None:
    def softmax(x: Any, axis: int) -> Any:
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    for build in [
        lambda g, x: x.softmax(axis=-2), lambda g, x: x.softmax(dim=1), lambda g, x: x.softmax(-2),
        lambda g, x: g.softmax(x, axis=np.int64(-2)),
    ]:  # fmt: skip
        np.testing.assert_allclose(computed(build), softmax(X, 1), rtol=1e-5)
    values = computed(lambda g, x: x.topk(2)[0])
    np.testing.assert_array_equal(values, -np.sort(-X, axis=-1)[..., :2])
    np.testing.assert_array_equal(computed(lambda g, x: x.sort(axis=-2)[0]), np.sort(X, axis=1))
    np.testing.assert_array_equal(computed(lambda g, x: x.unsqueeze(-1)), X[..., None])
    np.testing.assert_array_equal(computed(lambda g, x: x.expand_dims((0, -1))), X[None, ..., None])
    np.testing.assert_allclose(computed(lambda g, x: x.mean(dim=(0, 1), keepdim=True)), X.mean((0, 1), keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(computed(lambda g, x: g.sum(x, axes=[0, -1], keep_dim=False)), X.sum((0, 2)), rtol=1e-5)
    np.testing.assert_array_equal(computed(lambda g, x: x.permute(2, 0, 1)), X.transpose(2, 0, 1))
    np.testing.assert_array_equal(computed(lambda g, x: x.cast("i32")), X.astype(np.int32))
    assert computed(lambda g, x: x.astype(ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16


def test_symbolic_sizes() -> None:
    y = computed(lambda g, x: x[-1], X, "f32[rows, 3, 4]")
    np.testing.assert_array_equal(y, X[-1])
    y = computed(lambda g, x: x[1:, 0], X, "f32[rows, 3, 4]")
    np.testing.assert_array_equal(y, X[1:, 0])
    y = computed(lambda g, x: x.reshape(-1, 12), X, "f32[rows, 3, 4]")
    np.testing.assert_array_equal(y, X.reshape(-1, 12))
    y = computed(lambda g, x: x.reshape(12, -1), X, "f32[rows, 3, 4]")
    np.testing.assert_array_equal(y, X.reshape(12, -1))
    y = computed(lambda g, x: x[..., None].sum(-2), X, "f32[rows, 3, 4]")
    np.testing.assert_allclose(y, X[..., None].sum(-2), rtol=1e-5)
    g = tercet.Graph()
    x = g.input("x", "f32[rows, 3]")
    assert x.shape == ("rows", 3) and x.ndim == 2 and len(x.T) == 3
    with pytest.raises(TypeError, match="rows"):
        len(x)
    with pytest.raises(TypeError, match="rows"):
        iter(x)


@pytest.mark.parametrize(
    ("error", "message", "build"),
    [
        (tercet.GraphError, "axis -4 is out of range", lambda g, x: x.softmax(axis=-4)),
        (tercet.GraphError, "axis", lambda g, x: x.sum(axis=3)),
        (tercet.GraphError, "axis=0", lambda g, x: x.max(0)),
        (tercet.GraphError, "unknown attribute `wrong`", lambda g, x: x.sum(wrong=1)),
        (tercet.GraphError, "positional", lambda g, x: x.relu(1)),
        (tercet.GraphError, "no multiple of", lambda g, x: x.reshape(5, -1)),
        (tercet.GraphError, "at most one size", lambda g, x: x.reshape(-1, -1)),
        (tercet.GraphError, "mask", lambda g, x: x[x > 0]),
        (tercet.GraphError, "mask", lambda g, x: x[[True, False]]),
        (tercet.GraphError, "gather_nd", lambda g, x: x[[0, 1], [1, 2]]),
        (tercet.GraphError, "gather_nd", lambda g, x: x[0, :, [1, 2]]),
        (tercet.GraphError, "mT", lambda g, x: x[0, 0].mT),
        (tercet.GraphError, "out of range", lambda g, x: x.squeeze(3)),
        (tercet.GraphError, "size 3", lambda g, x: x.squeeze(1)),
        (IndexError, "index 2 is out of range for axis 0 of size 2", lambda g, x: x[2]),
        (IndexError, "too many indices: 4", lambda g, x: x[0, 0, 0, 0]),
        (IndexError, "one ellipsis", lambda g, x: x[..., ...]),
        (ValueError, "step", lambda g, x: x[::0]),
        (TypeError, "index", lambda g, x: x["a"]),
        (TypeError, "index", lambda g, x: x[0.5]),
        (tercet.TensorError, "unknown dtype", lambda g, x: x.astype("float8")),
        (TypeError, "modulus", lambda g, x: pow(x, 2, 3)),
    ],
)
def test_forms_that_are_refused(error: type[Exception], message: str, build: Any) -> None:
    g = tercet.Graph()
    x = g.input("x", "f32[2, 3, 4]")
    nodes = len(g)
    with pytest.raises(error, match=message):
        build(g, x)
    assert len(g) <= nodes + 2


def test_values_are_keys_and_no_numbers() -> None:
    g = tercet.Graph()
    x, y = g.input("x", "f32[2]"), g.input("y", "f32[2]")
    assert {x: 1, y: 2}[x] == 1 and hash(x) == hash(x)
    others: list[Any] = [None, "x"]
    assert [x == other for other in others] == [False, False] and [x != other for other in others] == [True, True]
    assert not hasattr(x, "__len_hint__") and not hasattr(x, "shapes")
    assert repr(x).startswith("<tercet.Value") and "f32[2]" in x._repr_html_()


def test_arrays_of_any_layout_and_byte_order() -> None:
    def identity(x: Any, ty: str) -> Any:
        g = tercet.Graph()
        g.output("y", g.input("x", ty))
        return g.compile("cpu")(x=x)["y"]

    names = {"f4": "f32", "f8": "f64", "f2": "f16", "i4": "i32", "i8": "i64", "u4": "u32", "i2": "i16", "i1": "i8", "u1": "u8"}
    base = np.arange(24).reshape(4, 6)
    views: list[Callable[[Any], Any]] = [
        lambda a: a, lambda a: a.T, lambda a: a[::2, ::-1], lambda a: a[:, 1:4], np.asfortranarray,
        lambda a: np.broadcast_to(a[:1], (3, 6)), lambda a: a[1, 2], lambda a: a[:0],
    ]  # fmt: skip
    for (code, ty), order, view in itertools.product(names.items(), "<>=", views):
        x = np.asarray(view(base.astype(order + code)))
        y = identity(x, f"{ty}[{', '.join(map(str, x.shape))}]")
        np.testing.assert_array_equal(y, x)
        assert y.dtype == x.dtype.newbyteorder("=")
    odd = np.frombuffer(b"\0" + base.astype("f4").tobytes(), "u1")[1:].view("f4")
    np.testing.assert_array_equal(identity(odd, "f32[24]"), odd)
    odd.flags.writeable = False
    np.testing.assert_array_equal(identity(odd, "f32[24]"), odd)
    with pytest.raises(tercet.TensorError, match="masked"):
        identity(np.ma.masked_array([1.0, 2.0], [True, False], dtype="f4"), "f32[2]")
    with pytest.raises(tercet.TensorError, match="complex64"):
        identity(np.zeros(2, ">c8"), "f32[2]")
    with pytest.raises(tercet.RunError, match="f64"):
        identity(np.zeros(2, ">f8"), "f32[2]")
    # Constants, parameters and states too.
    g = tercet.Graph()
    g.output("y", g.input("x", "f32[2]") + g.param("w", "f32[2]") + g.constant(np.ones(2, ">f4")))
    session = g.compile("cpu")
    session.set_param("w", np.ones(4, ">f4")[::2])
    np.testing.assert_array_equal(session(x=np.array([1, 2], np.float32))["y"], [3, 4])
