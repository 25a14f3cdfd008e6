//! KV caches of sliding-window layers for a single sequence; they hold one window and the rows of
//! some runs, not the whole context.
//!
//! For attention the first cache position is position 0; `start.W` and `kv_len.W` are relative to
//! it. When the cache is full, the generator moves the rows inside the window to the front
//! (`generator/windows.rs`).

use tercet::{DType, OpError, Shape, Type, Value};

use super::super::ModelBuilder;
use super::DecoderOptions;
use super::cache::CacheFormat;
use crate::config::decoder::{DecoderSpec, LayerSpec, Mixer};

/// Inputs of a run for the caches of one window size.
#[derive(Clone, Copy)]
pub(crate) struct WindowCache {
    pub(super) window: usize,
    /// Cache capacity in positions.
    pub(super) positions: usize,
    /// I32 `[4]`; the second element is the cache index of the first new row.
    pub(super) start: Value,
    /// I32 `[]`: filled cache positions after this run.
    pub(super) kv_len: Value,
}

/// The number of cache positions is a multiple of this alignment.
const ALIGN: usize = 16;

/// Cache positions of a layer for runs of at most `chunk` rows. The cache holds at least 1.5
/// windows, so that rows move rarely even if runs are short.
pub(crate) fn positions(layer: LayerSpec, context: usize, chunk: usize) -> usize {
    let Some(window) = layer.window else {
        return context;
    };
    let rows = chunk.min(context).max(window / 2);
    let reached = window.saturating_add(rows);
    // Take the minimum before rounding up, so that a huge window does not overflow.
    reached.min(context).next_multiple_of(ALIGN).min(context)
}

/// Sliding windows whose caches are shorter than the context, each with its cache positions and
/// layers.
pub(crate) fn windows(spec: &DecoderSpec, options: &DecoderOptions) -> Vec<WindowedLayers> {
    let mut all: Vec<WindowedLayers> = Vec::new();
    for (at, layer) in spec.layers.iter().enumerate() {
        let positions = positions(*layer, options.context, options.chunk);
        let (Some(window), Mixer::Attention) = (layer.window, layer.mixer) else {
            continue;
        };
        if positions == options.context {
            continue;
        }
        match all.iter_mut().find(|own| own.window == window) {
            Some(own) => own.layers.push(at),
            None => all.push(WindowedLayers {
                window,
                positions,
                layers: vec![at],
                format: options.cache_format(),
            }),
        }
    }
    all
}

/// Layers with the same window size.
pub(crate) struct WindowedLayers {
    pub(crate) window: usize,
    /// Cache positions per layer.
    pub(crate) positions: usize,
    pub(crate) layers: Vec<usize>,
    pub(crate) format: CacheFormat,
}

impl WindowedLayers {
    /// Names of the states of all caches.
    pub(crate) fn states(&self) -> Vec<String> {
        let caches = self.layers.iter().flat_map(|at| caches(*at));
        caches.flat_map(|name| self.format.states(&name)).collect()
    }
}

/// Input names of the layers with this window size.
pub(crate) fn inputs(window: usize) -> [String; 2] {
    [format!("start.{window}"), format!("kv_len.{window}")]
}

/// Names of the key cache and the value cache of a layer.
pub(crate) fn caches(at: usize) -> [String; 2] {
    ["k", "v"].map(|of| format!("cache.{at}.{of}"))
}

/// Adds the inputs of these layers.
pub(super) fn window_caches(
    b: &mut ModelBuilder<'_>,
    windows: &[WindowedLayers],
) -> Result<Vec<WindowCache>, OpError> {
    let of = |own: &WindowedLayers| {
        let [start, kv_len] = inputs(own.window);
        Ok(WindowCache {
            window: own.window,
            positions: own.positions,
            start: b.graph.input(&start, Type::new(DType::I32, [4]))?,
            kv_len: (b.graph).input(&kv_len, Type::new(DType::I32, Shape::default()))?,
        })
    };
    windows.iter().map(of).collect()
}

impl DecoderOptions {
    /// Storage format of the KV caches.
    pub fn cache_format(&self) -> CacheFormat {
        self.cache.unwrap_or(CacheFormat::Float(self.dtype))
    }

    /// Total bytes of the KV caches of a model, which are states of its graph. A sliding-window
    /// layer counts its window plus the rows of a run ([`DecoderOptions::chunk`]). Recurrent states
    /// are not included. The F32 copy that attention makes of a Q8_0 cache during a run is not
    /// included either.
    pub fn cache_bytes(&self, spec: &DecoderSpec) -> u64 {
        let attend = spec.layers.iter().filter(|l| l.mixer.attends());
        let positions = attend.map(|layer| positions(*layer, self.context, self.chunk) as u64);
        let width = self.cache_format().row_bytes(spec) as u64;
        positions.fold(0, |all, n| all.saturating_add(n.saturating_mul(width)))
    }
}
