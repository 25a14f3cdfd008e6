//! Tests of weights and inputs that are not aligned to their element size, as in memory-mapped
//! model files. Results are bitwise equal to those of aligned data, on each executor. An upload to
//! a device does not copy host memory for alignment.

use std::sync::Arc;

use crate::{SuiteTest, everywhere};
use tercet::{ByteOwner, CompileOptions, DType, Device, Dim, Graph, Tensor, TensorType, Type};
use tercet_ir::ops::Window;

type BoxError = Box<dyn std::error::Error>;

const WIDTH: usize = 160;
const ROWS: usize = 96;

/// Numbers of a type with a magnitude of at most one.
fn numbers(ty: TensorType) -> Result<Tensor, BoxError> {
    let element = |i: usize| ((i * 37 + i / 11) % 129) as f64 / 64.0 - 1.0;
    let values: Vec<f64> = (0..ty.numel()).map(element).collect();
    Ok(Tensor::from_f64s(ty, &values)?)
}

/// The same numbers at an address that is `by` bytes after a multiple of eight.
fn moved(tensor: &Tensor, by: usize) -> Result<Tensor, BoxError> {
    let len = tensor.bytes().len();
    let memory = vec![0; len + 16];
    let start = memory.as_ptr().align_offset(8) + by;
    let mut memory: Vec<u8> = memory;
    memory[start..start + len].copy_from_slice(tensor.bytes());
    let owner: Arc<dyn ByteOwner> = Arc::new(memory);
    Ok(Tensor::from_owner(
        tensor.ty().clone(),
        owner,
        start..start + len,
    )?)
}

/// A graph with one weight per type of reader: a matmul, which prepacks it, a row gather, a
/// convolution, and an elementwise operator.
struct UnalignedWeights {
    product: Tensor,
    half: Tensor,
    table: Tensor,
    taps: Tensor,
    bias: Tensor,
}

impl UnalignedWeights {
    fn made() -> Result<UnalignedWeights, BoxError> {
        let of = |dtype, shape: &[usize]| numbers(TensorType::new(dtype, shape));
        Ok(UnalignedWeights {
            product: of(DType::F32, &[WIDTH, ROWS])?,
            half: of(DType::F16, &[WIDTH, ROWS])?,
            table: of(DType::F32, &[ROWS, WIDTH])?,
            taps: of(DType::F32, &[24, 3, 3, 3])?,
            bias: of(DType::F32, &[ROWS])?,
        })
    }

    fn moved(&self, by: usize) -> Result<UnalignedWeights, BoxError> {
        Ok(UnalignedWeights {
            product: moved(&self.product, by)?,
            half: moved(&self.half, by)?,
            table: moved(&self.table, by)?,
            taps: moved(&self.taps, by)?,
            bias: moved(&self.bias, by)?,
        })
    }
}

fn graph(weights: &UnalignedWeights) -> Result<Graph, BoxError> {
    let mut g = Graph::new();
    let at = g.input("at", Type::new(DType::I32, [Dim::sym("s")]))?;
    let picture = g.input("picture", Type::new(DType::F32, [1, 3, 12, 12]))?;
    let [product, half, table, taps, bias] = [
        &weights.product,
        &weights.half,
        &weights.table,
        &weights.taps,
        &weights.bias,
    ]
    .map(|tensor| g.constant(tensor.clone()));
    let rows = g.gather(table?, at, 0)?;
    let y = g.matmul(rows, product?)?;
    let y = g.plus(y, bias?)?;
    g.output("y", y)?;
    let narrow = g.cast(rows, DType::F16)?;
    let narrow = g.matmul(narrow, half?)?;
    g.output("narrow", narrow)?;
    let maps = g.conv(picture, taps?, None, Window::new(2), 1)?;
    g.output("maps", maps)?;
    Ok(g)
}

/// The outputs of a device for these weights. The input slices are unaligned as well.
fn outputs(
    device: &Device,
    weights: &UnalignedWeights,
    by: usize,
) -> Result<Vec<Tensor>, BoxError> {
    let mut exe = device.compile(&graph(weights)?, &CompileOptions::new().bound("s", 8))?;
    let at = Tensor::from_slice(&[5], &[3, 0, 95, 41, 41])?;
    let picture = numbers(TensorType::new(DType::F32, &[1, 3, 12, 12]))?;
    let (at, picture) = match by {
        0 => (at, picture),
        _ => (moved(&at, by)?, moved(&picture, by)?),
    };
    Ok(exe.run(&[("at", &at), ("picture", &picture)])?)
}

fn bits_are_those_of_aligned_ones() {
    everywhere(|device| {
        let weights = UnalignedWeights::made()?;
        let wanted = outputs(device, &weights, 0)?;
        for by in [1, 2, 3, 6] {
            let loose = weights.moved(by)?;
            assert!(loose.product.is_loose() && loose.taps.is_loose());
            assert_eq!(outputs(device, &loose, by)?, wanted, "{by} bytes behind");
        }
        Ok(())
    });
}

pub(super) fn tests() -> Vec<SuiteTest> {
    vec![SuiteTest::asserting(
        "unaligned/bits_are_those_of_aligned_ones",
        bits_are_those_of_aligned_ones,
    )]
}
