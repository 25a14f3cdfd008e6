"""Tercet: machine-learning graphs, language models, encoders and speech to text.

>>> import tercet
>>> model = tercet.load("all-MiniLM-L6-v2")            # doctest: +SKIP
>>> a, b = model.embed(["A man eats.", "Someone is eating."])  # doctest: +SKIP
>>> float(a @ b)                                       # doctest: +SKIP

`load` opens models and graphs, `train` trains them, `Graph` builds them, `Graph.compile` makes a `Session` that runs on NumPy
arrays. Everything that fails raises a subclass of `TercetError`, with what, where and what to do.
"""

from ._tercet import (
    Classifier,
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
    Picture,
    Recognizer,
    RunError,
    Scene,
    Segment,
    Session,
    TensorError,
    TercetError,
    TextError,
    Trace,
    TrainError,
    Trainer,
    Transcription,
    Value,
    Verification,
    __version__,
    devices,
    load,
    operators,
    train,
)

__all__ = [
    "Classifier",
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
    "Picture",
    "Recognizer",
    "RunError",
    "Scene",
    "Segment",
    "Session",
    "TensorError",
    "TercetError",
    "TextError",
    "Trace",
    "TrainError",
    "Trainer",
    "Transcription",
    "Value",
    "Verification",
    "__version__",
    "devices",
    "load",
    "operators",
    "train",
]
