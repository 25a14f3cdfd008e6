//! Attention of a decoder layer.

use tercet::ops::{AttentionLayout, AttentionOptions, RopeStyle, ScatterReduce};
use tercet::scalar::UnaryFn;
use tercet::{DType, Dim, Type, Value};

use super::super::{ModelBuilder, ModelError};
use super::cache::{CacheFormat, StoredCacheRows};
use super::latent;
use super::layer::{AttentionMode, ForwardContext, SlotRows, VisibleCache, norm, project};
use super::windows::caches;
use crate::config::decoder::{DecoderPart, DecoderSpec, LayerSpec, QkNorm, QkvRows, RopeLayout};

/// Queries, keys and values of a layer, `[batch, len, heads, head_dim]`, after the query and key
/// norms. If the queries have gates, `gate` receives them with the same shape.
fn heads(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    shared: &ForwardContext,
    layer: usize,
    h: Value,
    gate: &mut Option<Value>,
) -> Result<[Value; 3], ModelError> {
    let batch = match shared.attend {
        AttentionMode::Cached { .. } | AttentionMode::Slots { .. } => Dim::Known(1),
        AttentionMode::FullSequences { .. } => shared.batch.clone(),
    };
    let (q, kv) = (spec.q_width(), spec.kv_width());
    let parts = match spec.storage.fused_qkv {
        true if spec.storage.qkv_rows == QkvRows::ByGroup => {
            let all = project(b, spec, DecoderPart::Qkv, layer, h)?;
            let size = spec.head_dim;
            let queries = spec.heads / spec.kv_heads * size;
            let shape = [
                batch.clone(),
                shared.len.clone(),
                spec.kv_heads.into(),
                (queries + 2 * size).into(),
            ];
            let all = b.graph.reshape(all, shape)?;
            [
                b.graph.narrow(all, 3, 0, queries)?,
                b.graph.narrow(all, 3, queries, size)?,
                b.graph.narrow(all, 3, queries + size, size)?,
            ]
        }
        true => {
            let all = project(b, spec, DecoderPart::Qkv, layer, h)?;
            let axis = b.graph.ty(all).shape.len() - 1;
            [
                b.graph.narrow(all, axis, 0, q)?,
                b.graph.narrow(all, axis, q, kv)?,
                b.graph.narrow(all, axis, q + kv, kv)?,
            ]
        }
        false => [
            project(b, spec, DecoderPart::Query, layer, h)?,
            project(b, spec, DecoderPart::Key, layer, h)?,
            project(b, spec, DecoderPart::Value, layer, h)?,
        ],
    };
    let mut parts = parts;
    if spec.attention.gated {
        let (len, size) = (shared.len.clone(), spec.head_dim);
        let shape = [batch.clone(), len, spec.heads.into(), (2 * size).into()];
        let both = b.graph.reshape(parts[0], shape)?;
        parts[0] = b.graph.narrow(both, 3, 0, size)?;
        *gate = Some(b.graph.narrow(both, 3, size, size)?);
    }
    let norms = [
        Some(DecoderPart::QueryNorm),
        Some(DecoderPart::KeyNorm),
        None,
    ];
    let counts = [spec.heads, spec.kv_heads, spec.kv_heads];
    let mut heads = parts;
    for ((head, norm_part), count) in heads.iter_mut().zip(norms).zip(counts) {
        let normed = norm_part.zip(spec.attention.qk_norm);
        if let Some((part, QkNorm::AllHeads)) = normed {
            *head = norm(b, spec, part, layer, *head)?;
        }
        let (len, size) = (shared.len.clone(), spec.head_dim.into());
        let shape = [batch.clone(), len, count.into(), size];
        *head = b.graph.reshape(*head, shape)?;
        if let Some((part, QkNorm::Heads)) = normed {
            *head = norm(b, spec, part, layer, *head)?;
        }
    }
    Ok(heads)
}

/// Attention output of a layer for `h`.
pub(super) fn attention(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    shared: &ForwardContext,
    at: usize,
    h: Value,
) -> Result<Value, ModelError> {
    let layer = spec.layers[at];
    let [before, after] = spec.scales.multipliers.attention;
    let h = b.times(h, before)?;
    let mut gate = None;
    let [q, k, v] = match &spec.attention.latent {
        Some(latent) => latent::heads(b, (spec, latent), shared, at, h)?,
        None => {
            let [q, k, v] = heads(b, spec, shared, at, h, &mut gate)?;
            let dims = spec.rope_dims;
            [
                apply_rope(b, spec, shared, (layer, dims), q)?,
                apply_rope(b, spec, shared, (layer, dims), k)?,
                v,
            ]
        }
    };
    let q = match shared.query_scales {
        Some(scales) => {
            let scales = cast(b, scales, b.graph.ty(q).dtype)?;
            b.graph.mul(q, scales)?
        }
        None => q,
    };
    let y = attended(b, spec, shared, (at, layer), [q, k, v])?;
    let width = spec.heads * spec.value_dim();
    let y = match gate {
        Some(gate) => {
            let gate = b.graph.unary(UnaryFn::Sigmoid, gate)?;
            b.graph.mul(y, gate)?
        }
        None => y,
    };
    let y = b.graph.reshape(y, shared.rows(width))?;
    let y = project(b, spec, DecoderPart::AttentionOutput, at, y)?;
    b.times(y, after)
}

/// Applies RoPE to the first `dims` elements of each head, if the layer uses RoPE.
pub(super) fn apply_rope(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    shared: &ForwardContext,
    (layer, dims): (LayerSpec, usize),
    x: Value,
) -> Result<Value, ModelError> {
    let Some(rope) = layer.rope else {
        return Ok(x);
    };
    let [cos, sin] = shared.ropes[rope];
    let style = match spec.rope_layout {
        RopeLayout::Halves => RopeStyle::NeoX,
        RopeLayout::Pairs => RopeStyle::GptJ,
    };
    Ok(b.graph
        .rope(x, cos, sin, style, dims, AttentionLayout::Bshd)?)
}

/// Attention result per head, F32 `[batch, len, heads, head_dim]`.
fn attended(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    shared: &ForwardContext,
    (at, layer): (usize, LayerSpec),
    [q, k, v]: [Value; 3],
) -> Result<Value, ModelError> {
    let mut options = AttentionOptions::new(spec.heads, spec.kv_heads, AttentionLayout::Bshd);
    if let Some(scale) = spec.attention.scale {
        options = options.scale(scale);
    }
    if let Some(cap) = spec.attention.softcap {
        options = options.softcap(cap);
    }
    match &shared.attend {
        AttentionMode::FullSequences { masks, kv_len } => {
            let mask = masks.iter().find(|(window, _)| *window == layer.window);
            let (_, mask) = mask.expect("invariant: there is a mask for every window");
            let mut options = options.mask(*mask);
            options.kv_len = *kv_len;
            weighted(b, spec, at, [q, k, v], options)
        }
        AttentionMode::Cached {
            start,
            kv_len,
            context,
            format,
            visible: seen,
            windows,
        } => {
            let own = windows.iter().find(|own| layer.window == Some(own.window));
            // Window caches are short, so attention always reads them whole.
            let seen = seen.as_ref().filter(|_| own.is_none());
            let whole = (*start, *kv_len, *context);
            let (start, kv_len, positions) =
                own.map_or(whole, |own| (own.start, own.kv_len, own.positions));
            let cache = SequenceCache {
                names: caches(at),
                start,
                kv_len,
                positions,
                format: *format,
                visible: seen,
            };
            cached(
                b,
                spec,
                at,
                &cache,
                layer_options(options, layer, positions),
                [q, k, v],
            )
        }
        AttentionMode::Slots { .. } => in_slots(b, spec, shared, (at, layer), options, [q, k, v]),
    }
}

/// Attention result for batch runs, with rows of several slots and padding.
fn in_slots(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    shared: &ForwardContext,
    (at, layer): (usize, LayerSpec),
    options: AttentionOptions,
    [q, k, v]: [Value; 3],
) -> Result<Value, ModelError> {
    let AttentionMode::Slots {
        rows,
        windows,
        origin,
        context,
        format,
        ..
    } = &shared.attend
    else {
        unreachable!("invariant: the caller checked the attention mode");
    };
    let own = windows.iter().find(|own| layer.window == Some(own.window));
    let (results, source_of_row) = match own {
        Some(own) => {
            let of = (at, caches(at), *format);
            let results = own.attended(b, spec, rows, of, options, [q, k, v])?;
            (results, own.source_of_row)
        }
        None => {
            let caches = SlotCaches {
                rows,
                context: *context,
                format: *format,
                origin: *origin,
            };
            let results = caches.attended(b, spec, (at, layer), options, [q, k, v])?;
            (results, rows.source_of_row)
        }
    };
    let all = b.graph.concat(&results, 1)?;
    Ok(b.graph.gather(all, source_of_row, 1)?)
}

/// Full-context KV caches of all slots.
struct SlotCaches<'a> {
    rows: &'a SlotRows,
    context: usize,
    format: CacheFormat,
    origin: Value,
}

impl SlotCaches<'_> {
    /// Writes the new keys or values of all rows, `[1, n, heads, size]`, to their slots and
    /// positions. Returns the whole cache.
    fn append(
        &self,
        b: &mut ModelBuilder<'_>,
        name: &str,
        new: Value,
    ) -> Result<StoredCacheRows, ModelError> {
        let count = b.graph.ty(new).shape[1].clone();
        let new = StoredCacheRows::new(b, self.format, new)?;
        let first = [self.rows.count, slot_positions(self.context)];
        let cache = new.states(b, name, first)?;
        let new = new.reshaped(b, &[count])?;
        let places = self.rows.places;
        let updated = cache.with(b, &new, |b, cache, new| {
            let replace = ScatterReduce::Replace;
            Ok(b.graph.scatter_nd(cache, places, new, replace)?)
        })?;
        updated.assign(b, &cache)?;
        Ok(updated)
    }

    /// Keys or values for decode rows: the whole cache, or if it must be dequantized only the
    /// longest filled length.
    fn seen_by_slots(
        &self,
        b: &mut ModelBuilder<'_>,
        cache: &StoredCacheRows,
    ) -> Result<Value, ModelError> {
        match &self.rows.slots_visible {
            Some(most) => {
                let own = [self.rows.count.into(), most.clone()];
                cache.slice(b, self.origin, own)?.decoded(b)
            }
            None => cache.decoded(b),
        }
    }

    /// Keys or values for a prefill chunk: a copy of the filled positions of its slot.
    fn seen_by_prompt(
        &self,
        b: &mut ModelBuilder<'_>,
        cache: &StoredCacheRows,
    ) -> Result<Value, ModelError> {
        let own = [Dim::Known(1), self.rows.prompt_visible.clone()];
        let seen = cache.slice(b, self.rows.prompt_start, own)?;
        seen.decoded(b)
    }

    /// Attention of the new token of each slot, `[1, slots, heads, size]`, and of a prefill chunk,
    /// `[1, s, heads, size]`. Results of slots without a new token are arbitrary.
    fn attended(
        &self,
        b: &mut ModelBuilder<'_>,
        spec: &DecoderSpec,
        (at, layer): (usize, LayerSpec),
        options: AttentionOptions,
        [q, k, v]: [Value; 3],
    ) -> Result<[Value; 2], ModelError> {
        let [keys, values] = caches(at);
        let keys = self.append(b, &keys, k)?;
        let values = self.append(b, &values, v)?;
        let q = cast(b, q, self.format.attention_dtype())?;
        let options = layer_options(options, layer, self.context);
        let rows = self.rows;
        let own = b.graph.gather(q, rows.row_of_slot, 1)?;
        let heads = [spec.heads.into(), b.graph.ty(q).shape[3].clone()];
        let [heads, size] = heads;
        let own = b
            .graph
            .reshape(own, [rows.count.into(), Dim::Known(1), heads.clone(), size])?;
        let (k, v) = (
            self.seen_by_slots(b, &keys)?,
            self.seen_by_slots(b, &values)?,
        );
        let y = weighted(b, spec, at, [own, k, v], options.kv_len(rows.kv_lens))?;
        let size = Dim::Known(spec.value_dim());
        let of_slots = b
            .graph
            .reshape(y, [Dim::Known(1), rows.count.into(), heads, size])?;
        let (k, v) = (
            self.seen_by_prompt(b, &keys)?,
            self.seen_by_prompt(b, &values)?,
        );
        let own = b.graph.gather(q, rows.prompt_rows, 1)?;
        let of_prompt = weighted(b, spec, at, [own, k, v], options.kv_len(rows.prompt_len))?;
        Ok([of_slots, of_prompt])
    }
}

/// Positions per slot in the cache. The extra last position receives the padding rows.
pub(super) fn slot_positions(context: usize) -> usize {
    (context + 1).next_multiple_of(SLOT_ALIGN)
}

/// The number of cache positions is a multiple of this alignment.
const SLOT_ALIGN: usize = 16;

/// Attention options with the layer's sliding window; a window that covers the context becomes
/// plain causal attention.
fn layer_options(options: AttentionOptions, layer: LayerSpec, context: usize) -> AttentionOptions {
    match layer.window {
        Some(window) if window < context => options.window(window),
        Some(_) | None => options.causal(),
    }
}

/// KV cache of a single sequence and its filled length.
struct SequenceCache<'a> {
    /// Names of the key cache and the value cache.
    names: [String; 2],
    start: Value,
    kv_len: Value,
    positions: usize,
    format: CacheFormat,
    visible: Option<&'a VisibleCache>,
}

impl SequenceCache<'_> {
    /// Appends new keys or values, `[1, s, heads, size]`, and returns the rows for attention.
    fn append(
        &self,
        b: &mut ModelBuilder<'_>,
        name: &str,
        new: Value,
    ) -> Result<Value, ModelError> {
        let new = StoredCacheRows::new(b, self.format, new)?;
        let cache = new.states(b, name, [1, self.positions])?;
        let updated = cache.with(b, &new, |b, cache, new| {
            Ok(b.graph.dynamic_update_slice(cache, new, self.start)?)
        })?;
        updated.assign(b, &cache)?;
        match self.visible {
            Some(seen) => {
                let own = [Dim::Known(1), seen.positions.clone()];
                updated.slice(b, seen.origin, own)?.decoded(b)
            }
            None => updated.decoded(b),
        }
    }
}

/// Appends the keys and values to the cache and computes the attention of the newest tokens over
/// it.
fn cached(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    at: usize,
    cache: &SequenceCache<'_>,
    options: AttentionOptions,
    [q, k, v]: [Value; 3],
) -> Result<Value, ModelError> {
    let [keys, values] = &cache.names;
    let k = cache.append(b, keys, k)?;
    let v = cache.append(b, values, v)?;
    let q = cast(b, q, cache.format.attention_dtype())?;
    weighted(b, spec, at, [q, k, v], options.kv_len(cache.kv_len))
}

/// F32 attention, with attention sinks if the model has them.
///
/// A sink adds one exponential `e^s` to the denominator of the softmax. With `lse`, the log-sum-exp
/// of the scores, the result is the plain attention result times `sigmoid(lse - s)`.
pub(super) fn weighted(
    b: &mut ModelBuilder<'_>,
    spec: &DecoderSpec,
    at: usize,
    [q, k, v]: [Value; 3],
    options: AttentionOptions,
) -> Result<Value, ModelError> {
    if !spec.attention.sinks {
        let y = b.graph.attention(q, k, v, options)?;
        return cast(b, y, DType::F32);
    }
    let (y, lse) = b.graph.attention_with_lse(q, k, v, options)?;
    let y = cast(b, y, DType::F32)?;
    // Layout change from [batch, heads, queries] to [batch, queries, heads].
    let lse = b.graph.transpose(lse, &[0, 2, 1])?;
    let sinks = b.vector(
        &DecoderPart::Sinks.name(spec, b.weights, at, "weight"),
        spec.heads,
    )?;
    let rest = b.graph.sub(lse, sinks)?;
    let rest = b.graph.unary(UnaryFn::Sigmoid, rest)?;
    let rest = b.graph.unsqueeze(rest, 3)?;
    Ok(b.graph.mul(y, rest)?)
}

/// Writes the new keys or values to their cache and returns the whole cache.
pub(crate) fn append(
    b: &mut ModelBuilder<'_>,
    name: &str,
    new: Value,
    ty: &Type,
    start: Value,
) -> Result<Value, ModelError> {
    let cache = b.graph.state(name, ty.clone())?;
    let new = cast(b, new, ty.dtype)?;
    let updated = b.graph.dynamic_update_slice(cache, new, start)?;
    b.graph.assign(cache, updated)?;
    Ok(updated)
}

pub(super) fn cast(b: &mut ModelBuilder<'_>, x: Value, to: DType) -> Result<Value, ModelError> {
    if b.graph.ty(x).dtype == to {
        return Ok(x);
    }
    Ok(b.graph.cast(x, to)?)
}
