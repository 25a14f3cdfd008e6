//! Autotuning tasks for scans over states.

use tercet_ir::{DType, Tensor, TensorType, Value};

use super::TuneFailure;
use super::task::{ExpectedElement, TaskBuilder, TuneTask, element, pattern, spread_indices, task};
use crate::tuning::TuningKey;

/// Operator of a scan over states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateScan {
    /// `SelectiveScan`; each channel is a separate head.
    Selective,
    /// `Mamba2`; all heads share `b` and `c`.
    Mamba2,
    /// `GatedDeltaNet`, with initial states of zero.
    GatedDelta,
}

impl StateScan {
    /// Name of the operator.
    pub fn name(self) -> &'static str {
        match self {
            StateScan::Selective => "selective_scan",
            StateScan::Mamba2 => "mamba2",
            StateScan::GatedDelta => "gated_delta_net",
        }
    }
}

/// Sizes of a scan: batch, steps, heads, channels per head, states per channel.
#[derive(Clone, Copy)]
struct TuneScanSizes {
    batch: usize,
    steps: usize,
    heads: usize,
    per_head: usize,
    states: usize,
}

/// The operands of a scan, and a reference implementation in f64 that scans one channel.
struct ChannelReference<'a> {
    op: StateScan,
    sizes: TuneScanSizes,
    operands: &'a [(&'static str, Tensor)],
}

/// The position of a result in a scan: a channel of a head, at a step.
#[derive(Clone, Copy)]
struct ScanPosition {
    token: usize,
    head: usize,
    column: usize,
}

impl ChannelReference<'_> {
    fn at(&self, operand: usize, at: usize) -> f64 {
        element(&self.operands[operand].1, at)
    }

    /// Values of operand `operand` at a step, one for each state of a channel. All heads share
    /// these values, or each head has its own.
    fn state_values(&self, operand: usize, at: ScanPosition) -> Vec<f64> {
        let n = self.sizes.states;
        let first = match self.op {
            StateScan::Selective | StateScan::Mamba2 => at.token * n,
            StateScan::GatedDelta => (at.token * self.sizes.heads + at.head) * n,
        };
        (first..first + n).map(|i| self.at(operand, i)).collect()
    }

    /// Advances the states by one step.
    fn advance(&self, h: &mut [f64], at: ScanPosition) {
        let TuneScanSizes {
            heads,
            per_head,
            states,
            ..
        } = self.sizes;
        let of_head = at.token * heads + at.head;
        let of_channel = of_head * per_head + at.column;
        match self.op {
            StateScan::Selective | StateScan::Mamba2 => {
                let (x, dt) = (self.at(0, of_channel), self.at(1, of_head));
                let b = self.state_values(3, at);
                for (n, (h, b)) in h.iter_mut().zip(b).enumerate() {
                    let a = match self.op {
                        StateScan::Selective => self.at(2, at.head * states + n),
                        StateScan::Mamba2 | StateScan::GatedDelta => self.at(2, at.head),
                    };
                    *h = (dt * a).exp() * *h + dt * b * x;
                }
            }
            StateScan::GatedDelta => {
                let (v, g, beta) = (
                    self.at(2, of_channel),
                    self.at(3, of_head),
                    self.at(4, of_head),
                );
                let k = self.state_values(1, at);
                h.iter_mut().for_each(|h| *h *= g.exp());
                let told: f64 = h.iter().zip(&k).map(|(h, k)| h * k).sum();
                let d = beta * (v - told);
                h.iter_mut().zip(&k).for_each(|(h, k)| *h += k * d);
            }
        }
    }

    /// The expected result of a channel after a step.
    fn result(&self, h: &[f64], at: ScanPosition) -> ExpectedElement {
        let (operand, scale) = match self.op {
            StateScan::Selective | StateScan::Mamba2 => (4, 1.0),
            StateScan::GatedDelta => (0, (self.sizes.states as f64).sqrt().recip()),
        };
        let read = self.state_values(operand, at);
        let terms = h.iter().zip(read).map(|(h, read)| h * read * scale);
        let place = at.head * self.sizes.per_head + at.column;
        let sum = ExpectedElement::sum(at.token, place, terms);
        // States also accumulate rounding errors, over a number of steps that depends on the decay.
        ExpectedElement {
            scale: 4.0 * sum.scale,
            ..sum
        }
    }

    /// Expected results of some channels at some steps, in row order.
    fn expected(&self) -> Vec<ExpectedElement> {
        let TuneScanSizes {
            batch,
            steps,
            heads,
            per_head,
            states,
        } = self.sizes;
        let seen: Vec<usize> = spread_indices(steps, 3).collect();
        let mut wanted = Vec::new();
        for entry in spread_indices(batch, 2) {
            for head in spread_indices(heads, 3) {
                for column in spread_indices(per_head, 2) {
                    let mut h = vec![0.0; states];
                    for step in 0..steps {
                        let at = ScanPosition {
                            token: entry * steps + step,
                            head,
                            column,
                        };
                        self.advance(&mut h, at);
                        if seen.contains(&step) {
                            wanted.push(self.result(&h, at));
                        }
                    }
                }
            }
        }
        wanted.sort_by_key(|w| w.row);
        wanted
    }
}

/// A tensor of deterministic pseudorandom numbers in a range.
fn random_between(
    name: &str,
    dtype: DType,
    shape: &[usize],
    [least, most]: [f64; 2],
) -> Result<Tensor, TuneFailure> {
    let all = pattern(name, dtype, shape)?.to_f64s().into_iter();
    let all: Vec<f64> = all
        .map(|x| least + (most - least) * (x + 1.0) / 2.0)
        .collect();
    Ok(Tensor::from_f64s(TensorType::new(dtype, shape), &all)?)
}

/// An operand: name, shape and range of its values.
type ScanOperandSpec = (&'static str, Vec<usize>, [f64; 2]);

/// Operands that keep states bounded: decays from 0.6 to 1, and keys of norm below 1.
fn operands(op: StateScan, sizes: TuneScanSizes) -> [ScanOperandSpec; 5] {
    const ANY: [f64; 2] = [-1.0, 1.0];
    const STEPS: [f64; 2] = [0.01, 0.2];
    const DECAYS: [f64; 2] = [-2.0, -0.1];
    let TuneScanSizes {
        batch: b,
        steps: s,
        heads: h,
        per_head: p,
        states: n,
    } = sizes;
    match op {
        StateScan::Selective => [
            ("x", vec![b, s, h], ANY),
            ("delta", vec![b, s, h], STEPS),
            ("a", vec![h, n], DECAYS),
            ("b", vec![b, s, n], ANY),
            ("c", vec![b, s, n], ANY),
        ],
        StateScan::Mamba2 => [
            ("x", vec![b, s, h, p], ANY),
            ("dt", vec![b, s, h], STEPS),
            ("a", vec![h], DECAYS),
            ("b", vec![b, s, 1, n], ANY),
            ("c", vec![b, s, 1, n], ANY),
        ],
        StateScan::GatedDelta => {
            let key = (n as f64).sqrt().recip();
            [
                ("q", vec![b, s, h, n], ANY),
                ("k", vec![b, s, h, n], [-key, key]),
                ("v", vec![b, s, h, p], ANY),
                ("g", vec![b, s, h], [-0.3, -0.01]),
                ("beta", vec![b, s, h], [0.1, 0.9]),
            ]
        }
    }
}

/// A scan task whose results have one row per token.
pub(super) fn scan(
    op: StateScan,
    dtype: DType,
    given: [usize; 5],
) -> Result<TuneTask, TuneFailure> {
    let [batch, steps, heads, per_head, states] = given;
    let sizes = TuneScanSizes {
        batch,
        steps,
        heads,
        per_head,
        states,
    };
    if op == StateScan::Selective && per_head != 1 {
        let why = "a selective scan has one channel a head";
        return Err(TuneFailure::Other(why.to_string()));
    }
    let mut draft = TaskBuilder::new();
    let mut values = Vec::new();
    for (name, shape, range) in operands(op, sizes) {
        let tensor = random_between(name, dtype, &shape, range)?;
        values.push(draft.state_of(name, tensor)?);
    }
    let all: [Value; 5] = values
        .try_into()
        .unwrap_or_else(|_| unreachable!("invariant: there are five operands"));
    let [x, dt, a, b, c] = all;
    let graph = &mut draft.graph;
    let y = match op {
        StateScan::Selective => graph.selective_scan(x, dt, a, b, c)?,
        StateScan::Mamba2 => graph.mamba2(x, dt, a, b, c)?,
        StateScan::GatedDelta => graph.gated_delta_net(all, None, false)?,
    };
    let y = graph.reshape(y, [batch * steps, heads * per_head])?;
    graph.output("y", y)?;
    let walk = ChannelReference {
        op,
        sizes,
        operands: &draft.states,
    };
    let wanted = walk.expected();
    let key = TuningKey::scan(op.name(), dtype, given);
    // Each state takes a decay, a multiply-add for the update and a multiply-add for the result,
    // counted as two operations each.
    let flops = 6.0 * (batch * steps) as f64 * (heads * per_head * states) as f64;
    Ok(task(draft, key, dtype, flops, wanted))
}
