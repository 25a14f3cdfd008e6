"""Matrices as bitsandbytes, HQQ, GPTQ and compressed-tensors store them, and what these libraries dequantize them to.

    pip install torch safetensors bitsandbytes hqq compressed-tensors
    pip install --no-deps auto-gptq gptqmodel
    python make.py [NAME ...]

Each folder has config.json, model.safetensors with the stored tensors, and reference.safetensors with the weights of the same
names. Of AutoGPTQ and GPTQModel, only the files that pack and unpack are loaded: the packages need a GPU.
"""

import importlib.util
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
FOLDERS = {}


def folder(name, **quantization):
    """A folder of the function's matrices: name, stored tensors and weight."""
    def add(make):
        FOLDERS[name] = (make, quantization)
        return make
    return add


def matrix(rows=16, columns=128, dtype=torch.float16):
    return (torch.randn(rows, columns) * torch.rand(rows, 1)).to(dtype)


def file_of(package, path):
    """A file of a package, without the package."""
    roots = importlib.util.find_spec(package).submodule_search_locations
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), pathlib.Path(roots[0]) / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@folder("bitsandbytes", quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
def bitsandbytes():
    import bitsandbytes.functional as bnb

    def four(kind, dtype, block=64, nested=False, storage=torch.uint8, rows=16, columns=128):
        codes, state = bnb.quantize_4bit(matrix(rows, columns, dtype), blocksize=block, quant_type=kind, compress_statistics=nested, quant_storage=storage)
        parts = {"weight": codes} | {f"weight.{end}": part for end, part in state.as_dict(packed=True).items()}
        return parts, bnb.dequantize_4bit(codes, state)

    yield "nf4", *four("nf4", torch.float16)
    yield "nf4_nested", *four("nf4", torch.bfloat16, nested=True)
    yield "nf4_rest", *four("nf4", torch.float16, rows=3, columns=27)
    yield "nf4_many", *four("nf4", torch.bfloat16, nested=True, rows=65, columns=260)
    yield "nf4_words", *four("nf4", torch.bfloat16, storage=torch.bfloat16, nested=True)
    yield "fp4", *four("fp4", torch.bfloat16, block=128)
    yield "fp4_wide", *four("fp4", torch.float32, block=32, columns=64)
    codes, rows, _ = bnb.int8_vectorwise_quant(matrix())
    parts = {"weight": codes, "SCB": rows, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    yield "int8", parts, bnb.int8_vectorwise_dequant(codes, rows).half()
    # Rows with values beyond the range of F16.
    codes, rows, _ = bnb.int8_vectorwise_quant(matrix(columns=32).float() * 1e5)
    yield "int8_wide", {"weight": codes, "SCB": rows}, bnb.int8_vectorwise_dequant(codes, rows)
    plain = matrix()
    yield "plain", {"weight": plain}, plain


@folder("hqq", quant_method="hqq", quant_config={"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}})
def hqq():
    from hqq.core.quantize import HQQLinear, hqq_base_quant_config

    def linear(dtype=torch.float16, rows=16, columns=128, **settings):
        layer = torch.nn.Linear(columns, rows, bias=False)
        layer.weight.data = matrix(rows, columns, torch.float32)
        config = hqq_base_quant_config(**settings)
        is_optimized = settings["nbits"] != 8
        config["weight_quant_params"]["optimize"] = is_optimized
        config["weight_quant_params"]["round_zero"] = not is_optimized
        layer = HQQLinear(layer, config, compute_dtype=dtype, device="cpu")
        parts = {name: part for name, part in layer.state_dict().items() if part is not None}
        return parts, layer.dequantize()

    for bits in (1, 2, 3, 4, 5, 6):
        for axis in (0, 1):
            yield f"bits{bits}_axis{axis}", *linear(nbits=bits, group_size=64, axis=axis, columns=64)
    # With 8 bits, HQQ rounds the zero points.
    yield "bits8", *linear(nbits=8, group_size=64, axis=1)
    yield "bits8_axis0", *linear(nbits=8, group_size=16, axis=0)
    yield "ternary", *linear(nbits=1.58, group_size=32, axis=1)
    yield "row", *linear(nbits=4, group_size=None, axis=1)
    yield "bf16", *linear(torch.bfloat16, nbits=3, group_size=32, axis=1)
    yield "f32", *linear(torch.float32, nbits=4, group_size=32, axis=0, columns=32)
    yield "as_float", *linear(torch.bfloat16, nbits=4, group_size=64, axis=1, view_as_float=True)
    yield "as_float3", *linear(torch.float16, nbits=3, group_size=64, axis=0, view_as_float=True)


def rounded(w, bits, index, is_symmetric):
    """Scales and zero points of the groups of an index, with every zero point of the range."""
    scales, zeros = [], []
    most = 2**bits - 1
    for g in range(int(index.max()) + 1):
        part = w[:, index == g].float()
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if is_symmetric:
            high = torch.maximum(-low, high)
            low = -high
        scale = ((high - low) / most).half().float()
        scales.append(scale)
        zeros.append(torch.full_like(scale, (most + 1) / 2) if is_symmetric else (-low / scale).round().clamp(1, most))
    return torch.stack(scales, 1), torch.stack(zeros, 1)


def gptq_layer(bits, group, is_symmetric=False, is_ordered=False, rows=32, columns=128, dtype=torch.float16):
    cuda = file_of("auto_gptq", "nn_modules/qlinear/qlinear_cuda")
    layer = torch.nn.Linear(columns, rows, bias=False)
    layer.weight.data = matrix(rows, columns, dtype)
    size = columns if group == -1 else group
    index = torch.arange(columns) // size
    if is_ordered:
        index = index[torch.randperm(columns)]
    scales, zeros = rounded(layer.weight.data, bits, index, is_symmetric)
    packed = cuda.QuantLinear(bits, group, columns, rows, False, weight_dtype=dtype)
    packed.pack(layer, scales, zeros, index.int())
    weight = packed(torch.eye(columns, dtype=dtype)).t().contiguous()
    return {n: t for n, t in packed.state_dict().items()}, weight


def gptq_config(bits, group, **more):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": False, "desc_act": False} | more


@folder("gptq4", **gptq_config(4, 32, desc_act=True))
def gptq4():
    yield "ordered", *gptq_layer(4, 32, is_ordered=True)
    yield "ordered_bf16", *gptq_layer(4, 32, is_ordered=True, dtype=torch.bfloat16)
    yield "ordered_symmetric", *gptq_layer(4, 32, is_symmetric=True, is_ordered=True)
    yield "runs", *gptq_layer(4, 32)
    yield "narrow", *gptq_layer(4, 32, columns=96)
    parts, weight = gptq_layer(4, 32)
    del parts["g_idx"]
    yield "without_index", parts, weight
    parts, weight = gptq_layer(4, 32)
    parts["g_idx"].zero_()
    yield "zero_index", parts, weight
    # Modules whose bit width or group size differs from the folder's configuration.
    yield "other_bits", *gptq_layer(8, 64)
    yield "other_group", *gptq_layer(4, 64)


@folder("gptq2", **gptq_config(2, 64))
def gptq2():
    yield "runs", *gptq_layer(2, 64)
    yield "symmetric", *gptq_layer(2, 64, is_symmetric=True)
    yield "ordered", *gptq_layer(2, 64, is_ordered=True)


@folder("gptq3", **gptq_config(3, 32))
def gptq3():
    yield "runs", *gptq_layer(3, 32)
    yield "symmetric", *gptq_layer(3, 32, is_symmetric=True)
    yield "ordered", *gptq_layer(3, 32, is_ordered=True)
    parts, weight = gptq_layer(3, 32)
    del parts["g_idx"]
    yield "without_index", parts, weight


@folder("gptq8", **gptq_config(8, -1))
def gptq8():
    yield "runs", *gptq_layer(8, -1)
    yield "symmetric", *gptq_layer(8, -1, is_symmetric=True)
    yield "groups16", *gptq_layer(8, 16)


def planes(bits, group, zero_less=0, codes_by="planar_packing"):
    """A matrix of GPTQModel: codes in planes, zero points as they are."""
    packing = file_of("gptqmodel", f"utils/{codes_by}")
    index = torch.arange(128) // group
    w = matrix(32)
    scales, zeros = rounded(w, bits, index, False)
    codes = (w.float() / scales[:, index] + zeros[:, index]).round().clamp(0, 2**bits - 1)
    parts = {
        "qweight": packing.planar_pack_rows(codes.t().int().contiguous(), bits),
        "qzeros": packing.planar_pack_cols((zeros - zero_less).t().int().contiguous(), bits),
        "scales": scales.t().half().contiguous(),
        "g_idx": index.int(),
    }
    codes, zeros = packing.planar_unpack_rows(parts["qweight"], bits), packing.planar_unpack_cols(parts["qzeros"], bits)
    weight = parts["scales"][index] * (codes - zeros[index] - zero_less)
    return parts, weight.t().contiguous()


@folder("gptq_planes", **gptq_config(3, 32, checkpoint_format="gptq_p"))
def gptq_planes():
    for bits in range(2, 9):
        yield f"bits{bits}", *planes(bits, 32)


@folder("gptq_v2", **gptq_config(4, 32, checkpoint_format="gptq_v2"))
def gptq_v2():
    parts, weight = planes(4, 32)
    # In this version of the format, a zero point can be 0.
    parts["qzeros"][0, 0] &= ~0xF
    codes = (parts["qweight"][:4, 0, None] >> torch.arange(0, 32, 4) & 15).flatten()
    weight[0, :32] = parts["scales"][0, 0] * codes
    yield "runs", parts, weight


@folder("gptqmodel", **gptq_config(2, 32, checkpoint_format="gptq", meta={"quantizer": ["gptqmodel:5.0.0"]}))
def gptqmodel():
    # GPTQModel subtracts 1 from all zero points in a word by one subtraction, with borrows between them.
    parts, _ = planes(2, 32)
    zeros = torch.randint(0, 4, (4, 32))
    word = sum(zeros.reshape(4, 2, 16)[..., at] << 2 * at for at in range(16)) - 0x55555555
    parts["qzeros"] = ((word + 2**31) % 2**32 - 2**31).int()
    codes = (parts["qweight"][:, None] >> torch.arange(0, 32, 2)[:, None] & 3).reshape(128, 32)
    at = parts["g_idx"].long()
    yield "runs", parts, (parts["scales"][at] * (codes - zeros[at])).t().contiguous()


def ct_config(form, **weights):
    scheme = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32, "dynamic": False} | weights
    group = {"targets": ["Linear"], "weights": scheme, "input_activations": None, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def ct_layer(form, dtype=torch.bfloat16, rows=24, columns=128, **weights):
    """Stored tensors and the weight, by the library's compressor."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    known = ("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure")
    config = ct_config(form, **weights)["config_groups"]["group_0"]["weights"]
    args = QuantizationArgs(**{key: config[key] for key in known if config.get(key) is not None})
    w = matrix(rows, columns, dtype) + 0.2
    low_high = {
        "group": lambda: w.reshape(rows, -1, args.group_size or 1),
        "channel": lambda: w.reshape(rows, 1, columns),
        "tensor": lambda: w.reshape(1, 1, -1),
        "block": lambda: w.reshape(rows // args.block_structure[0], args.block_structure[0], -1, args.block_structure[1]).transpose(1, 2).flatten(2),
    }[args.strategy]()
    scale, zero = calculate_qparams(low_high.amin(-1), low_high.amax(-1), args)
    if args.strategy == "tensor":
        scale, zero = scale.reshape(1), zero.reshape(1)
    compressor = BaseCompressor.get_value_from_registry(form)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    state = {"weight": w, "weight_scale": scale, "weight_zero_point": zero}
    stored = compressor.compress(state, scheme)
    return stored, compressor.decompress(stored, scheme)["weight"]


def ct_folder(name, form, cases, **weights):
    @folder(name, **ct_config(form, **weights))
    def make():
        for case, more in cases.items():
            yield case, *ct_layer(form, **(weights | more))


ROW = {"strategy": "channel", "group_size": None}
ALL = {"strategy": "tensor", "group_size": None}
PACKED = {
    "bf16": {}, "f16": {"dtype": torch.float16}, "f32": {"dtype": torch.float32}, "groups64": {"group_size": 64},
    "narrow": {"columns": 96}, "channel": ROW, "tensor": ALL, "odd_rows": {"rows": 13},
}
ct_folder("packed4", "pack-quantized", PACKED)
ct_folder("packed8", "pack-quantized", PACKED, num_bits=8)
ct_folder("packed3", "pack-quantized", {"bf16": {}, "channel": ROW, "odd_rows": {"rows": 13}}, num_bits=3)
ct_folder("packed6", "pack-quantized", {"bf16": {}, "channel": ROW, "narrow": {"columns": 96}}, num_bits=6)
ct_folder("packed4_symmetric", "pack-quantized", {"bf16": {}, "channel": ROW, "tensor": ALL, "groups16": {"group_size": 16}}, symmetric=True)
ct_folder("bytes", "int-quantized", {"group": {"group_size": 32, "strategy": "group"}, "channel": {}, "tensor": ALL, "narrow": {"columns": 72}}, num_bits=8, **ROW)
ct_folder("tiles", "int-quantized", {"block": {}}, num_bits=8, strategy="block", group_size=None, block_structure=[8, 32])


@folder("packed3_whole", **ct_config("pack-quantized", num_bits=3))
def packed3_whole():
    # Versions of compressed-tensors before 0.15 packed ten 3-bit values per word.
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    def whole(values):
        rest = -values.shape[1] % 10
        parts = torch.nn.functional.pad(values.long() + 4, (0, rest)).reshape(values.shape[0], -1, 10)
        return sum(parts[..., at] << 3 * at for at in range(10)).int()

    parts, weight = ct_layer("pack-quantized", num_bits=3, rows=32)
    zeros = unpack_from_int32(parts["weight_zero_point"], 3, (32, 4), 0)
    codes = unpack_from_int32(parts["weight_packed"], 3, (32, 128))
    parts["weight_packed"], parts["weight_zero_point"] = whole(codes), whole(zeros.t()).t().contiguous()
    yield "bf16", parts, weight


@folder("packed4_order", **ct_config("pack-quantized", actorder="group"))
def packed4_order():
    # Folders with a stored index that maps each column of the matrix to its group.
    parts, weight = ct_layer("pack-quantized")
    yield "unset", parts | {"weight_g_idx": torch.full((128,), -1, dtype=torch.int32)}, weight
    yield "runs", parts | {"weight_g_idx": torch.arange(128).int() // 32}, weight
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

    order = torch.randperm(128)
    codes = unpack_from_int32(parts["weight_packed"], 4, (24, 128))[:, order]
    yield "ordered", parts | {"weight_packed": pack_to_int32(codes.contiguous(), 4), "weight_g_idx": (order // 32).int()}, weight[:, order]


def make(name):
    torch.manual_seed(7)
    matrices, quantization = FOLDERS[name]
    out = HERE / name
    out.mkdir(exist_ok=True)
    stored, weights = {}, {}
    for base, parts, weight in matrices():
        stored |= {f"{base}.{end}": part.detach().clone().contiguous() for end, part in parts.items()}
        weights[f"{base}.weight"] = weight.detach().clone().contiguous()
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
    save_file(weights, out / "reference.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": quantization}, indent=1) + "\n")
    print(name, {n: (str(w.dtype)[6:], tuple(w.shape)) for n, w in weights.items()})


if __name__ == "__main__":
    for name in sys.argv[1:] or FOLDERS:
        make(name)
