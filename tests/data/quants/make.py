"""Makes the blocks of the formats in MADE, and the values that they stand for.

python3 -m pip install gguf ml_dtypes numpy
python3 make.py

The values of GGUF's types are those of the `gguf` package. Those of formats of our own are written out
here from their description; ml_dtypes has the small floats.
"""

import gguf
import ml_dtypes
import numpy as np

rng = np.random.default_rng(20261122)


def halves(values):
    return np.asarray(values, dtype=np.float16).reshape(-1).view(np.uint8)


def grouped(blocks):
    """The f16 scales of four groups of 32, for each weight."""
    d = np.ascontiguousarray(blocks[:, :8]).view(np.float16).astype(np.float32)
    return np.repeat(d, 32, axis=1)


def nibbles(qs):
    qs = qs.reshape(len(qs), -1, 16)
    return np.concatenate([qs & 15, qs >> 4], axis=2).reshape(len(qs), -1).astype(np.float32)


def int8(b):
    return grouped(b) * np.ascontiguousarray(b[:, 8:]).view(np.int8).astype(np.float32)


def int8_asym(b):
    return grouped(b) * (b[:, 12:].astype(np.float32) - np.repeat(b[:, 8:12], 32, axis=1))


def int4(b):
    return grouped(b) * (nibbles(b[:, 8:]) - np.float32(8))


def int4_asym(b):
    return grouped(b) * (nibbles(b[:, 12:]) - np.repeat(b[:, 8:12] & 15, 32, axis=1))


def fp8(dtype):
    def values(b):
        d = np.ascontiguousarray(b[:, :4]).view(np.float32)
        return d * np.ascontiguousarray(b[:, 4:]).view(dtype).astype(np.float32)

    return values


# By type name: bytes per block, weights per block, and the function that dequantizes a block.
MADE = {
    "INT8": (136, 128, int8),
    "INT8_ASYM": (140, 128, int8_asym),
    "INT4": (72, 128, int4),
    "INT4_ASYM": (76, 128, int4_asym),
    "FP8_E4M3": (132, 128, fp8(ml_dtypes.float8_e4m3fn)),
    "FP8_E5M2": (132, 128, fp8(ml_dtypes.float8_e5m2)),
}
for name in "MXFP4 NVFP4 TQ1_0 TQ2_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS".split():
    kind = gguf.GGMLQuantizationType[name]
    length, size = gguf.GGML_QUANT_SIZES[kind]
    MADE[name] = (size, length, lambda b, kind=kind: gguf.quants.dequantize(b, kind))

# Byte offsets of the F16 scales in a block.
HALVES = {
    "TQ1_0": [52], "TQ2_0": [64], "IQ1_M": [], "MXFP4": [], "NVFP4": [], "FP8_E4M3": [], "FP8_E5M2": [],
    "INT8": [0, 2, 4, 6], "INT8_ASYM": [0, 2, 4, 6], "INT4": [0, 2, 4, 6], "INT4_ASYM": [0, 2, 4, 6],
}
EXTREME = [0.0, -0.0, 1.0, -1.0, 65504.0, -65504.0, 2.0**-24, -(2.0**-24), 2.0**-14, 6.1e-5, np.inf, 0.1]


def set_scale(name, block, value):
    for at in HALVES.get(name, [0]):
        block[at : at + 2] = halves(value)
    if name == "IQ1_M":
        bits = int(halves(value).view(np.uint16)[0])
        for i in range(4):
            block[49 + 2 * i] = (block[49 + 2 * i] & 15) | (bits >> (4 * i) & 15) << 4
    if name.startswith("FP8"):
        block[:4] = np.float32(value).reshape(1).view(np.uint8)


def blocks(name, count):
    size = MADE[name][0]
    b = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for block in b:
        set_scale(name, block, rng.normal() * 0.1)
        if name == "MXFP4":
            block[0] = rng.integers(100, 140)
    return b


def every_row(name, per_block):
    """Blocks whose indices are all rows of the grid in turn, with a scale of 1."""
    rows = {"IQ2_XXS": 256, "IQ2_XS": 512, "IQ2_S": 1024, "IQ3_XXS": 256, "IQ3_S": 512, "IQ1_S": 2048, "IQ1_M": 2048}[name]
    b = np.zeros((rows // per_block, MADE[name][0]), dtype=np.uint8)
    for block in b:
        set_scale(name, block, 1.0)
    for i in range(rows):
        block, j = b[i // per_block], i % per_block
        low, high = i & 255, i >> 8
        if name == "IQ2_XXS":
            block[2 + 8 * (j // 4) + j % 4] = low
        elif name == "IQ2_XS":
            block[2 + 2 * j], block[3 + 2 * j] = low, high
        else:
            block[j if name == "IQ1_M" else 2 + j] = low
        if name == "IQ2_S":
            block[66 + j // 4] |= high << (2 * (j % 4))
        elif name == "IQ3_S":
            block[66 + j // 8] |= high << (j % 8)
        elif name == "IQ1_S":
            word = high << (3 * (j % 4))
            block[34 + 2 * (j // 4)] |= word & 255
            block[35 + 2 * (j // 4)] |= word >> 8
        elif name == "IQ1_M":
            block[32 + j // 2] |= high << (4 * (j % 2))
    return b


def edges(name):
    b = blocks(name, len(EXTREME))
    for block, value in zip(b, EXTREME):
        set_scale(name, block, value)
    if name in ("MXFP4", "NVFP4", "FP8_E4M3", "FP8_E5M2"):
        # Blocks with every byte value as scale, and with every code.
        b = np.resize(b, (256, MADE[name][0]))
        for i, block in enumerate(b):
            block[0] = i
            if name == "NVFP4":
                block[:4] = [i, 255 - i, i ^ 1, i ^ 128]
            if name.startswith("FP8"):
                block[:4] = np.float32(2.0 ** (i % 8 - 4)).reshape(1).view(np.uint8)
                block[4:] = (np.arange(128) + i) & 255
        if name.startswith("FP8"):
            b = b[::64]
    if name.startswith(("IQ1", "IQ2", "IQ3")):
        b = np.concatenate([b, every_row(name, 64 if name.startswith("IQ3") else 32)])
    return b


for name, (size, length, values) in MADE.items():
    for kind, b in [("blocks", blocks(name, 8192 // length)), ("edge", edges(name))]:
        with np.errstate(all="ignore"):
            out = np.asarray(values(b), dtype=np.float32).reshape(len(b), length)
        np.save(f"{name}.{kind}.npy", b)
        np.save(f"{name}.{kind.replace('blocks', 'f32').replace('edge', 'edge_f32')}.npy", out)
