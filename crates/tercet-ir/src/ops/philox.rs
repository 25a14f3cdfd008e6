//! Random words for counters that the graph provides.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least, reject,
};
use crate::random::philox4x32;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// Philox4x32-10 (Salmon and others, SC 2011): four random words for each counter of four
    /// words, with one key of two words. The other random operators draw from the same words. This
    /// operator is for graphs that manage counters themselves: the same counters give the same
    /// words in every run.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::random::philox4x32;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let counter = g.constant(Tensor::from_slice(&[4], &[0u32, 0, 0, 0])?)?;
    /// let key = g.constant(Tensor::from_slice(&[2], &[0u32, 0])?)?;
    /// let words = g.philox(counter, key)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(words).as_slice::<u32>()?, philox4x32([0; 4], [0; 2]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Philox {}
}

impl OpSpec for Philox {
    const DOC: OpDoc = OpDoc {
        name: "philox",
        text: "Four random words for each counter `[.., 4]` with the key `[2]`: Philox4x32-10.",
        operands: &["counter", "key"],
        dtypes: &[DType::U32],
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("random words are integers");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [counter, key] = exactly(operands)?;
        expect_dtype("counter", counter, &[DType::U32])?;
        expect_dtype("key", key, &[DType::U32])?;
        expect_rank_at_least("counter", counter, 1)?;
        expect_rank("key", key, 1)?;
        let words = &counter.shape[counter.rank() - 1];
        expect_equal("the words of a counter", words, &Dim::Known(4))?;
        expect_equal("the words of the key", &key.shape[0], &Dim::Known(2))?;
        Ok(vec![counter.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [counters, key] = [0, 1].map(|i| operands[i].to_i64s());
        let key = [key[0] as u32, key[1] as u32];
        let words = counters.chunks_exact(4).flat_map(|c| {
            let counter = [c[0] as u32, c[1] as u32, c[2] as u32, c[3] as u32];
            philox4x32(counter, key).map(i64::from)
        });
        let words: Vec<i64> = words.collect();
        Ok(vec![Tensor::from_i64s(results[0].clone(), &words)?])
    }

    fn cases() -> Vec<OpCase> {
        let of = |name: &str, shape: &'static [usize]| {
            OpCase::new(name, move |c| {
                let counter = c.input("counter", shape, InputFill::Uniform(0.0, 4294967295.0))?;
                let key = c.input("key", [2], InputFill::Uniform(0.0, 4294967295.0))?;
                let y = c.graph.philox(counter, key)?;
                c.output(y)
            })
        };
        vec![
            known(
                "known_zeros",
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            known(
                "known_ones",
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            known(
                "known_digits_of_pi",
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
            of("one_counter", &[4]),
            of("many_3x101", &[3, 101, 4]),
            of("none", &[0, 4]),
            OpCase::new("symbolic_views", |c| {
                let s = c.sym("s", 5, 300);
                let x = c.input("x", [4.into(), s], InputFill::Uniform(0.0, 4294967295.0))?;
                let key = c.input("key", [4], InputFill::Uniform(0.0, 4294967295.0))?;
                let counter = c.graph.transpose(x, &[1, 0])?;
                let key = c.graph.slice(key, &[1], &[4], &[2])?;
                let y = c.graph.philox(counter, key)?;
                c.output(y)
            }),
            // One tensor as both operands.
            OpCase::new("key_of_the_counter", |c| {
                let x = c.input("x", [4], InputFill::Uniform(0.0, 4294967295.0))?;
                let key = c.graph.narrow(x, 0, 0, 2)?;
                let y = c.graph.philox(x, key)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(
            g: &mut Graph,
            dtype: DType,
            counter: &[usize],
            key: &[usize],
        ) -> Result<Value, OpError> {
            let counter = g.input("counter", Type::new(dtype, counter))?;
            let key = g.input("key", Type::new(DType::U32, key))?;
            g.philox(counter, key)
        }
        vec![
            reject("signed", "operand counter is i32", |g| {
                build(g, DType::I32, &[4], &[2])
            }),
            reject("counter", "the words of a counter: 3 and 4 differ", |g| {
                build(g, DType::U32, &[5, 3], &[2])
            }),
            reject("key", "the words of the key: 4 and 2 differ", |g| {
                build(g, DType::U32, &[4], &[4])
            }),
            reject("scalar", "expected rank 1 or more", |g| {
                build(g, DType::U32, &[], &[2])
            }),
        ]
    }
}

/// A test vector from `kat_vectors` of the authors' Random123 library.
fn known(name: &str, counter: [u32; 4], key: [u32; 2], words: [u32; 4]) -> OpCase {
    OpCase::new(name, move |c| {
        let fill = |words: &[u32]| InputFill::Values(words.iter().map(|w| f64::from(*w)).collect());
        let counter = c.input("counter", [4], fill(&counter))?;
        let key = c.input("key", [2], fill(&key))?;
        let y = c.graph.philox(counter, key)?;
        c.output_expect(y, &words.map(f64::from))
    })
}

impl Graph {
    /// Four random words for each counter of `counter`, `U32 [.., 4]`, with the key `key`, `U32
    /// [2]`.
    ///
    /// # Errors
    /// [`OpError`] when an operand has another type.
    pub fn philox(&mut self, counter: Value, key: Value) -> Result<Value, OpError> {
        self.add(Philox {}, &[counter, key])
    }
}
