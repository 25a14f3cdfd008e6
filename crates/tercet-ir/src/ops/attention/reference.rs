//! The reference of attention and of its gradients: computes all scores of one query at a time, in
//! F64.

use tercet_tensor::Tensor;

use super::{Attention, MaskKind};
use crate::error::EvalError;
use crate::ops::util::for_each_index;
use crate::scalar::maximum;

/// The sizes of an attention, from its operands' shapes.
pub(super) struct AttentionSizes {
    pub(super) batch: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) head_dim: usize,
}

/// The score of one query and key.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionScore {
    /// The score after cap and mask.
    pub(super) score: f64,
    /// The derivative of the score with respect to the query-key product.
    pub(super) slope: f64,
    pub(super) key: usize,
}

/// Queries and keys of an attention, with their mask operands.
pub(super) struct AttentionReference<'a> {
    op: &'a Attention,
    pub(super) sizes: AttentionSizes,
    q: AttentionHeadRows,
    k: AttentionHeadRows,
    mask: Option<MaskData>,
    lens: Vec<usize>,
}

/// A rank 4 operand, indexed by batch entry, head and position.
pub(super) struct AttentionHeadRows {
    values: Vec<f64>,
    strides: [usize; 3],
    dim: usize,
}

impl AttentionHeadRows {
    pub(super) fn new(op: &Attention, tensor: &Tensor) -> AttentionHeadRows {
        AttentionHeadRows {
            values: tensor.to_f64s(),
            strides: op.layout.strides(tensor.shape()),
            dim: tensor.shape()[3],
        }
    }

    /// Zeros with the shape of an operand.
    pub(super) fn zeros(op: &Attention, shape: &[usize]) -> AttentionHeadRows {
        AttentionHeadRows {
            values: vec![0.0; shape.iter().product()],
            strides: op.layout.strides(shape),
            dim: shape[3],
        }
    }

    fn range(&self, [b, h, i]: [usize; 3]) -> std::ops::Range<usize> {
        let [batch, head, seq] = self.strides;
        let at = b * batch + h * head + i * seq;
        at..at + self.dim
    }

    pub(super) fn row(&self, at: [usize; 3]) -> &[f64] {
        &self.values[self.range(at)]
    }

    /// Adds a row multiplied by a factor.
    pub(super) fn add(&mut self, at: [usize; 3], row: &[f64], factor: f64) {
        let own = self.range(at);
        for (to, x) in self.values[own].iter_mut().zip(row) {
            *to += factor * x;
        }
    }

    pub(super) fn values(self) -> Vec<f64> {
        self.values
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The mask operand with strides of `[batch, head, query, key]`; stride 0 broadcasts.
struct MaskData {
    values: Vec<f64>,
    strides: [usize; 4],
}

impl MaskData {
    fn new(mask: &Tensor) -> MaskData {
        let shape = mask.shape();
        let mut strides = [0; 4];
        let slots: &[usize] = match shape.len() {
            2 => &[0, 3],
            3 => &[0, 2, 3],
            _ => &[0, 1, 2, 3],
        };
        for (axis, stride) in tercet_tensor::row_major_strides(shape)
            .into_iter()
            .enumerate()
        {
            if shape[axis] != 1 {
                strides[slots[axis]] = stride;
            }
        }
        MaskData {
            values: mask.to_f64s(),
            strides,
        }
    }

    fn at(&self, index: [usize; 4]) -> f64 {
        self.values[index
            .iter()
            .zip(self.strides)
            .map(|(i, s)| i * s)
            .sum::<usize>()]
    }
}

/// The number of keys of each batch entry.
fn kv_lens(operand: Option<&Tensor>, sizes: &AttentionSizes) -> Result<Vec<usize>, EvalError> {
    let Some(lens) = operand else {
        return Ok(vec![sizes.keys; sizes.batch]);
    };
    let lens: Result<Vec<usize>, EvalError> = lens
        .to_i64s()
        .into_iter()
        .map(|n| {
            let len = usize::try_from(n).ok().filter(|&n| n <= sizes.keys);
            let keys = sizes.keys;
            len.ok_or_else(|| {
                EvalError::Data(format!(
                    "kv_len is {n}; accepted: 0 to {keys}, the number of keys"
                ))
            })
        })
        .collect();
    let lens = lens?;
    Ok((0..sizes.batch).map(|b| lens[b % lens.len()]).collect())
}

impl<'a> AttentionReference<'a> {
    /// Reads the operands `q` and `k`, and in `rest` the mask and the number of keys if they are
    /// operands.
    pub(super) fn new(
        op: &'a Attention,
        operands: &[&Tensor],
        rest: &[&Tensor],
    ) -> Result<AttentionReference<'a>, EvalError> {
        let (q, k) = (operands[0], operands[1]);
        let sizes = AttentionSizes {
            batch: q.shape()[0],
            queries: q.shape()[op.layout.seq_axis()],
            keys: k.shape()[op.layout.seq_axis()],
            head_dim: q.shape()[3],
        };
        let lens = match op.kv_len {
            true => rest.last().copied(),
            false => None,
        };
        Ok(AttentionReference {
            op,
            q: AttentionHeadRows::new(op, q),
            k: AttentionHeadRows::new(op, k),
            mask: op.has_mask_operand().then(|| MaskData::new(rest[0])),
            lens: kv_lens(lens, &sizes)?,
            sizes,
        })
    }

    /// The key head that a query head reads.
    pub(super) fn key_head(&self, head: usize) -> usize {
        head / (self.op.q_heads / self.op.kv_heads)
    }

    pub(super) fn query(&self, at: [usize; 3]) -> &[f64] {
        self.q.row(at)
    }

    pub(super) fn key(&self, [b, h, _]: [usize; 3], key: usize) -> &[f64] {
        self.k.row([b, self.key_head(h), key])
    }

    /// Calls `f` for every query, by batch entry, head and position, with the scores of its visible
    /// keys.
    pub(super) fn each_query(&self, mut f: impl FnMut([usize; 3], &[AttentionScore])) {
        let op = self.op;
        let scale = op.scale_for(self.sizes.head_dim);
        let all = [self.sizes.batch, op.q_heads, self.sizes.queries];
        for_each_index(&all, |index| {
            let at @ [b, h, i] = [index[0], index[1], index[2]];
            let mut scores = Vec::new();
            for key in op.visible(i, self.sizes.queries, self.lens[b]) {
                let mut score = scale * dot(self.query(at), self.key(at, key));
                let mut slope = scale;
                if let Some(cap) = op.softcap {
                    let part = (score / cap.0).tanh();
                    score = cap.0 * part;
                    slope *= 1.0 - part * part;
                }
                if let Some(mask) = &self.mask {
                    let m = mask.at([b, h, i, key]);
                    let keep = op.mask == MaskKind::Keep;
                    if (keep && m == 0.0) || (!keep && m == f64::NEG_INFINITY) {
                        continue;
                    }
                    score += if keep { 0.0 } else { m };
                }
                scores.push(AttentionScore { score, slope, key });
            }
            f(at, &scores);
        });
    }

    /// The results in the order of their type, and the log-sum-exp of each query's scores by batch
    /// entry, head and position.
    pub(super) fn attend(&self, v: &Tensor) -> (Vec<f64>, Vec<f64>) {
        let op = self.op;
        let values = AttentionHeadRows::new(op, v);
        let mut shape = [self.sizes.batch, 0, 0, values.dim];
        shape[op.layout.head_axis()] = op.q_heads;
        shape[op.layout.seq_axis()] = self.sizes.queries;
        let mut y = AttentionHeadRows::zeros(op, &shape);
        let mut lse = Vec::new();
        self.each_query(|at, scores| {
            let max = scores
                .iter()
                .map(|s| s.score)
                .fold(f64::NEG_INFINITY, maximum);
            if max == f64::NEG_INFINITY {
                lse.push(max);
                return;
            }
            let sum: f64 = scores.iter().map(|s| (s.score - max).exp()).sum();
            lse.push(max + sum.ln());
            for s in scores {
                let weight = (s.score - max).exp() / sum;
                y.add(at, values.row([at[0], self.key_head(at[1]), s.key]), weight);
            }
        });
        (y.values(), lse)
    }
}
