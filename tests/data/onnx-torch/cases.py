"""The models that are exported: how each is made, its inputs, the sizes that vary, and at which sizes it is run."""

import torch

import other as o
import text as t
import vision as v


class Case:
    """`inputs(random, **sizes)` gives arrays by name. `axes` says of inputs which axes are which of the sizes; `runs` are the
    sizes of the export and then others, of which only those in `axes` differ. `only` leaves out an exporter and says why."""

    def __init__(self, make, inputs, axes=None, runs=({},), only=("script", "dynamo"), scripted=False, opset=None):
        self.make, self.inputs, self.axes, self.runs = make, inputs, axes or {}, runs
        self.only, self.scripted, self.opset = only, scripted, opset


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float32)


def image(c, side=None):
    """Images of any number, and of any size unless there is a side."""
    if side:
        return lambda n, **_: {"x": normal(n, c, side, side)}
    return lambda n, h, w: {"x": normal(n, c, h, w)}


def tokens(*names, padding=0):
    def inputs(n, s):
        ids = torch.randint(3, 28, (n, s))
        mask = torch.ones(n, s, dtype=torch.long)
        if n > 1:
            mask[1, s - 1 :] = 0
            ids[1, s - 1 :] = padding
        given = {"ids": ids, "mask": mask}
        return {name: given[name] for name in names}

    return inputs


def edges(n, e):
    return {"x": normal(n, 4), "edges": torch.randint(0, n, (2, e))}


def t5(n, s, d):
    return {**tokens("ids", "mask")(n, s), "out": torch.randint(3, 28, (n, d))}


BATCH, IMAGE = {"x": {0: "n"}}, {"x": {0: "n", 2: "h", 3: "w"}}
ONE_OR_TWO = ({"n": 2}, {"n": 1})
TOKENS = {"ids": {0: "n", 1: "s"}, "mask": {0: "n", 1: "s"}}
SEQUENCES = ({"n": 2, "s": 7}, {"n": 3, "s": 4})
GRAPHS = ({"n": 6, "e": 9}, {"n": 4, "e": 5})
SERIES = {"x": {0: "n", 1: "s"}}


def text(make, *names, **more):
    names = names or ("ids", "mask")
    axes = {name: TOKENS[name] for name in names}
    return Case(make, tokens(*names, **more), axes, SEQUENCES)


CASES = {
    "mlp": Case(o.Mlp, lambda n: {"x": normal(n, 6)}, BATCH, ONE_OR_TWO),
    "lenet": Case(v.LeNet, image(1, 16), BATCH, ONE_OR_TWO),
    "resnet": Case(v.ResNet, image(3), IMAGE, ({"n": 2, "h": 24, "w": 20}, {"n": 1, "h": 17, "w": 33})),
    "mobilenet_v2": Case(v.MobileNet, image(3), IMAGE, ({"n": 2, "h": 12, "w": 16}, {"n": 1, "h": 13, "w": 9})),
    "efficientnet": Case(lambda: v.MobileNet(torch.nn.SiLU, True), image(3, 14), BATCH, ONE_OR_TWO),
    "vgg": Case(v.Vgg, image(3, 14), BATCH, ONE_OR_TWO),
    "densenet": Case(v.DenseNet, image(3), IMAGE, ({"n": 2, "h": 8, "w": 6}, {"n": 1, "h": 7, "w": 9})),
    "shufflenet": Case(v.ShuffleNet, image(3, 8), BATCH, ONE_OR_TWO),
    "unet": Case(v.UNet, image(1), IMAGE, ({"n": 1, "h": 8, "w": 12}, {"n": 2, "h": 16, "w": 4})),
    "segmenter": Case(v.Segmenter, image(3), IMAGE, ({"n": 1, "h": 16, "w": 24}, {"n": 2, "h": 8, "w": 16})),
    "aspp": Case(v.Aspp, image(3), IMAGE, ({"n": 1, "h": 12, "w": 10}, {"n": 2, "h": 9, "w": 14})),
    "yolo": Case(v.Yolo, image(3, 8), BATCH, ONE_OR_TWO),
    "ssd": Case(v.Ssd, image(3, 8), BATCH, ONE_OR_TWO),
    "vit": Case(v.Vit, image(3, 12), BATCH, ONE_OR_TWO),
    "swin": Case(v.Swin, image(3, 16), BATCH, ONE_OR_TWO),
    "convnext": Case(v.ConvNext, image(3), IMAGE, ({"n": 2, "h": 16, "w": 12}, {"n": 1, "h": 20, "w": 24})),
    "mixer": Case(v.Mixer, image(3, 12), BATCH, ONE_OR_TWO),
    "autoencoder": Case(
        v.AutoEncoder, lambda n: {"x": normal(n, 1, 8, 8), "noise": normal(n, 3)}, {"x": {0: "n"}, "noise": {0: "n"}}, ONE_OR_TWO
    ),
    "super_resolution": Case(v.SuperResolution, image(1), IMAGE, ({"n": 1, "h": 6, "w": 7}, {"n": 2, "h": 9, "w": 5})),
    "spatial_transformer": Case(v.Transformer2d, image(2, 6), BATCH, ONE_OR_TWO, opset=20),
    "detr": Case(v.Detr, image(3), IMAGE, ({"n": 2, "h": 16, "w": 12}, {"n": 1, "h": 20, "w": 16})),
    "lstm": Case(o.Lstm, lambda n, s: {"ids": torch.randint(0, 20, (n, s))}, {"ids": TOKENS["ids"]}, SEQUENCES),
    "lstm_step": Case(
        o.LstmStep, lambda s: {"x": normal(s, 1, 4), "h": normal(1, 1, 5), "c": normal(1, 1, 5)}, {"x": {0: "s"}}, ({"s": 3}, {"s": 1})
    ),
    "gru": Case(o.Gru, lambda n, s: {"x": normal(n, s, 4)}, SERIES, SEQUENCES),
    "rnn": Case(o.Rnn, lambda n, s: {"x": normal(s, n, 4)}, {"x": {0: "s", 1: "n"}}, SEQUENCES),
    "wavenet": Case(o.WaveNet, lambda n, s: {"x": normal(n, 1, s)}, {"x": {0: "n", 2: "s"}}, SEQUENCES),
    "spectrogram": Case(o.Spectrogram, lambda n, s: {"x": normal(n, s)}, SERIES, ({"n": 2, "s": 64}, {"n": 1, "s": 101})),
    "stft": Case(o.Stft, lambda n, s: {"x": normal(n, s)}, {"x": {0: "n"}}, ({"n": 2, "s": 48}, {"n": 1, "s": 48}), opset=17),
    "whisper_like": Case(
        o.WhisperLike, lambda n, s: {"x": normal(n, 6, s)}, {"x": {0: "n", 2: "s"}}, ({"n": 2, "s": 12}, {"n": 1, "s": 20})
    ),
    "diffusion": Case(
        o.DiffusionBlock,
        lambda n: {"x": normal(n, 3, 8, 8), "t": torch.randint(0, 1000, (n,))},
        {"x": {0: "n"}, "t": {0: "n"}},
        ONE_OR_TWO,
    ),
    "graph_conv": Case(o.GraphConv, edges, {"x": {0: "n"}, "edges": {1: "e"}}, GRAPHS),
    "graph_attention": Case(o.Gat, edges, {"x": {0: "n"}, "edges": {1: "e"}}, GRAPHS),
    "nerf": Case(o.Nerf, lambda n, s: {"x": normal(n, s, 3)}, SERIES, SEQUENCES),
    "pointnet": Case(o.PointNet, lambda n, s: {"x": normal(n, 3, s)}, {"x": {0: "n", 2: "s"}}, SEQUENCES),
    "dlrm": Case(
        o.Dlrm, lambda n: {"x": normal(n, 3), "ids": torch.randint(0, 5, (n, 3))}, {"x": {0: "n"}, "ids": {0: "n"}}, ONE_OR_TWO
    ),
    "experts": Case(o.Experts, lambda n: {"x": normal(n, 6)}, BATCH, ONE_OR_TWO),
    "vector_quantized": Case(o.Vq, lambda n, s: {"x": normal(n, 2, s)}, {"x": {0: "n", 2: "s"}}, ({"n": 2, "s": 12}, {"n": 1, "s": 16})),
    "scripted_loop": Case(
        o.Scripted, lambda n, s: {"x": normal(s, n, 3)}, {"x": {1: "n"}}, ({"n": 2, "s": 5}, {"n": 3, "s": 5}), ("script",), True
    ),
    "branches": Case(o.Branches, lambda n: {"x": normal(n, 4)}, BATCH, ONE_OR_TWO, ("script",), True),
    "encoder": text(t.Encoder, "ids"),
    "decoder": Case(
        t.Decoder,
        lambda n, s: {"x": normal(n, s, 8), "memory": normal(n, 5, 8), "keep": torch.arange(5)[None].repeat(n, 1) < 4},
        {"x": SERIES["x"], "memory": {0: "n"}, "keep": {0: "n"}},
        SEQUENCES,
    ),
    "einsum_attention": Case(t.EinsumAttention, lambda n, s: {"x": normal(n, s, 8)}, SERIES, SEQUENCES),
    "text_cnn": text(t.TextCnn, "ids"),
    "bert": text(t.bert),
    "roberta": text(t.roberta, padding=1),
    "distilbert": text(t.distilbert),
    "deberta": text(t.deberta),
    "gpt2": text(t.gpt2),
    "llama": text(t.llama),
    "qwen3": text(t.qwen3),
    "gemma2": text(t.gemma2),
    "t5_encoder": text(t.t5_encoder),
    "t5": Case(
        t.t5, t5, {**TOKENS, "out": {0: "n", 1: "d"}}, ({"n": 2, "s": 7, "d": 3}, {"n": 1, "s": 4, "d": 6})
    ),
    "clip_text": text(t.clip_text, "ids"),
    "whisper_encoder": Case(t.whisper_encoder, lambda n: {"x": normal(n, 6, 20)}, BATCH, ONE_OR_TWO),
    "wav2vec2": Case(t.wav2vec2, lambda n, s: {"x": normal(n, s)}, SERIES, ({"n": 2, "s": 60}, {"n": 1, "s": 83})),
    "segformer": Case(t.segformer, image(3, 16), BATCH, ONE_OR_TWO),
}
