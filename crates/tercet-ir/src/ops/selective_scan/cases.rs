//! Cases of state-space scans.

use crate::case::{CaseGraph, InputFill, OpCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Value;
use crate::types::{Shape, Type};

/// Source and use of the states in a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScanCaseStates {
    /// Starts from zeros; the final states are not returned.
    None,
    /// Starts from an operand; the final states are not returned.
    Given,
    /// Starts from zeros; the final states are a result.
    Carried,
    /// Starts from an operand; the final states are a result.
    Both,
    /// Stores the states in a state of the graph, over two runs.
    Kept,
    /// As `Kept`, but if a condition of the run is true, the scan starts from zeros instead of the
    /// state.
    Begun,
}

/// A scan of these operands with its outputs; `add` adds the operator.
fn scanned(
    c: &mut CaseGraph,
    of_state: &[Dim],
    states: ScanCaseStates,
    add: impl FnOnce(&mut CaseGraph, Option<Value>, bool) -> Result<Value, OpError>,
) -> Result<(), OpError> {
    let dtype = super::dtype_of_states(c.dtype);
    let ty = Type::new(dtype, of_state.iter().cloned().collect::<Shape>());
    let mut kept = None;
    let state = match states {
        ScanCaseStates::None | ScanCaseStates::Carried => None,
        ScanCaseStates::Given | ScanCaseStates::Both => {
            Some(c.input_of("state", ty, InputFill::Normal)?)
        }
        ScanCaseStates::Kept | ScanCaseStates::Begun => {
            let state = c.state_of("state", ty, InputFill::Normal)?;
            kept = Some(state);
            Some(state)
        }
    };
    let state = match (states, state) {
        (ScanCaseStates::Begun, Some(state)) => {
            let ty = Type::new(DType::Bool, [1]);
            let is_first = c.input_of("first", ty, InputFill::Values(vec![1.]))?;
            let zero = c.graph.scalar(dtype, 0.0)?;
            Some(c.graph.where_(is_first, zero, state)?)
        }
        (_, state) => state,
    };
    let carry = !matches!(states, ScanCaseStates::None | ScanCaseStates::Given);
    let y = add(c, state, carry)?;
    c.output(y)?;
    match kept {
        Some(state) => {
            c.runs = 2;
            c.graph.assign(state, y.port(1))
        }
        None if carry => {
            // The final states are converted to the operands' dtype, so that they are compared with
            // its tolerance.
            let last = c.graph.cast(y.port(1), c.dtype)?;
            c.output(last)
        }
        None => Ok(()),
    }
}

pub(super) fn channels() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    fn operands(
        c: &mut CaseGraph,
        [batch, steps]: [Dim; 2],
        heads: usize,
        n: usize,
        states: ScanCaseStates,
    ) -> Result<(), OpError> {
        let of = |size: usize| -> Shape { [batch.clone(), steps.clone(), size.into()].into() };
        let x = c.input("x", of(heads), InputFill::Normal)?;
        let delta = c.input("delta", of(heads), InputFill::Uniform(0.0, 0.5))?;
        let a = c.input("a", [heads, n], InputFill::Uniform(-3.0, -0.1))?;
        let b = c.input("b", of(n), InputFill::Normal)?;
        let c_ = c.input("c", of(n), InputFill::Normal)?;
        scanned(
            c,
            &[batch, heads.into(), n.into()],
            states,
            |c, state, carry| {
                c.graph
                    .selective_scan_from([x, delta, a, b, c_], state, carry)
            },
        )
    }
    let with = |name: &str, [batch, steps, heads, n]: [usize; 4], states: ScanCaseStates| {
        OpCase::new(name, move |c| {
            operands(c, [batch.into(), steps.into()], heads, n, states)
        })
    };
    let shaped = |name: &str, sizes: [usize; 4]| with(name, sizes, ScanCaseStates::None);
    vec![
        shaped("odd_2x7x5", [2, 7, 5, 3]),
        shaped("states_of_16", [2, 40, 34, 16]),
        shaped("one_state", [3, 9, 4, 1]),
        shaped("one_channel", [1, 50, 1, 16]),
        shaped("many_channels", [1, 5, 131, 6]),
        shaped("states_of_65", [1, 19, 9, 65]),
        shaped("states_of_300", [1, 6, 5, 300]).only(&[DType::F32]),
        shaped("states_of_1000", [1, 6, 3, 1000]).only(&[DType::F32]),
        shaped("one_step", [2, 1, 6, 4]),
        shaped("a_step_over", [2, 33, 34, 8]),
        shaped("long", [1, 1030, 3, 4]).only(&[DType::F32]),
        shaped("no_batch", [0, 4, 3, 2]),
        shaped("no_steps", [2, 0, 3, 2]),
        shaped("no_channels", [2, 4, 0, 2]),
        shaped("no_states", [2, 4, 3, 0]),
        with("from_states", [2, 7, 5, 3], ScanCaseStates::Given),
        with("carry", [2, 33, 34, 8], ScanCaseStates::Carried),
        with(
            "from_states_and_carry",
            [2, 19, 6, 16],
            ScanCaseStates::Both,
        ),
        with(
            "states_of_65_and_carry",
            [1, 5, 9, 65],
            ScanCaseStates::Both,
        ),
        with("one_step_from_states", [2, 1, 70, 16], ScanCaseStates::Both),
        with("one_step_carry", [1, 1, 5, 3], ScanCaseStates::Carried),
        with(
            "one_step_of_300_states",
            [1, 1, 7, 300],
            ScanCaseStates::Both,
        )
        .only(&[DType::F32]),
        with("no_steps_from_states", [2, 0, 3, 2], ScanCaseStates::Both),
        with(
            "no_channels_from_states",
            [2, 1, 0, 2],
            ScanCaseStates::Both,
        ),
        with("kept", [1, 3, 6, 4], ScanCaseStates::Kept),
        with("kept_of_one_step", [1, 1, 6, 4], ScanCaseStates::Kept),
        with("begun", [1, 1, 6, 16], ScanCaseStates::Begun),
        OpCase::new("written", |c| {
            let half = InputFill::Values(vec![1.0, 1.0, 1.0]);
            let x = c.input("x", [1, 3, 1], InputFill::Values(vec![1., 2., 3.]))?;
            let delta = c.input("delta", [1, 3, 1], half)?;
            let a = c.input("a", [1, 2], InputFill::Values(vec![0., 0.]))?;
            let b = c.input(
                "b",
                [1, 3, 2],
                InputFill::Values(vec![1., 2., 1., 0., 1., 1.]),
            )?;
            let d = c.input(
                "c",
                [1, 3, 2],
                InputFill::Values(vec![1., 1., 1., -1., 2., 1.]),
            )?;
            let y = c.graph.selective_scan(x, delta, a, b, d)?;
            // h: (1, 2), (3, 2), (6, 5).
            c.output_expect(y, &[3., 1., 17.])
        }),
        OpCase::new("symbolic", |c| {
            let (batch, steps) = (c.sym("b", 2, 3), c.sym("s", 11, 20));
            operands(c, [batch, steps], 6, 5, ScanCaseStates::None)
        }),
    ]
}

pub(super) fn heads() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    fn operands(
        c: &mut CaseGraph,
        [batch, steps]: [Dim; 2],
        sizes: [usize; 4],
        states: ScanCaseStates,
    ) -> Result<(), OpError> {
        stepped(c, [batch, steps], sizes, 0.5, states)
    }
    /// Step sizes of up to `most`.
    fn stepped(
        c: &mut CaseGraph,
        [batch, steps]: [Dim; 2],
        [heads, per_head, groups, n]: [usize; 4],
        most: f64,
        states: ScanCaseStates,
    ) -> Result<(), OpError> {
        let of = |sizes: &[usize]| -> Shape {
            let own = sizes.iter().map(|&n| Dim::Known(n));
            [batch.clone(), steps.clone()]
                .into_iter()
                .chain(own)
                .collect()
        };
        let x = c.input("x", of(&[heads, per_head]), InputFill::Normal)?;
        let dt = c.input("dt", of(&[heads]), InputFill::Uniform(0.0, most))?;
        let a = c.input("a", [heads], InputFill::Uniform(-3.0, -0.1))?;
        let b = c.input("b", of(&[groups, n]), InputFill::Normal)?;
        let c_ = c.input("c", of(&[groups, n]), InputFill::Normal)?;
        let of_state = [batch, heads.into(), per_head.into(), n.into()];
        scanned(c, &of_state, states, |c, state, carry| {
            c.graph.mamba2_from([x, dt, a, b, c_], state, carry)
        })
    }
    let with =
        |name: &str, batch: usize, steps: usize, sizes: [usize; 4], states: ScanCaseStates| {
            OpCase::new(name, move |c| {
                operands(c, [batch.into(), steps.into()], sizes, states)
            })
        };
    let shaped = |name: &str, batch: usize, steps: usize, sizes: [usize; 4]| {
        with(name, batch, steps, sizes, ScanCaseStates::None)
    };
    vec![
        shaped("odd", 2, 7, [3, 5, 1, 3]),
        shaped("groups", 2, 9, [6, 4, 3, 16]),
        shaped("every_head_alone", 1, 12, [4, 7, 4, 10]),
        shaped("head_of_64_states_of_128", 1, 21, [2, 64, 1, 128]).only(&[DType::F32, DType::F16]),
        shaped("long", 1, 1030, [2, 3, 1, 4]).only(&[DType::F32]),
        // Sequence lengths that are multiples of the chunk and matrix sizes, and others.
        shaped("chunks", 1, 128, [2, 16, 2, 16]),
        shaped("chunks_and_a_part", 2, 201, [4, 32, 2, 48]),
        shaped("chunks_of_128_states", 1, 150, [1, 64, 1, 128]).only(&[DType::F16, DType::BF16]),
        shaped("one_step", 2, 1, [2, 4, 1, 4]),
        shaped("a_step_over", 2, 33, [2, 40, 1, 20]),
        shaped("states_of_1000", 1, 6, [1, 3, 1, 1000]).only(&[DType::F32]),
        // Decays whose product over a few steps exceeds the range of F32, in some heads.
        OpCase::new("steep", |c| {
            stepped(
                c,
                [2.into(), 41.into()],
                [5, 6, 1, 7],
                8.0,
                ScanCaseStates::None,
            )
        }),
        OpCase::new("steep_in_chunks", |c| {
            stepped(
                c,
                [1.into(), 141.into()],
                [3, 16, 1, 16],
                60.0,
                ScanCaseStates::None,
            )
        }),
        shaped("no_steps", 2, 0, [2, 3, 1, 4]),
        shaped("no_channels", 2, 3, [2, 0, 1, 4]),
        shaped("no_heads", 2, 3, [0, 4, 1, 4]),
        shaped("no_states", 2, 3, [2, 4, 1, 0]),
        with("from_states", 2, 7, [3, 5, 1, 3], ScanCaseStates::Given),
        with("carry", 2, 33, [4, 10, 2, 20], ScanCaseStates::Carried),
        with(
            "from_states_and_carry",
            1,
            19,
            [6, 4, 3, 16],
            ScanCaseStates::Both,
        ),
        with(
            "states_of_300_and_carry",
            1,
            5,
            [1, 3, 1, 300],
            ScanCaseStates::Both,
        )
        .only(&[DType::F32]),
        with(
            "chunks_from_states",
            2,
            150,
            [4, 32, 2, 48],
            ScanCaseStates::Both,
        ),
        with(
            "chunks_of_128_states_and_carry",
            1,
            129,
            [1, 64, 1, 128],
            ScanCaseStates::Both,
        )
        .only(&[DType::F16, DType::BF16]),
        with(
            "chunks_carry",
            1,
            128,
            [2, 16, 1, 16],
            ScanCaseStates::Carried,
        ),
        with(
            "one_step_from_states",
            2,
            1,
            [6, 10, 3, 20],
            ScanCaseStates::Both,
        ),
        with(
            "one_step_carry",
            1,
            1,
            [3, 5, 1, 3],
            ScanCaseStates::Carried,
        ),
        with(
            "one_step_of_128_states",
            1,
            1,
            [3, 64, 1, 128],
            ScanCaseStates::Both,
        ),
        with(
            "no_steps_from_states",
            2,
            0,
            [2, 3, 1, 4],
            ScanCaseStates::Both,
        ),
        with("kept", 1, 3, [2, 6, 1, 4], ScanCaseStates::Kept),
        with("kept_of_one_step", 1, 1, [2, 6, 2, 4], ScanCaseStates::Kept),
        with("begun", 1, 1, [2, 6, 1, 32], ScanCaseStates::Begun),
        OpCase::new("steep_from_states", |c| {
            stepped(
                c,
                [2.into(), 41.into()],
                [5, 6, 1, 7],
                8.0,
                ScanCaseStates::Both,
            )
        }),
        // One step of an executable that supports more, and one step of a view into a wider tensor.
        OpCase::new("one_step_of_many", |c| {
            let steps = c.sym("s", 1, 160);
            operands(c, [1.into(), steps], [4, 16, 2, 32], ScanCaseStates::Both)
        }),
        OpCase::new("symbolic_kept", |c| {
            let steps = c.sym("s", 2, 20);
            operands(c, [1.into(), steps], [2, 16, 1, 16], ScanCaseStates::Kept)
        }),
        OpCase::new("split", split),
        OpCase::new("symbolic", |c| {
            let (batch, steps) = (c.sym("b", 2, 3), c.sym("s", 11, 20));
            operands(c, [batch, steps], [4, 3, 2, 5], ScanCaseStates::None)
        }),
        OpCase::new("symbolic_in_chunks", |c| {
            let (batch, steps) = (c.sym("b", 1, 2), c.sym("s", 137, 200));
            operands(c, [batch, steps], [2, 16, 1, 32], ScanCaseStates::None)
        }),
    ]
}

/// One step whose operands are slices of one row, as a projection returns them.
fn split(c: &mut CaseGraph) -> Result<(), OpError> {
    let (heads, per_head, n) = (3, 10, 6);
    let inner = heads * per_head;
    let steps = c.sym("s", 1, 64);
    let rows = [1.into(), steps.clone(), (inner + 2 * n + heads).into()];
    let rows = c.input("rows", rows, InputFill::Uniform(0.1, 0.9))?;
    let a = c.input("a", [heads], InputFill::Uniform(-3.0, -0.1))?;
    let part = |c: &mut CaseGraph, first: usize, shape: &[usize]| {
        let part = c.graph.narrow(rows, 2, first, shape.iter().product())?;
        let own = shape.iter().map(|n| Dim::Known(*n));
        let shape: Shape = [1.into(), steps.clone()].into_iter().chain(own).collect();
        c.graph.reshape(part, shape)
    };
    let x = part(c, 0, &[heads, per_head])?;
    let b = part(c, inner, &[1, n])?;
    let d = part(c, inner + n, &[1, n])?;
    let dt = part(c, inner + 2 * n, &[heads])?;
    let of_state = [1.into(), heads.into(), per_head.into(), n.into()];
    scanned(c, &of_state, ScanCaseStates::Kept, |c, state, carry| {
        c.graph.mamba2_from([x, dt, a, b, d], state, carry)
    })
}
