"""Quantizes the models of `onnx_models.py` with ONNX Runtime: NAME.int8.onnx next to NAME.onnx.

    python3 xtask/peers/onnx_int8.py FOLDER [--only NAME,NAME]
    python3 xtask/peers/onnx_ort.py FOLDER --suffix .int8

Image models are quantized statically as QDQ (U8 values, per-channel I8 weights), calibrated on their own input. Text
models are quantized dynamically. Needs onnx and onnxruntime.
"""

import argparse
import pathlib

import onnx
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

PICTURES = ["resnet50", "mobilenet_v2", "efficientnet_b0", "yolov8n", "unet"]
TEXTS = ["vit_b16", "bert_base", "gpt2_step", "t5_encoder", "t5_step"]


class Once(CalibrationDataReader):
    def __init__(self, given):
        self.left = [given]

    def get_next(self):
        return self.left.pop() if self.left else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else PICTURES + TEXTS
    for name in names:
        model, to = args.folder / f"{name}.onnx", args.folder / f"{name}.int8.onnx"
        if to.exists():
            continue
        if name in TEXTS:
            quantize_dynamic(model, to, weight_type=QuantType.QInt8)
        else:
            given = {"in0": numpy_helper.to_array(onnx.load_tensor(str(args.folder / f"{name}.0.pb")))}
            types = dict(activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True)
            quantize_static(model, to, Once(given), quant_format=QuantFormat.QDQ, **types)
        print(to, to.stat().st_size >> 20, "MiB", flush=True)


if __name__ == "__main__":
    main()
