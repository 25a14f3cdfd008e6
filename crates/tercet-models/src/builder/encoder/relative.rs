//! Terms of the scores by the distance of query and key (Raffel and others, "Exploring the limits of transfer learning",
//! 2020; MPNet).

use tercet::{Dim, Tensor, Value};

use super::super::{Builder, ModelError};
use super::layer::{Model, counted};
use crate::config::encoder::EncoderPart;

/// Distances from here on share a bucket.
const FARTHEST: f32 = 128.0;

/// The terms, `[1, heads, len, len]`.
pub(super) fn relative_bias(
    b: &mut Builder<'_>,
    of: &Model<'_>,
    buckets: usize,
    len: &Dim,
) -> Result<Value, ModelError> {
    let context = of.spec.context;
    let name = of.names.tensor(EncoderPart::RelativeBias, 0, "weight");
    let table = b.dense(&name, &EncoderPart::RelativeBias.shape(of.spec))?;
    // By distance, the most negative first.
    let most = context as i64 - 1;
    let all: Vec<i32> = (-most..=most).map(|d| bucket(d, buckets)).collect();
    let all = Tensor::from_slice(&[all.len()], &all);
    let all = all.expect("invariant: so many numbers make a vector of so many");
    let all = b.graph.constant(all)?;
    let by_distance = b.graph.gather(table, all, 0)?;
    let positions = counted(b, context, len)?;
    let g = &mut b.graph;
    let keys = g.unsqueeze(positions, 0)?;
    let queries = g.unsqueeze(positions, 1)?;
    let distances = g.sub(keys, queries)?;
    let first = g.scalar(tercet::DType::I32, most as f64)?;
    let rows = g.plus(distances, first)?;
    let terms = g.gather(by_distance, rows, 0)?;
    let terms = g.transpose(terms, &[2, 0, 1])?;
    Ok(g.unsqueeze(terms, 0)?)
}

/// The bucket of a key this far after its query: half of them for each direction, of which half are exact and half
/// logarithmic.
fn bucket(distance: i64, buckets: usize) -> i32 {
    let half = buckets as i32 / 2;
    let exact = half / 2;
    let side = if distance > 0 { half } else { 0 };
    let far = distance.unsigned_abs();
    if far < exact as u64 {
        return side + far as i32;
    }
    // In F32, as the reference implementation does.
    let ratio = (far as f32 / exact as f32).ln() / (FARTHEST / exact as f32).ln();
    let beyond = exact + (ratio * (half - exact) as f32) as i32;
    side + beyond.min(half - 1)
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn buckets_are_exact_near_and_shared_far() {
        let of = |d| bucket(d, 32);
        assert_eq!([0, -1, -7, -8, -11, -12].map(of), [0, 1, 7, 8, 8, 9]);
        assert_eq!([1, 7, 8, 127, 128, 5000].map(of), [17, 23, 24, 31, 31, 31]);
        assert_eq!(of(-5000), 15);
    }
}
