//! Tests of shape switches, in programs built by hand and in programs planned from a graph.

use tercet_ir::{Bindings, CompileOptions, DType, Dim, Graph, NodeId, Signature, Type};
use tercet_plan::{
    BufferSlot, DeviceCaps, ExprArena, GpuProgram, LaunchSizes, ProgramBuffer, ProgramStep,
    ShapeBranch, ShapeSwitch, ShapeSwitchId, SlotId, StepOp, SymInt, check_races, compile,
};

/// A program with arena slots of 64 bytes at these offsets, and one shape switch on `s` for each
/// list of bounds.
fn program(offsets: &[u64], choices: &[&[u32]]) -> GpuProgram {
    let mut tape = ExprArena::default();
    let s = tape.dim(&Dim::sym("s"));
    let slot = |offset_bytes: &u64| BufferSlot {
        buffer: ProgramBuffer::Arena,
        offset_bytes: *offset_bytes,
        bytes: 64,
        dtype: DType::U32,
    };
    let choice = |bounds: &&[u32]| ShapeSwitch {
        value: s,
        bounds: (*bounds).into(),
        same_bits: Default::default(),
    };
    GpuProgram {
        signature: Signature::default(),
        symbols: Vec::new(),
        kernels: Vec::new(),
        shape_switches: choices.iter().map(choice).collect(),
        slots: offsets.iter().map(slot).collect(),
        redzones: Vec::new(),
        chain: None,
        prepare: Vec::new(),
        steps: Vec::new(),
        stages: Vec::new(),
        flow: Vec::new(),
        params: Vec::new(),
        tape,
        consts: Vec::new(),
        inputs: Vec::new(),
        param_io: Vec::new(),
        states: Vec::new(),
        outputs: Vec::new(),
        data_checks: Vec::new(),
        size_checks: Vec::new(),
        variants: Vec::new(),
        debug: tercet_ir::DebugSwitches::default(),
    }
}

/// A copy step between two slots; it belongs to these shape-switch branches, each given as (switch,
/// branch index).
fn copy(src: u32, dst: u32, arms: &[(u32, u32)]) -> ProgramStep {
    let arm = |&(choice, index): &(u32, u32)| ShapeBranch {
        choice: ShapeSwitchId(choice),
        index,
    };
    ProgramStep {
        work: StepOp::Copy {
            src: SlotId(src),
            dst: SlotId(dst),
            bytes: SymInt::Const(64),
        },
        barrier: false,
        branches: arms.iter().map(arm).collect(),
        node: NodeId(0),
        op: "test",
    }
}

/// Whether two copies into the same bytes may run without a barrier between them.
fn side_by_side(choices: &[&[u32]], a: &[(u32, u32)], b: &[(u32, u32)]) -> bool {
    // The last two slots of the program overlap in memory.
    let mut p = program(&[0, 64, 128, 160], choices);
    p.steps = vec![copy(0, 2, a), copy(1, 3, b)];
    check_races(&p).is_ok()
}

#[test]
fn arms_may_share_memory_only_where_no_run_plays_both() {
    let few: &[u32] = &[8];
    assert!(side_by_side(&[few], &[(0, 0)], &[(0, 1)]));
    assert!(!side_by_side(&[few], &[(0, 1)], &[(0, 1)]));
    assert!(!side_by_side(&[few], &[(0, 0)], &[]));
    // Two switches depend on one value: the branch for at most 1 excludes the branch for above 8,
    // but the branches for at most 8 and for 2 to 8 can occur in one run.
    let more: &[u32] = &[1, 8];
    assert!(side_by_side(&[few, more], &[(1, 0)], &[(0, 1)]));
    assert!(side_by_side(&[few, more], &[(0, 0)], &[(1, 2)]));
    assert!(!side_by_side(&[few, more], &[(0, 0)], &[(1, 1)]));
    // With nested switches, two steps exclude each other if a single pair of their branches does.
    assert!(side_by_side(
        &[few, more],
        &[(0, 0), (1, 0)],
        &[(0, 0), (1, 1)]
    ));
    assert!(!side_by_side(&[few, more], &[(0, 0), (1, 0)], &[(0, 0)]));
}

#[test]
fn choices_of_different_numbers_prove_nothing() {
    let mut p = program(&[0, 64, 128, 160], &[&[8], &[8]]);
    p.shape_switches[1].value = p.tape.dim(&Dim::sym("t"));
    p.steps = vec![copy(0, 2, &[(0, 0)]), copy(1, 3, &[(1, 1)])];
    assert!(check_races(&p).is_err());
}

#[test]
fn a_launch_empties_what_is_not_chosen() {
    let mut p = program(&[0, 64, 128], &[&[1, 8]]);
    p.steps = vec![
        copy(0, 2, &[(0, 0)]),
        copy(0, 2, &[(0, 1)]),
        copy(0, 2, &[(0, 2)]),
        copy(0, 1, &[]),
    ];
    let mut launch = LaunchSizes::default();
    for (s, arm) in [(0, 0), (1, 0), (2, 1), (8, 1), (9, 2)] {
        let sizes = Bindings::new().with("s", s);
        launch
            .compute(&p, &sizes, tercet_ir::random::RngState::default())
            .expect("the sizes are possible");
        assert_eq!(launch.selected_branches, [arm], "{s}");
        let on: Vec<bool> = launch.grids.iter().map(|g| *g != [0; 3]).collect();
        let want: Vec<bool> = (0..3).map(|i| i == arm).chain([true]).collect();
        assert_eq!(on, want, "{s}");
    }
    let text = p.to_string();
    for arm in [
        "if s <= 1: copy",
        "if 1 < s <= 8: copy",
        "if 8 < s: copy",
        "  copy",
    ] {
        assert!(text.contains(arm), "{text}");
    }
}

/// Two dependent matmuls with a symbolic number of rows.
fn products() -> GpuProgram {
    let mut g = Graph::new();
    let x = Type::new(DType::F32, [Dim::sym("m"), Dim::Known(64)]);
    let x = g.input("x", x).expect("an input");
    let up = g.param("up", Type::new(DType::F32, [64, 96])).expect("up");
    let down = g
        .param("down", Type::new(DType::F32, [96, 64]))
        .expect("down");
    let h = g.matmul(x, up).expect("a product");
    let y = g.matmul(h, down).expect("a product");
    g.output("y", y).expect("an output");
    let options = CompileOptions::new().bound("m", 512);
    compile(&g, &options, &DeviceCaps::laptop()).expect("products are supported")
}

#[test]
fn the_ways_of_a_product_stand_side_by_side() {
    let program = products();
    assert_eq!(program.shape_switches.len(), 1, "{program}");
    assert_eq!(
        (program.steps.len(), program.barriers()),
        (6, 1),
        "{program}"
    );
    let arms: Vec<u32> = program.steps.iter().map(|s| s.branches[0].index).collect();
    assert_eq!(arms, [0, 1, 2, 0, 1, 2], "{program}");
    // If a step belongs to no branch, every run executes it, so the steps race.
    let mut racing = program;
    racing.steps[1].branches.clear();
    assert!(check_races(&racing).is_err());
}

#[test]
fn what_is_played_has_the_barriers_that_it_needs() {
    let mut p = program(&[0, 64, 128, 192, 256], &[&[8]]);
    let with_barrier = |step: ProgramStep| ProgramStep {
        barrier: true,
        ..step
    };
    p.steps = vec![
        copy(0, 2, &[(0, 0)]),
        copy(0, 3, &[(0, 1)]),
        with_barrier(copy(3, 2, &[(0, 1)])),
        with_barrier(copy(0, 4, &[])),
        copy(2, 1, &[]),
    ];
    check_races(&p).expect("the program has its barriers");
    let played = |arm| -> Vec<(usize, bool)> {
        let played = p.active_steps(&p.steps, &[arm]);
        played.iter().map(|p| (p.step, p.barrier)).collect()
    };
    // Step 3 has no dependency; step 4 depends on the active one of steps 0 and 2.
    assert_eq!(played(0), [(0, false), (3, false), (4, true)]);
    let all = [(1, false), (2, true), (3, false), (4, true)];
    assert_eq!(played(1), all);
    // Selecting active steps adds no barrier that the program lacks.
    p.steps[3].barrier = false;
    let without = p.active_steps(&p.steps, &[0]);
    assert!(without.iter().all(|p| p.step != 4 || p.barrier));
    p.steps[2].barrier = false;
    let without = p.active_steps(&p.steps, &[0]);
    assert!(without.iter().all(|p| !p.barrier));
}

#[test]
fn what_is_played_never_races() {
    let mut program = products();
    let sizes = [1, 5, 100].map(|m| Bindings::new().with("m", m));
    let mut launch = LaunchSizes::default();
    for sizes in sizes {
        launch
            .compute(&program, &sizes, tercet_ir::random::RngState::default())
            .expect("sizes within bounds");
        let played = program.active_steps(&program.steps, &launch.selected_branches);
        assert_eq!(played.len(), 2);
        let all = program.steps.clone();
        program.steps = played
            .iter()
            .map(|p| ProgramStep {
                barrier: p.barrier,
                branches: Default::default(),
                ..all[p.step].clone()
            })
            .collect();
        check_races(&program).unwrap_or_else(|race| panic!("{race}\n{program}"));
        program.steps = all;
    }
}
