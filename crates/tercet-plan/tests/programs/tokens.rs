//! Tests of decoder layers: decode attention is fused with its RoPE and cache updates, and prefill
//! memory does not grow with the number of layers.

use tercet_ir::ops::{AttentionLayout, AttentionOptions, RopeStyle};
use tercet_ir::random::RngState;
use tercet_ir::{Bindings, CompileOptions, DType, Dim, Graph, OpError, Scheme, Type, Value};
use tercet_plan::{
    ActiveStep, CheckKind, DeviceCaps, GpuProgram, LaunchSizes, ProgramBuffer, StageId, StepOp,
    check_races, compile,
};

const HEADS: usize = 4;
const HEAD: usize = 64;
const WIDTH: usize = HEADS * HEAD;

/// Layers of attention over F16 caches; the queries optionally have another reader.
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
        let q = g.rope(
            heads[0],
            cos,
            sin,
            RopeStyle::NeoX,
            HEAD,
            AttentionLayout::Bshd,
        )?;
        let k = g.rope(
            heads[1],
            cos,
            sin,
            RopeStyle::NeoX,
            HEAD,
            AttentionLayout::Bshd,
        )?;
        let mut caches = Vec::new();
        for (name, new) in [("keys", k), ("values", heads[2])] {
            let ty = Type::new(DType::F16, [1, 512, HEADS, HEAD]);
            let cache = g.state(&format!("{name}.{layer}"), ty)?;
            let all = g.dynamic_update_slice(cache, new, starts)?;
            g.assign(cache, all)?;
            caches.push(all);
        }
        let options = AttentionOptions::new(HEADS, HEADS, AttentionLayout::Bshd).causal();
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

fn planned(layers: usize, is_read: bool) -> GpuProgram {
    let graph = decoder(layers, is_read).expect("a graph");
    let options = CompileOptions::new().bound("s", 512);
    let program = compile(&graph, &options, &DeviceCaps::h200()).expect("the graph is supported");
    check_races(&program).unwrap_or_else(|race| panic!("{race}\n{program}"));
    program
}

/// Kernel names of a decoder's layers.
pub(crate) fn kernels() -> Vec<String> {
    let names = planned(2, false).kernels.into_iter().map(|k| k.name);
    names
        .map(|name| name.split(' ').next().unwrap_or_default().to_string())
        .collect()
}

fn count(program: &GpuProgram, kernel: &str) -> usize {
    let names = program
        .dispatches()
        .map(|d| program.kernels[d.kernel.0 as usize].name.as_str());
    let first = names.filter_map(|name| name.split(' ').next());
    first
        .filter(|name| name.strip_suffix("_chained").unwrap_or(name) == kernel)
        .count()
}

#[test]
fn one_token_is_one_step_before_its_output_product() {
    let program = planned(2, false);
    assert_eq!(count(&program, "attention_token"), 2, "{program}");
    // Longer inputs use separate shape branches.
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
    let arena = |layers| planned(layers, false).bytes_of(|b| b == ProgramBuffer::Arena);
    let (few, many) = (arena(3), arena(12));
    assert!(many <= few + few / 4, "{few} and {many} bytes");
}

/// Active steps and launch-time values of a run with `tokens` tokens.
fn played(program: &GpuProgram, tokens: usize) -> (Vec<ActiveStep>, LaunchSizes) {
    let mut launch = LaunchSizes::default();
    let sizes = Bindings::new().with("s", tokens);
    let computed = launch.compute(program, &sizes, RngState::default());
    computed.expect("possible sizes");
    (
        program.active_steps_of_stage(StageId(0), &launch.has_workgroups),
        launch,
    )
}

#[test]
fn steps_of_one_token_wait_for_each_other_without_barriers() {
    let program = planned(2, false);
    let chain = program.chain.as_ref().expect("a device with chains");
    let (steps, launch) = played(&program, 1);
    // In each layer, these dispatches use dependent launch: the matmuls before attention,
    // attention, and the matmul after it. The first of them waits for no dispatch.
    let links: Vec<_> = steps.iter().filter_map(|p| Some((p, p.link?))).collect();
    let waiting: Vec<_> = links.iter().filter(|(_, l)| l.waits_on.is_some()).collect();
    assert_eq!(
        links.iter().map(|(_, l)| l.signals).max(),
        Some(5),
        "{program}"
    );
    assert!(
        waiting
            .iter()
            .all(|(p, l)| !p.needs_barrier() && l.waits_on == l.signals.checked_sub(1))
    );
    assert_eq!(
        links.len() - waiting.len(),
        links.iter().filter(|(_, l)| l.signals == 0).count()
    );
    for (p, link) in &links {
        let StepOp::Dispatch(d) = &program.steps[p.step].work else {
            panic!("only dispatches are links");
        };
        let numbers = &launch.params[chain.numbers[&d.block] as usize..][..3];
        let groups = |own: u32| -> u32 {
            let of = links.iter().filter(|(_, l)| l.signals == own);
            of.map(|(p, _)| launch.grids[p.step].iter().product::<u32>())
                .sum()
        };
        let waits = link.waits_on.unwrap_or(0);
        let wanted = link.waits_on.map_or(0, groups);
        // No dispatch waits for the last dispatch with dependent launch, so its workgroups
        // increment no counter.
        let own = (link.signals + 1) % 6;
        assert_eq!(numbers, [waits, wanted, own], "{program}");
    }
    // The data checks of the program include the fault record of dependent launches.
    let order = program
        .data_checks
        .iter()
        .filter(|c| c.kind == CheckKind::Order);
    assert_eq!(order.count(), 1);
}

#[test]
fn prompts_and_other_devices_keep_their_barriers() {
    let (steps, _) = played(&planned(2, false), 512);
    assert!(
        steps
            .iter()
            .all(|p| p.link.is_none_or(|l| l.waits_on.is_none()))
    );
    let graph = decoder(2, false).expect("a graph");
    let options = CompileOptions::new().bound("s", 512);
    let program = compile(&graph, &options, &DeviceCaps::laptop()).expect("the graph is supported");
    assert!(program.chain.is_none());
    let (steps, _) = played(&program, 1);
    assert!(steps.iter().all(|p| p.link.is_none()));
}
