//! Ring-buffer KV caches of sliding-window layers in batch mode; they hold one window per sequence.
//!
//! Position `p` has the cache index `p` modulo the window. A new token therefore overwrites the
//! token that has just left the window, and every filled index is visible, in arbitrary order. A
//! prefill chunk attends to its own rows and the positions before it, which are first gathered in
//! order. Each slot has two buffers. A chunk may read one and write the other, which preserves the
//! cache as of the start of the chunk.

use tercet::ops::{AttentionOptions, ScatterReduce};
use tercet::{CompileOptions, DType, Dim, OpError, Shape, Type, Value};

use super::super::{ModelBuilder, ModelError};
use super::attention::{cast, slot_positions, weighted};
use super::batch::BatchOptions;
use super::cache::{CacheFormat, StoredCacheRows};
use super::layer::SlotRows;
use crate::config::decoder::{DecoderSpec, LayerSpec};

/// Buffers per slot in a window cache.
pub(crate) const BANKS: usize = 2;

/// Inputs of a run for the window caches of one window size, all I32. A buffer index is `bank *
/// slots + slot`.
pub(crate) struct SlotWindow {
    pub(super) window: usize,
    /// Source indices of the positions before a prefill chunk, in order, `[c, 2]`.
    old_from: Value,
    /// Destination indices of all written rows: first the old positions, then the new rows, `[c +
    /// n, 2]`.
    places: Value,
    /// Row of the new token of each buffer, `[places]`. The next field contains the filled
    /// positions of each buffer after this run, `[places]`.
    row_of_place: Value,
    kv_lens: Value,
    /// Attention result of each row, `[n]`: the buffer of a new token, or `places` plus the index in
    /// the prefill chunk.
    pub(super) source_of_row: Value,
    /// Number of positions visible to a prefill chunk: those before it plus its own, `[]`.
    prompt_len: Value,
    /// Number of positions before the chunk, as a symbolic axis.
    old: Dim,
}

/// Window sizes of the layers whose caches are shorter than the context.
pub(crate) fn slot_windows(spec: &DecoderSpec, context: usize) -> Vec<usize> {
    let attend = spec.layers.iter().filter(|l| l.mixer.attends());
    let windows = attend.filter_map(|layer| layer.window.filter(|w| is_ring(*w, context)));
    let mut all: Vec<usize> = windows.collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// True if two ring buffers are smaller than one full-context cache.
fn is_ring(window: usize, context: usize) -> bool {
    window > 0 && window < context && BANKS * slot_positions(window) < slot_positions(context)
}

/// Input names of the layers with this window size.
pub(crate) fn inputs(window: usize) -> [String; 7] {
    [
        "old.from",
        "old.to",
        "places",
        "slots.row",
        "slots.kv_len",
        "results",
        "prompt.kv_len",
    ]
    .map(|name| format!("{name}.{window}"))
}

/// Symbol for the number of positions before a prefill chunk.
fn symbol(window: usize) -> String {
    format!("c{window}")
}

/// Adds the inputs of these window sizes.
pub(super) fn slot_window_inputs(
    b: &mut ModelBuilder<'_>,
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
            [len.clone()].into(),
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
            source_of_row: all[5],
            prompt_len: all[6],
            old,
        })
    };
    windows.iter().map(of).collect()
}

/// Adds the upper bounds of the inputs' symbolic sizes.
pub(super) fn bounded(options: CompileOptions, windows: &[usize]) -> CompileOptions {
    let of = |options: CompileOptions, window: &usize| {
        // The window includes the new token itself, so at most `window - 1` positions precede it.
        options.bound(&symbol(*window), (window - 1).max(1))
    };
    windows.iter().fold(options, of)
}

impl SlotWindow {
    /// Attention of the new token of each buffer, `[1, places, heads, size]`, and of a prefill
    /// chunk, `[1, s, heads, size]`, over the caches `names` in this format. Results of buffers
    /// without a new token are arbitrary.
    pub(super) fn attended(
        &self,
        b: &mut ModelBuilder<'_>,
        spec: &DecoderSpec,
        rows: &SlotRows,
        (at, names, format): (usize, [String; 2], CacheFormat),
        options: AttentionOptions,
        [q, k, v]: [Value; 3],
    ) -> Result<[Value; 2], ModelError> {
        let [keys, values] = names;
        let [k, all_k] = self.append(b, rows, (&keys, format), k)?;
        let [v, all_v] = self.append(b, rows, (&values, format), v)?;
        let q = cast(b, q, format.attention_dtype())?;
        let own = b.graph.gather(q, self.row_of_place, 1)?;
        let shape = b.graph.ty(own).shape.clone();
        let (heads, size) = (shape[2].clone(), shape[3].clone());
        let places = Dim::Known(BANKS * rows.count);
        let shape = [places.clone(), 1.into(), heads.clone(), size];
        let own = b.graph.reshape(own, shape)?;
        // The ring buffer contains only visible positions, so no window mask is required.
        let of_slots = options.causal().kv_len(self.kv_lens);
        let y = weighted(b, spec, at, [own, k, v], of_slots)?;
        let shape = [Dim::Known(1), places, heads, spec.value_dim().into()];
        let of_slots = b.graph.reshape(y, shape)?;
        let own = b.graph.gather(q, rows.prompt_rows, 1)?;
        let options = options.window(self.window).kv_len(self.prompt_len);
        let of_prompt = weighted(b, spec, at, [own, all_k, all_v], options)?;
        Ok([of_slots, of_prompt])
    }

    /// Writes the new keys or values of all rows, `[1, n, heads, size]`, to the ring buffers.
    /// Returns the whole cache, and the rows that a prefill chunk attends to, `[1, c + s, heads,
    /// size]`.
    fn append(
        &self,
        b: &mut ModelBuilder<'_>,
        rows: &SlotRows,
        (name, format): (&str, CacheFormat),
        new: Value,
    ) -> Result<[Value; 2], ModelError> {
        let count = b.graph.ty(new).shape[1].clone();
        let new = StoredCacheRows::new(b, format, new)?;
        let first = [BANKS * rows.count, slot_positions(self.window)];
        let cache = new.states(b, name, first)?;
        // Gather before the scatter: new rows overwrite old ones.
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

/// Cache positions per slot of a layer, over both buffers.
pub(super) fn positions(layer: LayerSpec, context: usize) -> usize {
    match layer.window {
        Some(window) if is_ring(window, context) => BANKS * slot_positions(window),
        Some(_) | None => slot_positions(context),
    }
}

impl BatchOptions {
    /// Storage format of the KV caches.
    pub fn cache_format(&self) -> CacheFormat {
        self.cache.unwrap_or(CacheFormat::Float(self.dtype))
    }

    /// Total bytes of the KV caches of all slots, which are states of the graph. A sliding-window
    /// layer counts two windows if that is less than the context. Recurrent states are not
    /// included. The F32 copy that attention makes of a Q8_0 cache during a run is not included
    /// either.
    pub fn cache_bytes(&self, spec: &DecoderSpec) -> u64 {
        let attend = spec.layers.iter().filter(|l| l.mixer.attends());
        let positions = attend.map(|layer| positions(*layer, self.context) as u64);
        let width = (self.slots * self.cache_format().row_bytes(spec)) as u64;
        positions.fold(0, |all, n| all.saturating_add(n.saturating_mul(width)))
    }
}
