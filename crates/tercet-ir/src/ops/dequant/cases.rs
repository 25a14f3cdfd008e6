//! Cases of matmuls with quantized weights: every format, as parameters and as inputs of a run,
//! shapes that select different kernels, and non-finite numbers.

use super::{stored, weights};
use crate::case::{InputFill, OpCase};
use crate::dtype::DType;
use crate::ops::layers;
use crate::quant::Scheme;
use crate::types::Type;

pub(super) fn cases() -> Vec<OpCase> {
    let per_scheme = Scheme::ALL.iter().flat_map(|&s| {
        let mut cases = vec![
            multiplied(s, "decode_1x2_blocks", &[1], 2, 41),
            multiplied(s, "prefill_7x3_blocks", &[7], 3, 5),
        ];
        if is_common(s) {
            cases.push(multiplied(s, "vector", &[], 1, 3));
            cases.push(multiplied(s, "few_rows_3x9_blocks", &[3], 9, 21));
        }
        cases.into_iter().map(move |case| with_dtypes(s, case))
    });
    // Blocks in the layout of model files; executors cannot prepack them.
    let given = Scheme::ALL.iter().flat_map(|&s| {
        let mut cases = vec![
            packed_weights_case(s, "given_3x2_blocks", 3, 2, 6),
            packed_weights_case(s, "given_66x1_block", 66, 1, 8),
        ];
        if is_common(s) {
            cases.push(packed_weights_case(s, "given_1x3_blocks", 1, 3, 19));
        }
        cases.into_iter().map(move |case| with_dtypes(s, case))
    });
    let layers = layers::cases();
    let others = shapes().into_iter().chain(fixed_value_cases());
    per_scheme
        .chain(given)
        .chain(others)
        .chain(layers)
        .collect()
}

/// Shapes that select different kernels.
fn shapes() -> Vec<OpCase> {
    vec![
        // Rows longer than the part that a workgroup stores, and columns for several iterations of
        // it.
        multiplied(Scheme::Q4K, "long_row", &[1], 19, 37),
        multiplied(Scheme::Q4K, "long_rows", &[8], 11, 9),
        multiplied(Scheme::Q5K, "long_row", &[1], 37, 6),
        multiplied(Scheme::Q6K, "long_row", &[1], 61, 37),
        multiplied(Scheme::Q6K, "long_rows", &[5], 11, 9),
        multiplied(Scheme::Q4_0, "long_row", &[1], 160, 37),
        multiplied(Scheme::Q4_0, "long_rows", &[8], 160, 19),
        multiplied(Scheme::F16, "rows_and_rest", &[5], 328, 21),
        multiplied(Scheme::F16, "whole_rows", &[4], 256, 33),
        multiplied(Scheme::Q5_0, "long_row", &[1], 303, 6),
        multiplied(Scheme::Q8_0, "long_row", &[1], 303, 37),
        multiplied(Scheme::F16, "long_row", &[1], 216, 37),
        multiplied(Scheme::BF16, "long_rows", &[8], 48, 9),
        multiplied(Scheme::Q8_0, "many_columns", &[1], 1, 32801),
        multiplied(Scheme::Q4_1, "many_columns", &[2], 1, 1601),
        multiplied(Scheme::Q4K, "many_columns", &[1], 1, 5001),
        later_rows(Scheme::Q4_0, 7),
        later_rows(Scheme::Q8_0, 13),
        later_rows(Scheme::Q4K, 5),
        later_rows(Scheme::Q6K, 5),
        later_rows(Scheme::F16, 5),
        multiplied(Scheme::Q8_0, "tiles_and_rest_65", &[65], 3, 67),
        multiplied(Scheme::Q8_0, "whole_words_70", &[70], 3, 72),
        multiplied(Scheme::Q4K, "whole_words_70", &[70], 2, 72),
        multiplied(Scheme::F16, "whole_words_150", &[150], 40, 200),
        multiplied(Scheme::Q8_0, "long_rows", &[2], 40, 9),
        // Few results with long sums, for which devices may use split-K.
        multiplied(Scheme::Q8_0, "long_sums", &[20], 13, 44).only(&[DType::F32]),
        // More than a few rows, for which some devices have small-M kernels.
        multiplied(Scheme::Q4_0, "dozens_of_rows", &[20], 9, 37),
        multiplied(Scheme::Q8_0, "dozens_of_rows", &[33], 19, 48),
        multiplied(Scheme::Q4K, "dozens_of_rows", &[41], 3, 37),
        multiplied(Scheme::Q6K, "dozens_of_rows", &[12], 2, 22),
        later_rows(Scheme::Int4Asym, 5),
        later_rows(Scheme::Mxfp4, 5),
        later_rows(Scheme::Iq3S, 5),
        multiplied(Scheme::Int8, "whole_words_70", &[70], 2, 72),
        multiplied(Scheme::Int4Asym, "whole_words_70", &[70], 2, 72),
        multiplied(Scheme::Tq2_0, "whole_words_70", &[70], 1, 72),
        multiplied(Scheme::Mxfp4, "whole_words_70", &[70], 3, 72),
        multiplied(Scheme::Fp8E4m3, "whole_words_70", &[70], 1, 72),
        multiplied(Scheme::Iq2Xs, "whole_words_70", &[70], 1, 72),
        multiplied(Scheme::Iq2Xs, "tiles_and_rest_35", &[35], 1, 37),
        multiplied(Scheme::Nvfp4, "long_row", &[1], 150, 6),
        multiplied(Scheme::Int8Asym, "long_rows", &[5], 70, 9),
        multiplied(Scheme::Int4Asym, "no_rows", &[0], 2, 3),
        multiplied(Scheme::Mxfp4, "no_rows", &[0], 2, 3),
        multiplied(Scheme::Iq2S, "no_rows", &[0], 2, 3),
        multiplied(Scheme::Mxfp4, "no_depth", &[2], 0, 3),
        multiplied(Scheme::Q4K, "rank_3", &[2, 3], 1, 17),
        multiplied(Scheme::Q4_0, "no_rows", &[0], 2, 3),
        multiplied(Scheme::Q4_0, "no_columns", &[4], 2, 0),
        multiplied(Scheme::Q4_0, "no_depth", &[2], 0, 3),
        multiplied(Scheme::BF16, "no_depth", &[2], 0, 3),
    ]
}

/// Explicit weights, and symbolic sizes.
fn fixed_value_cases() -> Vec<OpCase> {
    vec![
        // Weights beyond the range of F16 whose matmul results are within it.
        OpCase::new("q8_0_weights_beyond_f16", |c| {
            let block = [0.0, 100.0].into_iter().chain([127.0; 32]);
            let bytes = block.cycle().take(8 * 34).collect();
            let ty = Type::new(DType::U8, [8, 34]);
            let w = c.param_of("w", ty, InputFill::Values(bytes))?;
            let x = InputFill::Values(vec![1.0 / 1024.0; 70 * 32]);
            let x = c.input("x", [70, 32], x)?;
            let y = c.graph.dequant_matmul(x, w, Scheme::Q8_0)?;
            c.output_expect(y, &[4064.0; 560])
        }),
        OpCase::new("symbolic_rows", |c| {
            let (b, s) = (c.sym("b", 2, 3), c.sym("s", 5, 9));
            let x = c.input("x", [b, s, 64.into()], InputFill::Normal)?;
            let w = c.param_of(
                "w",
                stored(Scheme::Q5_1, &[6], 64),
                InputFill::Blocks(Scheme::Q5_1),
            )?;
            let y = c.graph.dequant_matmul(x, w, Scheme::Q5_1)?;
            c.output(y)
        }),
        OpCase::new("symbolic_depth_of_floats", |c| {
            let k = c.sym("k", 19, 32);
            let x = c.input("x", [3.into(), k.clone()], InputFill::Normal)?;
            let ty = Type::new(DType::F16, [5.into(), k]);
            let w = c.input_of("w", ty, InputFill::Blocks(Scheme::F16))?;
            let y = c.graph.dequant_matmul(x, w, Scheme::F16)?;
            c.output(y)
        }),
        with_one(Scheme::Q6K, "infinity", 1, f64::NEG_INFINITY),
        with_one(Scheme::Q4K, "nan", 1, f64::NAN),
        with_one(Scheme::Q5_0, "infinity", 1, f64::INFINITY),
        with_one(Scheme::Q4K, "great", 1, -1e20).only(&[DType::F32, DType::BF16]),
        with_one(Scheme::Q4K, "infinity_in_rows", 3, f64::INFINITY),
        with_one(Scheme::Q4K, "nan_in_rows", 8, f64::NAN),
        with_one(Scheme::Q4K, "nan_in_dozens", 20, f64::NAN),
        with_one(Scheme::Q4K, "infinity_in_dozens", 35, f64::INFINITY),
        with_one(Scheme::Q6K, "infinity_in_dozens", 9, f64::NEG_INFINITY),
        with_one(Scheme::Q8_0, "great_in_dozens", 17, -1e25).only(&[DType::F32, DType::BF16]),
        with_one(Scheme::Q8_0, "infinity_in_rows", 6, f64::NEG_INFINITY),
        with_one(Scheme::Q4_0, "great_in_rows", 2, 1e30).only(&[DType::F32, DType::BF16]),
        OpCase::new("q8_0_sum_of_codes", |c| {
            let block = [0.0, 60.0].into_iter().chain((0..32).map(f64::from));
            let ty = Type::new(DType::U8, [1, 34]);
            let w = c.param_of("w", ty, InputFill::Values(block.collect()))?;
            let x = c.input("x", [1, 32], InputFill::Values(vec![2.0; 32]))?;
            let y = c.graph.dequant_matmul(x, w, Scheme::Q8_0)?;
            c.output_expect(y, &[992.0])
        }),
    ]
}

/// True for the most common formats, which have more cases.
fn is_common(scheme: Scheme) -> bool {
    matches!(
        scheme,
        Scheme::F16
            | Scheme::BF16
            | Scheme::Q4_0
            | Scheme::Q4_1
            | Scheme::Q5_0
            | Scheme::Q5_1
            | Scheme::Q8_0
            | Scheme::Q2K
            | Scheme::Q3K
            | Scheme::Q4K
            | Scheme::Q5K
            | Scheme::Q6K
    )
}

/// Restricts a case to F32 and F16 unless the scheme is common: the other dtypes use the same
/// decoder.
fn with_dtypes(scheme: Scheme, case: OpCase) -> OpCase {
    match is_common(scheme) {
        true => case,
        false => case.only(&[DType::F32, DType::F16]),
    }
}

/// `x [lead.., k]` times `n` weight rows of `blocks` blocks.
fn multiplied(
    scheme: Scheme,
    name: &str,
    lead: &'static [usize],
    blocks: usize,
    n: usize,
) -> OpCase {
    OpCase::new(format!("{}_{name}", scheme.name()), move |c| {
        let k = weights(scheme, blocks);
        let dims: Vec<usize> = lead.iter().copied().chain([k]).collect();
        let x = c.input("x", &dims[..], InputFill::Normal)?;
        let w = c.param_of("w", stored(scheme, &[n], k), InputFill::Blocks(scheme))?;
        let y = c.graph.dequant_matmul(x, w, scheme)?;
        c.output(y)
    })
}

/// Multiplies rows of small numbers, except that the middle element of the last row is `middle`.
fn with_one(scheme: Scheme, name: &str, rows: usize, middle: f64) -> OpCase {
    OpCase::new(format!("{}_{name}", scheme.name()), move |c| {
        let k = weights(scheme, 3 * 32_usize.div_ceil(scheme.block_len()));
        let small = |i| (i % 7) as f64 * 0.25 - 0.75;
        let at = (rows - 1) * k + k / 2;
        let x = (0..rows * k).map(|i| if i == at { middle } else { small(i) });
        let x = c.input("x", [rows, k], InputFill::Values(x.collect()))?;
        let w = c.param_of("w", stored(scheme, &[9], k), InputFill::Blocks(scheme))?;
        let y = c.graph.dequant_matmul(x, w, scheme)?;
        c.output(y)
    })
}

/// As [`multiplied`], with `rows` rows and weights that are an input of each run.
fn packed_weights_case(scheme: Scheme, name: &str, rows: usize, blocks: usize, n: usize) -> OpCase {
    OpCase::new(format!("{}_{name}", scheme.name()), move |c| {
        let k = weights(scheme, blocks);
        let x = c.input("x", [rows, k], InputFill::Normal)?;
        let w = c.input_of("w", stored(scheme, &[n], k), InputFill::Blocks(scheme))?;
        let y = c.graph.dequant_matmul(x, w, scheme)?;
        c.output(y)
    })
}

/// A row of 3 blocks, or of 24 floats, times all weight rows except the first.
fn later_rows(scheme: Scheme, n: usize) -> OpCase {
    OpCase::new(format!("{}_later_rows", scheme.name()), move |c| {
        let k = weights(scheme, 3 * 8_usize.div_ceil(scheme.block_len()));
        let x = c.input("x", [1, k], InputFill::Normal)?;
        let w = c.param_of("w", stored(scheme, &[n + 1], k), InputFill::Blocks(scheme))?;
        let w = c.graph.narrow(w, 0, 1, n)?;
        let y = c.graph.dequant_matmul(x, w, scheme)?;
        c.output(y)
    })
}
