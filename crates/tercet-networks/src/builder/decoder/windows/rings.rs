//! Ring-buffer KV caches of sliding-window layers in batch mode; they hold one window per sequence.
//!
//! Position `p` has the cache index `p` modulo the window. A new token therefore overwrites the
//! token that has just left the window, and every filled index is visible, in arbitrary order. A
//! prefill chunk attends to its own rows and the positions before it, which are first gathered in
//! order. Each slot has two buffers. A chunk may read one and write the other, which preserves the
//! cache as of the start of the chunk.

use tercet::ops::{AttentionOptions, ScatterReduce};
use tercet::{Dim, OpError, Shape, Value};

use super::super::attention::{cast, slot_positions, weighted};
use super::super::cache::{CacheFormat, StoredCacheRows};
use super::super::layer::SlotRows;
use super::super::run_rows::SlotChunk;
use super::{BANKS, ModelBuilder, ModelError, RunRows, WindowCaches, first_visible};
use crate::config::decoder::DecoderSpec;

/// Inputs of a run for the window caches of one window size, all I32. A buffer index is `bank *
/// slots + slot`.
pub(crate) struct SlotWindow {
    pub(crate) window: usize,
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
    pub(crate) source_of_row: Value,
    /// Number of positions visible to a prefill chunk: those before it plus its own, `[]`.
    prompt_len: Value,
    /// Number of positions before the chunk, as a symbolic axis.
    old: Dim,
}

/// Symbol for the number of positions before a prefill chunk.
pub(super) fn symbol(window: usize) -> String {
    format!("c{window}")
}

/// Names and shapes of the inputs.
pub(super) fn inputs(window: usize, slots: usize, len: &Dim) -> Vec<(&'static str, Shape)> {
    let old = Dim::sym(&symbol(window));
    let places = Dim::Known(BANKS * slots);
    vec![
        ("old.from", [old.clone(), 2.into()].into()),
        ("old.to", [old, 2.into()].into()),
        ("places", [len.clone(), 2.into()].into()),
        ("slots.row", [places.clone()].into()),
        ("slots.kv_len", [places].into()),
        ("results", [len.clone()].into()),
        ("prompt.kv_len", Shape::default()),
    ]
}

/// Adds the inputs of these caches to a graph.
pub(crate) fn slot_windows(
    b: &mut ModelBuilder<'_>,
    windows: &[WindowCaches],
    len: &Dim,
) -> Result<Vec<SlotWindow>, OpError> {
    let of = |own: &WindowCaches| {
        let all = own.graph_inputs(b, len)?;
        Ok(SlotWindow {
            window: own.window,
            old_from: all[0],
            places: b.graph.concat(&all[1..3], 0)?,
            row_of_place: all[3],
            kv_lens: all[4],
            source_of_row: all[5],
            prompt_len: all[6],
            old: Dim::sym(&symbol(own.window)),
        })
    };
    windows.iter().map(of).collect()
}

/// Shapes and values of the inputs of a run.
pub(super) fn values(
    window: usize,
    slots: usize,
    rows: &RunRows<'_>,
) -> Vec<(Vec<usize>, Vec<i32>)> {
    let rings = Rings { window, slots };
    let places = BANKS * slots;
    let (mut row_of_place, mut kv_lens) = (vec![0; places], vec![1; places]);
    let mut results = Vec::with_capacity(rows.count());
    let (mut old_from, mut old_to) = (Vec::new(), Vec::new());
    let mut prompt_len = 0;
    match rows {
        RunRows::Tokens(parts, _) => {
            for (row, part) in parts.iter().enumerate() {
                let place = rings.place(part, part.banks[1]);
                row_of_place[place] = row as i32;
                kv_lens[place] = (part.start + 1).min(window) as i32;
                results.push(place as i32);
            }
        }
        RunRows::Chunk(part, _) => {
            let old = first_visible(window, part.start)..part.start;
            prompt_len = old.len() + part.tokens.len();
            results.extend((places..places + part.tokens.len()).map(|at| at as i32));
            let from = rings.place(part, part.banks[0]) as i32;
            old_from.extend(old.clone().flat_map(|p| [from, (p % window) as i32]));
            old_to.extend(old.flat_map(|p| rings.to(part, p)));
        }
    }
    results.resize(rows.count(), 0);
    let of_part = |part: &SlotChunk| part.start..part.start + part.tokens.len();
    let own = rows.parts().iter();
    let own = own.flat_map(|part| of_part(part).flat_map(|p| rings.to(part, p)));
    let idle = std::iter::repeat_n(rings.nowhere(), rows.idle()).flatten();
    let own: Vec<i32> = own.chain(idle).collect();
    let old = old_from.len() / 2;
    vec![
        (vec![old, 2], old_from),
        (vec![old, 2], old_to),
        (vec![rows.count(), 2], own),
        (vec![places], row_of_place),
        (vec![places], kv_lens),
        (vec![rows.count()], results),
        (vec![], vec![prompt_len as i32]),
    ]
}

/// Places of rows in the ring buffers.
struct Rings {
    window: usize,
    slots: usize,
}

impl Rings {
    fn place(&self, part: &SlotChunk, bank: usize) -> usize {
        bank * self.slots + part.slot
    }

    /// Cache index of position `p`; the discard position if a later token of the same chunk
    /// overwrites it.
    fn to(&self, part: &SlotChunk, p: usize) -> [i32; 2] {
        let end = part.start + part.tokens.len();
        match p + self.window < end {
            true => self.nowhere(),
            false => {
                let place = self.place(part, part.banks[1]);
                [place as i32, (p % self.window) as i32]
            }
        }
    }

    /// Discard position of the cache, which no attention reads.
    fn nowhere(&self) -> [i32; 2] {
        [0, self.window as i32]
    }
}

impl SlotWindow {
    /// Attention of the new token of each buffer, `[1, places, heads, size]`, and of a prefill
    /// chunk, `[1, s, heads, size]`, over the caches `names` in this format. Results of buffers
    /// without a new token are arbitrary.
    pub(crate) fn attended(
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
