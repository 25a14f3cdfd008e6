//! Tests of dependent launches: dispatches that synchronize through counters instead of barriers.
//! The tests run without validation: the validation layer would report such dispatches as hazards,
//! so under validation barriers are inserted.

#![allow(clippy::unwrap_used, reason = "helper failures fail the test")]

mod common;

use std::sync::Arc;

use tercet_ir::{Bindings, CompileOptions, DType, Executable, Graph, Scheme, Tensor, Type};
use tercet_plan::{DeviceCaps, GpuExecutable, GpuProgram, StepOp};
use tercet_vulkan::{VulkanBackend, VulkanOptions};

/// The row length, large enough for several workgroups per matmul.
const WIDTH: usize = 2048;

/// A graph of `count` quantized GEMVs; every other one adds its input (a residual connection).
fn products(count: usize) -> Graph {
    let mut g = Graph::new();
    let bytes = Scheme::Q4K.row_bytes(WIDTH).unwrap();
    let mut x = g.input("x", Type::new(DType::F32, [1, WIDTH])).unwrap();
    let mut row = x;
    for at in 0..count {
        let ty = Type::new(DType::U8, [WIDTH, bytes]);
        let w = g.param(&format!("w{at}"), ty).unwrap();
        let y = g.dequant_matmul(row, w, Scheme::Q4K).unwrap();
        if at % 2 == 1 {
            x = g.plus(x, y).unwrap();
        }
        row = if at % 2 == 1 { x } else { y };
    }
    g.output("y", row).unwrap();
    g
}

/// Q4_K blocks with pseudo-random codes and scales; the weights have a magnitude of a few
/// hundredths.
fn weights(seed: u32) -> Tensor {
    let row = Scheme::Q4K.row_bytes(WIDTH).unwrap();
    let mut bytes: Vec<u8> = (0..(WIDTH * row) as u32)
        .map(|i| {
            let mixed = (i + seed).wrapping_mul(0x9e37_79b1);
            ((mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca77) >> 24) as u8
        })
        .collect();
    for block in bytes.chunks_mut(144) {
        // About 1e-4 and 7.5e-4 as F16.
        block[..4].copy_from_slice(&[0x8e, 0x06, 0x25, 0x12]);
    }
    Tensor::from_slice(&[WIDTH, row], &bytes).unwrap()
}

fn backend() -> Option<VulkanBackend> {
    let backend = common::open(VulkanOptions::default())?;
    if !backend.caps().ordered_dispatches {
        eprintln!("ignored: {} has no dependent launch", backend.device().name);
        return None;
    }
    Some(backend)
}

fn planned(backend: &VulkanBackend, graph: &Graph, ordered_dispatches: bool) -> GpuProgram {
    // The test overrides the device capabilities, because CPU devices would select other kernels
    // for these matmuls.
    let caps = DeviceCaps {
        ordered_dispatches,
        device: DeviceCaps::h200().device,
        ..backend.caps().clone()
    };
    tercet_plan::compile(graph, &CompileOptions::new(), &caps).unwrap()
}

/// Runs a program with `count` weights several times on one row and returns the results.
fn run(
    backend: &VulkanBackend,
    program: GpuProgram,
    count: usize,
    times: usize,
) -> Result<Vec<Vec<f32>>, String> {
    let program = Arc::new(program);
    let driver = backend.load(&program).unwrap();
    let mut exe = GpuExecutable::new(program, driver, Bindings::new());
    let exe: &mut dyn Executable = &mut exe;
    for at in 0..count {
        exe.set_param(&format!("w{at}"), weights(at as u32 * 7919))
            .unwrap();
    }
    let x: Vec<f32> = (0..WIDTH).map(|i| (i % 13) as f32 / 8.0 - 0.7).collect();
    let x = Tensor::from_slice(&[1, WIDTH], &x).unwrap();
    let results = (0..times).map(|_| {
        let result = exe.run(&[("x", &x)]).map_err(|e| {
            let source = std::error::Error::source(&e).map(ToString::to_string);
            format!("{e}: {}", source.unwrap_or_default())
        })?;
        Ok(result[0].as_slice::<f32>().unwrap().to_vec())
    });
    results.collect()
}

#[test]
fn links_give_what_barriers_give() {
    let Some(backend) = backend() else { return };
    let (graph, count) = (products(12), 12);
    let chained = planned(&backend, &graph, true);
    let links = chained
        .chain
        .as_ref()
        .map_or(0, |chain| chain.numbers.len());
    assert_eq!(links, count, "{chained}");
    let got = run(&backend, chained, count, 20).unwrap();
    let apart = run(&backend, planned(&backend, &graph, false), count, 1).unwrap();
    for result in &got {
        assert_eq!(*result, apart[0]);
    }
    assert!(apart[0].iter().all(|y| y.is_finite() && *y != 0.0));
}

#[test]
fn who_waits_in_vain_ends_the_run_with_an_error() {
    let Some(backend) = backend() else { return };
    let mut broken = planned(&backend, &products(6), true);
    // Make the first dependent launch count into unused words, so that its consumer times out.
    let first = broken.steps.iter().find_map(|step| match &step.work {
        StepOp::Dispatch(d) => Some(d.block),
        StepOp::Copy { .. } | StepOp::Fill { .. } => None,
    });
    let unread = broken.params.len() as u32;
    let zero = broken.params[0];
    broken.params.extend([zero; 64]);
    let chain = broken.chain.as_mut().unwrap();
    chain.numbers.insert(first.unwrap(), unread);
    let error = run(&backend, broken, 6, 1).unwrap_err();
    assert!(error.contains("timed out"), "{error}");
    // Other executables still work.
    assert!(run(&backend, planned(&backend, &products(6), true), 6, 2).is_ok());
}
