"""Graphs built from Python: operators, types, errors, text form, gradients."""

from typing import Any

import numpy as np
import pytest

import tercet


def softmax_graph() -> tercet.Graph:
    g = tercet.Graph()
    x = g.input("x", "f32[rows, 3]")
    g.output("y", g.softmax(x, axis=1))
    return g


def test_a_graph_runs_on_arrays_of_any_number_of_rows() -> None:
    session = softmax_graph().compile("cpu", {"rows": 64})
    for rows in (0, 1, 5, 64):
        x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
        want = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
        y = session(x=x)["y"]
        assert y.dtype == np.float32 and y.shape == (rows, 3)
        np.testing.assert_allclose(y, want, rtol=1e-5)
    with pytest.raises(tercet.RunError, match="rows"):
        session(x=np.zeros((65, 3), np.float32))


def test_operators_are_methods_of_graphs_and_values() -> None:
    g = tercet.Graph()
    x = g.input("x", "f32[4, 6]")
    w = g.constant(np.eye(6, dtype=np.float32) * 2)
    y = (x @ w + 1.0).relu() / 2 - x * 0.5
    total = y.sum(axes=[1], keep_dim=False)
    values, indices = g.top_k(y, k=2, axis=1, largest=True)
    for name, value in {"y": y, "total": total, "values": values, "indices": indices}.items():
        g.output(name, value)
    assert total.type == "f32[4]" and total.dtype == "float32" and indices.shape == (4, 2)
    x_ = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    got = g.compile("cpu")(x=x_)
    want = np.maximum(2 * x_ + 1, 0) / 2 - x_ * 0.5
    np.testing.assert_allclose(got["y"], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["total"], want.sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got["indices"], np.argsort(-want, axis=1, kind="stable")[:, :2])


def test_one_name_of_two_families_is_told_by_its_attributes() -> None:
    g = tercet.Graph()
    x = g.input("x", "f32[2, 3]")
    g.output("binary", g.max(x, 0.0))
    g.output("reduced", g.max(x, axes=[0, 1], keep_dim=False))
    got = g.compile("cpu")(x=[[-1, 2, 3], [4, -5, 6]])
    np.testing.assert_array_equal(got["binary"], [[0, 2, 3], [4, 0, 6]])
    assert got["reduced"] == 6.0


def test_every_operator_is_known_and_documented() -> None:
    operators = tercet.operators()
    assert len(operators) > 80
    g = tercet.Graph()
    for name, operands, attributes, meaning in operators:
        doc = getattr(g, name).doc if not hasattr(tercet.Graph, name) else meaning
        assert meaning in doc, name
        assert all(isinstance(kind, str) and kind for _, kind in attributes), name
        assert all(operands), name


def test_text_form_goes_both_ways() -> None:
    g = softmax_graph()
    again = tercet.Graph(str(g))
    assert str(again) == str(g) and len(again) == 2
    assert again.inputs == [("x", "f32[rows, 3]")] and again.symbols == ["rows"]
    with pytest.raises(tercet.TextError, match="line 2, column 8: `what` is not an operator"):
        tercet.Graph("graph {\n  %0 = what()\n}")


@pytest.mark.parametrize(
    ("error", "message", "build"),
    [
        (tercet.GraphError, "axis", lambda g, x: g.softmax(x, axis=7)),
        (tercet.GraphError, "unknown attribute `axes`", lambda g, x: g.softmax(x, axes=1)),
        (tercet.GraphError, "attribute `axis` is missing", lambda g, x: g.softmax(x)),
        (tercet.GraphError, "unknown operator", lambda g, x: g.op("soft", x)),
        (tercet.GraphError, "another graph", lambda g, x: tercet.Graph().relu(x)),
        (tercet.GraphError, "broadcast", lambda g, x: x + g.input("z", "f32[2]")),
        (tercet.TextError, "is not a type", lambda g, x: g.input("z", "12")),
        (tercet.TextError, "column", lambda g, x: g.input("z", "f32[")),
        (AttributeError, "operators", lambda g, x: g.soft),
        (TypeError, "cannot be an attribute", lambda g, x: g.softmax(x, axis=object())),
    ],
)
def test_what_is_wrong_is_an_exception_of_its_class(error: type[Exception], message: str, build: Any) -> None:
    g = tercet.Graph()
    x = g.input("x", "f32[4, 3]")
    with pytest.raises(error, match=message):
        build(g, x)
    assert issubclass(tercet.GraphError, tercet.TercetError)


def test_symbols_without_a_bound_and_devices_that_are_not_there() -> None:
    with pytest.raises(tercet.CompileError, match="rows"):
        softmax_graph().compile("cpu")
    with pytest.raises(tercet.DeviceError, match="abacus"):
        softmax_graph().compile("abacus")


def test_gradients_are_those_of_a_difference_quotient() -> None:
    g = tercet.Graph()
    x = g.input("x", "f64[5]")
    loss = (x.tanh() * x).sum(axes=[0], keep_dim=False)
    (dx,) = g.gradients(loss, [x])
    g.output("loss", loss)
    g.output("dx", dx)
    session = g.compile("cpu")
    at = np.linspace(-1, 2, 5)
    step = 1e-6
    for i in range(5):
        there = at.copy()
        there[i] += step
        slope = (session(x=there)["loss"] - session(x=at)["loss"]) / step
        assert session(x=at)["dx"][i] == pytest.approx(slope, abs=1e-5)
    with pytest.raises(tercet.GradientError):
        g.gradients(x, [x])


def test_states_parameters_and_training_by_hand() -> None:
    """Least squares by gradient descent. The weight is a state that each run updates."""
    g = tercet.Graph()
    x, y = g.input("x", "f32[8, 2]"), g.input("y", "f32[8, 1]")
    rate = g.param("rate", "f32[]")
    w = g.state("w", "f32[2, 1]")
    off = x @ w - y
    loss = (off * off).mean(axes=[0, 1], keep_dim=False)
    (dw,) = g.gradients(loss, [w])
    g.assign(w, w - rate * dw)
    g.output("loss", loss)
    session = g.compile("cpu")
    session.set_param("rate", np.float32(0.3))
    data = np.random.default_rng(2).normal(size=(8, 2)).astype(np.float32)
    truth = np.array([[1.5], [-0.5]], np.float32)
    losses = [float(session(x=data, y=data @ truth)["loss"]) for _ in range(300)]
    assert losses[-1] < 1e-6 < losses[0]
    np.testing.assert_allclose(session.read_state("w"), truth, atol=1e-2)
    session.write_state("w", truth)
    assert float(session(x=data, y=data @ truth)["loss"]) < 1e-12
    session.reset()
    assert not session.read_state("w").any()
    with pytest.raises(tercet.RunError, match="one of: w"):
        session.write_state("v", truth)


def test_graphs_inside_nodes() -> None:
    then, other = tercet.Graph(), tercet.Graph()
    then.output("y", then.input("x", "f32[3]") * 2.0)
    other.output("y", -other.input("x", "f32[3]"))
    g = tercet.Graph()
    cond, x = g.input("cond", "bool[]"), g.input("x", "f32[3]")
    kinds = {name: attrs for name, _, attrs, _ in tercet.operators()}["if"]
    names = [name for name, kind in kinds if kind == "graph"]
    g.output("y", g.op("if", cond, x, **dict(zip(names, (then, other)))))
    session = g.compile("cpu")
    np.testing.assert_array_equal(session(cond=True, x=[1, 2, 3])["y"], [2, 4, 6])
    np.testing.assert_array_equal(session(cond=np.False_, x=[1, 2, 3])["y"], [-1, -2, -3])


def test_explain_and_verify_say_what_runs_and_how_right_it_is() -> None:
    g = softmax_graph()
    plan = g.explain("cpu", {"rows": 8})
    assert plan.target == "cpu" and plan.dispatches == 1 and plan.peak_bytes > 0
    assert plan.kernels[0][0] == "softmax" and "dispatches" in str(plan)
    checked = g.verify({"x": np.ones((2, 3), np.float32)}, "cpu")
    assert checked.ok and checked.nodes[0][1] == "softmax" and "agrees" in str(checked)
    with pytest.raises(tercet.RunError, match="`x`"):
        g.verify({}, "cpu")


def test_notebooks_get_tables_with_names_escaped() -> None:
    g = tercet.Graph()
    g.output("y", g.input("<b>x</b>", "f32[3]").exp())
    html = g._repr_html_()
    assert "&lt;b&gt;x" in html and "<b>" not in html and html.count("<tr>") == 3
    assert "exp" in g.explain("cpu")._repr_html_() or "unary" in g.explain("cpu")._repr_html_()
    assert "agrees" in g.verify({"<b>x</b>": [0, 0, 0]}, "cpu")._repr_html_()
