//! Matmul with the semantics of NumPy's `matmul`.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::contract::Contraction;
use crate::ops::util::{
    broadcast_indices, exactly, expect_dtype, expect_equal, expect_rank_at_least,
    expect_same_dtype, from_scalars,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type, broadcast_shapes};

attrs! {
    /// `y[.., m, n] = sum_k a[.., m, k] b[.., k, n]`. Leading axes broadcast. A rank 1 operand is a
    /// row (left) or a column (right), and the result omits its axis of size 1.
    ///
    /// ```
    /// use tercet_ir::{DType, Dim, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [Dim::sym("batch"), 5.into(), 64.into()]))?;
    /// let w = g.param("w", Type::new(DType::F32, [64, 32]))?;
    /// let y = g.matmul(x, w)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[batch, 5, 32]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct MatMul {}
}

/// The axes of an operand: batch axes, the free axis (`None` for a vector), the summed axis.
struct MatMulAxes<'a, D> {
    batch: &'a [D],
    free_axis: Option<&'a D>,
    summed: &'a D,
}

fn split<D>(dims: &[D], left: bool) -> Option<MatMulAxes<'_, D>> {
    match dims {
        [] => None,
        [summed] => Some(MatMulAxes {
            batch: &[],
            free_axis: None,
            summed,
        }),
        [batch @ .., m, k] if left => Some(MatMulAxes {
            batch,
            free_axis: Some(m),
            summed: k,
        }),
        [batch @ .., k, n] => Some(MatMulAxes {
            batch,
            free_axis: Some(n),
            summed: k,
        }),
    }
}

impl OpSpec for MatMul {
    const DOC: OpDoc = OpDoc {
        name: "mat_mul",
        text: "NumPy's `matmul`: `sum_k a[.., m, k] b[.., k, n]`, leading axes broadcast. Integers wrap.",
        operands: &["a", "b"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::matmul::mat_mul);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [a, b] = exactly(operands)?;
        expect_dtype("a", a, DType::NUMBERS)?;
        expect_same_dtype("b", b, a)?;
        let (Some(l), Some(r)) = (split(&a.shape, true), split(&b.shape, false)) else {
            expect_rank_at_least("a", a, 1)?;
            expect_rank_at_least("b", b, 1)?;
            unreachable!("invariant: one of the operands is a scalar");
        };
        expect_equal("the inner dimensions", l.summed, r.summed)?;
        let batch = broadcast_shapes(l.batch, r.batch).ok_or_else(|| TypeError::Broadcast {
            left: a.clone(),
            right: b.clone(),
        })?;
        let mut dims = batch.into_dims();
        dims.extend(l.free_axis.into_iter().chain(r.free_axis).cloned());
        Ok(vec![a.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (a, b) = (operands[0], operands[1]);
        let l = split(a.shape(), true).expect("invariant: infer refuses scalars");
        let r = split(b.shape(), false).expect("invariant: infer refuses scalars");
        let (m, n, k) = (
            l.free_axis.unwrap_or(&1),
            r.free_axis.unwrap_or(&1),
            *l.summed,
        );
        let out = &results[0].shape;
        let kept = usize::from(l.free_axis.is_some()) + usize::from(r.free_axis.is_some());
        let batch = &out[..out.len() - kept];
        let lefts = broadcast_indices(l.batch, batch).into_iter();
        let rights = broadcast_indices(r.batch, batch).into_iter();
        let contraction = Contraction {
            batch: lefts
                .map(|i| i * m * k)
                .zip(rights.map(|i| i * k * n))
                .collect(),
            ..Contraction::matrix(*m, k, *n, (*n, 1))
        };
        let y = contraction.eval(a, b);
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }

    fn cases() -> Vec<OpCase> {
        let mut cases = shaped_cases();
        cases.extend(value_cases());
        cases.extend(code_cases());
        cases
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            RejectCase {
                name: "inner_dimensions",
                message: "the inner dimensions: 3 and 4 differ",
                build: |g| {
                    product(
                        g,
                        Type::new(DType::F32, [2, 3]),
                        Type::new(DType::F32, [4, 5]),
                    )
                },
            },
            RejectCase {
                name: "inner_symbols",
                message: "use one symbol for sizes that are always equal",
                build: |g| {
                    let (s, t) = (crate::Dim::sym("s"), crate::Dim::sym("t"));
                    product(
                        g,
                        Type::new(DType::F32, [2.into(), s]),
                        Type::new(DType::F32, [t]),
                    )
                },
            },
            RejectCase {
                name: "batches",
                message: "do not broadcast",
                build: |g| {
                    let b = Type::new(DType::F32, [3, 5, 4]);
                    product(g, Type::new(DType::F32, [2, 4, 5]), b)
                },
            },
            RejectCase {
                name: "scalar",
                message: "operand b has type f32[]; expected rank 1 or more",
                build: |g| {
                    product(
                        g,
                        Type::new(DType::F32, [2]),
                        Type::new(DType::F32, crate::Shape::default()),
                    )
                },
            },
            RejectCase {
                name: "truth_values",
                message: "operand a is bool",
                build: |g| product(g, Type::new(DType::Bool, [2]), Type::new(DType::Bool, [2])),
            },
            RejectCase {
                name: "mixed_dtypes",
                message: "operand b is f16; accepted: f32",
                build: |g| product(g, Type::new(DType::F32, [2]), Type::new(DType::F16, [2])),
            },
        ]
    }
}

fn product(g: &mut Graph, a: Type, b: Type) -> Result<Value, OpError> {
    let a = g.input("a", a)?;
    let b = g.input("b", b)?;
    g.matmul(a, b)
}

fn shaped_cases() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    let shaped = |name: &str, a: &'static [usize], b: &'static [usize]| {
        OpCase::new(name, move |c| {
            let a = c.input("a", a, InputFill::Normal)?;
            let b = c.input("b", b, InputFill::Normal)?;
            let y = c.graph.matmul(a, b)?;
            c.output(y)
        })
    };
    vec![
        shaped("one_by_one", &[1, 1], &[1, 1]),
        shaped("odd_7x33x5", &[7, 33], &[33, 5]),
        shaped("tiles_and_rest_65x129x67", &[65, 129], &[129, 67]),
        shaped("whole_words_40x72x88", &[40, 72], &[72, 88]),
        shaped("whole_words_of_a_batch", &[3, 17, 24], &[3, 24, 40]),
        // Few results with long sums, for which devices may use split-K; the last chunk of k is
        // shorter or empty.
        shaped("long_sums_of_a_batch", &[2, 20, 388], &[2, 388, 44]),
        transposed("long_sums_transposed", 20, 1236, 8),
        // A matmul large enough that some devices use split-F16.
        transposed("many_260x768x2880", 260, 768, 2880).only(&[DType::F32]),
        // Sums so long that sequential accumulation in F32 would be inaccurate.
        shaped("few_rows_8x16000x9", &[8, 16000], &[16000, 9]).only(DType::FLOATS),
        shaped("one_row_1x300x41", &[1, 300], &[300, 41]),
        shaped("one_column_41x300x1", &[41, 300], &[300, 1]),
        shaped("outer_product_9x1x11", &[9, 1], &[1, 11]),
        shaped("vector_vector", &[37], &[37]),
        shaped("vector_matrix", &[5], &[5, 3]),
        shaped("matrix_vector", &[3, 5], &[5]),
        shaped("vector_batch", &[5], &[2, 5, 3]),
        shaped("batch_vector", &[2, 3, 5], &[5]),
        shaped("batch_2x3", &[2, 3, 4, 5], &[2, 3, 5, 6]),
        shaped("batch_broadcast_both", &[2, 1, 4, 5], &[3, 5, 6]),
        shaped("batch_of_left_only", &[3, 4, 5], &[5, 6]),
        shaped("batch_of_right_only", &[4, 5], &[3, 5, 6]),
        shaped("no_rows", &[0, 5], &[5, 3]),
        shaped("no_columns", &[4, 5], &[5, 0]),
        shaped("no_batch", &[0, 4, 5], &[5, 3]),
        OpCase::new("whole_words_by_a_transpose", |c| {
            let a = c.input("a", [139, 40], InputFill::Normal)?;
            let b = c.input("b", [152, 40], InputFill::Normal)?;
            let b = c.graph.transpose(b, &[1, 0])?;
            let y = c.graph.matmul(a, b)?;
            c.output(y)
        }),
        OpCase::new("empty_sum_is_zero", |c| {
            let a = c.input("a", [2, 0], InputFill::Normal)?;
            let b = c.input("b", [0, 3], InputFill::Normal)?;
            let y = c.graph.matmul(a, b)?;
            c.output_expect(y, &[0.0; 6])
        }),
        transposed("one_row_transposed", 1, 3000, 37),
        transposed("few_rows_transposed", 6, 520, 11),
        transposed("one_row_transposed_odd", 1, 301, 10),
        // A row longer than the part that a workgroup stores.
        transposed("one_long_row_transposed", 1, 16640, 5).only(DType::FLOATS),
        OpCase::new("one_row_of_a_transposed_batch", |c| {
            let a = c.input("a", [3, 1, 64], InputFill::Normal)?;
            let b = c.input("b", [3, 18, 64], InputFill::Normal)?;
            let b = c.graph.transpose(b, &[0, 2, 1])?;
            let y = c.graph.matmul(a, b)?;
            c.output(y)
        }),
        OpCase::new("rows_times_themselves", |c| {
            let a = c.input("a", [5, 16], InputFill::Normal)?;
            let b = c.graph.transpose(a, &[1, 0])?;
            let y = c.graph.matmul(a, b)?;
            c.output(y)
        }),
        OpCase::new("symbolic_rows_and_depth", |c| {
            let (m, k) = (c.sym("m", 5, 9), c.sym("k", 13, 32));
            let a = c.input("a", [m, k.clone()], InputFill::Normal)?;
            let b = c.input("b", [k, 7.into()], InputFill::Normal)?;
            let y = c.graph.matmul(a, b)?;
            c.output(y)
        }),
        OpCase::new("symbolic_batch_and_columns", |c| {
            let (b, n) = (c.sym("b", 3, 4), c.sym("n", 11, 16));
            let x = c.input(
                "x",
                [b.clone(), 1.into(), 6.into(), 5.into()],
                InputFill::Normal,
            )?;
            let w = c.input("w", [b, 2.into(), 5.into(), n], InputFill::Normal)?;
            let y = c.graph.matmul(x, w)?;
            c.output(y)
        }),
    ]
}

/// `[m, k]` times the transpose of `[n, k]`.
fn transposed(name: &str, m: usize, k: usize, n: usize) -> OpCase {
    OpCase::new(name, move |c| {
        let a = c.input("a", [m, k], InputFill::Normal)?;
        let b = c.input("b", [n, k], InputFill::Normal)?;
        let b = c.graph.transpose(b, &[1, 0])?;
        let y = c.graph.matmul(a, b)?;
        c.output(y)
    })
}

fn value_cases() -> Vec<OpCase> {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    vec![
        OpCase::new("written_values", |c| {
            let a = c.input(
                "a",
                [2, 3],
                InputFill::Values(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            )?;
            let b = c.input(
                "b",
                [3, 2],
                InputFill::Values(vec![1.0, 0.0, 2.0, 1.0, 0.0, 3.0]),
            )?;
            let y = c.graph.matmul(a, b)?;
            c.output_expect(y, &[5.0, 11.0, 14.0, 23.0])
        }),
        OpCase::new("nan_and_infinity_stay_in_their_row", |c| {
            let a = [NAN, 1.0, INF, 1.0, -INF, 1.0, 2.0, 1.0];
            let a = c.input("a", [4, 2], InputFill::Values(a.to_vec()))?;
            let b = c.input("b", [2, 2], InputFill::Values(vec![1.0, 0.0, 1.0, 1.0]))?;
            let y = c.graph.matmul(a, b)?;
            c.output_expect(y, &[NAN, NAN, INF, NAN, -INF, NAN, 3.0, 1.0])
        })
        .only(DType::FLOATS),
        OpCase::new("narrow_floats_accumulate_wide", |c| {
            let a = c.input("a", [1, 4096], InputFill::Values(vec![1.0; 4096]))?;
            let b = c.input("b", [4096, 1], InputFill::Values(vec![1.0; 4096]))?;
            let y = c.graph.matmul(a, b)?;
            c.output_expect(y, &[4096.0])
        })
        .only(DType::FLOATS),
        OpCase::new("integers_of_any_size_wrap", |c| {
            let a = c.input("a", [5, 7], InputFill::Special)?;
            let b = c.input("b", [7, 9], InputFill::Special)?;
            let y = c.graph.matmul(a, b)?;
            c.output(y)
        })
        .only(DType::INTS),
        OpCase::new("sums_of_i8_wrap_in_i8", |c| {
            let a = c.input("a", [2], InputFill::Values(vec![100.0, 100.0]))?;
            let b = c.input("b", [2], InputFill::Values(vec![1.0, 1.0]))?;
            let y = c.graph.matmul(a, b)?;
            c.output_expect(y, &[-56.0])
        })
        .only(&[DType::I8]),
        OpCase::new("integers_stay_integers", |c| {
            let a = c.input("a", [1, 2], InputFill::Values(vec![16777217.0, 1.0]))?;
            let b = c.input("b", [2, 1], InputFill::Values(vec![1.0, 0.0]))?;
            let y = c.graph.matmul(a, b)?;
            c.output_expect(y, &[16777217.0])
        })
        .only(&[DType::I32, DType::U32, DType::I64]),
    ]
}

/// Matmuls with dequantized int8 weights of all 256 values, which may stay quantized.
fn code_cases() -> Vec<OpCase> {
    vec![
        qdq_case("codes_one_row", DType::U8, &[1, 256], true, false),
        qdq_case("codes_few_rows", DType::I8, &[5, 128], false, false),
        qdq_case(
            "codes_batch_by_column",
            DType::U8,
            &[2, 9, 384],
            false,
            true,
        ),
        qdq_case("signed_codes_by_column", DType::I8, &[33, 256], true, true),
    ]
}

/// `x [.., K]` times `(codes - zero) * scale`. The int8 values are `[N, K]` if `turned`, else `[K,
/// N]`. There is one scale for all, or one for each column.
fn qdq_case(
    name: &str,
    dtype: DType,
    x: &'static [usize],
    turned: bool,
    by_column: bool,
) -> OpCase {
    const COLUMNS: usize = 41;
    // All rows of int8 values differ, because gradients of equal rows would cancel.
    const SPREAD: usize = 37;
    let case = OpCase::new(name, move |c| {
        let k = x[x.len() - 1];
        let (least, greatest) = dtype.int_range().expect("invariant: codes are integers");
        let codes = (0..COLUMNS * k).map(|i| ((i * SPREAD + i / k) % 256) as f64 + least as f64);
        let shape = if turned { [COLUMNS, k] } else { [k, COLUMNS] };
        let x = c.input("x", x, InputFill::Normal)?;
        let codes = InputFill::Values(codes.collect());
        let mut w = c.param_of("codes", Type::new(dtype, shape), codes)?;
        let scales = if by_column { COLUMNS } else { 1 };
        let scale = (0..scales).map(|i| 0.001 * (i + 1) as f64).collect();
        let ty = Type::new(DType::F32, [1, scales]);
        let scale = c.param_of("scale", ty, InputFill::Values(scale))?;
        let g = &mut c.graph;
        if turned {
            w = g.transpose(w, &[1, 0])?;
        }
        let wide = g.cast(w, DType::I32)?;
        let zero = g.scalar(DType::I32, (greatest / 3) as f64)?;
        let less = g.sub(wide, zero)?;
        let float = g.cast(less, c.dtype)?;
        let w = g.mul(float, scale)?;
        let y = g.matmul(x, w)?;
        c.output(y)
    });
    case.only(&[DType::F32])
}

impl Graph {
    /// The matmul `[.., m, k] x [.., k, n] -> [.., m, n]` of numbers of one dtype, with the
    /// semantics of NumPy's `matmul`. Leading axes broadcast. A vector is a row on the left and a
    /// column on the right, and its axis is not in the result. Integers wrap. An empty sum is 0.
    ///
    /// # Errors
    /// [`OpError`] when an operand is a scalar, the inner dimensions are not provably equal, the
    /// leading axes do not broadcast, or the dtypes differ or are `Bool`.
    pub fn matmul(&mut self, a: Value, b: Value) -> Result<Value, OpError> {
        self.add(MatMul {}, &[a, b])
    }
}
