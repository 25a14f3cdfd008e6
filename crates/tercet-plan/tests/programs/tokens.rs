//! Layers of a decoder: what stands before attention of one token is left to it, and what long prompts need does
//! not add up over layers.

use tercet_ir::ops::{AttentionOptions, Layout, RopeStyle};
use tercet_ir::{CompileOptions, DType, Dim, Graph, OpError, Scheme, Type, Value};
use tercet_plan::{Buffer, Caps, Program, check_races, compile};

const HEADS: usize = 4;
const HEAD: usize = 64;
const WIDTH: usize = HEADS * HEAD;

/// Layers of attention over caches in F16, of which the queries may have another reader.
fn decoder(layers: usize, is_read: bool) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let s = Dim::sym("s");
    let x = Type::new(DType::F16, [s.clone(), WIDTH.into()]);
    let mut x = g.input("x", x)?;
    let table = Type::new(DType::F32, [s.clone(), Dim::Known(HEAD / 2)]);
    let (cos, sin) = (g.input("cos", table.clone())?, g.input("sin", table)?);
    let starts = g.input("starts", Type::new(DType::I32, [4]))?;
    let len = g.input("len", Type::new(DType::I32, [0; 0]))?;
    let bytes = Scheme::Q4K.row_bytes(WIDTH).expect("whole blocks");
    let shape = [1.into(), s.clone(), HEADS.into(), HEAD.into()];
    for layer in 0..layers {
        let product = |g: &mut Graph, name: &str, x: Value| {
            let ty = Type::new(DType::U8, [WIDTH, bytes]);
            let w = g.param(&format!("{name}.{layer}"), ty)?;
            g.dequant_matmul(x, w, Scheme::Q4K)
        };
        let mut heads = Vec::new();
        for name in ["q", "k", "v"] {
            let y = product(&mut g, name, x)?;
            heads.push(g.reshape(y, shape.clone())?);
        }
        let q = g.rope(heads[0], cos, sin, RopeStyle::NeoX, HEAD, Layout::Bshd)?;
        let k = g.rope(heads[1], cos, sin, RopeStyle::NeoX, HEAD, Layout::Bshd)?;
        let mut caches = Vec::new();
        for (name, new) in [("keys", k), ("values", heads[2])] {
            let ty = Type::new(DType::F16, [1, 512, HEADS, HEAD]);
            let cache = g.state(&format!("{name}.{layer}"), ty)?;
            let all = g.dynamic_update_slice(cache, new, starts)?;
            g.assign(cache, all)?;
            caches.push(all);
        }
        let options = AttentionOptions::new(HEADS, HEADS, Layout::Bshd).causal();
        let y = g.attention(q, caches[0], caches[1], options.kv_len(len))?;
        let y = g.reshape(y, [s.clone(), WIDTH.into()])?;
        let y = product(&mut g, "o", y)?;
        x = g.plus(x, y)?;
        if is_read {
            g.output(&format!("q.{layer}"), q)?;
        }
    }
    g.output("x", x)?;
    Ok(g)
}

fn planned(layers: usize, is_read: bool) -> Program {
    let graph = decoder(layers, is_read).expect("a graph");
    let options = CompileOptions::new().bound("s", 512);
    let program = compile(&graph, &options, &Caps::h200()).expect("the graph is supported");
    check_races(&program).unwrap_or_else(|race| panic!("{race}\n{program}"));
    program
}

fn count(program: &Program, kernel: &str) -> usize {
    let names = program
        .dispatches()
        .map(|d| program.kernels[d.kernel.0 as usize].name.as_str());
    names
        .filter(|name| name.split(' ').next() == Some(kernel))
        .count()
}

#[test]
fn one_token_is_one_step_before_its_output_product() {
    let program = planned(2, false);
    assert_eq!(count(&program, "attention_token"), 2, "{program}");
    // Longer inputs have ways of their own.
    assert!(count(&program, "rope_append") >= 2, "{program}");
}

#[test]
fn queries_that_something_else_reads_are_written() {
    let program = planned(2, true);
    assert_eq!(count(&program, "attention_token"), 0, "{program}");
    assert_eq!(count(&program, "rope_append"), 2, "{program}");
}

#[test]
fn what_long_prompts_need_is_shared_by_layers() {
    let arena = |layers| planned(layers, false).bytes_of(|b| b == Buffer::Arena);
    let (few, many) = (arena(3), arena(12));
    assert!(many <= few + few / 4, "{few} and {many} bytes");
}
