"""Makes the models in this folder: some of ../onnx-torch in fewer bits, and what ONNX Runtime gives for them.

python3 make.py    # needs numpy, onnx, onnxruntime and onnxconverter-common

NAME.KIND.onnx, of which KIND is `qdq` (quantised and back around each operator, by calibration), `qdq_channels` (weights by channels), `dynamic`
(integers whose scales each run finds), `f16` (numbers in F16) or `bits` (weights of products in blocks of four bits). NAME.KIND.pb is a
GraphProto whose initializers are inputs and results, called `RUN/in/NAME` and `RUN/out/INDEX`. ONNX Runtime runs each node by itself, as
written: what it fuses it rounds differently. Weights are unsigned where products are of integers, as sums of two saturate on some
processors otherwise.
"""

import logging
import pathlib
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnxconverter_common import float16
from onnxruntime import quantization as q
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

HERE = pathlib.Path(__file__).parent
TORCH = HERE.parent / "onnx-torch"


def runs(name):
    data = onnx.GraphProto.FromString((TORCH / f"{name}.pb").read_bytes())
    found = {}
    for t in data.initializer:
        run, kind, key = t.name.split("/", 2)
        if kind == "in":
            found.setdefault(int(run), {})[key] = numpy_helper.to_array(t)
    return found


class Reader(q.CalibrationDataReader):
    def __init__(self, given):
        self.given = iter(given)

    def get_next(self):
        return next(self.given, None)


def made(name, kind, source, folder):
    """The model in another form."""
    path = folder / "made.onnx"
    # The quantizers expect folded constants and known inner shapes.
    ready = folder / "ready.onnx"
    q.quant_pre_process(source, ready, skip_symbolic_shape=True, skip_optimization=False)
    if kind.startswith("qdq"):
        q.quantize_static(
            ready, path, Reader([runs(name)[0]]), quant_format=q.QuantFormat.QDQ,
            activation_type=q.QuantType.QUInt8, weight_type=q.QuantType.QInt8, per_channel=kind == "qdq_channels",
        )
    elif kind == "dynamic":
        q.quantize_dynamic(ready, path, weight_type=q.QuantType.QUInt8)
    elif kind == "f16":
        half = float16.convert_float_to_float16(onnx.load(source), keep_io_types=False)
        # The conversion leaves casts to F32 inside the graph, although their operators then have F16 operands.
        for node in half.graph.node:
            for a in node.attribute:
                if node.op_type == "Cast" and a.name == "to" and a.i == onnx.TensorProto.FLOAT:
                    a.i = onnx.TensorProto.FLOAT16
        onnx.save(half, path)
    else:
        quantizer = MatMulNBitsQuantizer(onnx.load(ready), block_size=16, is_symmetric=False, bits=4)
        quantizer.process()
        quantizer.model.save_model_to_file(str(path))
    return onnx.load(path)


def write(name, kind, exporter="script"):
    with tempfile.TemporaryDirectory() as folder:
        model = made(name, kind, TORCH / f"{name}.{exporter}.onnx", pathlib.Path(folder))
    del model.metadata_props[:]
    del model.graph.value_info[:]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    data = onnx.GraphProto(name=f"{name}.{kind}")
    for run, given in runs(name).items():
        if kind == "f16":
            given = {k: x.astype(np.float16) if x.dtype == np.float32 else x for k, x in given.items()}
        try:
            results = session.run(None, given)
        except Exception as e:
            print(f"{name}.{kind}: run {run} fails: {str(e)[:120]}")
            continue
        for key, x in given.items():
            data.initializer.append(numpy_helper.from_array(x, f"{run}/in/{key}"))
        for at, y in enumerate(results):
            data.initializer.append(numpy_helper.from_array(y, f"{run}/out/{at}"))
    onnx.save(model, HERE / f"{name}.{kind}.onnx")
    (HERE / f"{name}.{kind}.pb").write_bytes(data.SerializeToString())


logging.disable(logging.WARNING)
for name, kinds in {
    "resnet": ["qdq", "qdq_channels", "f16"],
    "mobilenet_v2": ["qdq", "dynamic"],
    "unet": ["qdq"],
    "vit": ["qdq", "dynamic", "f16", "bits"],
    "bert": ["qdq", "dynamic", "f16", "bits"],
    "llama": ["dynamic", "f16", "bits"],
    "lstm": ["f16"],
    "gru": ["f16"],
}.items():
    for kind in kinds:
        write(name, kind)
