"""Convolutions, pools, resizing."""

from torch.nn import functional as F

from cases import apart, case, floats


def of(name, attributes):
    return name + "{" + ", ".join(f"{k}={v}" for k, v in attributes.items()) + "}"


def convolutions():
    forward = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
    back = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
    sizes = {1: ([9], [3]), 2: ([5, 6], [3, 2]), 3: ([3, 4, 3], [2, 2, 2])}
    settings = [("", [1], [0], [1], 1), ("_strided", [2], [1], [1], 2), ("_dilated", [1], [1], [2], 1)]
    for d, (size, kernel) in sizes.items():
        for suffix, stride, pad, dilation, groups in settings:
            if d == 3 and suffix == "_dilated":
                continue
            stride, pad, dilation = (v * d for v in (stride, pad, dilation))
            op = of("conv", {"stride": stride, "pad_before": pad, "pad_after": pad, "dilation": dilation, "groups": groups, "activation": "none"})
            operands = {"x": floats(2 if d < 3 else 1, 2, *size), "w": floats(4, 2 // groups, *kernel), "bias": floats(4)}
            case(f"conv_{d}d{suffix}", op, operands,
                 lambda x, w, b: forward[d](x, w, b, stride, pad, dilation, groups))
            out = [s - 1 for s in stride]
            op = of("conv_transpose", {"stride": stride, "pad_before": pad, "pad_after": pad, "dilation": dilation, "output_padding": out, "groups": groups})
            operands = {"x": floats(1, 2, *[min(s, 4) for s in size]), "w": floats(2, 4 // groups, *kernel), "bias": floats(4)}
            case(f"conv_transpose_{d}d{suffix}", op, operands,
                 lambda x, w, b: back[d](x, w, b, stride, pad, out, groups, dilation))
    op = of("conv", {"stride": [1, 1], "pad_before": [1, 1], "pad_after": [1, 1], "dilation": [1, 1], "groups": 3, "activation": "gelu"})
    case("conv_depthwise_gelu", op, {"x": floats(1, 3, 4, 5), "w": floats(3, 1, 3, 3)},
         lambda x, w: F.gelu(F.conv2d(x, w, None, 1, 1, 1, 3)))
    op = of("im2_col", {"kernel": [2, 3], "stride": [1, 2], "pad_before": [1, 0], "pad_after": [1, 0], "dilation": [1, 1]})
    case("im2_col", op, {"x": floats(1, 2, 3, 5)}, lambda x: F.unfold(x, (2, 3), 1, (1, 0), (1, 2)))


def pools():
    def pool(name, f, kernel, stride, pad, function, ceil="false", include="false", size=(1, 2, 5, 6)):
        ones = [1] * len(kernel)
        op = of("pool", {"f": f, "kernel": kernel, "stride": stride, "pad_before": pad, "pad_after": pad, "dilation": ones, "ceil": ceil, "count_include_pad": include})
        case(name, op, {"x": apart(*size)}, function)

    pool("max_pool_1d", "max", [3], [2], [1], lambda x: F.max_pool1d(x, 3, 2, 1), size=(1, 2, 9))
    pool("max_pool_2d", "max", [2, 3], [2, 2], [0, 1], lambda x: F.max_pool2d(x, (2, 3), 2, (0, 1)))
    pool("max_pool_2d_ceil", "max", [3, 3], [2, 2], [0, 0], lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), ceil="true")
    pool("max_pool_3d", "max", [2, 2, 2], [1, 1, 1], [0, 0, 0], lambda x: F.max_pool3d(x, 2, 1), size=(1, 1, 3, 3, 3))
    pool("min_pool", "min", [2, 2], [1, 2], [0, 0], lambda x: -F.max_pool2d(-x, 2, (1, 2)))
    pool("mean_pool_1d", "mean", [3], [2], [1], lambda x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False), size=(1, 2, 9))
    pool("mean_pool_2d", "mean", [3, 2], [2, 1], [1, 1], lambda x: F.avg_pool2d(x, (3, 2), (2, 1), 1), include="true")
    pool("mean_pool_3d", "mean", [2, 2, 2], [1, 1, 1], [0, 0, 0], lambda x: F.avg_pool3d(x, 2, 1), size=(1, 1, 3, 3, 3))
    pool("sum_pool", "sum", [2, 3], [1, 1], [0, 0], lambda x: 6 * F.avg_pool2d(x, (2, 3), 1))


def resizes():
    def resize(name, sizes, mode, coordinates, function, rounding="floor", size=(1, 2, 4, 3)):
        op = of("resize", {"sizes": list(sizes), "scales": [], "mode": mode, "coordinates": coordinates, "rounding": rounding, "cubic_a": -0.75, "exclude_outside": "false"})
        case(name, op, {"x": floats(*size)}, function)

    to = (1, 2, 7, 5)
    resize("resize_nearest", to, "nearest", "asymmetric", lambda x: F.interpolate(x, to[2:], mode="nearest"))
    resize("resize_linear", to, "linear", "half_pixel", lambda x: F.interpolate(x, to[2:], mode="bilinear"))
    resize("resize_linear_corners", to, "linear", "align_corners",
           lambda x: F.interpolate(x, to[2:], mode="bilinear", align_corners=True))
    resize("resize_linear_down", (1, 2, 3, 2), "linear", "half_pixel", lambda x: F.interpolate(x, (3, 2), mode="bilinear"))
    resize("resize_linear_1d", (1, 2, 9), "linear", "half_pixel", lambda x: F.interpolate(x, 9, mode="linear"), size=(1, 2, 5))
    resize("resize_linear_3d", (1, 1, 3, 4, 3), "linear", "half_pixel",
           lambda x: F.interpolate(x, (3, 4, 3), mode="trilinear"), size=(1, 1, 2, 2, 2))
    resize("resize_cubic", to, "cubic", "half_pixel", lambda x: F.interpolate(x, to[2:], mode="bicubic"))


def make():
    convolutions()
    pools()
    resizes()
