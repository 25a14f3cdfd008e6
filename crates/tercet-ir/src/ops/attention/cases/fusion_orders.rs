//! Tokens whose queries, keys and values are made in other orders than one after the other, with norms, and with
//! something else that reads the caches in between.

use crate::case::{Case, CaseGraph, Fill};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Value;
use crate::ops::{ReduceFn, RopeStyle};
use crate::types::{Shape, Type};

use super::super::{AttentionOptions, Layout};
use super::lens;

const HEADS: usize = 4;
const HEAD: usize = 64;
const KEYS: usize = 40;

/// What is done next.
#[derive(Clone, Copy)]
enum Step {
    QueryNorm,
    KeyNorm,
    QueryRope,
    KeyRope,
    KeyAppend,
    ValueAppend,
    /// Sums over all rows of a cache, as it is now, are a result.
    ReadKeys,
    ReadValues,
    /// The values are a row that the cache of keys has now.
    ValueOfKeys,
    /// The queries come from a row that the cache of values has now.
    QueryOfValues,
}

use Step::{
    KeyAppend, KeyNorm, KeyRope, QueryNorm, QueryOfValues, QueryRope, ReadKeys, ReadValues,
    ValueAppend, ValueOfKeys,
};

/// What steps work on, and what they share.
struct Token {
    q: Value,
    k: Value,
    v: Value,
    caches: [Value; 2],
    gain: Value,
    table: Value,
    starts: Value,
}

impl Token {
    fn of(c: &mut CaseGraph) -> Result<Token, OpError> {
        let s = c.sym("s", 1, 3);
        let shape: Shape = [1.into(), s.clone(), (3 * HEADS).into(), HEAD.into()].into();
        let x = c.input("x", shape, Fill::Normal)?;
        let mut cache = |name: &str| {
            let ty = Type::new(c.dtype, [1, KEYS, HEADS, HEAD]);
            c.state_of(name, ty, Fill::Normal)
        };
        Ok(Token {
            caches: [cache("keys")?, cache("values")?],
            gain: c.input("gain", [HEAD], Fill::Normal)?,
            table: c.input("table", [s, (HEAD / 2).into()], Fill::Uniform(-1.0, 1.0))?,
            starts: c.input_of(
                "at",
                Type::new(DType::I32, [4]),
                Fill::Values(vec![0.0, 5.0, 0.0, 0.0]),
            )?,
            q: c.graph.narrow(x, 2, 0, HEADS)?,
            k: c.graph.narrow(x, 2, HEADS, HEADS)?,
            v: c.graph.narrow(x, 2, 2 * HEADS, HEADS)?,
        })
    }

    fn step(&mut self, c: &mut CaseGraph, step: Step) -> Result<(), OpError> {
        let g = &mut c.graph;
        let mut rope = |x| {
            let (table, layout) = (self.table, Layout::Bshd);
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

    /// As many rows of a cache as there are tokens: its row `first` of one token.
    fn row(&self, c: &mut CaseGraph, at: usize, first: usize) -> Result<Value, OpError> {
        let row = c.graph.narrow(self.caches[at], 1, first, 1)?;
        let shape = c.graph.ty(self.v).shape.clone();
        c.graph.expand(row, shape)
    }
}

/// Attention after these steps.
fn case(name: &str, steps: &'static [Step]) -> Case {
    Case::new(name, move |c| {
        let mut token = Token::of(c)?;
        for &step in steps {
            token.step(c, step)?;
        }
        let options = AttentionOptions::new(HEADS, HEADS, Layout::Bshd).causal();
        let options = options.kv_len(lens(c, &[], &[6.0])?);
        let [keys, values] = token.caches;
        let y = c.graph.attention(token.q, keys, values, options)?;
        c.runs = 2;
        c.output(keys)?;
        c.output(values)?;
        c.output(y)
    })
}

/// A token whose heads have positions of their own.
fn by_head() -> Case {
    Case::new("token_of_positions_by_head", |c| {
        let shape = [1, HEADS, 1, HEAD];
        let q = c.input("q", shape, Fill::Normal)?;
        let k = c.input("k", shape, Fill::Normal)?;
        let v = c.input("v", shape, Fill::Normal)?;
        let table = c.input("table", [HEADS, HEAD / 2], Fill::Uniform(-1.0, 1.0))?;
        let at = Fill::Values(vec![0.0, 0.0, 5.0, 0.0]);
        let at = c.input_of("at", Type::new(DType::I32, [4]), at)?;
        let g = &mut c.graph;
        let q = g.rope(q, table, table, RopeStyle::NeoX, HEAD, Layout::Bshd)?;
        let k = g.rope(k, table, table, RopeStyle::NeoX, HEAD, Layout::Bshd)?;
        let mut caches = Vec::new();
        for (name, new) in [("keys", k), ("values", v)] {
            let ty = Type::new(c.dtype, [1, HEADS, KEYS, HEAD]);
            let cache = c.state_of(name, ty, Fill::Normal)?;
            let all = c.graph.dynamic_update_slice(cache, new, at)?;
            c.graph.assign(cache, all)?;
            caches.push(all);
        }
        let options = AttentionOptions::new(HEADS, HEADS, Layout::Bhsd).causal();
        let options = options.kv_len(lens(c, &[], &[6.0])?);
        let y = c.graph.attention(q, caches[0], caches[1], options)?;
        c.output(y)
    })
}

pub(super) fn cases() -> Vec<Case> {
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
