//! Decoding steps that compute queries, keys and values in unusual orders, with norms, and with
//! other readers of the caches in between.

use crate::case::{CaseGraph, InputFill, OpCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Value;
use crate::ops::{ReduceFn, RopeStyle};
use crate::types::{Shape, Type};

use super::super::{AttentionLayout, AttentionOptions};
use super::lens;

const HEADS: usize = 4;
const HEAD: usize = 64;
const KEYS: usize = 40;

/// One step of the computation.
#[derive(Clone, Copy)]
enum FusionOrderStep {
    QueryNorm,
    KeyNorm,
    QueryRope,
    KeyRope,
    KeyAppend,
    ValueAppend,
    /// Adds a sum over all rows of the current key cache to the outputs.
    ReadKeys,
    ReadValues,
    /// Computes the values from a row of the current key cache.
    ValueOfKeys,
    /// Computes the queries from a row of the current value cache.
    QueryOfValues,
}

use FusionOrderStep::{
    KeyAppend, KeyNorm, KeyRope, QueryNorm, QueryOfValues, QueryRope, ReadKeys, ReadValues,
    ValueAppend, ValueOfKeys,
};

/// The operands and intermediate values of the steps.
struct FusionOrderCase {
    q: Value,
    k: Value,
    v: Value,
    caches: [Value; 2],
    gain: Value,
    table: Value,
    starts: Value,
}

impl FusionOrderCase {
    fn new(c: &mut CaseGraph) -> Result<FusionOrderCase, OpError> {
        let s = c.sym("s", 1, 3);
        let shape: Shape = [1.into(), s.clone(), (3 * HEADS).into(), HEAD.into()].into();
        let x = c.input("x", shape, InputFill::Normal)?;
        let mut cache = |name: &str| {
            let ty = Type::new(c.dtype, [1, KEYS, HEADS, HEAD]);
            c.state_of(name, ty, InputFill::Normal)
        };
        Ok(FusionOrderCase {
            caches: [cache("keys")?, cache("values")?],
            gain: c.input("gain", [HEAD], InputFill::Normal)?,
            table: c.input(
                "table",
                [s, (HEAD / 2).into()],
                InputFill::Uniform(-1.0, 1.0),
            )?,
            starts: c.input_of(
                "at",
                Type::new(DType::I32, [4]),
                InputFill::Values(vec![0.0, 5.0, 0.0, 0.0]),
            )?,
            q: c.graph.narrow(x, 2, 0, HEADS)?,
            k: c.graph.narrow(x, 2, HEADS, HEADS)?,
            v: c.graph.narrow(x, 2, 2 * HEADS, HEADS)?,
        })
    }

    fn step(&mut self, c: &mut CaseGraph, step: FusionOrderStep) -> Result<(), OpError> {
        let g = &mut c.graph;
        let mut rope = |x| {
            let (table, layout) = (self.table, AttentionLayout::Bshd);
            g.rope(x, table, table, RopeStyle::NeoX, HEAD, layout)
        };
        match step {
            QueryRope => self.q = rope(self.q)?,
            KeyRope => self.k = rope(self.k)?,
            QueryNorm => self.q = g.rms_norm(self.q, self.gain, None, 1e-5)?,
            KeyNorm => self.k = g.rms_norm(self.k, self.gain, None, 1e-5)?,
            KeyAppend => self.append(c, 0, self.k)?,
            ValueAppend => self.append(c, 1, self.v)?,
            ReadKeys | ReadValues => {
                let cache = self.caches[usize::from(matches!(step, ReadValues))];
                let sum = g.reduce(ReduceFn::Sum, cache, &[1], false)?;
                c.output(sum)?;
            }
            ValueOfKeys => self.v = self.row(c, 0, 3)?,
            QueryOfValues => self.q = self.row(c, 1, 5)?,
        }
        Ok(())
    }

    fn append(&mut self, c: &mut CaseGraph, at: usize, new: Value) -> Result<(), OpError> {
        let all = (c.graph).dynamic_update_slice(self.caches[at], new, self.starts)?;
        c.graph.assign(self.caches[at], all)?;
        self.caches[at] = all;
        Ok(())
    }

    /// As many rows of a cache as there are tokens, from row `first` on.
    fn row(&self, c: &mut CaseGraph, at: usize, first: usize) -> Result<Value, OpError> {
        let row = c.graph.narrow(self.caches[at], 1, first, 1)?;
        let shape = c.graph.ty(self.v).shape.clone();
        c.graph.expand(row, shape)
    }
}

/// Attention after these steps.
fn case(name: &str, steps: &'static [FusionOrderStep]) -> OpCase {
    OpCase::new(name, move |c| {
        let mut token = FusionOrderCase::new(c)?;
        for &step in steps {
            token.step(c, step)?;
        }
        let options = AttentionOptions::new(HEADS, HEADS, AttentionLayout::Bshd).causal();
        let options = options.kv_len(lens(c, &[], &[6.0])?);
        let [keys, values] = token.caches;
        let y = c.graph.attention(token.q, keys, values, options)?;
        c.runs = 2;
        c.output(keys)?;
        c.output(values)?;
        c.output(y)
    })
}

/// A token whose heads have different positions.
fn by_head() -> OpCase {
    OpCase::new("token_of_positions_by_head", |c| {
        let shape = [1, HEADS, 1, HEAD];
        let q = c.input("q", shape, InputFill::Normal)?;
        let k = c.input("k", shape, InputFill::Normal)?;
        let v = c.input("v", shape, InputFill::Normal)?;
        let table = c.input("table", [HEADS, HEAD / 2], InputFill::Uniform(-1.0, 1.0))?;
        let at = InputFill::Values(vec![0.0, 0.0, 5.0, 0.0]);
        let at = c.input_of("at", Type::new(DType::I32, [4]), at)?;
        let g = &mut c.graph;
        let q = g.rope(
            q,
            table,
            table,
            RopeStyle::NeoX,
            HEAD,
            AttentionLayout::Bshd,
        )?;
        let k = g.rope(
            k,
            table,
            table,
            RopeStyle::NeoX,
            HEAD,
            AttentionLayout::Bshd,
        )?;
        let mut caches = Vec::new();
        for (name, new) in [("keys", k), ("values", v)] {
            let ty = Type::new(c.dtype, [1, HEADS, KEYS, HEAD]);
            let cache = c.state_of(name, ty, InputFill::Normal)?;
            let all = c.graph.dynamic_update_slice(cache, new, at)?;
            c.graph.assign(cache, all)?;
            caches.push(all);
        }
        let options = AttentionOptions::new(HEADS, HEADS, AttentionLayout::Bhsd).causal();
        let options = options.kv_len(lens(c, &[], &[6.0])?);
        let y = c.graph.attention(q, caches[0], caches[1], options)?;
        c.output(y)
    })
}

pub(super) fn cases() -> Vec<OpCase> {
    vec![
        by_head(),
        case(
            "token_normed_and_turned_in_turns",
            &[
                QueryNorm,
                QueryRope,
                KeyNorm,
                KeyRope,
                KeyAppend,
                ValueAppend,
            ],
        ),
        case(
            "token_appended_before_its_query",
            &[
                ValueAppend,
                KeyNorm,
                KeyRope,
                KeyAppend,
                QueryNorm,
                QueryRope,
            ],
        ),
        case(
            "token_of_caches_that_are_read_before",
            &[
                QueryRope,
                ReadKeys,
                KeyRope,
                KeyAppend,
                ReadValues,
                ValueAppend,
            ],
        ),
        case(
            "token_of_a_cache_that_is_read_in_between",
            &[QueryRope, KeyRope, KeyAppend, ReadKeys, ValueAppend],
        ),
        case(
            "token_of_caches_that_are_read_after",
            &[
                ValueAppend,
                KeyRope,
                KeyAppend,
                QueryRope,
                ReadKeys,
                ReadValues,
            ],
        ),
        case(
            "token_with_a_value_of_old_keys",
            &[ValueOfKeys, ValueAppend, QueryRope, KeyRope, KeyAppend],
        ),
        case(
            "token_with_a_query_of_old_values",
            &[QueryOfValues, QueryRope, KeyRope, KeyAppend, ValueAppend],
        ),
    ]
}
