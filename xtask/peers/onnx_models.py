"""Exports the networks of `onnx_nets.py` as ONNX models with their inputs.

    python3 xtask/peers/onnx_models.py FOLDER [--only NAME,NAME] [--f16]

Writes `FOLDER/NAME.onnx` (`NAME.f16.onnx`) with torch's exporter, and inputs as `NAME.N.pb` (`NAME.f16.N.pb`). Existing
files are kept. Needs torch, onnx and onnxscript.
"""

import argparse
import pathlib
import warnings

import onnx
import torch
from onnx import numpy_helper

from onnx_nets import NETS, net


def export(folder, name, dtype):
    stem = name + (".f16" if dtype == torch.float16 else "")
    path = folder / f"{stem}.onnx"
    if path.exists():
        return path
    module, given = net(name, dtype)
    names = [f"in{i}" for i in range(len(given))]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = module(*given)
        many = isinstance(outputs, tuple)
        results = [f"out{i}" for i in range(len(outputs) if many else 1)]
        options = dict(input_names=names, output_names=results, dynamo=True, verbose=False)
        torch.onnx.export(module, given, str(path), external_data=False, **options)
    for i, tensor in enumerate(given):
        made = numpy_helper.from_array(tensor.numpy(), names[i])
        (folder / f"{stem}.{i}.pb").write_bytes(made.SerializeToString())
    return path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--f16", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.only.split(",") if args.only else NETS:
        path = export(args.folder, name, torch.float16 if args.f16 else torch.float32)
        print(path, len(onnx.load(str(path)).graph.node), "nodes", flush=True)


if __name__ == "__main__":
    main()
