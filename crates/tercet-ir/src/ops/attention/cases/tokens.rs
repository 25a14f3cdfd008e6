//! What a decoder does with a new token: its query and key are embedded, key and value go into caches, and the
//! query attends to them.

use crate::case::{Case, Fill};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Value;
use crate::ops::RopeStyle;
use crate::types::{Shape, Type};

use super::super::{AttentionOptions, Layout};
use super::lens;

/// A token, or some, of one sequence.
#[derive(Clone)]
struct Token {
    layout: Layout,
    style: RopeStyle,
    /// Elements of a head, and how many of them are embedded.
    d: usize,
    n_rot: usize,
    /// Heads of queries and of keys.
    heads: [usize; 2],
    /// Rows of the caches.
    keys: usize,
    /// Where the first new row goes, and how many rows are filled then.
    at: f64,
    len: f64,
    /// New tokens, and their bound.
    tokens: [usize; 2],
    /// 0: all keys up to its own.
    window: usize,
}

const TOKEN: Token = Token {
    layout: Layout::Bshd,
    style: RopeStyle::NeoX,
    d: 64,
    n_rot: 64,
    heads: [4, 2],
    keys: 40,
    at: 5.0,
    len: 6.0,
    tokens: [1, 3],
    window: 0,
};

impl Token {
    fn case(self, name: &str) -> Case {
        Case::new(name, move |c| {
            let s = c.sym("s", self.tokens[0], self.tokens[1]);
            let [q_heads, heads] = self.heads;
            let shape = |s: crate::dim::Dim, h: usize| -> Shape {
                match self.layout {
                    Layout::Bshd => [1.into(), s, h.into(), self.d.into()].into(),
                    Layout::Bhsd => [1.into(), h.into(), s, self.d.into()].into(),
                }
            };
            let x = c.input("x", shape(s.clone(), q_heads + 2 * heads), Fill::Normal)?;
            let table = [s, (self.n_rot / 2).into()];
            let cos = c.input("cos", table.clone(), Fill::Uniform(-1.0, 1.0))?;
            let sin = c.input("sin", table, Fill::Uniform(-1.0, 1.0))?;
            let mut starts = vec![0.0; 4];
            starts[self.layout.seq_axis()] = self.at;
            let starts = c.input_of("at", Type::new(DType::I32, [4]), Fill::Values(starts))?;
            let axis = self.layout.head_axis();
            let q = c.graph.narrow(x, axis, 0, q_heads)?;
            let k = c.graph.narrow(x, axis, q_heads, heads)?;
            let v = c.graph.narrow(x, axis, q_heads + heads, heads)?;
            let q = c
                .graph
                .rope(q, cos, sin, self.style, self.n_rot, self.layout)?;
            let k = c
                .graph
                .rope(k, cos, sin, self.style, self.n_rot, self.layout)?;
            let mut caches = Vec::new();
            for (name, new) in [("keys", k), ("values", v)] {
                let ty = Type::new(c.dtype, shape(self.keys.into(), heads));
                let cache = c.state_of(name, ty, Fill::Normal)?;
                let all = c.graph.dynamic_update_slice(cache, new, starts)?;
                c.graph.assign(cache, all)?;
                caches.push(all);
            }
            let options = AttentionOptions::new(q_heads, heads, self.layout);
            let options = match self.window {
                0 => options.causal(),
                window => options.window(window),
            };
            let options = options.kv_len(lens(c, &[], &[self.len])?);
            let y = c.graph.attention(q, caches[0], caches[1], options)?;
            c.runs = 2;
            if self.len > self.keys as f64 {
                c.expect_fault("kv_len is 41; accepted: 0 to 40");
            }
            caches
                .into_iter()
                .try_for_each(|cache: Value| -> Result<(), OpError> { c.output(cache) })?;
            c.output(y)
        })
    }
}

pub(super) fn cases() -> Vec<Case> {
    let by_head = Token {
        layout: Layout::Bhsd,
        style: RopeStyle::GptJ,
        d: 128,
        n_rot: 96,
        ..TOKEN
    };
    let long = Token {
        keys: 300,
        at: 283.0,
        len: 284.0,
        ..TOKEN
    };
    vec![
        TOKEN.case("token"),
        by_head.clone().case("token_by_head"),
        long.clone().case("token_of_many"),
        Token {
            tokens: [3, 3],
            ..TOKEN
        }
        .case("tokens_of_a_program_for_one"),
        // The last of the keys is not the new one, which is there once.
        Token {
            at: -200.0,
            tokens: [1, 1],
            heads: [2, 2],
            ..long.clone()
        }
        .case("token_among_others"),
        // The new row is not seen.
        Token {
            at: 90.0,
            len: 7.0,
            ..TOKEN
        }
        .case("token_beyond_the_keys"),
        Token { len: 0.0, ..TOKEN }.case("token_without_keys"),
        Token {
            window: 130,
            ..long
        }
        .case("token_in_a_window"),
        Token {
            len: 41.0,
            ..by_head
        }
        .case("token_refused"),
        first(),
    ]
}

/// The first token: nobody looks at what the caches hold beyond.
fn first() -> Case {
    Case::new("token_alone", |c| {
        let x = c.input("x", [1, 1, 1, 64], Fill::Normal)?;
        let v = Fill::Values((0..64).map(f64::from).collect());
        let v = c.input("v", [1, 1, 1, 64], v)?;
        let table = c.input("table", [1, 32], Fill::Uniform(-1.0, 1.0))?;
        let at = c.input_of("at", Type::new(DType::I32, [4]), Fill::Values(vec![0.0; 4]))?;
        let layout = Layout::Bshd;
        let q = (c.graph).rope(x, table, table, RopeStyle::NeoX, 64, layout)?;
        let k = (c.graph).rope(x, table, table, RopeStyle::NeoX, 64, layout)?;
        let mut caches = Vec::new();
        for (name, new) in [("keys", k), ("values", v)] {
            let ty = Type::new(c.dtype, [1, 40, 1, 64]);
            let cache = c.state_of(name, ty, Fill::Values(vec![f64::NAN; 40 * 64]))?;
            let all = c.graph.dynamic_update_slice(cache, new, at)?;
            c.graph.assign(cache, all)?;
            caches.push(all);
        }
        let options = AttentionOptions::new(1, 1, layout).causal();
        let options = options.kv_len(lens(c, &[], &[1.0])?);
        let y = c.graph.attention(q, caches[0], caches[1], options)?;
        let want: Vec<f64> = (0..64).map(f64::from).collect();
        c.output_expect(y, &want)
    })
}
