//! Tests of reading and writing parts of states, also those that begin or end within a word.

use tercet::{CompileOptions, DType, Device, Graph, Tensor, TensorType, Type};

use crate::{SuiteTest, everywhere};

type Failure = Box<dyn std::error::Error>;

/// Elements of the state: a prime number, so that its last word is not whole in any narrow dtype.
const COUNT: usize = 23;

fn graph(dtype: DType) -> Result<Graph, tercet::OpError> {
    let mut g = Graph::new();
    // A state before and one after, which must not change.
    for name in ["before", "s", "after"] {
        let state = g.state(name, Type::new(dtype, [1, COUNT]))?;
        let x = g.input(&format!("x.{name}"), Type::new(dtype, [1, COUNT]))?;
        g.assign(state, x)?;
        g.output(name, state)?;
    }
    Ok(g)
}

fn numbers(dtype: DType, from: usize, count: usize) -> Result<Tensor, Failure> {
    let values: Vec<f64> = (from..from + count).map(|x| x as f64).collect();
    Ok(Tensor::from_f64s(
        TensorType::new(dtype, &[count]),
        &values,
    )?)
}

fn check(device: &Device, dtype: DType) -> Result<(), Failure> {
    let mut exe = device.compile(&graph(dtype)?, &CompileOptions::new())?;
    let mut want = numbers(dtype, 1, COUNT)?.to_f64s();
    let start = numbers(dtype, 1, COUNT)?.reshaped(&[1, COUNT])?;
    for name in ["before", "s", "after"] {
        exe.write_state(name, &start)?;
    }
    let unchanged = want.clone();
    let ranges = [
        0..0,
        0..1,
        1..2,
        3..4,
        1..7,
        2..8,
        5..COUNT,
        22..COUNT,
        0..COUNT,
    ];
    for (step, range) in ranges.into_iter().enumerate() {
        let values = numbers(dtype, 40 + step * 5, range.len())?;
        exe.write_state_elements("s", range.start, &values)?;
        want[range.clone()].copy_from_slice(&values.to_f64s());
        let read = exe.read_state_elements("s", range.clone())?;
        if read.shape() != [range.len()] || read.to_f64s() != values.to_f64s() {
            return Err(format!("{dtype}: {range:?} are {:?}", read.to_f64s()).into());
        }
        if exe.read_state("s")?.to_f64s() != want {
            return Err(format!("{dtype}: after {range:?}").into());
        }
    }
    for name in ["before", "after"] {
        if exe.read_state(name)?.to_f64s() != unchanged {
            return Err(format!("{dtype}: state {name} has changed").into());
        }
    }
    let refused = [
        exe.read_state_elements("t", 0..1).map(drop),
        exe.read_state_elements("s", 3..COUNT + 1).map(drop),
        exe.write_state_elements("s", COUNT, &numbers(dtype, 0, 1)?),
        exe.write_state_elements("s", 0, &numbers(DType::F64, 0, 1)?),
    ];
    match refused.iter().all(Result::is_err) && exe.read_state("s")?.to_f64s() == want {
        true => Ok(()),
        false => Err(format!("{dtype}: {refused:?}").into()),
    }
}

fn parts_of_states() {
    everywhere(|device| {
        let dtypes = [DType::F32, DType::F16, DType::BF16, DType::I8, DType::I64];
        dtypes
            .into_iter()
            .try_for_each(|dtype| check(device, dtype))
    });
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![SuiteTest::asserting(
        "states/parts_of_states",
        parts_of_states,
    )]
}
