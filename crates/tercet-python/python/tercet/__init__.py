"""Tercet: machine-learning graphs, language models and sentence embeddings.

>>> import tercet
>>> model = tercet.load("all-MiniLM-L6-v2")            # doctest: +SKIP
>>> a, b = model.embed(["A man eats.", "Someone is eating."])  # doctest: +SKIP
>>> float(a @ b)                                       # doctest: +SKIP

`load` opens models and graphs, `Graph` builds them, `Graph.compile` makes a `Session` that runs on NumPy
arrays. Everything that fails raises a subclass of `TercetError`, with what, where and what to do.
"""

from ._tercet import (
    CompileError,
    DeviceError,
    Encoder,
    Explanation,
    Generation,
    GradientError,
    Graph,
    GraphError,
    LanguageModel,
    ModelError,
    OnnxModel,
    Operator,
    RunError,
    Session,
    TensorError,
    TercetError,
    TextError,
    Value,
    Verification,
    __version__,
    devices,
    load,
    operators,
)

__all__ = [
    "CompileError",
    "DeviceError",
    "Encoder",
    "Explanation",
    "Generation",
    "GradientError",
    "Graph",
    "GraphError",
    "LanguageModel",
    "ModelError",
    "OnnxModel",
    "Operator",
    "RunError",
    "Session",
    "TensorError",
    "TercetError",
    "TextError",
    "Value",
    "Verification",
    "__version__",
    "devices",
    "load",
    "operators",
]
