//! Random words for counters that the graph provides.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::random::philox4x32;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least};

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
