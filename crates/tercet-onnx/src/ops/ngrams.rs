//! Counts of n-grams.

use tercet_ir::ops::ReduceFn;
use tercet_ir::scalar::{BinaryFn, CompareFn};
use tercet_ir::{DType, Dim, Tensor, Value};

use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::elem::Narrow;
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[op("TfIdfVectorizer", 9, tf_idf)];

/// The n-grams of one length.
struct NgramPool {
    len: usize,
    /// The token at each position of each n-gram, `[positions][n-grams]`.
    tokens: Vec<Vec<i64>>,
}

/// The lengths and skips of the n-grams to count.
struct NgramLimits {
    min_len: usize,
    max_len: usize,
    max_skip: usize,
}

fn positive(k: &ImportNode<'_, '_>, name: &str, least: i64) -> Result<usize, NodeErrorKind> {
    let n = k.attrs.int(name, least)?;
    let found = usize::try_from(n)
        .ok()
        .filter(|_| n >= least && n <= 1 << 16);
    found.ok_or_else(|| NodeErrorKind::attribute(name, format!("{n} is not in {least} to 65536")))
}

/// The n-grams of all lengths, in the order of the attribute.
fn pools(k: &ImportNode<'_, '_>, is_text: bool) -> Result<Vec<NgramPool>, NodeErrorKind> {
    let name = if is_text {
        "pool_strings"
    } else {
        "pool_int64s"
    };
    let pool: Vec<i64> = match is_text {
        true => {
            k.c.strings
                .places(&k.attrs.strings_opt(name)?.unwrap_or_default())
        }
        false => k.attrs.ints_opt(name)?.unwrap_or_default().to_vec(),
    };
    // Some exporters also write the unused one of these two attributes, as an empty list.
    k.attrs.ignore(&["pool_strings", "pool_int64s"]);
    let starts = k.attrs.ints_opt("ngram_counts")?.unwrap_or_default();
    let starts = crate::call::unsigned("ngram_counts", starts)?;
    let mut pools = Vec::with_capacity(starts.len());
    for (i, start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(pool.len());
        let own = pool.get(*start..end);
        let own = own.filter(|own| own.len() % (i + 1) == 0).ok_or_else(|| {
            let reason = format!(
                "{start} to {end} are not {}-grams of {} tokens",
                i + 1,
                pool.len()
            );
            NodeErrorKind::attribute("ngram_counts", reason)
        })?;
        let at = |place: usize| own.iter().skip(place).step_by(i + 1).copied().collect();
        pools.push(NgramPool {
            len: i + 1,
            tokens: (0..=i).map(at).collect(),
        });
    }
    Ok(pools)
}

/// Counts the n-grams of a pool in `x [N, C]`: `[N, n-grams]`.
fn counts(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    pool: &NgramPool,
    limits: &NgramLimits,
) -> Result<Option<Value>, NodeErrorKind> {
    let tokens = k.size(x, 1)?;
    let wanted = (limits.min_len..=limits.max_len).contains(&pool.len);
    let count = pool.tokens.first().map_or(0, Vec::len);
    if count == 0 {
        return Ok(None);
    }
    let mut total = None;
    // A skip makes no difference for single tokens.
    let skips = if pool.len == 1 {
        1
    } else {
        limits.max_skip + 1
    };
    for step in 1..=skips {
        let reach = (pool.len - 1).saturating_mul(step);
        if !wanted || reach >= tokens {
            continue;
        }
        let mut all: Option<Value> = None;
        for (place, own) in pool.tokens.iter().enumerate() {
            let own = Tensor::from_slice(&[count], own)?;
            let own = k.g().constant(own)?;
            let part = k.g().narrow(x, 1, place * step, tokens - reach)?;
            let part = k.g().unsqueeze(part, 2)?;
            let same = k.g().compare(CompareFn::Eq, part, own)?;
            all = Some(match all {
                Some(so_far) => k.g().binary(BinaryFn::And, so_far, same)?,
                None => same,
            });
        }
        let Some(found) = all else { continue };
        let found = k.g().cast(found, DType::F32)?;
        let sum = k.g().reduce(ReduceFn::Sum, found, &[1], false)?;
        total = Some(match total {
            Some(so_far) => k.g().plus(so_far, sum)?,
            None => sum,
        });
    }
    let total = match total {
        Some(total) => total,
        None => {
            let zero = k.c.scalar(DType::F32, 0.0)?;
            let rows = k.dims(x)[0].clone();
            k.g().expand(zero, [rows, Dim::Known(count)])?
        }
    };
    Ok(Some(total))
}

/// The number of occurrences of each n-gram (`TF`), whether it occurs (`IDF`), times weights.
fn tf_idf(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, narrow) = k.carried(0)?;
    if narrow.is_some_and(|narrow| narrow != Narrow::Text) {
        return Err(NodeErrorKind::operand(0, "must be integers or strings"));
    }
    let limits = NgramLimits {
        min_len: positive(k, "min_gram_length", 1)?,
        max_len: positive(k, "max_gram_length", 1)?,
        max_skip: positive(k, "max_skip_count", 0)?,
    };
    let pools = pools(k, narrow.is_some())?;
    let x = crate::emulated_dtypes::cast_to(k.g(), x, DType::I64)?;
    let rank = k.rank(x);
    let x = match rank {
        1 => k.g().unsqueeze(x, 0)?,
        2 => x,
        _ => return Err(NodeErrorKind::operand(0, "must have one or two axes")),
    };
    let mut parts = Vec::new();
    for pool in &pools {
        parts.extend(counts(k, x, pool, &limits)?);
    }
    let columns = k.attrs.ints_opt("ngram_indexes")?.unwrap_or_default();
    let columns = crate::call::unsigned("ngram_indexes", columns)?;
    let total: usize = pools
        .iter()
        .map(|p| p.tokens.first().map_or(0, Vec::len))
        .sum();
    let width = columns.iter().max().map_or(0, |n| n.saturating_add(1));
    if columns.len() != total || total == 0 || !k.c.spend(width) {
        let reason = format!(
            "{} columns up to {width} for {total} n-grams",
            columns.len()
        );
        return Err(NodeErrorKind::attribute("ngram_indexes", reason));
    }
    // A column without an n-gram is 0.
    let zero = k.c.scalar(DType::F32, 0.0)?;
    let rows = k.dims(x)[0].clone();
    parts.push(k.g().expand(zero, [rows, Dim::Known(1)])?);
    let all = k.g().concat(&parts, 1)?;
    let mut places = vec![total as i64; width];
    for (ngram, column) in columns.iter().enumerate() {
        places[*column] = ngram as i64;
    }
    let places = k.g().constant(Tensor::from_slice(&[width], &places)?)?;
    let mut y = k.g().gather(all, places, 1)?;
    let mode = k.attrs.string("mode", "")?;
    let weights = k
        .attrs
        .floats_opt("weights")?
        .filter(|list| !list.is_empty());
    if mode == "IDF" {
        let some = k.g().compare(CompareFn::Gt, y, zero)?;
        y = k.g().cast(some, DType::F32)?;
    } else if !matches!(mode.as_str(), "TF" | "TFIDF") {
        let reason = format!("expected TF, IDF or TFIDF, found `{mode}`");
        return Err(NodeErrorKind::attribute("mode", reason));
    }
    if let (Some(list), true) = (weights, mode != "TF") {
        if list.len() != columns.len() {
            let reason = format!("{} weights for {} n-grams", list.len(), columns.len());
            return Err(NodeErrorKind::attribute("weights", reason));
        }
        let mut of_column = vec![1f32; width];
        columns
            .iter()
            .zip(list)
            .for_each(|(column, weight)| of_column[*column] = *weight);
        let of_column = k.g().constant(Tensor::from_slice(&[width], &of_column)?)?;
        y = k.g().mul(y, of_column)?;
    }
    if rank == 1 {
        y = reshaped(k.g(), y, &[Dim::Known(width)])?;
    }
    one(y)
}
