//! Probe for the register layout of cooperative-matrix fragments; mma-style kernels load fragment
//! elements by assuming this layout.
//!
//! Neither Vulkan nor SPIR-V specifies which thread holds which element of a cooperative matrix,
//! although each device always uses the same layout. The probe runs an mma-style matmul of small
//! integers. Its sums are exact, so a device with another fragment layout gives a different result.

use half::f16;
use tercet_ir::{DType, Element, Graph, OpError, Tensor, Type};

use crate::caps::{CoopShape, CoopType, DeviceCaps};

/// Name of the probe in the list of trials that the cache folder keeps.
pub const LAYOUT_TRIAL: &str = "fragment_layout";

const ROWS: usize = 8;
const COLUMNS: usize = 16;
const LEN: usize = 256;

/// The probe: a graph with a matmul that an mma-style kernel computes, and the values of its
/// inputs.
///
/// Compile and run the graph with [`DeviceCaps::coop_fragment_layout`] set, then check its output
/// with [`FragmentLayoutProbe::are_right`].
#[derive(Debug)]
pub struct FragmentLayoutProbe {
    /// Graph of a matmul whose result has 8 rows and 16 columns.
    pub graph: Graph,
    rows: Vec<f32>,
    columns: Vec<f16>,
}

/// Returns the fragment layout probe for a device. `None` if the device has no 16 x 8 x 16 F16
/// cooperative matrices.
///
/// # Errors
/// [`OpError`] of the graph builder; it does not occur for this fixed graph.
pub fn lanes(caps: &DeviceCaps) -> Result<Option<FragmentLayoutProbe>, OpError> {
    let fits = |s: &CoopShape| (s.ty, s.m, s.n, s.k) == (CoopType::F16, 16, 8, 16);
    let may = caps.spirv && caps.natives.f16_conversions && caps.subgroup == Some(32);
    match may && caps.coop.iter().any(fits) {
        true => FragmentLayoutProbe::new().map(Some),
        false => Ok(None),
    }
}

/// Pseudorandom integers from -100 to 100.
fn integers(len: usize, seed: u32) -> impl Iterator<Item = i16> {
    (0..len as u32).map(move |i| {
        let mixed = (i + seed).wrapping_mul(0x9e37_79b1);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca77);
        ((mixed >> 16) % 201) as i16 - 100
    })
}

fn tensor<T: Element>(shape: [usize; 2], values: &[T]) -> Tensor {
    Tensor::from_slice(&shape, values).expect("invariant: the number of values matches the shape")
}

impl FragmentLayoutProbe {
    fn new() -> Result<FragmentLayoutProbe, OpError> {
        let mut graph = Graph::new();
        let x = graph.input("rows", Type::new(DType::F32, [ROWS, LEN]))?;
        let w = graph.input("columns", Type::new(DType::F16, [COLUMNS, LEN]))?;
        let y = graph.dequant_matmul(x, w, tercet_ir::Scheme::F16)?;
        graph.output("y", y)?;
        Ok(FragmentLayoutProbe {
            graph,
            rows: integers(ROWS * LEN, 0).map(f32::from).collect(),
            columns: integers(COLUMNS * LEN, 1 << 20)
                .map(|i| f16::from_f32(f32::from(i)))
                .collect(),
        })
    }

    /// Names and values of the graph inputs.
    pub fn inputs(&self) -> [(&'static str, Tensor); 2] {
        [
            ("rows", tensor([ROWS, LEN], &self.rows)),
            ("columns", tensor([COLUMNS, LEN], &self.columns)),
        ]
    }

    /// True if the outputs of the probe graph equal the exact matmul result bit for bit. All sums
    /// are integers below 2^24, so they are exact in F32.
    pub fn are_right(&self, outputs: &[Tensor]) -> bool {
        let [y] = outputs else {
            return false;
        };
        let wanted = self.rows.chunks_exact(LEN).flat_map(|row| {
            self.columns.chunks_exact(LEN).map(|column| {
                let terms = row.iter().zip(column).map(|(x, w)| x * w.to_f32());
                terms.sum::<f32>()
            })
        });
        y.as_slice::<f32>()
            .is_ok_and(|got| got.iter().copied().eq(wanted))
    }
}
