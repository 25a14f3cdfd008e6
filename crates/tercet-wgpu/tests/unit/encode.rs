//! Barriers of the dispatches of a run.

use std::sync::Arc;

use tercet_ir::random::RngState;
use tercet_ir::scalar::BinaryFn;
use tercet_ir::{Bindings, CompileOptions, DType, Dim, Graph, Type};
use tercet_plan::{DeviceCaps, LaunchSizes, StageId};
use tercet_wgpu::internals::{CallLimits, SharedExecutableState, WgpuCommandList};

fn made(graph: &Graph, bounds: Bindings) -> SharedExecutableState {
    let caps = DeviceCaps::browser();
    let options = CompileOptions {
        bounds,
        ..CompileOptions::new()
    };
    let program = tercet_plan::compile(graph, &options, &caps).unwrap();
    let rules = CallLimits {
        max_binding_bytes: caps.max_binding_bytes,
        storage_align_bytes: caps.storage_align_bytes.into(),
        uniform_align_bytes: caps.uniform_align_bytes.into(),
        max_grid: caps.max_grid,
        takes_spirv: true,
    };
    SharedExecutableState {
        commands: WgpuCommandList::new(&program, rules).unwrap(),
        program: Arc::new(program),
        pipelines: Vec::new(),
        has_explicit_barriers: true,
    }
}

/// The barriers of a run with `rows` rows.
fn waits(made: &SharedExecutableState, rows: usize) -> Vec<bool> {
    let mut launch = LaunchSizes::default();
    let sizes = Bindings::new().with("s", rows);
    let computed = launch.compute(&made.program, &sizes, RngState::default());
    computed.unwrap();
    let stages = [StageId(0)];
    let played = made.played(&launch, &stages, &[]);
    made.waits(&launch, &stages, &played)
}

#[test]
fn dispatches_wait_where_the_program_says() {
    let mut g = Graph::new();
    let rows = Dim::sym("s");
    let ty = Type::new(DType::F32, [rows, Dim::Known(64)]);
    let [x, z] = ["x", "z"].map(|name| g.input(name, ty.clone()).unwrap());
    let [x, z] = [x, z].map(|v| g.cum_sum(v, 1).unwrap());
    let both = g.binary(BinaryFn::Add, x, z).unwrap();
    let last = g.cum_sum(both, 1).unwrap();
    g.output("y", last).unwrap();
    let made = made(&g, Bindings::new().with("s", 8));
    // Two independent steps, a step that reads both results, and a step that reads the third.
    assert_eq!(waits(&made, 5), [true, false, true, true]);
    assert_eq!(waits(&made, 0), [true; 0], "nothing is dispatched");
}
