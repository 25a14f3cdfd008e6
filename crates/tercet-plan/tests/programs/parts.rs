//! Parameters above the binding limit: every kernel binds a part that the device reaches and that begins where it may.

use tercet_ir::{CompileOptions, DType, Graph, OpError, Scheme, Type};
use tercet_plan::{Buffer, Caps, Program, check_races, compile};

use crate::common::profiles;

const LIMIT: u64 = 64 << 10;

/// A table that is embedding and, transposed, head; a packed head; a small parameter.
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

/// What is wrong with the bindings of a program's parameters.
fn wrong_bindings(program: &Program, caps: &Caps) -> Vec<String> {
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
        let caps = Caps {
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
            // The whole lies in one buffer, which holds every row.
            let of = |param: u32| {
                let slots = program.slots.iter();
                slots.filter(move |s| s.buffer == Buffer::Param(param))
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
            let slots = slots.filter(|s| s.buffer == Buffer::Param(param));
            assert_eq!(slots.count(), 1, "{profile} {param}");
        }
    }
}
