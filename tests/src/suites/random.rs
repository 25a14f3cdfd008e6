//! Tests of random graphs on every executor against the reference. The tests cover combinations
//! that single-operator cases lack: fusions, views of views, slots that share memory, and several
//! results.

use libtest_mimic::Failed;
use tercet::accuracy::{Accuracy, furthest};
use tercet::{CompileOptions, Device, Executable, Signature, Tensor};

use crate::{SuiteTest, executors};

#[allow(
    clippy::unwrap_used,
    reason = "the generator is shared with unit tests"
)]
#[path = "../../../crates/tercet-ir/tests/passes/generate/mod.rs"]
mod generate;

use generate::{Kind, Sample, sample};

/// The number of graphs per test, and the number of tests per executor.
const GRAPHS: u32 = 12;
const TRIALS: u32 = 8;
const DECISIONS: usize = 90;

/// The decisions that generate a graph: a linear congruential sequence.
fn decisions(seed: u32) -> Vec<u16> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as u16
    };
    (0..DECISIONS).map(next).collect()
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let on = |executor| {
        (0..TRIALS).map(move |at| {
            SuiteTest::on(executor, format!("random/{at}"), move |device| {
                (at * GRAPHS..(at + 1) * GRAPHS).try_for_each(|seed| check(device, seed))
            })
        })
    };
    executors().iter().flat_map(on).collect()
}

fn check(device: &Device, seed: u32) -> Result<(), Failed> {
    let sample = sample(Kind::Smooth, &decisions(seed));
    let context = |e: &dyn std::fmt::Display| format!("seed {seed}: {e}\n{}", sample.graph);
    let want = run(&Device::reference(), &sample);
    let got = run(device, &sample);
    let (got, want) = match (got, want) {
        (Ok(got), Ok(want)) => (got, want),
        // If the reference fails in dead code, an executor may succeed because it eliminated that
        // code.
        (_, Err(_)) => return Ok(()),
        (Err(e), Ok(_)) => return Err(context(&e).into()),
    };
    let names = Signature::of(&sample.graph).outputs;
    for (port, (got, want)) in names.iter().zip(got.iter().zip(&want)) {
        if let Some(e) = difference(got, want) {
            return Err(context(&format!("output {}: {e}", port.name)).into());
        }
    }
    Ok(())
}

fn run(device: &Device, sample: &Sample) -> Result<Vec<Tensor>, Box<dyn std::error::Error>> {
    let options = CompileOptions::new().bound("s", 8);
    let mut exe = device.compile(&sample.graph, &options)?;
    let signature = exe.signature().clone();
    for port in &signature.params {
        exe.set_param(&port.name, sample.tensors[&port.name].clone())?;
    }
    for port in &signature.states {
        exe.write_state(&port.name, &sample.tensors[&port.name])?;
    }
    let inputs = signature.inputs.iter();
    let inputs: Vec<_> = inputs
        .map(|p| (p.name.as_str(), &sample.tensors[&p.name]))
        .collect();
    let exe: &mut dyn Executable = &mut *exe;
    exe.run(&inputs)?;
    Ok(exe.run(&inputs)?)
}

fn difference(got: &Tensor, want: &Tensor) -> Option<String> {
    if got.ty() != want.ty() {
        return Some(format!("found {}, expected {}", got.ty(), want.ty()));
    }
    let class = match want.dtype().is_float() {
        true => Accuracy::Contraction,
        false => Accuracy::Exact,
    };
    let furthest = furthest(class, got, want).filter(|f| f.units > 1.0);
    furthest.map(|f| f.to_string())
}
