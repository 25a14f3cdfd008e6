//! Attention of a layer.

use tercet::ops::{AttentionOptions, Layout, RopeStyle, ScatterReduce};
use tercet::scalar::UnaryFn;
use tercet::{DType, Dim, Type, Value};

use super::super::{Builder, ModelError};
use super::cache::{CacheFormat, Stored};
use super::latent;
use super::layer::{Attend, Seen, Shared, SlotRows, norm, project};
use super::windows::caches;
use crate::config::decoder::{DecoderSpec, LayerSpec, Part, QkNorm, RopeLayout};

/// Queries, keys and values of a layer, `[batch, len, heads, head_dim]`, with the norms of queries and keys; `gate` becomes
/// the gates of queries where there are some, of the same shape.
fn heads(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    shared: &Shared,
    layer: usize,
    h: Value,
    gate: &mut Option<Value>,
) -> Result<[Value; 3], ModelError> {
    let batch = match shared.attend {
        Attend::Cached { .. } | Attend::Slots { .. } => Dim::Known(1),
        Attend::Whole { .. } => shared.batch.clone(),
    };
    let (q, kv) = (spec.q_width(), spec.kv_width());
    let parts = match spec.fused_qkv {
        true if spec.qkv_by_group => {
            let all = project(b, spec, Part::Qkv, layer, h)?;
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
            let all = project(b, spec, Part::Qkv, layer, h)?;
            let axis = b.graph.ty(all).shape.len() - 1;
            [
                b.graph.narrow(all, axis, 0, q)?,
                b.graph.narrow(all, axis, q, kv)?,
                b.graph.narrow(all, axis, q + kv, kv)?,
            ]
        }
        false => [
            project(b, spec, Part::Query, layer, h)?,
            project(b, spec, Part::Key, layer, h)?,
            project(b, spec, Part::Value, layer, h)?,
        ],
    };
    let mut parts = parts;
    if spec.gated_attention {
        let (len, size) = (shared.len.clone(), spec.head_dim);
        let shape = [batch.clone(), len, spec.heads.into(), (2 * size).into()];
        let both = b.graph.reshape(parts[0], shape)?;
        parts[0] = b.graph.narrow(both, 3, 0, size)?;
        *gate = Some(b.graph.narrow(both, 3, size, size)?);
    }
    let norms = [Some(Part::QueryNorm), Some(Part::KeyNorm), None];
    let counts = [spec.heads, spec.kv_heads, spec.kv_heads];
    let mut heads = parts;
    for ((head, norm_part), count) in heads.iter_mut().zip(norms).zip(counts) {
        let normed = norm_part.zip(spec.qk_norm);
        if let Some((part, QkNorm::Whole)) = normed {
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

/// A layer's attention of `h`.
pub(super) fn attention(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    shared: &Shared,
    at: usize,
    h: Value,
) -> Result<Value, ModelError> {
    let layer = spec.layers[at];
    let [before, after] = spec.factors.attention;
    let h = b.times(h, before)?;
    let mut gate = None;
    let [q, k, v] = match &spec.latent {
        Some(latent) => latent::heads(b, (spec, latent), shared, at, h)?,
        None => {
            let [q, k, v] = heads(b, spec, shared, at, h, &mut gate)?;
            let dims = spec.rope_dims;
            [
                turned(b, spec, shared, (layer, dims), q)?,
                turned(b, spec, shared, (layer, dims), k)?,
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
    let y = project(b, spec, Part::AttentionOutput, at, y)?;
    b.times(y, after)
}

/// The first `dims` elements of heads turned by their positions, where the layer does so.
pub(super) fn turned(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    shared: &Shared,
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
    Ok(b.graph.rope(x, cos, sin, style, dims, Layout::Bshd)?)
}

/// The result of attention, F32 `[batch, len, heads, head_dim]`.
fn attended(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    shared: &Shared,
    (at, layer): (usize, LayerSpec),
    [q, k, v]: [Value; 3],
) -> Result<Value, ModelError> {
    let mut options = AttentionOptions::new(spec.heads, spec.kv_heads, Layout::Bshd);
    if let Some(scale) = spec.attention_scale {
        options = options.scale(scale);
    }
    if let Some(cap) = spec.attention_softcap {
        options = options.softcap(cap);
    }
    match &shared.attend {
        Attend::Whole { masks, kv_len } => {
            let mask = masks.iter().find(|(window, _)| *window == layer.window);
            let (_, mask) = mask.expect("invariant: there is a mask for every window");
            let mut options = options.mask(*mask);
            options.kv_len = *kv_len;
            weighted(b, spec, at, [q, k, v], options)
        }
        Attend::Cached {
            start,
            kv_len,
            context,
            format,
            seen,
            windows,
        } => {
            let own = windows.iter().find(|own| layer.window == Some(own.window));
            // The caches of windows are short: all of them are looked at.
            let seen = seen.as_ref().filter(|_| own.is_none());
            let whole = (*start, *kv_len, *context);
            let (start, kv_len, positions) =
                own.map_or(whole, |own| (own.start, own.kv_len, own.positions));
            let cache = Cache {
                names: caches(at),
                start,
                kv_len,
                positions,
                format: *format,
                seen,
            };
            cached(
                b,
                spec,
                at,
                &cache,
                of_layer(options, layer, positions),
                [q, k, v],
            )
        }
        Attend::Slots { .. } => in_slots(b, spec, shared, (at, layer), options, [q, k, v]),
    }
}

/// The result of attention where rows are of several slots, or of none.
fn in_slots(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    shared: &Shared,
    (at, layer): (usize, LayerSpec),
    options: AttentionOptions,
    [q, k, v]: [Value; 3],
) -> Result<Value, ModelError> {
    let Attend::Slots {
        rows,
        windows,
        idle,
        origin,
        context,
        format,
        ..
    } = &shared.attend
    else {
        unreachable!("invariant: the caller looked at how layers attend");
    };
    let own = windows.iter().find(|own| layer.window == Some(own.window));
    let [of_slots, of_prompt] = match own {
        Some(own) => {
            let of = (at, caches(at), *format);
            own.attended(b, spec, rows, of, options, [q, k, v])?
        }
        None => {
            let caches = SlotCaches {
                rows,
                context: *context,
                format: *format,
                origin: *origin,
            };
            caches.attended(b, spec, (at, layer), options, [q, k, v])?
        }
    };
    let of = |rows: &Dim| {
        [
            Dim::Known(1),
            rows.clone(),
            spec.heads.into(),
            spec.value_dim().into(),
        ]
    };
    let zero = b.graph.scalar(DType::F32, 0.0)?;
    let rest = b.graph.expand(zero, of(idle))?;
    let all = b.graph.concat(&[of_slots, of_prompt, rest], 1)?;
    Ok(b.graph.dynamic_slice(all, *origin, of(&shared.len))?)
}

/// The caches of all slots.
struct SlotCaches<'a> {
    rows: &'a SlotRows,
    context: usize,
    format: CacheFormat,
    origin: Value,
}

impl SlotCaches<'_> {
    /// Writes the new keys or values of all rows, `[1, n, heads, size]`, where they belong, and returns the whole cache.
    fn append(&self, b: &mut Builder<'_>, name: &str, new: Value) -> Result<Stored, ModelError> {
        let count = b.graph.ty(new).shape[1].clone();
        let new = Stored::of(b, self.format, new)?;
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

    /// What the new tokens of all slots see: all, or if it has to be decoded no more than any slot has.
    fn seen_by_slots(&self, b: &mut Builder<'_>, cache: &Stored) -> Result<Value, ModelError> {
        match &self.rows.slots_seen {
            Some(most) => {
                let own = [self.rows.count.into(), most.clone()];
                cache.slice(b, self.origin, own)?.decoded(b)
            }
            None => cache.decoded(b),
        }
    }

    /// What a prompt's slot holds: a copy of what is filled.
    fn seen_by_prompt(&self, b: &mut Builder<'_>, cache: &Stored) -> Result<Value, ModelError> {
        let own = [Dim::Known(1), self.rows.prompt_seen.clone()];
        let seen = cache.slice(b, self.rows.prompt_start, own)?;
        seen.decoded(b)
    }

    /// Attention of the new tokens of slots, `[1, d, heads, size]`, and of a part of a prompt, `[1, s, heads, size]`.
    fn attended(
        &self,
        b: &mut Builder<'_>,
        spec: &DecoderSpec,
        (at, layer): (usize, LayerSpec),
        options: AttentionOptions,
        [q, k, v]: [Value; 3],
    ) -> Result<[Value; 2], ModelError> {
        let [keys, values] = caches(at);
        let keys = self.append(b, &keys, k)?;
        let values = self.append(b, &values, v)?;
        let q = cast(b, q, self.format.seen())?;
        let options = of_layer(options, layer, self.context);
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
        let y = b
            .graph
            .reshape(y, [Dim::Known(1), rows.count.into(), heads, size])?;
        let of_slots = b.graph.gather(y, rows.slot_of_row, 1)?;
        let (k, v) = (
            self.seen_by_prompt(b, &keys)?,
            self.seen_by_prompt(b, &values)?,
        );
        let own = b.graph.gather(q, rows.prompt_rows, 1)?;
        let of_prompt = weighted(b, spec, at, [own, k, v], options.kv_len(rows.prompt_len))?;
        Ok([of_slots, of_prompt])
    }
}

/// Positions of the cache of a slot: the last one is where rows of no slot go.
pub(super) fn slot_positions(context: usize) -> usize {
    (context + 1).next_multiple_of(SLOT_ALIGN)
}

/// Positions of caches come in so many.
const SLOT_ALIGN: usize = 16;

/// With the window of a layer; one of all positions is none.
fn of_layer(options: AttentionOptions, layer: LayerSpec, context: usize) -> AttentionOptions {
    match layer.window {
        Some(window) if window < context => options.window(window),
        Some(_) | None => options.causal(),
    }
}

/// The caches of a sequence, and how far they are filled.
struct Cache<'a> {
    /// Of keys and of values.
    names: [String; 2],
    start: Value,
    kv_len: Value,
    positions: usize,
    format: CacheFormat,
    seen: Option<&'a Seen>,
}

impl Cache<'_> {
    /// Writes new keys or values, `[1, s, heads, size]`, and returns what attention sees.
    fn append(&self, b: &mut Builder<'_>, name: &str, new: Value) -> Result<Value, ModelError> {
        let new = Stored::of(b, self.format, new)?;
        let cache = new.states(b, name, [1, self.positions])?;
        let updated = cache.with(b, &new, |b, cache, new| {
            Ok(b.graph.dynamic_update_slice(cache, new, self.start)?)
        })?;
        updated.assign(b, &cache)?;
        match self.seen {
            Some(seen) => {
                let own = [Dim::Known(1), seen.positions.clone()];
                updated.slice(b, seen.origin, own)?.decoded(b)
            }
            None => updated.decoded(b),
        }
    }
}

/// Attention of the newest tokens of a sequence over its caches, to which their keys and values are appended.
fn cached(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    at: usize,
    cache: &Cache<'_>,
    options: AttentionOptions,
    [q, k, v]: [Value; 3],
) -> Result<Value, ModelError> {
    let [keys, values] = &cache.names;
    let k = cache.append(b, keys, k)?;
    let v = cache.append(b, values, v)?;
    let q = cast(b, q, cache.format.seen())?;
    weighted(b, spec, at, [q, k, v], options.kv_len(cache.kv_len))
}

/// Attention in F32, with sinks where the model has them.
///
/// A sink is one more exponential `e^s` among those of the scores that the softmax divides by. With `lse`, the logarithm of
/// the sum of the others, it makes `sigmoid(lse - s)` of what attention without it gives.
pub(super) fn weighted(
    b: &mut Builder<'_>,
    spec: &DecoderSpec,
    at: usize,
    [q, k, v]: [Value; 3],
    options: AttentionOptions,
) -> Result<Value, ModelError> {
    if !spec.sinks {
        let y = b.graph.attention(q, k, v, options)?;
        return cast(b, y, DType::F32);
    }
    let (y, lse) = b.graph.attention_with_lse(q, k, v, options)?;
    let y = cast(b, y, DType::F32)?;
    // [batch, heads, queries] as [batch, queries, heads].
    let lse = b.graph.transpose(lse, &[0, 2, 1])?;
    let sinks = b.vector(&Part::Sinks.name(spec, b.weights, at, "weight"), spec.heads)?;
    let rest = b.graph.sub(lse, sinks)?;
    let rest = b.graph.unary(UnaryFn::Sigmoid, rest)?;
    let rest = b.graph.unsqueeze(rest, 3)?;
    Ok(b.graph.mul(y, rest)?)
}

/// Writes the new keys or values into their cache and returns all of it.
pub(crate) fn append(
    b: &mut Builder<'_>,
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

pub(super) fn cast(b: &mut Builder<'_>, x: Value, to: DType) -> Result<Value, ModelError> {
    if b.graph.ty(x).dtype == to {
        return Ok(x);
    }
    Ok(b.graph.cast(x, to)?)
}
