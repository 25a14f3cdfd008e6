//! Matmul of each row with the quantized matrix that an index selects: a mixture of experts with
//! quantized weights.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::dequant::{row_len, stored, values, weights};
use crate::ops::util::{
    INDEX_DTYPES, exactly, expect_dtype, expect_equal, expect_rank, reject, resolve_index,
};
use crate::quant::Scheme;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// `y[m, n] = sum_k x[m, k] w[expert[m], n, k]` with `w` quantized in rows of `K`. Negative
    /// indices count from the end.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Scheme, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [5, 64]))?;
    /// let expert = g.input("expert", Type::new(DType::I32, [5]))?;
    /// // The matrices of 8 experts, with 32 rows of two blocks.
    /// let row_bytes = 2 * Scheme::Q4_0.block_bytes();
    /// let w = g.param("w", Type::new(DType::U8, [8, 32, row_bytes]))?;
    /// let y = g.dequant_grouped_matmul(x, w, expert, Scheme::Q4_0)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[5, 32]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct DequantGroupedMatMul {
        /// The block format of the weights.
        pub scheme: Scheme,
    }
}

impl OpSpec for DequantGroupedMatMul {
    const DOC: OpDoc = OpDoc {
        name: "dequant_grouped_mat_mul",
        text: "Each row of `x [M, K]` times the quantized matrix of `w [E, N, row_bytes]` that its \
               index selects: `sum_k x[m, k] w[expert[m], n, k]`. Negative indices count from the \
               end. A run with an out-of-range index fails.",
        operands: &["x", "w", "expert"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::matmul::dequant_grouped);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, w, expert] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_dtype("expert", expert, INDEX_DTYPES)?;
        expect_rank("x", x, 2)?;
        let k = row_len(self.scheme, w)?;
        expect_rank("w", w, 3)?;
        expect_rank("expert", expert, 1)?;
        expect_equal("numbers of rows and indices", &x.shape[0], &expert.shape[0])?;
        expect_equal("the inner dimensions", &x.shape[1], &k)?;
        Ok(vec![x.with_shape([x.shape[0].clone(), w.shape[1].clone()])])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, w) = (operands[0].to_f64s(), values(self.scheme, operands[1])?);
        let k = operands[0].shape()[1];
        let [experts, n, _] = operands[1].shape()[..] else {
            unreachable!("invariant: w has three axes")
        };
        let mut y = vec![0.0; results[0].numel()];
        for (m, index) in operands[2].to_i64s().into_iter().enumerate() {
            let first = resolve_index(index, experts)? * n * k;
            for j in 0..n {
                let row = &w[first + j * k..][..k];
                let terms = x[m * k..][..k].iter().zip(row);
                y[m * n + j] = terms.map(|(x, w)| x * f64::from(*w)).sum();
            }
        }
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }

    fn cases() -> Vec<OpCase> {
        let i32 = DType::I32;
        let per_scheme = Scheme::ALL.iter().map(|&s| {
            let case = grouped(s, "experts_5_of_7x2_blocks", [7, 2, 9, 5], i32);
            case.only(&[DType::F32])
        });
        let shapes = [
            grouped(Scheme::Q8_0, "several_tiles", [70, 3, 70, 3], i32),
            grouped(Scheme::Q4_0, "many_rows_520", [520, 1, 3, 5], i32),
            grouped(Scheme::Mxfp4, "many_rows_530", [530, 1, 3, 5], i32),
            grouped(Scheme::Int4Asym, "even_40x48", [40, 1, 48, 4], i32),
            grouped(Scheme::Mxfp4, "one_row", [1, 4, 12, 8], i32),
            grouped(Scheme::Q4_0, "one_expert", [40, 1, 8, 1], i32),
            grouped(Scheme::Iq4Nl, "more_experts_than_rows", [5, 1, 9, 64], i32),
            grouped(Scheme::Int8, "by_i64", [9, 1, 6, 3], DType::I64),
            grouped(Scheme::Q6K, "one_column", [33, 1, 1, 4], i32),
            grouped(Scheme::Q4K, "no_rows", [0, 1, 5, 2], i32),
            grouped(Scheme::BF16, "no_rows", [0, 1, 5, 2], i32),
            grouped(Scheme::Q4_0, "nothing_to_sum", [4, 0, 5, 2], i32),
            grouped(Scheme::Mxfp4, "nothing_to_sum", [4, 0, 5, 2], i32),
            grouped(Scheme::Q4_0, "no_columns", [4, 2, 0, 2], i32),
            packed_weights_case(Scheme::Q5_0),
            packed_weights_case(Scheme::Mxfp4),
        ];
        let others = [
            OpCase::new("pinned", |c| {
                // Scales 1, 1 and ascending quantized values, then -2 each.
                let block =
                    |code: fn(usize) -> f64| [0.0, 60.0].into_iter().chain((0..32).map(code));
                let bytes = block(|i| i as f64).chain(block(|_| 254.0)).collect();
                let ty = Type::new(DType::U8, [2, 1, 34]);
                let w = c.param_of("w", ty, InputFill::Values(bytes))?;
                let x = c.input("x", [3, 32], InputFill::Values(vec![1.0; 96]))?;
                let ty = Type::new(DType::I32, [3]);
                let at = c.input_of("expert", ty, InputFill::Values(vec![1.0, 0.0, -1.0]))?;
                let y = c.graph.dequant_grouped_matmul(x, w, at, Scheme::Q8_0)?;
                c.output_expect(y, &[-64.0, 496.0, -64.0])
            }),
            OpCase::new("later_experts", |c| {
                let w = stored(Scheme::Int4, &[4, 6], 128);
                let w = c.param_of("w", w, InputFill::Blocks(Scheme::Int4))?;
                let w = c.graph.narrow(w, 0, 1, 3)?;
                multiplied(c, w, Scheme::Int4, [5, 128, 3])
            }),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 5, 40);
                let x = c.input("x", [s.clone(), 64.into()], InputFill::Normal)?;
                let w = stored(Scheme::Nvfp4, &[4, 6], 64);
                let w = c.param_of("w", w, InputFill::Blocks(Scheme::Nvfp4))?;
                let at = c.input_of("expert", Type::new(DType::I32, [s]), InputFill::Index(4))?;
                let y = c.graph.dequant_grouped_matmul(x, w, at, Scheme::Nvfp4)?;
                c.output(y)
            }),
            fault(
                Scheme::Q8_0,
                "index_at_the_end",
                2.0,
                "index 2 is out of range for axis of 2",
            ),
            fault(
                Scheme::Iq3S,
                "index_below",
                -3.0,
                "index -3 is out of range for axis of 2",
            ),
            fault(
                Scheme::F16,
                "index_of_floats",
                7.0,
                "index 7 is out of range for axis of 2",
            ),
        ];
        per_scheme.chain(shapes).chain(others).collect()
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, x: Type, w: Type, expert: Type) -> Result<Value, OpError> {
            let x = g.input("x", x)?;
            let w = g.input("w", w)?;
            let expert = g.input("expert", expert)?;
            g.dequant_grouped_matmul(x, w, expert, Scheme::Int4)
        }
        const X: [usize; 2] = [4, 128];
        vec![
            reject("float_indices", "operand expert is f32", |g| {
                let (x, w) = (Type::new(DType::F32, X), Type::new(DType::U8, [2, 5, 72]));
                build(g, x, w, Type::new(DType::F32, [4]))
            }),
            reject("one_matrix", "rank 3", |g| {
                let (x, w) = (Type::new(DType::F32, X), Type::new(DType::U8, [5, 72]));
                build(g, x, w, Type::new(DType::I32, [4]))
            }),
            reject(
                "part_of_a_block",
                "rows of 70 bytes are not whole int4 blocks",
                |g| {
                    let (x, w) = (Type::new(DType::F32, X), Type::new(DType::U8, [2, 5, 70]));
                    build(g, x, w, Type::new(DType::I32, [4]))
                },
            ),
            reject("storage", "operand w is f32; accepted: u8", |g| {
                let (x, w) = (Type::new(DType::F32, X), Type::new(DType::F32, [2, 5, 72]));
                build(g, x, w, Type::new(DType::I32, [4]))
            }),
            reject("inner", "the inner dimensions: 128 and 256 differ", |g| {
                let (x, w) = (Type::new(DType::F32, X), Type::new(DType::U8, [2, 5, 144]));
                build(g, x, w, Type::new(DType::I32, [4]))
            }),
            reject("rows", "numbers of rows and indices: 4 and 5 differ", |g| {
                let (x, w) = (Type::new(DType::F32, X), Type::new(DType::U8, [2, 5, 72]));
                build(g, x, w, Type::new(DType::I32, [5]))
            }),
            reject("integers", "operand x is i32", |g| {
                let (x, w) = (Type::new(DType::I32, X), Type::new(DType::U8, [2, 5, 72]));
                build(g, x, w, Type::new(DType::I32, [4]))
            }),
        ]
    }
}

/// `x [m, k]` times the matrices that `expert` selects from `experts` matrices.
fn multiplied(
    c: &mut CaseGraph,
    w: Value,
    scheme: Scheme,
    [m, k, experts]: [usize; 3],
) -> Result<(), OpError> {
    let x = c.input("x", [m, k], InputFill::Normal)?;
    let at = c.input_of(
        "expert",
        Type::new(DType::I32, [m]),
        InputFill::Index(experts),
    )?;
    let y = c.graph.dequant_grouped_matmul(x, w, at, scheme)?;
    c.output(y)
}

/// `m` rows of `blocks` blocks, and `experts` matrices of `n` rows.
fn grouped(
    scheme: Scheme,
    name: &str,
    [m, blocks, n, experts]: [usize; 4],
    indices: DType,
) -> OpCase {
    OpCase::new(format!("{}_{name}", scheme.name()), move |c| {
        let k = weights(scheme, blocks);
        let x = c.input("x", [m, k], InputFill::Normal)?;
        let w = stored(scheme, &[experts, n], k);
        let w = c.param_of("w", w, InputFill::Blocks(scheme))?;
        let at = c.input_of("expert", Type::new(indices, [m]), InputFill::Index(experts))?;
        let y = c.graph.dequant_grouped_matmul(x, w, at, scheme)?;
        c.output(y)
    })
}

/// Weights that are an input of each run, in the layout of model files.
fn packed_weights_case(scheme: Scheme) -> OpCase {
    OpCase::new(format!("{}_given", scheme.name()), move |c| {
        let w = c.input_of("w", stored(scheme, &[3, 7], 96), InputFill::Blocks(scheme))?;
        multiplied(c, w, scheme, [11, 96, 3])
    })
}

/// Three indices: a valid one, this one, and an invalid one.
fn fault(scheme: Scheme, name: &str, index: f64, message: &'static str) -> OpCase {
    OpCase::new(name, move |c| {
        let k = weights(scheme, 1);
        let x = c.input("x", [3, k], InputFill::Normal)?;
        let w = c.input_of("w", stored(scheme, &[2, 5], k), InputFill::Blocks(scheme))?;
        let ty = Type::new(DType::I32, [3]);
        let at = c.input_of("expert", ty, InputFill::Values(vec![0.0, index, 9.0]))?;
        let y = c.graph.dequant_grouped_matmul(x, w, at, scheme)?;
        c.expect_fault(message);
        c.output(y)
    })
}

impl Graph {
    /// Multiplies each row of floats `x [M, K]` by the quantized matrix of `w [E, N, row_bytes]`
    /// that its index in `expert [M]` (`I32` or `I64`) selects. The result `[M, N]` has the dtype
    /// of `x` and is rounded once.
    ///
    /// # Errors
    /// [`OpError`] when sizes do not match, or when `w` has another dtype than [`Scheme::storage`]
    /// or rows that are not whole blocks of known size. A run fails if an index is outside `-E..E`.
    pub fn dequant_grouped_matmul(
        &mut self,
        x: Value,
        w: Value,
        expert: Value,
        scheme: Scheme,
    ) -> Result<Value, OpError> {
        self.add(DequantGroupedMatMul { scheme }, &[x, w, expert])
    }
}
