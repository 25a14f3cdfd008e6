//! Tests of programs with several stages: lifetimes across stages, in-place updates, and rejected
//! graphs.

use std::collections::HashMap;

use tercet_ir::{CompileError, CompileOptions, DType, Graph, OpError, Type, Value, one_line};
use tercet_plan::{
    ArgAccess, ControlFlowGraph, DeviceCaps, GpuProgram, LaunchSizes, ProgramBuffer, SlotId,
    compile,
};

use crate::common::for_each_case;

/// Simulates a run: for each word of the arena, the slot through which it was last written.
struct Memory<'p> {
    program: &'p GpuProgram,
    launch: &'p LaunchSizes,
    owners: HashMap<u64, SlotId>,
    random: u32,
}

impl Memory<'_> {
    /// A pseudorandom number below `n`.
    fn pick(&mut self, n: u32) -> u32 {
        self.random = self
            .random
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        (self.random >> 16) % n
    }

    /// Executes a control-flow list, with random values of predicates. Returns an error if a step
    /// reads data of another slot.
    fn play(&mut self, flow: &[ControlFlowGraph]) -> Result<(), String> {
        for part in flow {
            match part {
                ControlFlowGraph::Stage(stage) => {
                    for step in self
                        .program
                        .active_steps_of_stage(*stage, &self.launch.has_workgroups)
                    {
                        self.step(step.step)?;
                    }
                }
                ControlFlowGraph::Sizes(_) => {}
                ControlFlowGraph::If {
                    then,
                    else_flow: otherwise,
                    ..
                } => match self.pick(2) {
                    0 => self.play(then)?,
                    _ => self.play(otherwise)?,
                },
                ControlFlowGraph::While { cond, body, .. } => {
                    self.play(cond)?;
                    for _ in 0..self.pick(4) {
                        self.play(body)?;
                        self.play(cond)?;
                    }
                }
                ControlFlowGraph::Repeat { count, body } => {
                    for _ in 0..self.launch.value(*count).min(3) {
                        self.play(body)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, at: usize) -> Result<(), String> {
        let program = self.program;
        let accesses = program.steps[at].accesses(&program.kernels);
        for how in [ArgAccess::Read, ArgAccess::Write] {
            for (id, _) in accesses.iter().filter(|(_, a)| *a == how) {
                let slot = program.slot(*id);
                if slot.buffer != ProgramBuffer::Arena {
                    continue;
                }
                for word in (slot.offset_bytes..slot.offset_bytes + slot.bytes).step_by(4) {
                    match how {
                        ArgAccess::Write => _ = self.owners.insert(word, *id),
                        ArgAccess::Read if self.owners.get(&word) == Some(id) => {}
                        ArgAccess::Read => {
                            let owner = self.owners.get(&word);
                            return Err(format!("step {at} reads {id:?}, left by {owner:?}"));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

#[test]
fn what_is_read_again_is_still_there() {
    let mut programs = 0;
    for caps in [DeviceCaps::h200(), DeviceCaps::browser()] {
        for_each_case(&caps, |p| {
            let Ok(program) = p.program else { return };
            // Steps read zero-size values that no step writes, so programs with empty values are
            // skipped.
            let has_empty = p.name.contains("empty") || p.name.contains("/no_");
            if program.flow.is_empty() || has_empty {
                return;
            }
            programs += 1;
            let mut launch = LaunchSizes::default();
            launch
                .compute(
                    &program,
                    &p.case.sizes,
                    tercet_ir::random::RngState::default(),
                )
                .expect("the sizes of the case are possible");
            for random in 0..8 {
                let mut memory = Memory {
                    program: &program,
                    launch: &launch,
                    owners: HashMap::new(),
                    random,
                };
                let played = memory.play(&program.flow);
                played.unwrap_or_else(|e| panic!("{}: {e}\n{program}", p.name));
            }
        });
    }
    assert!(programs > 100, "programs: {programs}");
}

/// A loop with the condition `i < 4`, whose body computes `body(x, i)`.
fn looped(
    ty: Type,
    body: impl FnOnce(&mut Graph, Value, Value) -> Result<Value, OpError>,
) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", ty.clone())?;
    let i = g.scalar(DType::I32, 0.0)?;
    let of = [g.ty(i).clone(), ty];
    let mut c = Graph::new();
    let own_i = c.input("i", of[0].clone())?;
    c.input("x", of[1].clone())?;
    let four = c.scalar(DType::I32, 4.0)?;
    let more = c.lt(own_i, four)?;
    c.output("more", more)?;
    let mut b = Graph::new();
    let (own_i, own_x) = (b.input("i", of[0].clone())?, b.input("x", of[1].clone())?);
    let one = b.scalar(DType::I32, 1.0)?;
    let next = b.plus(own_i, one)?;
    let y = body(&mut b, own_x, own_i)?;
    b.output("i", next)?;
    b.output("x", y)?;
    let y = g.while_loop(&[i, x], &[], c, b, 4)?;
    g.output("y", y.port(1))?;
    Ok(g)
}

#[test]
fn a_window_of_what_is_carried_is_written_in_place() {
    let graph = looped(Type::new(DType::F32, [8]), |g, x, i| {
        let at = g.unsqueeze(i, 0)?;
        let row = g.dynamic_slice(x, at, [2])?;
        let twice = g.plus(row, row)?;
        g.dynamic_update_slice(x, twice, at)
    });
    let graph = graph.expect("the loop is well typed");
    let program = compile(&graph, &CompileOptions::new(), &DeviceCaps::h200()).expect("supported");
    let names: Vec<String> = program.kernels.iter().map(|k| k.to_string()).collect();
    let has = |name: &str| names.iter().any(|n| n.split(' ').next() == Some(name));
    assert!(has("dynamic_update"), "{program}");
    assert!(!has("dynamic_update_copy"), "{program}");
}

#[test]
fn what_is_refused_inside_is_named() {
    let graph = looped(Type::new(DType::F32, [8]), |g, x, _| {
        let wide = g.cast(x, DType::F64)?;
        g.cast(wide, DType::F32)
    });
    let graph = graph.expect("the loop is well typed");
    let options = CompileOptions::new().without_pass("fuse_elementwise");
    let options = options.without_pass("simplify");
    let Err(e) = compile(&graph, &options, &DeviceCaps::h200()) else {
        panic!("no GPU computes in f64")
    };
    let CompileError::Unsupported { nodes, .. } = &e else {
        panic!("{}", one_line(&e))
    };
    assert_eq!(nodes.len(), 2, "{e}");
    assert!(
        nodes[0]
            .reason
            .contains("in `body` of while: GPUs compute in f32"),
        "{e}"
    );
}
