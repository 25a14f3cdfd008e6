"""Writes gradients.json beside it: graphs in the text form, operands, cotangents, and the gradients that torch finds, in F64 on a CPU.

python3 make_gradients.py [folder]; made with torch 2.15.0. Where torch has no such operator, the case is its formula in torch's words.
"""

import pathlib
import sys

import torch

import cases
import cases_layers
import cases_moves
import cases_windows
from cases import apart, case, floats, write
from torch.nn import functional as F

UNARY = {
    "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "exp": torch.exp, "abs": torch.abs,
    "recip": torch.reciprocal, "neg": torch.neg, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "softplus": F.softplus, "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "atan": torch.atan,
    "sinh": torch.sinh, "cosh": torch.cosh, "exp2": torch.exp2, "expm1": torch.expm1,
}
ABOVE_ZERO = {
    "ln": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "log2": torch.log2, "log1p": torch.log1p,
}
BELOW_ONE = {"tan": torch.tan, "asin": torch.asin, "acos": torch.acos}


def elementwise():
    for name, f in UNARY.items():
        case(name, f"unary{{f={name}}}", {"x": apart(3, 5)}, f)
    for name, f in ABOVE_ZERO.items():
        case(name, f"unary{{f={name}}}", {"x": floats(3, 5, lo=0.2, hi=4)}, f)
    for name, f in BELOW_ONE.items():
        case(name, f"unary{{f={name}}}", {"x": floats(3, 5, lo=-0.9, hi=0.9)}, f)
    binary = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum, "atan2": torch.atan2}
    for name, f in binary.items():
        case(name, f"binary{{f={name}}}", {"a": apart(3, 4), "b": apart(4) + 1 / 128}, f)
    a, b = floats(2, 1, 4), floats(3, 1, lo=0.5, hi=3)
    case("div", "binary{f=div}", {"a": a, "b": b}, torch.div)
    case("pow", "binary{f=pow}", {"a": floats(2, 3, lo=0.3, hi=3), "b": floats(3)}, torch.pow)
    case("rem", "binary{f=rem}", {"a": apart(3, 4) * 2, "b": floats(4, lo=0.7, hi=0.9)}, torch.fmod)
    case("fma", "fma", {"a": floats(3, 4), "b": floats(4), "c": floats(3, 1)}, lambda a, b, c: a * b + c)
    case("clamp", "clamp{lo=-0.625, hi=1.25}", {"x": apart(4, 5)}, lambda x: x.clamp(-0.625, 1.25))
    cond = apart(3, 4) > 0
    case("where", "where", {"cond": cond, "a": floats(3, 4), "b": floats(1, 4)}, torch.where)
    case("stop_gradient", "%s = stop_gradient(%x) %y = binary{f=mul}(%x, %s)", {"x": floats(6)}, lambda x: x * x.detach())
    case("checkpoint", "%s = checkpoint(%x) %y = unary{f=tanh}(%s)", {"x": floats(6)}, torch.tanh)


def sums():
    x = floats(2, 3, 4)
    for name, f in {"sum": torch.sum, "mean": torch.mean}.items():
        case(f"reduce_{name}", f"reduce{{f={name}, axes=[0, 2], keep_dim=false}}", {"x": x}, lambda x: f(x, (0, 2)))
    for name, f in {"max": torch.amax, "min": torch.amin}.items():
        case(f"reduce_{name}", f"reduce{{f={name}, axes=[1], keep_dim=true}}", {"x": apart(3, 4, 2)}, lambda x: f(x, 1, keepdim=True))
    case("reduce_prod", "reduce{f=prod, axes=[1], keep_dim=false}", {"x": floats(3, 4)}, lambda x: x.prod(1))
    running = {"sum": torch.cumsum, "prod": torch.cumprod, "max": lambda x, a: x.cummax(a)[0], "min": lambda x, a: x.cummin(a)[0]}
    for name, f in running.items():
        op = f"cum_sum{{axis=1, f={name}, exclusive=false, reverse=false}}"
        case(f"cum_{name}", op, {"x": apart(3, 5)}, lambda x: f(x, 1))
    case("cum_sum_reverse", "cum_sum{axis=0, f=sum, exclusive=false, reverse=true}", {"x": floats(4, 3)},
         lambda x: x.flip(0).cumsum(0).flip(0))
    case("cum_sum_exclusive", "cum_sum{axis=1, f=sum, exclusive=true, reverse=false}", {"x": floats(4, 3)},
         lambda x: x.cumsum(1) - x)
    for axis in [0, 2]:
        case(f"softmax_{axis}", f"softmax{{axis={axis}}}", {"x": x}, lambda x: x.softmax(axis))
        case(f"log_softmax_{axis}", f"log_softmax{{axis={axis}}}", {"x": x}, lambda x: x.log_softmax(axis))
    case("top_k", "top_k{k=2, axis=1, largest=true}", {"x": apart(3, 6)}, lambda x: x.topk(2, 1)[0])
    case("top_k_least", "top_k{k=3, axis=0, largest=false}", {"x": apart(5, 2)}, lambda x: x.topk(3, 0, largest=False)[0])
    case("sort", "sort{axis=1, descending=false}", {"x": apart(3, 6)}, lambda x: x.sort(1)[0])
    case("sort_descending", "sort{axis=0, descending=true}", {"x": apart(5, 2)}, lambda x: x.sort(0, descending=True)[0])


def cross_entropies():
    """`mean(-log_softmax(x)[label])`, and smoothed: the label's part of the sum, and the mean over classes."""
    labels = cases.indices(5, 4)
    body = (
        "%l = log_softmax{axis=1}(%x) %i = reshape{shape=[4, 1]}(%labels) %p = gather_elements{axis=1}(%l, %i) "
        "%n = unary{f=neg}(%p) %y = reduce{f=mean, axes=[0, 1], keep_dim=false}(%n)"
    )
    case("cross_entropy", body, {"x": floats(4, 5), "labels": labels}, lambda x, l: F.cross_entropy(x, l))
    body = (
        "%l = log_softmax{axis=1}(%x) %i = reshape{shape=[4, 1]}(%labels) %p = gather_elements{axis=1}(%l, %i) "
        "%m = reduce{f=mean, axes=[1], keep_dim=true}(%l) %own = const{tensor=dense(f32[], [-0.9])}() "
        "%all = const{tensor=dense(f32[], [-0.1])}() %a = binary{f=mul}(%p, %own) %b = binary{f=mul}(%m, %all) "
        "%s = binary{f=add}(%a, %b) %y = reduce{f=mean, axes=[0, 1], keep_dim=false}(%s)"
    )
    case("cross_entropy_smoothed", body, {"x": floats(4, 5), "labels": labels},
         lambda x, l: F.cross_entropy(x, l, label_smoothing=0.1))


elementwise()
sums()
cross_entropies()
cases_moves.make()
cases_windows.make()
cases_layers.make()
folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
write(folder / "gradients.json")
