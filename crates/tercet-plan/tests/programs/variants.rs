//! Tests of kernel variant selection, its reasons, and the effect of autotuning tables.

use tercet_ir::{
    CompileError, CompileOptions, DType, DeviceSwitches, Graph, OpError, Scheme, SwitchError, Type,
};
use tercet_plan::{
    DeviceCaps, GpuProgram, TuningEntry, TuningKey, TuningTable, WeightLayout, compile, explain,
};

const SIZES: [usize; 3] = [8, 14336, 4096];

/// A matmul of eight activation rows with F16 weights.
fn few_rows() -> Result<Graph, OpError> {
    let [m, n, k] = SIZES;
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [m, k]))?;
    let w = g.param("w", Type::new(DType::F16, [n, k]))?;
    let y = g.dequant_matmul(x, w, Scheme::F16)?;
    g.output("y", y)?;
    Ok(g)
}

fn planned(caps: &DeviceCaps) -> GpuProgram {
    let graph = few_rows().expect("a graph");
    compile(&graph, &CompileOptions::new(), caps).expect("the graph is supported")
}

fn taken(program: &GpuProgram) -> (&str, bool) {
    let [taken] = &program.variants[..] else {
        panic!("{:?}", program.variants);
    };
    (taken.variant.0, taken.from_tuning_table)
}

#[test]
fn the_cheapest_variant_is_taken_and_says_why() {
    let program = planned(&DeviceCaps::h200());
    assert_eq!(taken(&program), ("few_rows_streamed", false));
    let listing = explain(&program, "vulkan").listing;
    let line = listing.lines().last().expect("a line");
    let head = "      1 x dequant_mat_mul        few_rows_streamed (cost ";
    assert!(line.starts_with(head), "{line}");
    for why in ["; few_rows_held ", "; row needs one row", "; rows_wide "] {
        assert!(line.contains(why), "{line}");
    }
    // On other devices, the same weights use another variant.
    let program = planned(&DeviceCaps::laptop());
    assert_eq!(taken(&program), ("rows_wide", false));
    let listing = explain(&program, "vulkan").listing;
    assert!(
        listing.contains("few_rows_held needs 2 to 8 rows"),
        "{listing}"
    );
}

#[test]
fn a_measurement_goes_before_costs_where_it_applies() {
    let named = |key: TuningKey, variant: &str| {
        let variant = variant.to_string();
        let caps = DeviceCaps::h200().tuned(TuningTable::new(vec![TuningEntry { key, variant }]));
        planned(&caps)
    };
    let key = |sizes| TuningKey::rows(DType::F32, WeightLayout::KMajor(DType::F16), sizes);
    let near = key([6, 14000, 5000]);
    let held = named(near.clone(), "few_rows_held");
    assert_eq!(taken(&held), ("few_rows_held", true));
    assert!(held.kernels[0].name.starts_with("few_rows_f16"), "{held}");
    assert!(
        explain(&held, "vulkan")
            .listing
            .contains("few_rows_held (measured, cost")
    );
    // Entries that are ignored: unsupported or unknown variants, distant sizes, and other
    // computations.
    let other = TuningKey::rows(DType::F16, WeightLayout::KMajor(DType::F16), SIZES);
    for (key, variant) in [
        (near.clone(), "row"),
        (near, "no such variant"),
        (key([8, 2048, 2048]), "few_rows_held"),
        (other, "few_rows_held"),
    ] {
        let program = named(key, variant);
        assert_eq!(taken(&program), ("few_rows_streamed", false), "{variant}");
    }
}

/// A scan over states with this number of steps and dtype.
fn scan(dtype: DType, steps: usize) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(dtype, [1, steps, 64, 64]))?;
    let dt = g.input("dt", Type::new(dtype, [1, steps, 64]))?;
    let a = g.input("a", Type::new(dtype, [64]))?;
    let b = g.input("b", Type::new(dtype, [1, steps, 1, 128]))?;
    let c = g.input("c", Type::new(dtype, [1, steps, 1, 128]))?;
    let y = g.mamba2(x, dt, a, b, c)?;
    g.output("y", y)?;
    Ok(g)
}

/// A selective scan with this batch size and separate states per channel.
fn channels(batch: usize) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [batch, 4096, 4096]))?;
    let dt = g.input("dt", Type::new(DType::F32, [batch, 4096, 4096]))?;
    let a = g.input("a", Type::new(DType::F32, [4096, 16]))?;
    let b = g.input("b", Type::new(DType::F32, [batch, 4096, 16]))?;
    let c = g.input("c", Type::new(DType::F32, [batch, 4096, 16]))?;
    let y = g.selective_scan(x, dt, a, b, c)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn scans_over_states_say_why() {
    let check = |graph: Result<Graph, OpError>, caps: &DeviceCaps, wanted: &str, why: &str| {
        let graph = graph.expect("a graph");
        let program = compile(&graph, &CompileOptions::new(), caps).expect("it is supported");
        let of = |t: &&tercet_plan::VariantSelection| t.op == "mamba2" || t.op == "selective_scan";
        let taken = program.variants.iter().find(of).expect("a scan");
        assert_eq!(taken.variant.0, wanted);
        assert!(taken.to_string().contains(why), "{taken}");
    };
    let h200 = DeviceCaps::h200();
    check(scan(DType::F16, 4096), &h200, "chunks", "; steps ");
    check(
        scan(DType::F16, 100),
        &h200,
        "steps",
        "; chunks needs more than 127 steps",
    );
    let matrices = "; chunks needs 16-bit cooperative matrices";
    check(scan(DType::F32, 4096), &h200, "steps", matrices);
    check(
        scan(DType::F16, 4096),
        &DeviceCaps::browser(),
        "steps",
        matrices,
    );
    let units = "; many_channels needs at least four workgroups per compute unit";
    check(channels(1), &h200, "few_channels", units);
    check(channels(8), &h200, "many_channels", "; few_channels ");
    // An autotuning table takes precedence over the cost model.
    let entry = TuningEntry {
        key: TuningKey::scan("mamba2", DType::F16, [1, 4096, 64, 64, 128]),
        variant: "steps".to_string(),
    };
    let tuned = h200.tuned(TuningTable::new(vec![entry]));
    check(scan(DType::F16, 4096), &tuned, "steps", "measured, ");
}

/// The profile with these switches.
fn switched(without: &str, force: &str) -> Result<DeviceCaps, SwitchError> {
    DeviceCaps::h200().switched(&DeviceSwitches::parse(without, force)?)
}

/// Compiles the graph of few rows with these switches.
fn compiled(without: &str, force: &str) -> Result<GpuProgram, CompileError> {
    let graph = few_rows().expect("a graph");
    let caps = switched(without, force)?;
    compile(&graph, &CompileOptions::new(), &caps)
}

#[test]
fn a_forced_variant_is_taken_and_a_forbidden_one_is_not() {
    let forced = compiled("", "rows=few_rows_held").expect("it supports the graph");
    assert_eq!(taken(&forced), ("few_rows_held", false));
    let listing = explain(&forced, "vulkan").listing;
    assert!(listing.contains("few_rows_held (forced, cost"), "{listing}");
    let other = compiled("rows=few_rows_streamed", "").expect("other variants support it");
    assert_ne!(taken(&other).0, "few_rows_streamed");
    let listing = explain(&other, "vulkan").listing;
    assert!(
        listing.contains("; few_rows_streamed forbidden"),
        "{listing}"
    );
    // A measurement goes below a switch.
    let key = TuningKey::rows(DType::F32, WeightLayout::KMajor(DType::F16), SIZES);
    let variant = "few_rows_streamed".to_string();
    let table = TuningTable::new(vec![TuningEntry { key, variant }]);
    let caps = switched("", "rows=few_rows_held")
        .expect("it exists")
        .tuned(table);
    assert_eq!(taken(&planned(&caps)), ("few_rows_held", false));
    // The selection names the kernels that it consists of.
    let own = &forced.variants[0];
    assert!((own.is_forced, own.family) == (true, "rows") && !own.kernels.is_empty());
}

#[test]
fn a_choice_that_leaves_no_kernel_is_refused_with_what_there_is() {
    let e = compiled("", "rows=row").expect_err("it needs one row");
    let CompileError::Switch(SwitchError::Unsupported {
        reason, available, ..
    }) = &e
    else {
        panic!("{e}");
    };
    assert_eq!(reason, "one row");
    assert!(available.contains("few_rows_streamed"), "{e}");
    let all = DeviceCaps::h200().variant_families();
    let rows = all.iter().find(|f| f.name == "rows").expect("the family");
    let all: Vec<String> = rows.variants.iter().map(|v| format!("rows={v}")).collect();
    let e = compiled(&all.join(","), "").expect_err("nothing is left");
    let is_named = |e: &CompileError| {
        matches!(
            e,
            CompileError::Switch(SwitchError::AllForbidden { family: "rows", .. })
        )
    };
    assert!(is_named(&e), "{e}");
    let e = switched("", "rows=turbo").expect_err("an unknown variant");
    assert!(matches!(&e, SwitchError::UnknownVariant { known, .. } if known.contains("row_held")));
    let e = switched("", "lines=row").expect_err("an unknown family");
    assert!(matches!(&e, SwitchError::UnknownFamily { known, .. } if known.contains("attention")));
    let e = switched("coop", "matmul=128x128x32/64x64").expect_err("no matrices");
    assert!(matches!(&e, SwitchError::Unavailable { .. }), "{e}");
    // A variant that another family has does not concern this graph.
    assert!(compiled("", "attention=tiles,conv=windows").is_ok());
}

#[test]
fn every_selection_is_of_a_listed_variant() {
    let families = DeviceCaps::h200().variant_families();
    let graphs = [few_rows(), scan(DType::F16, 4096), channels(1)];
    for graph in graphs {
        let graph = graph.expect("a graph");
        let program = compile(&graph, &CompileOptions::new(), &DeviceCaps::h200());
        for taken in program.expect("it is supported").variants {
            let family = families.iter().find(|f| f.name == taken.family);
            let names = &family.expect("the family is listed").variants;
            let others = taken.others.iter().map(|(name, _)| *name);
            for name in others.chain([taken.variant.0]) {
                assert!(names.iter().any(|n| n == name), "{}={name}", taken.family);
            }
        }
    }
}

#[test]
fn a_feature_that_is_off_is_not_planned_for() {
    let plain = switched("", "").expect("no switch");
    assert_eq!(plain, DeviceCaps::h200());
    assert!(!plain.coop.is_empty() && plain.subgroup.is_some());
    let caps = switched("coop", "").expect("a feature");
    assert!(caps.coop.is_empty() && caps.coop_blocks.is_empty() && !caps.coop_converts);
    assert!(caps.subgroup.is_some());
    let caps = switched("subgroups", "").expect("a feature");
    assert!(caps.coop.is_empty() && caps.subgroup.is_none() && !caps.shuffles);
    let caps = switched("chains,dots,natives", "").expect("features");
    assert!(!caps.ordered_dispatches && !caps.packed_dots);
    assert_eq!(caps.natives, tercet_plan::NativeOps::default());
    assert!(!caps.coop.is_empty());
    // CPU features do not concern a GPU.
    let other = switched("avx2", "").expect("a feature");
    assert_eq!(other.coop, plain.coop);
}

#[test]
fn barriers_are_overridden_without_other_changes() {
    let dependent = || -> Result<Graph, OpError> {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [64, 64]))?;
        let y = g.softmax(x, 1)?;
        let y = g.matmul(x, y)?;
        let y = g.softmax(y, 0)?;
        g.output("y", y)?;
        Ok(g)
    };
    let graph = dependent().expect("a graph");
    let steps = |debug: &str| {
        let debug = debug.parse().expect("a switch");
        let switches = DeviceSwitches::default().with_debug(debug);
        let caps = DeviceCaps::h200().switched(&switches).expect("no variant");
        let program = compile(&graph, &CompileOptions::new(), &caps).expect("it is supported");
        let active = program.active_steps(&program.steps, &[]);
        let barriers: Vec<bool> = active.iter().map(|step| step.barrier).collect();
        (program.steps.len(), barriers)
    };
    let (count, plain) = steps("");
    let (all_count, all) = steps("barriers=all");
    let (none_count, none) = steps("barriers=none");
    assert!(count == all_count && count == none_count && count > 1);
    assert!(plain.contains(&true), "{plain:?}");
    assert!(!all[0] && all[1..].iter().all(|b| *b), "{all:?}");
    assert!(!none.contains(&true), "{none:?}");
}
