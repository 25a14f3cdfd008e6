"""Tercet: machine-learning graphs, language models, encoders and speech to text.

>>> import tercet
>>> model = tercet.load("all-MiniLM-L6-v2")            # doctest: +SKIP
>>> a, b = model.embed(["A man eats.", "Someone is eating."])  # doctest: +SKIP
>>> float(a @ b)                                       # doctest: +SKIP

`load` opens models and graphs, and `train` fine-tunes language models. `Graph` builds graphs, and
`Graph.compile` returns a `Session` that runs on NumPy arrays. Errors are subclasses of `TercetError`; their messages contain the location and a remedy.
"""

from ._arrays import BFloat16Array
from ._binding import IOBinding
from ._tercet import (
    Classifier,
    CompileError,
    DeviceError,
    DeviceTensor,
    Encoder,
    Explanation,
    Generation,
    GradientError,
    Graph,
    GraphError,
    LanguageModel,
    ModelError,
    ModelMetadata,
    NodeArg,
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

# ONNX Runtime's name: `tercet.InferenceSession("model.onnx").run(None, {"x": x})`.
InferenceSession = OnnxModel

__all__ = [
    "BFloat16Array",
    "Classifier",
    "CompileError",
    "DeviceError",
    "DeviceTensor",
    "Encoder",
    "Explanation",
    "Generation",
    "GradientError",
    "Graph",
    "GraphError",
    "IOBinding",
    "InferenceSession",
    "LanguageModel",
    "ModelError",
    "ModelMetadata",
    "NodeArg",
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
