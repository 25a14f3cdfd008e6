//! Every case plans on every profile; every shader is valid; every kernel is used.

use std::collections::BTreeSet;

use naga::valid::{Capabilities, ValidationFlags, Validator};
use tercet_ir::{Bindings, CompileError, CompileOptions, DType, Graph, Tier, Type};
use tercet_plan::{Caps, Code, Launch, Source, Tuning, compile, kernels};

use crate::common::{for_each_case, is_beyond_gpus, profiles};

#[test]
fn every_case_plans_on_every_profile() {
    let mut refused = Vec::new();
    for (profile, caps) in profiles() {
        for_each_case(&caps, |p| {
            if let Err(e) = p.program
                && !is_beyond_gpus(&e)
            {
                refused.push(format!("{profile} {}: {e}", p.name));
            }
        });
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn operators_of_the_host_are_refused_by_name() {
    let mut refused = BTreeSet::new();
    for_each_case(&Caps::h200(), |p| {
        let mut own = p.case.graph.nodes().map(|(_, n)| n.op.kind().doc());
        let Some(doc) = own.find(|d| d.tier == Tier::Host) else {
            return;
        };
        let Err(CompileError::Unsupported { nodes, .. }) = p.program else {
            panic!("{} is not refused", p.name)
        };
        let node = nodes.iter().find(|n| n.op == doc.name);
        let node = node.unwrap_or_else(|| panic!("{}: {nodes:?}", p.name));
        assert!(node.reason.contains("only the CPU"), "{}", node.reason);
        refused.insert(doc.name);
    });
    assert_eq!(Vec::from_iter(refused), ["non_zero", "unique"]);
}

#[test]
fn a_leaf_that_is_too_large_is_named() {
    let mut g = Graph::new();
    let small = g.input("small", Type::new(DType::F32, [8])).unwrap();
    g.output("y", small).unwrap();
    let large = g.state("large", Type::new(DType::F32, [1 << 30, 8]));
    let sum = g.reduce_sum(large.unwrap(), &[0], false).unwrap();
    g.output("z", sum).unwrap();
    let error = compile(&g, &CompileOptions::new(), &Caps::h200()).unwrap_err();
    assert!(error.to_string().starts_with("%1 (state) takes"), "{error}");
}

#[test]
fn every_shader_is_valid_wgsl_within_browser_limits() {
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for_each_case(&Caps::browser(), |p| {
        let Ok(program) = p.program else { return };
        for kernel in &program.kernels {
            let (text, entry) = match &kernel.source {
                Source::Wgsl(text) => (text, "main"),
                Source::Checked { text, entry } => (text, &**entry),
                Source::SpirV { .. } => {
                    wrong.push(format!("{}: {kernel} is not WGSL", p.name));
                    continue;
                }
            };
            if !seen.insert(text.clone()) {
                continue;
            }
            if let Err(e) = check_wgsl(text, entry, kernel.args.len()) {
                wrong.push(format!("{}: {kernel}: {e}", p.name));
            }
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn check_wgsl(text: &str, entry_point: &str, args: usize) -> Result<(), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let info = Validator::new(
        ValidationFlags::all(),
        Capabilities::SHADER_FLOAT16_IN_FLOAT32,
    )
    .validate(&module);
    info.map_err(|e| e.emit_to_string(text))?;
    if let Some((_, open)) = module.overrides.iter().next() {
        return Err(format!("constant {:?} has no value", open.name));
    }
    let storage = module.global_variables.iter();
    let storage = storage.filter(|(_, v)| matches!(v.space, naga::AddressSpace::Storage { .. }));
    let storage = storage.count();
    if storage != args || storage > Caps::browser().max_storage_buffers as usize {
        return Err(format!("{storage} storage buffers for {args} arguments"));
    }
    let entry = &module.entry_points[0];
    let invocations: u32 = entry.workgroup_size.iter().product();
    if entry.name != entry_point || invocations > Caps::browser().max_workgroup {
        return Err(format!("entry {} of {invocations} invocations", entry.name));
    }
    let mut layouter = naga::proc::Layouter::default();
    layouter
        .update(module.to_ctx())
        .map_err(|e| e.to_string())?;
    let shared = module.global_variables.iter();
    let shared = shared.filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
    let shared: u32 = shared.map(|(_, v)| layouter[v.ty].size).sum();
    match shared <= Caps::browser().workgroup_bytes {
        true => Ok(()),
        false => Err(format!("{shared} bytes of workgroup memory")),
    }
}

#[test]
fn every_kernel_is_planned_in_some_case() {
    let mut used = BTreeSet::new();
    // Matrices of a workgroup are chosen only where they were measured to be best.
    let tuned = Caps {
        tuning: Tuning::always("64x64x64/block128"),
        ..Caps::h200()
    };
    // Cooperative matrices that cannot be converted.
    let plain = Caps {
        coop_converts: false,
        ..Caps::h200()
    };
    let profiles = profiles().into_iter().map(|(_, caps)| caps);
    for caps in profiles.chain([tuned, plain]) {
        for_each_case(&caps, |p| {
            let kernels = p.program.iter().flat_map(|p| &p.kernels);
            used.extend(kernels.map(|k| k.name.split(' ').next().unwrap_or("").to_string()));
        });
    }
    let unused: Vec<&str> = kernels()
        .map(|k| k.name)
        .filter(|name| !used.contains(*name))
        .collect();
    assert!(unused.is_empty(), "no case plans {unused:?}");
}

#[test]
fn kernel_names_are_unique() {
    let mut names = BTreeSet::new();
    for kernel in kernels() {
        assert!(names.insert(kernel.name), "two kernels `{}`", kernel.name);
        assert!(matches!(kernel.code, Code::Wgsl(_) | Code::SpirV(_)));
    }
}

#[test]
fn new_sizes_change_numbers_only() {
    let mut symbolic = 0;
    for_each_case(&Caps::h200(), |p| {
        let Ok(program) = p.program else { return };
        // A case that must fail has sizes that are not possible.
        if program.symbols.is_empty() || p.case.expected_fault.is_some() {
            return;
        }
        symbolic += 1;
        let ones = program.symbols.iter();
        let ones = ones.fold(Bindings::new(), |b, (s, _)| b.with(s.name(), 1));
        let (mut own, mut bound, mut small) =
            (Launch::default(), Launch::default(), Launch::default());
        own.compute(&program, &p.case.sizes, 0)
            .expect("the case's sizes");
        bound
            .compute(&program, &p.case.bounds, 0)
            .expect("the bounds");
        assert_eq!(own.params.len(), bound.params.len(), "{}", p.name);
        assert_eq!(own.grids.len(), program.steps.len(), "{}", p.name);
        for (own, bound) in own.grids.iter().zip(&bound.grids) {
            // Two variants of a contraction switch by size: one of them has an empty grid.
            let switched = bound.contains(&0) || own.contains(&0);
            let within = own.iter().zip(bound).all(|(a, b)| a <= b);
            assert!(within || switched, "{}: {own:?} above {bound:?}", p.name);
        }
        // Some cases have sizes that cannot be one; those say so.
        let _ = small.compute(&program, &ones, 0);
    });
    assert!(symbolic > 10, "cases with symbols: {symbolic}");
}
