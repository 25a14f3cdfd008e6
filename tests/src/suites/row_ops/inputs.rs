//! Inputs of the tests of rows: dense tensors, and views of them.

use tercet_cases::CaseGraph;
use tercet_ir::OpError;
use tercet_ir::Value;
use tercet_ir::fill::InputFill;

/// The shape of a dense input, and the view of it.
#[derive(Clone, Copy)]
pub(super) struct RowInput {
    pub(super) shape: &'static [usize],
    look: InputView,
}

#[derive(Clone, Copy)]
pub(super) enum InputView {
    Plain,
    /// The dense input with its axes permuted to this order.
    Transposed(&'static [usize]),
    /// The dense input without the first and the last element of the last axis.
    Cut,
    /// Every second element of the last axis, read backward.
    Backward,
    /// The dense input, repeated this many times along a new first axis.
    Repeated(usize),
}

pub(super) const fn plain(shape: &'static [usize]) -> RowInput {
    let look = InputView::Plain;
    RowInput { shape, look }
}

pub(super) const fn looked(shape: &'static [usize], look: InputView) -> RowInput {
    RowInput { shape, look }
}

impl RowInput {
    pub(super) fn value(
        self,
        c: &mut CaseGraph,
        name: &str,
        fill: InputFill,
    ) -> Result<Value, OpError> {
        let x = c.input(name, self.shape, fill)?;
        let rank = self.shape.len();
        let mut starts = vec![0; rank];
        let mut ends: Vec<i64> = self.shape.iter().map(|n| *n as i64).collect();
        let mut steps = vec![1; rank];
        match self.look {
            InputView::Plain => Ok(x),
            InputView::Transposed(perm) => c.graph.transpose(x, perm),
            InputView::Cut => {
                starts[rank - 1] = 1;
                ends[rank - 1] -= 1;
                c.graph.slice(x, &starts, &ends, &steps)
            }
            InputView::Backward => {
                starts[rank - 1] = i64::MAX;
                ends[rank - 1] = i64::MIN;
                steps[rank - 1] = -2;
                c.graph.slice(x, &starts, &ends, &steps)
            }
            InputView::Repeated(n) => {
                let shape: Vec<usize> = [n].iter().chain(self.shape).copied().collect();
                c.graph.expand(x, &shape[..])
            }
        }
    }
}

/// Every input, with the axes along which the operators are tested.
pub(super) const INPUTS: &[(&str, RowInput, &[usize])] = &[
    ("short_rows", plain(&[1000, 3]), &[0, 1]),
    ("rows_of_words", plain(&[70, 128]), &[0, 1]),
    ("odd_rows", plain(&[33, 257]), &[0, 1]),
    ("kept_rows", plain(&[3, 4096]), &[1]),
    ("long_rows", plain(&[3, 9001]), &[1]),
    ("long_even_rows", plain(&[2, 20000]), &[1]),
    ("very_long_row", plain(&[1, 300000]), &[1]),
    ("few_long_columns", plain(&[40000, 3]), &[0]),
    ("many_columns", plain(&[300, 1500]), &[0]),
    ("middle", plain(&[3, 70, 34]), &[1]),
    (
        "transposed",
        looked(&[5, 66, 40], InputView::Transposed(&[2, 0, 1])),
        &[0, 1, 2],
    ),
    ("cut", looked(&[7, 60, 66], InputView::Cut), &[1, 2]),
    ("backward", looked(&[7, 130], InputView::Backward), &[0, 1]),
    (
        "repeated",
        looked(&[6, 50], InputView::Repeated(3)),
        &[0, 1, 2],
    ),
];
