//! Caches of layers with a window where several sequences are side by side: they hold what a window reaches and no more.
//!
//! A position `p` lies at `p` modulo the window, so that a new token takes the place of the one that has just left the window, and
//! what is filled is what is seen, in some order. A part of a prompt sees its rows and those before it, which are gathered
//! in their order first. Each slot has two places: a part may read one and write the other, which keeps the former as it
//! was where the part began (ADR 0050).

use tercet::ops::{AttentionOptions, ScatterReduce};
use tercet::{CompileOptions, DType, Dim, OpError, Shape, Type, Value};

use super::super::{Builder, ModelError};
use super::attention::{cast, slot_positions, weighted};
use super::batch::BatchOptions;
use super::cache::{CacheFormat, Stored};
use super::layer::SlotRows;
use crate::config::decoder::{DecoderSpec, LayerSpec};

/// Places of a slot in the caches of a window.
pub(crate) const BANKS: usize = 2;

/// What a run says of the caches of layers with one window; all I32. A place is a slot and its bank (`bank * slots + slot`).
pub(crate) struct SlotWindow {
    pub(super) window: usize,
    /// Where the positions before a part of a prompt lie, in order, and where they go, both `[c, 2]`.
    old_from: Value,
    /// Where what is written goes: the positions before, then the new rows; `[c + n, 2]`.
    places: Value,
    /// Which row the new token of each place is, and how many positions it has filled after this run, both `[places]`.
    row_of_place: Value,
    kv_lens: Value,
    /// The places of new tokens, `[d]`.
    place_of_row: Value,
    /// Positions before a part of a prompt and its own, `[]`.
    prompt_len: Value,
    /// How many positions there are before.
    old: Dim,
}

/// The windows of layers whose caches do not hold the context.
pub(crate) fn slot_windows(spec: &DecoderSpec, context: usize) -> Vec<usize> {
    let attend = spec.layers.iter().filter(|l| l.mixer.attends());
    let windows = attend.filter_map(|layer| layer.window.filter(|w| is_ring(*w, context)));
    let mut all: Vec<usize> = windows.collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Whether two rings take less than the context.
fn is_ring(window: usize, context: usize) -> bool {
    window > 0 && window < context && BANKS * slot_positions(window) < slot_positions(context)
}

/// The names of the inputs of the layers with this window.
pub(crate) fn inputs(window: usize) -> [String; 7] {
    [
        "old.from",
        "old.to",
        "places",
        "slots.row",
        "slots.kv_len",
        "slots.of",
        "prompt.kv_len",
    ]
    .map(|name| format!("{name}.{window}"))
}

/// The symbol for how many positions there are before a part of a prompt.
fn symbol(window: usize) -> String {
    format!("c{window}")
}

/// The inputs of these windows.
pub(super) fn slot_window_inputs(
    b: &mut Builder<'_>,
    windows: &[usize],
    slots: usize,
    len: &Dim,
) -> Result<Vec<SlotWindow>, OpError> {
    let of = |&window: &usize| {
        let old = Dim::sym(&symbol(window));
        let shapes: [Shape; 7] = [
            [old.clone(), 2.into()].into(),
            [old.clone(), 2.into()].into(),
            [len.clone(), 2.into()].into(),
            [Dim::Known(BANKS * slots)].into(),
            [Dim::Known(BANKS * slots)].into(),
            [Dim::sym("d")].into(),
            Shape::default(),
        ];
        let named = inputs(window).into_iter().zip(shapes);
        let all = named.map(|(name, shape)| b.graph.input(&name, Type::new(DType::I32, shape)));
        let all = all.collect::<Result<Vec<Value>, OpError>>()?;
        Ok(SlotWindow {
            window,
            old_from: all[0],
            places: b.graph.concat(&all[1..3], 0)?,
            row_of_place: all[3],
            kv_lens: all[4],
            place_of_row: all[5],
            prompt_len: all[6],
            old,
        })
    };
    windows.iter().map(of).collect()
}

/// With the bounds of these inputs' symbols.
pub(super) fn bounded(options: CompileOptions, windows: &[usize]) -> CompileOptions {
    let of = |options: CompileOptions, window: &usize| {
        // The new row is one of those that it sees.
        options.bound(&symbol(*window), (window - 1).max(1))
    };
    windows.iter().fold(options, of)
}

impl SlotWindow {
    /// Attention of the new tokens of slots, `[1, d, heads, size]`, and of a part of a prompt, `[1, s, heads, size]`, over
    /// caches `names` of this type.
    pub(super) fn attended(
        &self,
        b: &mut Builder<'_>,
        spec: &DecoderSpec,
        rows: &SlotRows,
        (at, names, format): (usize, [String; 2], CacheFormat),
        options: AttentionOptions,
        [q, k, v]: [Value; 3],
    ) -> Result<[Value; 2], ModelError> {
        let [keys, values] = names;
        let [k, all_k] = self.append(b, rows, (&keys, format), k)?;
        let [v, all_v] = self.append(b, rows, (&values, format), v)?;
        let q = cast(b, q, format.seen())?;
        let own = b.graph.gather(q, self.row_of_place, 1)?;
        let shape = b.graph.ty(own).shape.clone();
        let (heads, size) = (shape[2].clone(), shape[3].clone());
        let places = Dim::Known(BANKS * rows.count);
        let shape = [places.clone(), 1.into(), heads.clone(), size];
        let own = b.graph.reshape(own, shape)?;
        // All that is filled is seen.
        let of_slots = options.causal().kv_len(self.kv_lens);
        let y = weighted(b, spec, at, [own, k, v], of_slots)?;
        let shape = [Dim::Known(1), places, heads, spec.value_dim().into()];
        let y = b.graph.reshape(y, shape)?;
        let of_slots = b.graph.gather(y, self.place_of_row, 1)?;
        let own = b.graph.gather(q, rows.prompt_rows, 1)?;
        let options = options.window(self.window).kv_len(self.prompt_len);
        let of_prompt = weighted(b, spec, at, [own, all_k, all_v], options)?;
        Ok([of_slots, of_prompt])
    }

    /// Writes the new keys or values of all rows, `[1, n, heads, size]`, where they belong, and returns the whole cache, and
    /// what a part of a prompt sees, `[1, c + s, heads, size]`.
    fn append(
        &self,
        b: &mut Builder<'_>,
        rows: &SlotRows,
        (name, format): (&str, CacheFormat),
        new: Value,
    ) -> Result<[Value; 2], ModelError> {
        let count = b.graph.ty(new).shape[1].clone();
        let new = Stored::of(b, format, new)?;
        let first = [BANKS * rows.count, slot_positions(self.window)];
        let cache = new.states(b, name, first)?;
        // Before anything is written: new rows take the places of old ones.
        let old = cache.map(b, |b, cache| {
            Ok(b.graph.gather_nd(cache, self.old_from, 0)?)
        })?;
        let flat = new.reshaped(b, &[count])?;
        let written = old.with(b, &flat, |b, old, new| {
            Ok(b.graph.concat(&[old, new], 0)?)
        })?;
        let updated = cache.with(b, &written, |b, cache, written| {
            let replace = ScatterReduce::Replace;
            Ok(b.graph.scatter_nd(cache, self.places, written, replace)?)
        })?;
        updated.assign(b, &cache)?;
        let old = old.reshaped(b, &[1.into(), self.old.clone()])?;
        let own = new.map(b, |b, new| Ok(b.graph.gather(new, rows.prompt_rows, 1)?))?;
        let seen = old.with(b, &own, |b, old, own| Ok(b.graph.concat(&[old, own], 1)?))?;
        Ok([updated.decoded(b)?, seen.decoded(b)?])
    }
}

/// Positions of the cache of a slot of a layer, in all its places.
pub(super) fn positions(layer: LayerSpec, context: usize) -> usize {
    match layer.window {
        Some(window) if is_ring(window, context) => BANKS * slot_positions(window),
        Some(_) | None => slot_positions(context),
    }
}

impl BatchOptions {
    /// How caches store keys and values.
    pub fn cache_format(&self) -> CacheFormat {
        self.cache.unwrap_or(CacheFormat::Float(self.dtype))
    }

    /// Bytes of the caches of all slots, which the graph has as states: of keys and values of every layer that attends, those
    /// of a layer with a window twice what it reaches where that is less than the context. States of layers that scan are not among
    /// them, nor is what one layer's attention sees while a run lasts, F32, where caches are of Q8_0.
    pub fn cache_bytes(&self, spec: &DecoderSpec) -> u64 {
        let attend = spec.layers.iter().filter(|l| l.mixer.attends());
        let positions = attend.map(|layer| positions(*layer, self.context) as u64);
        let width = (self.slots * self.cache_format().row_bytes(spec)) as u64;
        positions.fold(0, |all, n| all.saturating_add(n.saturating_mul(width)))
    }
}
