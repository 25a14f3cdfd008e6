"""Makes the models in this folder: architectures with tiny random weights, exported by torch in both of its ways.

python3 make.py [NAME...]    # needs torch, transformers, onnx and onnxscript

Of each there are NAME.script.onnx (by TorchScript), NAME.dynamo.onnx (by torch.export) and NAME.pb: a GraphProto whose initializers
are the inputs and results of runs, called `RUN/in/NAME` and `RUN/out/INDEX`. Run 0 has the sizes of the export. Results are
those of torch in F64 for weights and inputs in F32.

`exports.txt` has a line for each model: its file, and the runs at which it computes what torch does by ONNX Runtime as well. Where
there are fewer than were made, the exporter wrote a size into the file, or another computation. Names inside are shortened.
"""

import logging
import pathlib
import sys
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper

from cases import CASES

HERE = pathlib.Path(__file__).parent


def randomize(model):
    """Weights that keep numbers of the order of one; statistics of norms that are not trivial."""
    for name, p in model.named_parameters():
        if p.dim() < 2:
            p.data = torch.randn(p.shape) * 0.2 + (1.0 if "weight" in name else 0.0)
        else:
            p.data = torch.randn(p.shape) * min(0.5, 1.5 * p[0].numel() ** -0.5)
    for name, b in model.named_buffers():
        if name.endswith("running_mean"):
            b.copy_(torch.randn(b.shape) * 0.2)
        if name.endswith("running_var"):
            b.copy_(torch.rand(b.shape) + 0.5)


def results(model, given):
    """The outputs in F64."""
    wide = [x.double() if x.is_floating_point() else x for x in given.values()]
    with torch.no_grad():
        out = model.double()(*wide)
    model.float()
    out = out if isinstance(out, (tuple, list)) else [out]
    return [y.detach().numpy() for y in out]


def shapes(case, names, dim):
    return tuple({a: dim(s) for a, s in case.axes.get(name, {}).items()} for name in names)


def export(case, kind, model, given, path):
    names, args = list(given), tuple(given.values())
    if kind == "script":
        axes = {name: dict(axes) for name, axes in case.axes.items()}
        subject = torch.jit.script(model) if case.scripted else model
        torch.onnx.export(
            subject, args, str(path), input_names=names, dynamic_axes=axes, dynamo=False, opset_version=case.opset or 17
        )
        return onnx.load(path)
    named = {}
    ways = [lambda symbol: named.setdefault(symbol, torch.export.Dim(symbol)), lambda _: torch.export.Dim.DYNAMIC]
    for dim in ways:
        dims = shapes(case, names, dim)
        # The model takes all its arguments as one list.
        dims = (dims,) if hasattr(model, "names") else dims
        try:
            program = torch.onnx.export(
                model, args, input_names=names, dynamic_shapes=dims if case.axes else None, dynamo=True, verbose=False
            )
            return program.model_proto
        except Exception as e:
            # Naming a size fails if torch derives a relation between sizes; then try without names.
            error = e
    raise error


def bodies(graph):
    """The graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for a in node.attribute:
            if a.HasField("g"):
                yield from bodies(a.g)


def strip(model):
    """Without what says where in a program a node came from, and with short names for what is inside."""
    del model.metadata_props[:]
    assert not model.functions
    kept = {x.name for x in [*model.graph.input, *model.graph.output]}
    short = {"": ""} | {name: name for name in kept}

    def rename(name):
        return short.setdefault(name, f"v{len(short)}")

    for graph in bodies(model.graph):
        graph.ClearField("doc_string")
        del graph.metadata_props[:]
        del graph.value_info[:]
        for i, node in enumerate(graph.node):
            node.name = f"{node.op_type}_{i}"
            for names in (node.input, node.output):
                names[:] = [rename(name) for name in names]
        for item in [*graph.node, *graph.initializer, *graph.input, *graph.output]:
            item.ClearField("doc_string")
            del item.metadata_props[:]
        for item in [*graph.initializer, *graph.input, *graph.output]:
            item.name = rename(item.name)


def agreeing(exported, runs, expected):
    """The runs in which ONNX Runtime gives what torch gives."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(exported.SerializeToString(), options, providers=["CPUExecutionProvider"])
    same = []
    for i, (given, wanted) in enumerate(zip(runs, expected)):
        try:
            got = session.run(None, {name: x.numpy() for name, x in given.items()})
        except Exception:
            continue
        near = lambda a, b: a.shape == b.shape and np.abs(a - b).max(initial=0) <= 1e-4 * max(1, np.abs(b).max(initial=0))
        if all(near(a.astype(np.float64), b) for a, b in zip(got, wanted)):
            same.append(i)
    return same


def write(name, case, folder):
    """Exports a model, writes its data, and gives the lines of those exports that are right."""
    torch.manual_seed(0)
    model = case.make().eval()
    randomize(model)
    runs = [case.inputs(**sizes) for sizes in case.runs]
    expected = [results(model, given) for given in runs]
    lines = []
    for kind in case.only:
        path = folder / f"{name}.{kind}.onnx"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exported = export(case, kind, model, runs[0], path)
        except Exception as e:
            path.unlink(missing_ok=True)
            print(f"{path.name}: torch does not export it: {type(e).__name__}: {(str(e).strip() or '?').splitlines()[0]}")
            continue
        strip(exported)
        onnx.save(exported, path)
        same = agreeing(exported, runs, expected)
        if len(same) < len(runs):
            print(f"{path.name}: ONNX Runtime gives what torch gives for runs {same} of {len(runs)} only")
        if not same:
            path.unlink()
            continue
        lines.append(f"{path.name} {' '.join(map(str, same))}")
    data = onnx.GraphProto(name=name)
    for i, (given, wanted) in enumerate(zip(runs, expected)):
        for key, x in given.items():
            data.initializer.append(numpy_helper.from_array(x.numpy(), f"{i}/in/{key}"))
        for at, y in enumerate(wanted):
            y = y.astype(np.float32) if y.dtype == np.float64 else y
            data.initializer.append(numpy_helper.from_array(y, f"{i}/out/{at}"))
    (folder / f"{name}.pb").write_bytes(data.SerializeToString())
    return lines


def main():
    logging.disable(logging.WARNING)
    names = sys.argv[1:] or list(CASES)
    known = HERE / "exports.txt"
    lines = known.read_text().splitlines() if known.exists() else []
    for name in names:
        lines = [line for line in lines if line.split(".")[0] != name]
        lines += write(name, CASES[name], HERE)
    known.write_text("".join(line + "\n" for line in sorted(lines)))


if __name__ == "__main__":
    main()
