//! KV caches of sliding-window layers: they hold a window and a few rows, not the whole context.
//!
//! A graph of one text keeps rows in order ([`ordered`]); a graph of slots has two ring buffers a
//! slot ([`rings`]). This module has the rules of both: which layers have such caches, which
//! positions a token needs, how far back a sequence can go, and which inputs describe a run.

pub(super) mod ordered;
pub(super) mod rings;

use tercet::{CompileOptions, DType, Dim, Executable, OpError, Shape, Tensor, Type, Value};

use super::attention::slot_positions;
use super::batch::BatchOptions;
use super::cache::CacheFormat;
use super::run_rows::{RunRows, empty_input, write_input};
use super::{DecoderOptions, ModelBuilder, ModelError};
use crate::config::decoder::DecoderSpec;
use crate::maybe_async::WaitMode;

/// Buffers per slot in a ring cache.
pub(crate) const BANKS: usize = 2;

/// Arrangement of the rows in a window cache.
#[derive(Clone, Copy)]
enum WindowLayout {
    /// Caches of one text with rows in order, and their capacity in positions.
    Ordered(usize),
    /// Two ring buffers for each of this number of slots.
    Rings(usize),
}

/// Caches of all layers with the same sliding window.
pub(crate) struct WindowCaches {
    window: usize,
    layout: WindowLayout,
    /// Names of the states of all caches.
    states: Vec<String>,
}

impl WindowLayout {
    /// Positions of a cache per slot.
    fn positions(self, window: usize) -> usize {
        match self {
            WindowLayout::Ordered(positions) => positions,
            WindowLayout::Rings(_) => BANKS * slot_positions(window),
        }
    }
}

/// First position that a token at `position` attends to.
fn first_visible(window: usize, position: usize) -> usize {
    (position + 1).saturating_sub(window)
}

impl DecoderOptions {
    /// Layout of the caches of this window; `None` if they are not shorter than the context.
    fn window_layout(&self, window: usize) -> Option<WindowLayout> {
        let positions = ordered::positions(window, self.context, self.chunk);
        (positions < self.context).then_some(WindowLayout::Ordered(positions))
    }

    /// Window caches of a graph of one text.
    pub(crate) fn window_caches(&self, spec: &DecoderSpec) -> Vec<WindowCaches> {
        let layout = |window| self.window_layout(window);
        collect(spec, self.cache_format(), layout)
    }

    /// Storage format of the KV caches.
    pub fn cache_format(&self) -> CacheFormat {
        self.cache.unwrap_or(CacheFormat::Float(self.dtype))
    }

    /// Total bytes of the KV caches of a model, which are states of its graph. A sliding-window
    /// layer counts its window plus the rows of a run ([`DecoderOptions::chunk`]). Recurrent states
    /// are not included. The F32 copy that attention makes of a Q8_0 cache during a run is not
    /// included either.
    pub fn cache_bytes(&self, spec: &DecoderSpec) -> u64 {
        let layout = |window| self.window_layout(window);
        let width = self.cache_format().row_bytes(spec);
        cache_bytes(spec, self.context, layout, width)
    }
}

impl BatchOptions {
    /// Layout of the caches of this window; `None` if two ring buffers are not smaller than one
    /// cache of the context.
    fn window_layout(&self, window: usize) -> Option<WindowLayout> {
        let is_shorter = BANKS * slot_positions(window) < slot_positions(self.context);
        let is_ring = window > 0 && window < self.context && is_shorter;
        is_ring.then_some(WindowLayout::Rings(self.slots))
    }

    /// Window caches of a graph of slots.
    pub(crate) fn window_caches(&self, spec: &DecoderSpec) -> Vec<WindowCaches> {
        let layout = |window| self.window_layout(window);
        collect(spec, self.cache_format(), layout)
    }

    /// Storage format of the KV caches.
    pub fn cache_format(&self) -> CacheFormat {
        self.cache.unwrap_or(CacheFormat::Float(self.dtype))
    }

    /// Total bytes of the KV caches of all slots, which are states of the graph. A sliding-window
    /// layer counts two windows if that is less than the context. Recurrent states are not
    /// included. The F32 copy that attention makes of a Q8_0 cache during a run is not included
    /// either.
    pub fn cache_bytes(&self, spec: &DecoderSpec) -> u64 {
        let layout = |window| self.window_layout(window);
        let width = self.slots * self.cache_format().row_bytes(spec);
        cache_bytes(spec, slot_positions(self.context), layout, width)
    }
}

/// The window caches of a model whose windows have this layout.
fn collect(
    spec: &DecoderSpec,
    format: CacheFormat,
    layout: impl Fn(usize) -> Option<WindowLayout>,
) -> Vec<WindowCaches> {
    let mut all: Vec<WindowCaches> = Vec::new();
    for (at, layer) in spec.layers.iter().enumerate() {
        let window = layer.window.filter(|_| layer.mixer.attends());
        let Some((window, layout)) = window.and_then(|window| Some((window, layout(window)?)))
        else {
            continue;
        };
        let states = caches(at).into_iter().flat_map(|name| format.states(&name));
        match all.iter_mut().find(|own| own.window == window) {
            Some(own) => own.states.extend(states),
            None => all.push(WindowCaches {
                window,
                layout,
                states: states.collect(),
            }),
        }
    }
    all
}

/// Bytes of all KV caches with rows of this width; layers without a window cache have `whole`
/// positions.
fn cache_bytes(
    spec: &DecoderSpec,
    whole: usize,
    layout: impl Fn(usize) -> Option<WindowLayout>,
    row_bytes: usize,
) -> u64 {
    let attend = spec.layers.iter().filter(|layer| layer.mixer.attends());
    let positions = attend.map(|layer| {
        let of_window = layer.window.and_then(|w| Some(layout(w)?.positions(w)));
        of_window.unwrap_or(whole) as u64
    });
    positions.fold(0, |all, n| {
        all.saturating_add(n.saturating_mul(row_bytes as u64))
    })
}

/// Names of the key cache and the value cache of a layer.
pub(super) fn caches(at: usize) -> [String; 2] {
    ["k", "v"].map(|of| format!("cache.{at}.{of}"))
}

impl WindowCaches {
    /// Names and shapes of the inputs of a run, all I32; `len` is its number of rows.
    fn inputs(&self, len: &Dim) -> Vec<(String, Shape)> {
        let inputs = match self.layout {
            WindowLayout::Ordered(_) => ordered::inputs(),
            WindowLayout::Rings(slots) => rings::inputs(self.window, slots, len),
        };
        let named = |(name, shape)| (format!("{name}.{}", self.window), shape);
        inputs.into_iter().map(named).collect()
    }

    /// Adds the inputs of a run to a graph.
    fn graph_inputs(&self, b: &mut ModelBuilder<'_>, len: &Dim) -> Result<Vec<Value>, OpError> {
        let inputs = self.inputs(len).into_iter();
        let added = inputs.map(|(name, shape)| b.graph.input(&name, Type::new(DType::I32, shape)));
        added.collect()
    }

    /// Adds the upper bounds of the inputs' symbolic sizes.
    pub(super) fn bounded(&self, options: CompileOptions) -> CompileOptions {
        match self.layout {
            WindowLayout::Ordered(_) => options,
            // The window includes the new token itself, so at most `window - 1` positions precede it.
            WindowLayout::Rings(_) => {
                options.bound(&rings::symbol(self.window), (self.window - 1).max(1))
            }
        }
    }
}

/// Inputs of the runs of an executable for its window caches of one size.
pub(crate) struct WindowInputs {
    caches: WindowCaches,
    /// Sequence position of the first row of caches in order.
    base: usize,
    names: Vec<String>,
    tensors: Vec<Tensor>,
}

impl WindowInputs {
    pub(crate) fn new(caches: WindowCaches) -> WindowInputs {
        let inputs = caches.inputs(&Dim::Known(0)).into_iter();
        let names: Vec<String> = inputs.map(|(name, _)| name).collect();
        WindowInputs {
            tensors: names.iter().map(|_| empty_input()).collect(),
            base: 0,
            names,
            caches,
        }
    }

    /// The window, if one of its caches is this state.
    pub(crate) fn window_of(&self, state: &str) -> Option<usize> {
        let has = self.caches.states.iter().any(|own| own == state);
        has.then_some(self.caches.window)
    }

    /// True if a sequence whose end is after `position` can go back to it: its caches still cover
    /// the window of a token there. New tokens overwrite a ring.
    pub(crate) fn reaches(&self, position: usize) -> bool {
        match self.caches.layout {
            WindowLayout::Ordered(_) => self.base <= first_visible(self.caches.window, position),
            WindowLayout::Rings(_) => false,
        }
    }

    /// Makes room for the rows of a run. If caches in order are full, their rows in the window move
    /// to the front.
    ///
    /// # Errors
    /// [`ModelError::Run`]; the contents of the caches are then invalid.
    pub(crate) async fn make_room(
        &mut self,
        exe: &mut dyn Executable,
        rows: &RunRows<'_>,
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        let WindowLayout::Ordered(positions) = self.caches.layout else {
            return Ok(());
        };
        for part in rows.parts() {
            if part.start == 0 {
                self.base = 0;
            }
            if part.start + part.tokens.len() - self.base > positions {
                let first = first_visible(self.caches.window, part.start);
                let kept = first - self.base..part.start - self.base;
                for name in &self.caches.states {
                    ordered::move_to_front(exe, name, positions, kept.clone(), waits).await?;
                }
                self.base = first;
            }
        }
        Ok(())
    }

    /// Fills the inputs for a run.
    pub(crate) fn fill(&mut self, rows: &RunRows<'_>) {
        let values = match self.caches.layout {
            WindowLayout::Ordered(_) => ordered::values(self.base, rows),
            WindowLayout::Rings(slots) => rings::values(self.caches.window, slots, rows),
        };
        for (tensor, (shape, values)) in self.tensors.iter_mut().zip(values) {
            write_input(tensor, &shape, values);
        }
    }

    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.tensors)
    }
}
