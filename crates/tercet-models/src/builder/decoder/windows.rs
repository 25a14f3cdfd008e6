//! Caches of layers with a window: they hold what a window reaches and the rows of some runs, not the whole context.
//!
//! To attention such a cache is one whose first position is not that of the text, which `start.W` and `kv_len.W` count
//! from; whoever runs the graph moves what the window still reaches to the front when it is full (`generator/windows.rs`,
//! ADR 0046).

use tercet::{DType, OpError, Shape, Type, Value};

use super::super::Builder;
use super::DecoderOptions;
use super::cache::CacheFormat;
use crate::config::decoder::{DecoderSpec, LayerSpec, Mixer};

/// What a run says of the caches of layers with a window.
#[derive(Clone, Copy)]
pub(crate) struct WindowCache {
    pub(super) window: usize,
    /// Their capacity.
    pub(super) positions: usize,
    /// I32 `[4]`: its second number is where the first new row goes.
    pub(super) start: Value,
    /// I32 `[]`: positions filled after this run.
    pub(super) kv_len: Value,
}

/// Positions come in so many.
const ALIGN: usize = 16;

/// Positions of the cache of a layer, for runs of so many rows: half a window more than one reaches where runs are short, so
/// that little is moved.
pub(crate) fn positions(layer: LayerSpec, context: usize, chunk: usize) -> usize {
    let Some(window) = layer.window else {
        return context;
    };
    let rows = chunk.min(context).max(window / 2);
    let reached = window.saturating_add(rows);
    // First the lesser: a window of any size is no overflow.
    reached.min(context).next_multiple_of(ALIGN).min(context)
}

/// The windows of layers whose caches do not hold the context, with their positions and the layers.
pub(crate) fn windows(spec: &DecoderSpec, options: &DecoderOptions) -> Vec<Windowed> {
    let mut all: Vec<Windowed> = Vec::new();
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
            None => all.push(Windowed {
                window,
                positions,
                layers: vec![at],
                format: options.cache_format(),
            }),
        }
    }
    all
}

/// Layers of one window.
pub(crate) struct Windowed {
    pub(crate) window: usize,
    /// Of the cache of each.
    pub(crate) positions: usize,
    pub(crate) layers: Vec<usize>,
    pub(crate) format: CacheFormat,
}

impl Windowed {
    /// The names of the states of all caches.
    pub(crate) fn states(&self) -> Vec<String> {
        let caches = self.layers.iter().flat_map(|at| caches(*at));
        caches.flat_map(|name| self.format.states(&name)).collect()
    }
}

/// The names of the inputs of the layers with this window.
pub(crate) fn inputs(window: usize) -> [String; 2] {
    [format!("start.{window}"), format!("kv_len.{window}")]
}

/// The names of the caches of a layer.
pub(crate) fn caches(at: usize) -> [String; 2] {
    ["k", "v"].map(|of| format!("cache.{at}.{of}"))
}

/// The inputs of these layers.
pub(super) fn window_caches(
    b: &mut Builder<'_>,
    windows: &[Windowed],
) -> Result<Vec<WindowCache>, OpError> {
    let of = |own: &Windowed| {
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
    /// How caches store keys and values.
    pub fn cache_format(&self) -> CacheFormat {
        self.cache.unwrap_or(CacheFormat::Float(self.dtype))
    }

    /// Bytes of the caches of a model, which its graph has as states: of keys and values of every layer that attends, those
    /// of a layer with a window as far as the window reaches and a run of [`DecoderOptions::chunk`] goes. States of layers that
    /// scan are not among them, nor is what one layer's attention sees while a run lasts, F32, where caches are of Q8_0.
    pub fn cache_bytes(&self, spec: &DecoderSpec) -> u64 {
        let attend = spec.layers.iter().filter(|l| l.mixer.attends());
        let positions = attend.map(|layer| positions(*layer, self.context, self.chunk) as u64);
        let width = self.cache_format().row_bytes(spec) as u64;
        positions.fold(0, |all, n| all.saturating_add(n.saturating_mul(width)))
    }
}
