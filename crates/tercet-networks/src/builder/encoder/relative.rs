//! Relative position bias: a learned term of each attention score that depends on the distance of
//! query and key. T5 (Raffel et al., "Exploring the limits of transfer learning", 2020) and MPNet
//! use such biases.

use tercet::{DType, Dim, Tensor, Value};

use super::super::{ModelBuilder, ModelError};
use super::layer::{EncoderContext, counted};
use crate::config::RelativePositionBias;
use crate::config::encoder::EncoderPart;

/// Score bias of keys after the query in causal attention: their softmax weight is 0.
const UNSEEN: f64 = f64::NEG_INFINITY;

/// Relative position bias of an encoder, `[1, heads, len, len]`.
pub(super) fn relative_bias(
    b: &mut ModelBuilder<'_>,
    of: &EncoderContext<'_>,
    terms: RelativePositionBias,
    len: &Dim,
) -> Result<Value, ModelError> {
    let context = of.spec.context;
    let name = of.names.tensor(EncoderPart::RelativeBias, 0, "weight");
    let table = b.dense(&name, &EncoderPart::RelativeBias.shape(of.spec))?;
    let positions = counted(b, context, len)?;
    by_distance(b, table, context, [positions, positions], &|distance| {
        both_ways(distance, terms)
    })
}

/// Relative position bias of a decoder, `[1, heads, len, context]`, for queries at `positions`, I32
/// `[len]`, over a cache of `context` keys. `table [buckets, heads]` has no rows for keys after the
/// query, so they get the masking bias.
pub(crate) fn causal_bias(
    b: &mut ModelBuilder<'_>,
    table: Value,
    (context, terms): (usize, RelativePositionBias),
    positions: Value,
) -> Result<Value, ModelError> {
    let heads = b.graph.ty(table).shape[1].clone();
    let unseen = b.graph.scalar(DType::F32, UNSEEN)?;
    let unseen = b.graph.expand(unseen, [Dim::Known(1), heads])?;
    let table = b.graph.concat(&[table, unseen], 0)?;
    let keys = counted(b, context, &Dim::Known(context))?;
    by_distance(
        b,
        table,
        context,
        [positions, keys],
        &|distance| match distance > 0 {
            true => terms.buckets as i32,
            false => bucket(distance.unsigned_abs(), terms.buckets, terms.farthest),
        },
    )
}

/// Looks up `table` by the distance from query to key: `row` maps a distance to a table row. Result
/// `[1, heads, queries, keys]`; all positions are below `context`.
fn by_distance(
    b: &mut ModelBuilder<'_>,
    table: Value,
    context: usize,
    [queries, keys]: [Value; 2],
    row: &dyn Fn(i64) -> i32,
) -> Result<Value, ModelError> {
    // Expand the table to one row per distance, from `-(context - 1)` to `context - 1`.
    let most = context as i64 - 1;
    let all: Vec<i32> = (-most..=most).map(row).collect();
    let all = Tensor::from_slice(&[all.len()], &all);
    let all = all.expect("invariant: the shape matches the number of elements");
    let all = b.graph.constant(all)?;
    let by_distance = b.graph.gather(table, all, 0)?;
    let g = &mut b.graph;
    let keys = g.unsqueeze(keys, 0)?;
    let queries = g.unsqueeze(queries, 1)?;
    let distances = g.sub(keys, queries)?;
    let first = g.scalar(DType::I32, most as f64)?;
    let rows = g.plus(distances, first)?;
    let terms = g.gather(by_distance, rows, 0)?;
    let terms = g.transpose(terms, &[2, 0, 1])?;
    Ok(g.unsqueeze(terms, 0)?)
}

/// Bucket of a signed distance: half of the buckets are for keys after the query, half for keys
/// before it.
pub fn both_ways(distance: i64, terms: RelativePositionBias) -> i32 {
    let half = terms.buckets / 2;
    let side = if distance > 0 { half as i32 } else { 0 };
    side + bucket(distance.unsigned_abs(), half, terms.farthest)
}

/// Bucket of an absolute distance: the first half is exact, the second half logarithmic.
pub fn bucket(far: u64, buckets: usize, farthest: usize) -> i32 {
    let exact = buckets / 2;
    if far < exact as u64 {
        return far as i32;
    }
    // Compute the logarithms in F32 as the reference implementation does, for the same rounding.
    let ratio = (far as f32 / exact as f32).ln() / (farthest as f32 / exact as f32).ln();
    let beyond = exact as i32 + (ratio * (buckets - exact) as f32) as i32;
    beyond.min(buckets as i32 - 1)
}
