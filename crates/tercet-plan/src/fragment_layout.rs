//! Whether the elements of a device's cooperative matrices lie over a subgroup as kernels expect that fill
//! matrices themselves.
//!
//! Neither Vulkan nor SPIR-V says which invocation holds which element, though on a device it is always the same. It is
//! found by trying: a product whose sums of integers are exact, and wrong wherever an element lies elsewhere.

use half::f16;
use tercet_ir::{DType, Element, Graph, OpError, Tensor, Type};

use crate::caps::{Caps, CoopShape, CoopType};

const ROWS: usize = 8;
const COLUMNS: usize = 16;
const LEN: usize = 256;

/// A product that such a kernel computes, and its inputs.
///
/// Run it where [`Caps::coop_lanes`] is set, and ask [`Lanes::are_right`].
#[derive(Debug)]
pub struct Lanes {
    /// Eight rows times sixteen columns.
    pub graph: Graph,
    rows: Vec<f32>,
    columns: Vec<f16>,
}

/// The product that tries a device; `None` for one that has no such matrices.
///
/// # Errors
/// Never for the graph that this is: those of its builder.
pub fn lanes(caps: &Caps) -> Result<Option<Lanes>, OpError> {
    let fits = |s: &CoopShape| (s.ty, s.m, s.n, s.k) == (CoopType::F16, 16, 8, 16);
    let may = caps.spirv && caps.natives.halves && caps.subgroup == Some(32);
    match may && caps.coop.iter().any(fits) {
        true => Lanes::new().map(Some),
        false => Ok(None),
    }
}

/// Integers from -100 to 100 without a pattern.
fn integers(len: usize, seed: u32) -> impl Iterator<Item = i16> {
    (0..len as u32).map(move |i| {
        let mixed = (i + seed).wrapping_mul(0x9e37_79b1);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca77);
        ((mixed >> 16) % 201) as i16 - 100
    })
}

fn tensor<T: Element>(shape: [usize; 2], values: &[T]) -> Tensor {
    Tensor::from_slice(&shape, values).expect("invariant: as many values as the shape has")
}

impl Lanes {
    fn new() -> Result<Lanes, OpError> {
        let mut graph = Graph::new();
        let x = graph.input("rows", Type::new(DType::F32, [ROWS, LEN]))?;
        let w = graph.input("columns", Type::new(DType::F16, [COLUMNS, LEN]))?;
        let y = graph.dequant_matmul(x, w, tercet_ir::Scheme::F16)?;
        graph.output("y", y)?;
        Ok(Lanes {
            graph,
            rows: integers(ROWS * LEN, 0).map(f32::from).collect(),
            columns: integers(COLUMNS * LEN, 1 << 20)
                .map(|i| f16::from_f32(f32::from(i)))
                .collect(),
        })
    }

    /// The inputs of the graph.
    pub fn inputs(&self) -> [(&'static str, Tensor); 2] {
        [
            ("rows", tensor([ROWS, LEN], &self.rows)),
            ("columns", tensor([COLUMNS, LEN], &self.columns)),
        ]
    }

    /// True if this result is the product, bit for bit: its sums are integers below 2^24.
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

#[cfg(test)]
mod tests {
    use super::*;
    use tercet_ir::CompileOptions;

    #[test]
    fn the_product_that_is_tried_runs_on_the_matrices_in_question() {
        let lanes = Lanes::new().unwrap();
        let program = crate::compile(&lanes.graph, &CompileOptions::new(), &Caps::h200()).unwrap();
        let [kernel] = &program.kernels[..] else {
            panic!("{program}");
        };
        assert!(
            kernel.name.starts_with("few_rows_streamed_f16 "),
            "{kernel}"
        );
    }

    #[test]
    fn elements_in_other_places_are_found() {
        let lanes = Lanes::new().unwrap();
        let product = |swap: bool| {
            let mut rows = lanes.rows.clone();
            if swap {
                rows.swap(0, 8);
            }
            let sums: Vec<f32> = (0..ROWS * COLUMNS)
                .map(|at| {
                    let (row, column) = (at / COLUMNS * LEN, at % COLUMNS * LEN);
                    let terms =
                        (0..LEN).map(|k| rows[row + k] * lanes.columns[column + k].to_f32());
                    terms.sum()
                })
                .collect();
            [tensor([ROWS, COLUMNS], &sums)]
        };
        assert!(lanes.are_right(&product(false)));
        assert!(!lanes.are_right(&product(true)));
        assert!(!lanes.are_right(&[]));
        assert!(super::lanes(&Caps::browser()).unwrap().is_none());
    }
}
