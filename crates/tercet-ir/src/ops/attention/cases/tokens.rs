//! Decoding steps: RoPE is applied to the query and key of a new token, key and value are appended
//! to the caches, and the query attends to them.

use crate::case::{InputFill, OpCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Value;
use crate::ops::RopeStyle;
use crate::types::{Shape, Type};

use super::super::{AttentionLayout, AttentionOptions};
use super::lens;

/// One or several new tokens of one sequence.
#[derive(Clone)]
struct DecodeTokenCase {
    layout: AttentionLayout,
    style: RopeStyle,
    /// Elements of a head, and the number of elements that RoPE rotates.
    d: usize,
    n_rot: usize,
    /// Number of query heads and of key heads.
    heads: [usize; 2],
    /// Number of rows in the caches.
    keys: usize,
    /// The position of the first new row, which is also the number of rows already in the caches.
    at: f64,
    len: f64,
    /// The number of new tokens, and its upper bound.
    tokens: [usize; 2],
    /// Window size; 0 means all keys up to the token's position.
    window: usize,
}

const TOKEN: DecodeTokenCase = DecodeTokenCase {
    layout: AttentionLayout::Bshd,
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

impl DecodeTokenCase {
    fn case(self, name: &str) -> OpCase {
        OpCase::new(name, move |c| {
            let s = c.sym("s", self.tokens[0], self.tokens[1]);
            let [q_heads, heads] = self.heads;
            let shape = |s: crate::dim::Dim, h: usize| -> Shape {
                match self.layout {
                    AttentionLayout::Bshd => [1.into(), s, h.into(), self.d.into()].into(),
                    AttentionLayout::Bhsd => [1.into(), h.into(), s, self.d.into()].into(),
                }
            };
            let x = c.input(
                "x",
                shape(s.clone(), q_heads + 2 * heads),
                InputFill::Normal,
            )?;
            let table = [s, (self.n_rot / 2).into()];
            let cos = c.input("cos", table.clone(), InputFill::Uniform(-1.0, 1.0))?;
            let sin = c.input("sin", table, InputFill::Uniform(-1.0, 1.0))?;
            let mut starts = vec![0.0; 4];
            starts[self.layout.seq_axis()] = self.at;
            let starts = c.input_of("at", Type::new(DType::I32, [4]), InputFill::Values(starts))?;
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
                let cache = c.state_of(name, ty, InputFill::Normal)?;
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

pub(super) fn cases() -> Vec<OpCase> {
    let by_head = DecodeTokenCase {
        layout: AttentionLayout::Bhsd,
        style: RopeStyle::GptJ,
        d: 128,
        n_rot: 96,
        ..TOKEN
    };
    let long = DecodeTokenCase {
        keys: 300,
        at: 283.0,
        len: 284.0,
        ..TOKEN
    };
    vec![
        TOKEN.case("token"),
        by_head.clone().case("token_by_head"),
        long.clone().case("token_of_many"),
        DecodeTokenCase {
            tokens: [3, 3],
            ..TOKEN
        }
        .case("tokens_of_a_program_for_one"),
        // The new key is written between older keys, so it is not the last visible key.
        DecodeTokenCase {
            at: -200.0,
            tokens: [1, 1],
            heads: [2, 2],
            ..long.clone()
        }
        .case("token_among_others"),
        // The query does not see the row of the new token.
        DecodeTokenCase {
            at: 90.0,
            len: 7.0,
            ..TOKEN
        }
        .case("token_beyond_the_keys"),
        DecodeTokenCase { len: 0.0, ..TOKEN }.case("token_without_keys"),
        DecodeTokenCase {
            window: 130,
            ..long
        }
        .case("token_in_a_window"),
        DecodeTokenCase {
            len: 41.0,
            ..by_head
        }
        .case("token_refused"),
        first(),
    ]
}

/// The first token: the remaining cache contents must not be read.
fn first() -> OpCase {
    OpCase::new("token_alone", |c| {
        let x = c.input("x", [1, 1, 1, 64], InputFill::Normal)?;
        let v = InputFill::Values((0..64).map(f64::from).collect());
        let v = c.input("v", [1, 1, 1, 64], v)?;
        let table = c.input("table", [1, 32], InputFill::Uniform(-1.0, 1.0))?;
        let at = c.input_of(
            "at",
            Type::new(DType::I32, [4]),
            InputFill::Values(vec![0.0; 4]),
        )?;
        let layout = AttentionLayout::Bshd;
        let q = (c.graph).rope(x, table, table, RopeStyle::NeoX, 64, layout)?;
        let k = (c.graph).rope(x, table, table, RopeStyle::NeoX, 64, layout)?;
        let mut caches = Vec::new();
        for (name, new) in [("keys", k), ("values", v)] {
            let ty = Type::new(c.dtype, [1, 40, 1, 64]);
            let cache = c.state_of(name, ty, InputFill::Values(vec![f64::NAN; 40 * 64]))?;
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
