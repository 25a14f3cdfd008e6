"""Models of text: layers by hand, and small configurations of transformers."""

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, activation="gelu", batch_first=True)
        self.embed = nn.Embedding(30, 8, padding_idx=0)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, ids):
        y = self.body(self.embed(ids), src_key_padding_mask=ids == 0)
        keep = (ids != 0).unsqueeze(-1).to(y.dtype)
        return (y * keep).sum(1) / keep.sum(1)


class Decoder(nn.Module):
    """A layer that sees its own past and what an encoder gave, of which some is padding."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True)

    def forward(self, x, memory, keep):
        n = x.shape[1]
        past = torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1)
        return self.layer(x, memory, tgt_mask=past, memory_key_padding_mask=~keep)


class EinsumAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Parameter(torch.randn(8, 2, 4) * 0.3), nn.Parameter(torch.randn(2, 8, 4) * 0.3)
        self.out = nn.Parameter(torch.randn(2, 4, 8) * 0.3)

    def forward(self, x):
        q = torch.einsum("btd,dhk->bhtk", x, self.q)
        k, v = torch.einsum("bsd,cdk->cbsk", x, self.kv)
        n = x.shape[1]
        bias = (torch.arange(n)[None] - torch.arange(n)[:, None]).abs().to(x.dtype)
        scores = torch.einsum("bhtk,bsk->bhts", q, k) * 0.5 - 0.1 * bias
        scores = scores.masked_fill(bias > 3, float("-inf"))
        y = torch.einsum("bhts,bsk->bthk", scores.softmax(-1), v)
        return torch.einsum("...hk,hkd->...d", y, self.out)


class TextCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 5)
        self.convs = nn.ModuleList(nn.Conv1d(5, 4, k) for k in (2, 3))
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        return self.head(torch.cat([F.relu(c(x)).max(2).values for c in self.convs], 1))


class Output(nn.Module):
    """A model of transformers as one of tensors alone: the inputs by these names, and one or more of its results."""

    def __init__(self, model, names, results, **fixed):
        super().__init__()
        self.model, self.names, self.results, self.fixed = model, names, results, fixed

    def forward(self, *inputs):
        out = self.model(**dict(zip(self.names, inputs)), **self.fixed)
        return tuple(getattr(out, r) for r in self.results)


def pretrained(family, names="input_ids attention_mask", results="logits", model=None, fixed=None, **config):
    """The class `model` of transformers with a tiny configuration of its family."""
    import transformers

    config = getattr(transformers, family + "Config")(**config)
    config._attn_implementation = "eager"
    net = getattr(transformers, model or family + "Model")(config)
    return Output(net, names.split(), results.split(), **(fixed or {}))


COMMON = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, vocab_size=30)
ROTARY = dict(COMMON, num_key_value_heads=1, max_position_embeddings=32, head_dim=4)
ONCE = dict(use_cache=False)


def bert():
    config = dict(COMMON, max_position_embeddings=32, type_vocab_size=2)
    return pretrained("Bert", results="last_hidden_state pooler_output", **config)


def roberta():
    config = dict(COMMON, max_position_embeddings=34, type_vocab_size=1, pad_token_id=1)
    return pretrained("Roberta", model="RobertaForSequenceClassification", **config)


def distilbert():
    config = dict(dim=8, n_layers=1, n_heads=2, hidden_dim=12, vocab_size=30, max_position_embeddings=32)
    return pretrained("DistilBert", model="DistilBertForTokenClassification", **config)


def deberta():
    config = dict(COMMON, relative_attention=True, max_relative_positions=8, position_biased_input=False)
    config.update(pos_att_type=["p2c", "c2p"], position_buckets=4, norm_rel_ebd="layer_norm", share_att_key=True)
    return pretrained("DebertaV2", results="last_hidden_state", max_position_embeddings=32, type_vocab_size=0, **config)


def gpt2():
    config = dict(n_embd=8, n_layer=1, n_head=2, vocab_size=30, n_positions=32)
    return pretrained("GPT2", model="GPT2LMHeadModel", fixed=ONCE, **config)


def llama():
    return pretrained("Llama", model="LlamaForCausalLM", fixed=ONCE, **ROTARY)


def qwen3():
    return pretrained("Qwen3", model="Qwen3ForCausalLM", fixed=ONCE, **ROTARY)


def gemma2():
    config = dict(ROTARY, num_hidden_layers=2, sliding_window=4, query_pre_attn_scalar=4)
    return pretrained("Gemma2", model="Gemma2ForCausalLM", fixed=ONCE, **config)


T5 = dict(d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, vocab_size=30, relative_attention_num_buckets=8)


def t5_encoder():
    return pretrained("T5", model="T5EncoderModel", results="last_hidden_state", **T5)


def t5():
    names = "input_ids attention_mask decoder_input_ids"
    return pretrained("T5", names, model="T5ForConditionalGeneration", fixed=ONCE, **T5)


def clip_text():
    config = dict(COMMON, max_position_embeddings=16, eos_token_id=29, projection_dim=6)
    return pretrained("CLIPText", "input_ids", "text_embeds", model="CLIPTextModelWithProjection", **config)


def whisper_encoder():
    import transformers

    config = dict(d_model=8, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=12, num_mel_bins=6)
    config.update(max_source_positions=10, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=12, vocab_size=30)
    config.update(pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    whole = pretrained("Whisper", "input_features", "last_hidden_state", **config)
    whole.model = whole.model.encoder
    return whole


def wav2vec2():
    config = dict(COMMON, conv_dim=(6, 6), conv_stride=(3, 2), conv_kernel=(5, 3), num_feat_extract_layers=2)
    config.update(num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0.0)
    return pretrained("Wav2Vec2", "input_values", model="Wav2Vec2ForCTC", **config)


def segformer():
    config = dict(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[4, 8], patch_sizes=[3, 3])
    config.update(strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=6, num_labels=3)
    return pretrained("Segformer", "pixel_values", model="SegformerForSemanticSegmentation", **config)
