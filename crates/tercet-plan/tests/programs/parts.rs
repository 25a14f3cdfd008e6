//! Tests of values above the binding limit: every kernel binds a partition within the limit, at an
//! aligned offset.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{
    Bindings, CompileError, CompileOptions, DType, Dim, Graph, OpError, Scheme, Type, Value,
};
use tercet_plan::{DeviceCaps, GpuProgram, ProgramBuffer, check_races, compile};

use crate::common::profiles;

const LIMIT: u64 = 64 << 10;

/// An embedding table that is also the output head (transposed), a quantized head, and a small
/// parameter.
fn graph(packed: Scheme) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let table = g.param("table", Type::new(DType::F32, [3001, 32]))?;
    let blocks = 256 / packed.block_len();
    let row = blocks * packed.block_bytes();
    let head = g.param("head", Type::new(DType::U8, [1001, row]))?;
    let wide = g.param("wide", Type::new(DType::F32, [32, 256]))?;
    let ids = g.input("ids", Type::new(DType::I32, [4]))?;
    let x = g.gather(table, ids, 0)?;
    let t = g.transpose(table, &[1, 0])?;
    let logits = g.matmul(x, t)?;
    let x = g.matmul(x, wide)?;
    let more = g.dequant_matmul(x, head, packed)?;
    g.output("logits", logits)?;
    g.output("more", more)?;
    Ok(g)
}

/// Finds parameters that a program binds wrongly, and describes the errors.
fn wrong_bindings(program: &GpuProgram, caps: &DeviceCaps) -> Vec<String> {
    let mut wrong = Vec::new();
    let steps = program.prepare.iter().chain(&program.steps);
    for (slot, _) in steps.flat_map(|s| s.accesses(&program.kernels)) {
        let slot = program.slot(slot);
        let is_placed = slot
            .offset_bytes
            .is_multiple_of(u64::from(caps.storage_align_bytes));
        if slot.bytes > caps.max_binding_bytes || !is_placed {
            wrong.push(format!("{slot:?}"));
        }
    }
    wrong
}

#[test]
fn parts_are_bound_where_the_device_reaches_them() {
    for (profile, caps) in profiles() {
        let caps = DeviceCaps {
            max_binding_bytes: LIMIT,
            ..caps
        };
        for scheme in [Scheme::Q8_0, Scheme::Q4_0, Scheme::Q4K, Scheme::Q6K] {
            let name = format!("{profile} {}", scheme.name());
            let g = graph(scheme).expect("the graph is well typed");
            let program = compile(&g, &CompileOptions::new(), &caps);
            let program = program.unwrap_or_else(|e| panic!("{name}: {e}"));
            check_races(&program).unwrap_or_else(|race| panic!("{name}: {race:?}"));
            assert_eq!(wrong_bindings(&program, &caps), [""; 0], "{name}");
            // All partitions are in one buffer, which contains every row.
            let of = |param: u32| {
                let slots = program.slots.iter();
                slots.filter(move |s| s.buffer == ProgramBuffer::Param(param))
            };
            for param in [0, 1] {
                let whole = of(param).map(|s| s.bytes).max().expect("it has a slot");
                let end = of(param).map(|s| s.offset_bytes + s.bytes).max();
                assert!(whole > LIMIT, "{name}");
                assert_eq!(end, Some(whole), "{name}");
                assert!(of(param).count() > 2, "{name}");
            }
            assert_eq!(of(2).count(), 1, "{name}");
        }
    }
}

#[test]
fn what_fits_is_left_whole() {
    let g = graph(Scheme::Q8_0).expect("the graph is well typed");
    for (profile, caps) in profiles() {
        let program = compile(&g, &CompileOptions::new(), &caps).expect("it plans");
        for param in 0..3 {
            let slots = program.slots.iter();
            let slots = slots.filter(|s| s.buffer == ProgramBuffer::Param(param));
            assert_eq!(slots.count(), 1, "{profile} {param}");
        }
    }
}

/// Maps, reductions, matmuls, a state and outputs with rows that together exceed the limit.
fn values(rows: usize, columns: usize) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let ty = Type::new(DType::F32, [rows, columns]);
    let x = g.input("x", ty.clone())?;
    let w = g.param("w", Type::new(DType::F32, [columns, 64]))?;
    let s = g.state("s", ty)?;
    let y = g.unary(UnaryFn::Tanh, x)?;
    let y = g.plus(y, s)?;
    g.assign(s, y)?;
    let narrow = g.cast(y, DType::F16)?;
    let by_row = g.reduce_sum(y, &[1], false)?;
    let by_column = g.reduce_mean(y, &[0], true)?;
    let all = g.reduce_max(y, &[0, 1], false)?;
    let product = g.matmul(y, w)?;
    let outputs = [
        ("y", y),
        ("narrow", narrow),
        ("by_row", by_row),
        ("by_column", by_column),
        ("all", all),
        ("product", product),
    ];
    for (name, value) in outputs {
        g.output(name, value)?;
    }
    Ok(g)
}

fn check_values(name: &str, caps: &DeviceCaps, rows: usize, columns: usize) {
    let g = values(rows, columns).expect("the graph is well typed");
    let program = compile(&g, &CompileOptions::new(), caps);
    let program = program.unwrap_or_else(|e| panic!("{name}: {e}"));
    check_races(&program).unwrap_or_else(|race| panic!("{name}: {race:?}"));
    assert_eq!(wrong_bindings(&program, caps), [""; 0], "{name}");
    let bytes = (4 * rows * columns) as u64;
    for io in [&program.inputs[0], &program.states[0], &program.outputs[0]] {
        let whole = program.slot(io.slot);
        assert_eq!(whole.bytes, bytes, "{name}");
        // The partitions of an input, state or output are inside its slot.
        let steps = program.steps.iter();
        let touched = steps.flat_map(|s| s.accesses(&program.kernels));
        let parts = touched.map(|(slot, _)| program.slot(slot));
        let parts = parts.filter(|p| p.overlaps(whole));
        let mut seen: Vec<(u64, u64)> = parts.map(|p| (p.offset_bytes, p.bytes)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 1, "{name}: {seen:?}");
        let mut next = whole.offset_bytes;
        for (offset, bytes) in seen {
            assert_eq!(offset, next, "{name}");
            next += bytes;
        }
        assert_eq!(next, whole.offset_bytes + whole.bytes, "{name}");
    }
}

#[test]
fn values_are_bound_where_the_device_reaches_them() {
    for (profile, caps) in profiles() {
        let caps = DeviceCaps {
            max_binding_bytes: LIMIT,
            ..caps
        };
        check_values(profile, &caps, 353, 97);
    }
}

#[test]
fn a_browser_computes_tensors_of_256_mib() {
    check_values("browser", &DeviceCaps::browser(), 65_536, 1024);
}

/// A function that adds nodes which need a whole value, and returns their result.
type Whole = fn(&mut Graph, Value) -> Result<Value, OpError>;

#[test]
fn what_needs_the_whole_names_its_node() {
    let (rows, columns) = (65_536, 1024);
    let whole: [Whole; 4] = [
        |g, y| g.cum_sum(y, 0),
        |g, y| g.arg_max(y, 0, false),
        |g, y| g.softmax(y, 0),
        |g, y| {
            let at = g.scalar(DType::I32, 3.0)?;
            let at = g.reshape(at, [1usize])?;
            let at = g.concat(&[at, at], 0)?;
            g.dynamic_slice(y, at, [2usize, 2])
        },
    ];
    for (at, build) in whole.into_iter().enumerate() {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [rows, columns]));
        let y = x.and_then(|x| g.unary(UnaryFn::Tanh, x)).expect("typed");
        let z = build(&mut g, y).expect("typed");
        g.output("z", z).expect("typed");
        match compile(&g, &CompileOptions::new(), &DeviceCaps::browser()) {
            Err(CompileError::TooLarge {
                node, bytes, limit, ..
            }) => {
                assert!(node == y.node || node == z.node, "{at}: {node}");
                assert_eq!((bytes, limit), (256 << 20, 128 << 20), "{at}");
            }
            other => panic!("{at}: {:?}", other.map(|_| "it compiled")),
        }
    }
}

#[test]
fn what_a_run_sizes_is_refused_above_the_limit() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [Dim::sym("s"), 1024.into()]));
    let y = x.and_then(|x| g.unary(UnaryFn::Tanh, x)).expect("typed");
    g.output("y", y).expect("typed");
    let options = |bound| CompileOptions {
        bounds: Bindings::new().with("s", bound),
        ..CompileOptions::new()
    };
    let caps = DeviceCaps::browser();
    assert!(compile(&g, &options(32_768), &caps).is_ok());
    let refused = compile(&g, &options(32_769), &caps);
    assert!(matches!(refused, Err(CompileError::TooLarge { .. })));
}
