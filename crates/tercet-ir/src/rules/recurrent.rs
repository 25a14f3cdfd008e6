//! Decompositions of recurrent networks: the input matmuls of all steps at once, then one
//! recurrence for each layer and direction. Narrower operands are widened to F32, so that states
//! are rounded once.

use super::{LegalizeRule, RuleResult};
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::rnn::{PARTS, RnnLayer};
use crate::ops::{Concat, Linear, Op, OpKind, Recurrence};

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "lstm_as_products_and_recurrences",
        on: OpKind::Lstm,
        apply: net,
    },
    LegalizeRule {
        name: "gru_as_products_and_recurrences",
        on: OpKind::Gru,
        apply: net,
    },
    LegalizeRule {
        name: "rnn_as_products_and_recurrences",
        on: OpKind::Rnn,
        apply: net,
    },
];

fn net(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let net: RnnLayer = match op {
        Op::Lstm(o) => o.into(),
        Op::Gru(o) => o.into(),
        Op::Rnn(o) => o.into(),
        _ => return Ok(None),
    };
    let dtype = b.dtype(inputs[0]);
    let mut wide = Vec::with_capacity(inputs.len());
    for v in inputs {
        wide.push(b.widen(*v)?);
    }
    let (leading, weights) = wide.split_at(net.leading());
    let (mut x, states) = (leading[0], &leading[1..]);
    let given = b.shape(states[0]);
    let (state, row) = (given[1..].to_vec(), |i: usize| i as i64);
    let mut last: Vec<Vec<Value>> = vec![Vec::new(); states.len()];
    for layer in 0..net.layers {
        let mut ways = Vec::with_capacity(net.directions());
        for direction in 0..net.directions() {
            let at = layer * net.directions() + direction;
            let parts = &weights[at * PARTS..][..PARTS];
            let gates = b.shape(parts[1])[1].clone();
            let mut biases = Vec::with_capacity(2);
            for i in 0..2 {
                let bias = b.slice(parts[2], 0, row(i), row(i + 1), 1)?;
                biases.push(b.reshape(bias, vec![gates.clone()])?);
            }
            let product = Linear { activation: None };
            let of_inputs = b.add(product, &[x, parts[0], biases[0]])?;
            let mut operands = vec![of_inputs, parts[1], biases[1]];
            for all in states {
                let own = b.slice(*all, 0, row(at), row(at + 1), 1)?;
                operands.push(b.reshape(own, state.clone())?);
            }
            let one = Recurrence {
                cell: net.cell,
                reverse: direction == 1,
            };
            let done = b.add_all(one, &operands)?;
            ways.push(done[0]);
            for (last, state) in last.iter_mut().zip(&done[1..]) {
                let mut shape = b.shape(*state).into_dims();
                shape.insert(0, 1.into());
                last.push(b.reshape(*state, shape)?);
            }
        }
        x = match ways.as_slice() {
            [one] => *one,
            _ => b.add(Concat { axis: 2 }, &ways)?,
        };
    }
    let mut results = vec![b.cast(x, dtype)?];
    for states in last {
        let all = match states.as_slice() {
            [one] => *one,
            _ => b.add(Concat { axis: 0 }, &states)?,
        };
        results.push(b.cast(all, dtype)?);
    }
    Ok(Some(results))
}
