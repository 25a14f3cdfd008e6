//! Special values through every operator that computes or moves single elements, and through row
//! operators: both zeros, infinities, NaN, subnormals, extremes and the borders of integers.
//!
//! Expected values come from definitions in this suite, not from the reference interpreter, which
//! is tested too. Sizes reach every kernel variant: scalar, vector and vector with a rest.
//!
//! | file | content |
//! |---|---|
//! | `values.rs` | special values of each dtype, rounding, comparison of results |
//! | `expected.rs` | definitions of the elementwise functions |
//! | `elementwise.rs` | tests of elementwise functions |
//! | `rows.rs` | tests of reductions, scans, softmax, norms, sorts and searches |
//! | `moves.rs` | tests of data movement, which must preserve every bit |

mod elementwise;
mod expected;
mod moves;
mod rows;
mod values;

use libtest_mimic::Failed;
use tercet::Device;
use tercet_cases::cases;
use tercet_ir::{CompileOptions, DType, Executable, Graph, OpKind, Tensor};

use crate::{SuiteTest, executors};

/// Element counts: below a vector, one vector, a vector with a rest, and long ones of both kinds.
const SIZES: [usize; 6] = [1, 3, 4, 6, 1023, 1024];

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let mut tests = vec![SuiteTest::asserting(
        "special/coverage",
        every_operator_is_listed,
    )];
    tests.extend(elementwise::tests());
    tests.extend(rows::tests());
    tests.extend(moves::tests());
    tests
}

/// The part of the suite that tests an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpecialCoverage {
    Elementwise,
    Rows,
    Moves,
    /// The cases of the operator have special values.
    Cases,
    /// No test has special values for the operator, for the given reason.
    Elsewhere(&'static str),
}

/// The part of the suite that tests an operator. The cases of an operator that is not listed must
/// have special values.
fn coverage(kind: OpKind) -> SpecialCoverage {
    use SpecialCoverage::{Cases, Elementwise, Elsewhere, Moves, Rows};
    const PRODUCTS: &str = "sums products; infinities meet zeros of padding and masks";
    const COMPOSED: &str = "is composed of tested operators";
    const WEIGHTS: &str = "reads packed weights, whose values are finite";
    match kind {
        OpKind::Input | OpKind::Param | OpKind::Const | OpKind::State => {
            Elsewhere("has no operands")
        }
        OpKind::Unary
        | OpKind::Binary
        | OpKind::Compare
        | OpKind::Where
        | OpKind::Fma
        | OpKind::Clamp
        | OpKind::Cast => Elementwise,
        OpKind::Map => Elsewhere("is what the elementwise operators become"),
        OpKind::Reshape
        | OpKind::Transpose
        | OpKind::Slice
        | OpKind::Concat
        | OpKind::Expand
        | OpKind::Pad
        | OpKind::Tile
        | OpKind::Roll
        | OpKind::Gather
        | OpKind::GatherElements
        | OpKind::GatherNd
        | OpKind::DynamicSlice
        | OpKind::DynamicUpdateSlice
        | OpKind::Trilu
        | OpKind::StopGradient
        | OpKind::Checkpoint => Moves,
        OpKind::ScatterElements | OpKind::ScatterNd | OpKind::ScatterAdd | OpKind::OneHot => {
            Elsewhere("is tested by the suite `scatter` and by its cases")
        }
        OpKind::TopK
        | OpKind::Sort
        | OpKind::ArgMax
        | OpKind::ArgMin
        | OpKind::Softmax
        | OpKind::LogSoftmax
        | OpKind::CumSum
        | OpKind::Reduce
        | OpKind::LayerNorm
        | OpKind::RmsNorm => Rows,
        OpKind::GroupNorm
        | OpKind::LayerNorm2d
        | OpKind::BatchNormInference
        | OpKind::ResidualLayerNorm
        | OpKind::ResidualRmsNorm
        | OpKind::LogMel
        | OpKind::WelchPeaks
        | OpKind::AttentionBlock
        | OpKind::TransformerLayer => Elsewhere(COMPOSED),
        OpKind::MatMul
        | OpKind::Linear
        | OpKind::DotGeneral
        | OpKind::GroupedMatMul
        | OpKind::LoraMatMul
        | OpKind::Im2Col
        | OpKind::Conv
        | OpKind::QuantizedConv
        | OpKind::ConvTranspose
        | OpKind::ConvWeightGrad
        | OpKind::Pool
        | OpKind::Resize
        | OpKind::Attention
        | OpKind::AttentionWithLse
        | OpKind::AttentionGrad
        | OpKind::Rope
        | OpKind::Fft
        | OpKind::RFft
        | OpKind::IRFft
        | OpKind::Stft
        | OpKind::CausalConv => Elsewhere(PRODUCTS),
        OpKind::Dequantize | OpKind::DequantMatMul | OpKind::DequantGroupedMatMul => {
            Elsewhere(WEIGHTS)
        }
        OpKind::Philox | OpKind::RngUniform | OpKind::RngNormal | OpKind::Sample => {
            Elsewhere("draws random numbers")
        }
        OpKind::SelectiveScan
        | OpKind::Mamba2
        | OpKind::GatedDeltaNet
        | OpKind::Recurrence
        | OpKind::Lstm
        | OpKind::Gru
        | OpKind::Rnn => Elsewhere("feeds results back, so one NaN fills the rest"),
        OpKind::Custom => Elsewhere("runs user code"),
        OpKind::If | OpKind::While | OpKind::Scan => Elsewhere("contains other operators"),
        #[cfg(feature = "splat")]
        OpKind::GaussianSplatPrepare
        | OpKind::GaussianSplatRasterize
        | OpKind::GaussianSplatRasterizeGrad
        | OpKind::GaussianSplatRender => Elsewhere("checks its operands"),
        _ => Cases,
    }
}

/// Whether the cases of an operator have data with both infinities, both zeros and NaN.
fn cases_have_special_values(kind: OpKind) -> bool {
    let cases = cases(kind).iter().filter(|case| case.runs_with(DType::F32));
    let mut data = cases.flat_map(|case| {
        let built = case.build(DType::F32);
        let tensors = built.map(|built| built.tensors).unwrap_or_default();
        tensors.into_values().map(|tensor| tensor.to_f64s())
    });
    let wanted: [fn(f64) -> bool; 5] = [
        f64::is_nan,
        |x| x == f64::INFINITY,
        |x| x == f64::NEG_INFINITY,
        |x| x == 0.0 && x.is_sign_positive(),
        |x| x == 0.0 && x.is_sign_negative(),
    ];
    data.any(|values| wanted.iter().all(|is| values.iter().any(|x| is(*x))))
}

/// Checks that each part of the suite tests the operators that [`coverage`] assigns to it.
fn every_operator_is_listed() {
    for &kind in OpKind::ALL {
        let is_tested = match coverage(kind) {
            SpecialCoverage::Elementwise => elementwise::KINDS.contains(&kind),
            SpecialCoverage::Rows => rows::KINDS.contains(&kind),
            SpecialCoverage::Moves => moves::kinds().contains(&kind),
            SpecialCoverage::Cases => cases_have_special_values(kind),
            SpecialCoverage::Elsewhere(reason) => !reason.is_empty(),
        };
        assert!(is_tested, "{kind:?} has no test of special values");
    }
}

/// The test on the reference interpreter and on every executor.
fn everywhere(
    name: &str,
    run: impl Fn(&Device) -> Result<(), Failed> + Clone + Send + 'static,
) -> Vec<SuiteTest> {
    let of_reference = run.clone();
    let mut tests = vec![SuiteTest::new(format!("{name}/reference"), move || {
        of_reference(&Device::reference())
    })];
    for executor in executors() {
        let run = run.clone();
        tests.push(SuiteTest::on(executor, name.to_string(), run));
    }
    tests
}

/// Whether a device computes in 32 bits.
fn is_gpu(device: &Device) -> bool {
    !matches!(device.name(), "cpu" | "reference")
}

fn compile(device: &Device, graph: &Graph) -> Result<Box<dyn Executable>, Failed> {
    let compiled = device.backend().compile(graph, &CompileOptions::new());
    compiled.map_err(|e| tercet::one_line(&e).into())
}

fn run(executable: &mut dyn Executable, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>, Failed> {
    let run = executable.run(inputs);
    run.map_err(|e| tercet::one_line(&e).into())
}
