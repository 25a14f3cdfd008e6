//! What plans leave out: copies of weights that belong together, steps that a later one does by the way.

use tercet_ir::ops::{Layout, RopeStyle};
use tercet_ir::{CompileOptions, DType, Dim, Graph, OpError, Scheme, Type};
use tercet_plan::{Buffer, Caps, Program, check_races, compile};

/// The program of a graph of up to 64 rows, which has no races.
fn planned(graph: &Graph) -> Program {
    let options = CompileOptions::new().bound("s", 64);
    let program = compile(graph, &options, &Caps::h200()).expect("the graph is supported");
    check_races(&program).unwrap_or_else(|race| panic!("{race}\n{program}"));
    program
}

/// Three products of one operand with packed weights of this scheme.
fn projections(scheme: Scheme, rows: [usize; 3]) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = Type::new(DType::F32, [Dim::sym("s"), Dim::Known(256)]);
    let x = g.input("x", x)?;
    let bytes = scheme.row_bytes(256).expect("whole blocks");
    for (name, rows) in ["q", "k", "v"].into_iter().zip(rows) {
        let w = g.param(name, Type::new(DType::U8, [rows, bytes]))?;
        let y = g.dequant_matmul(x, w, scheme)?;
        g.output(name, y)?;
    }
    Ok(g)
}

#[test]
fn weights_of_one_operand_lie_behind_each_other_once() {
    let rows = [64, 32, 32];
    let program = planned(&projections(Scheme::Q8_0, rows).expect("a graph"));
    assert!(program.prepare.is_empty(), "{program}");
    assert_eq!(program.bytes_of(|b| b == Buffer::Prepared), 0, "{program}");
    let bytes = 128 * Scheme::Q8_0.row_bytes(256).expect("whole blocks");
    let params = program.bytes_of(|b| matches!(b, Buffer::Param(_)));
    assert_eq!(params, bytes as u64, "{program}");
    let homes: Vec<Buffer> = program
        .param_io
        .iter()
        .map(|io| program.slot(io.slot).buffer)
        .collect();
    assert_eq!(homes, [Buffer::Param(0); 3], "{program}");
}

#[test]
fn weights_that_do_not_begin_with_words_are_copied_together() {
    // An odd number of rows of 2 * 105 bytes.
    let program = planned(&projections(Scheme::Q6K, [3, 2, 2]).expect("a graph"));
    assert!(!program.prepare.is_empty(), "{program}");
}

/// A rotation into a state, and whether something else reads it.
fn rotated(is_read: bool) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let s = Dim::sym("s");
    let shape = [Dim::Known(1), s.clone(), Dim::Known(2), Dim::Known(8)];
    let x = g.input("x", Type::new(DType::F32, shape))?;
    let table = Type::new(DType::F32, [s, Dim::Known(4)]);
    let (cos, sin) = (g.input("cos", table.clone())?, g.input("sin", table)?);
    let at = g.input("at", Type::new(DType::I32, [4]))?;
    let y = g.rope(x, cos, sin, RopeStyle::NeoX, 8, Layout::Bshd)?;
    let cache = g.state("cache", Type::new(DType::F32, [1, 64, 2, 8]))?;
    let all = g.dynamic_update_slice(cache, y, at)?;
    g.assign(cache, all)?;
    if is_read {
        g.output("y", y)?;
    }
    Ok(g)
}

#[test]
fn a_rotation_that_only_a_cache_reads_is_written_there() {
    let kernels = |is_read| -> Vec<String> {
        let program = planned(&rotated(is_read).expect("a graph"));
        let names = program
            .dispatches()
            .map(|d| &program.kernels[d.kernel.0 as usize].name);
        let first = |name: &String| name.split(' ').next().unwrap_or_default().to_string();
        names.map(first).collect()
    };
    assert_eq!(kernels(false), ["rope_update"]);
    assert_eq!(kernels(true), ["rope", "dynamic_update"]);
}
