//! Window caches of one text, with rows in order: a window and the rows of some runs.
//!
//! For attention the first cache position is position 0; `start.W` and `kv_len.W` are relative to
//! it. When the cache is full, the rows inside the window move to the front.

use std::ops::Range;

use tercet::{Dim, Executable, OpError, Shape, Value};

use super::{ModelBuilder, ModelError, RunRows, WaitMode, WindowCaches};

/// Inputs of a run for the caches of one window size.
#[derive(Clone, Copy)]
pub(crate) struct WindowCache {
    pub(crate) window: usize,
    /// Cache capacity in positions.
    pub(crate) positions: usize,
    /// I32 `[4]`; the second element is the cache index of the first new row.
    pub(crate) start: Value,
    /// I32 `[]`: filled cache positions after this run.
    pub(crate) kv_len: Value,
}

/// The number of cache positions is a multiple of this alignment.
const ALIGN: usize = 16;

/// Cache positions for runs of at most `chunk` rows. The cache holds at least 1.5 windows, so that
/// rows move rarely even if runs are short.
pub(super) fn positions(window: usize, context: usize, chunk: usize) -> usize {
    let rows = chunk.min(context).max(window / 2);
    let reached = window.saturating_add(rows);
    // Take the minimum before rounding up, so that a huge window does not overflow.
    reached.min(context).next_multiple_of(ALIGN).min(context)
}

/// Names and shapes of the inputs.
pub(super) fn inputs() -> Vec<(&'static str, Shape)> {
    vec![
        ("start", [Dim::Known(4)].into()),
        ("kv_len", Shape::default()),
    ]
}

/// Shapes and values of the inputs of a run; the caches begin at position `base`.
pub(super) fn values(base: usize, rows: &RunRows<'_>) -> Vec<(Vec<usize>, Vec<i32>)> {
    let part = rows.parts().first();
    let (own, new) = part.map_or((0, 0), |part| (part.start - base, part.tokens.len()));
    vec![
        (vec![4], vec![0, own as i32, 0, 0]),
        (vec![], vec![(own + new) as i32]),
    ]
}

/// Adds the inputs of these caches to a graph.
pub(crate) fn window_caches(
    b: &mut ModelBuilder<'_>,
    windows: &[WindowCaches],
    len: &Dim,
) -> Result<Vec<WindowCache>, OpError> {
    let of = |own: &WindowCaches| {
        let inputs = own.graph_inputs(b, len)?;
        Ok(WindowCache {
            window: own.window,
            positions: own.layout.positions(own.window),
            start: inputs[0],
            kv_len: inputs[1],
        })
    };
    windows.iter().map(of).collect()
}

/// Moves the rows `kept` of a state with this number of rows to the front.
///
/// # Errors
/// [`ModelError::Run`] of the device.
pub(super) async fn move_to_front(
    exe: &mut dyn Executable,
    name: &str,
    positions: usize,
    kept: Range<usize>,
    waits: WaitMode,
) -> Result<(), ModelError> {
    let mut state = match waits {
        WaitMode::Blocking => exe.read_state(name)?,
        WaitMode::Awaiting => exe.fetch_state(name)?.await?,
    };
    let row = state.bytes().len() / positions;
    state
        .bytes_mut()
        .copy_within(kept.start * row..kept.end * row, 0);
    Ok(exe.write_state(name, &state)?)
}
