//! Text form of a program: its buffers and steps with kernels, arguments and sizes.

use std::fmt;

use tercet_ir::Bindings;
use tercet_ir::backend::Explanation;
use tercet_ir::random::RngState;

use crate::active_steps::ActiveStep;
use crate::flow::{ControlFlowGraph, StageId};
use crate::kernel::{ArgAccess, ParamWord};
use crate::launch::LaunchSizes;
use crate::program::{GpuProgram, ProgramBuffer, ProgramStep, ShapeBranch, SlotId, StepOp};
use crate::sym_int::{DisplayExpr, SymInt};

/// Prints one line per symbol, buffer and step. Symbolic sizes are printed as expressions over the
/// symbols.
impl fmt::Display for GpuProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (symbol, bound) in &self.symbols {
            writeln!(f, "symbol {symbol} <= {bound}")?;
        }
        for (buffer, bytes) in self.buffers() {
            writeln!(f, "buffer {buffer:?} {bytes} bytes")?;
        }
        let io = [
            ("input", &self.signature.inputs, &self.inputs),
            ("param", &self.signature.params, &self.param_io),
            ("state", &self.signature.states, &self.states),
            ("output", &self.signature.outputs, &self.outputs),
        ];
        for (what, ports, list) in io {
            for (port, io) in ports.iter().zip(list) {
                write!(f, "{what} {}: {} = ", port.name, port.ty)?;
                self.show_slot(f, io.slot)?;
                writeln!(f)?;
            }
        }
        for (title, steps) in [("prepare", &self.prepare), ("run", &self.steps)] {
            if !steps.is_empty() {
                writeln!(f, "{title}:")?;
            }
            if title == "run" && !self.flow.is_empty() {
                return self.show_flow(f, &self.flow);
            }
            for step in steps {
                self.show_step(f, step)?;
            }
        }
        Ok(())
    }
}

impl GpuProgram {
    /// Prints the control flow with its stages, indented by nesting.
    fn show_flow(&self, f: &mut fmt::Formatter<'_>, flow: &[ControlFlowGraph]) -> fmt::Result {
        for part in flow {
            match part {
                ControlFlowGraph::Stage(id) => {
                    writeln!(f, "  stage {}:", id.0)?;
                    for step in &self.steps[self.stage(*id)] {
                        self.show_step(f, step)?;
                    }
                }
                ControlFlowGraph::Sizes(checks) => writeln!(f, "  check sizes {checks:?}")?,
                ControlFlowGraph::If {
                    pred,
                    then,
                    else_flow: otherwise,
                } => {
                    write!(f, "  if ")?;
                    self.show_slot(f, *pred)?;
                    writeln!(f, " {{")?;
                    self.show_flow(f, then)?;
                    writeln!(f, "  }} else {{")?;
                    self.show_flow(f, otherwise)?;
                    writeln!(f, "  }}")?;
                }
                ControlFlowGraph::While {
                    cond,
                    pred,
                    body,
                    max_iter,
                    ..
                } => {
                    writeln!(f, "  while {{")?;
                    self.show_flow(f, cond)?;
                    write!(f, "  }} ")?;
                    self.show_slot(f, *pred)?;
                    writeln!(f, " at most {max_iter} times {{")?;
                    self.show_flow(f, body)?;
                    writeln!(f, "  }}")?;
                }
                ControlFlowGraph::Repeat { count, body } => {
                    writeln!(f, "  repeat {} times {{", DisplayExpr(*count, &self.tape))?;
                    self.show_flow(f, body)?;
                    writeln!(f, "  }}")?;
                }
            }
        }
        Ok(())
    }

    fn show_slot(&self, f: &mut fmt::Formatter<'_>, id: SlotId) -> fmt::Result {
        let s = self.slot(id);
        let (start, end) = (s.offset_bytes, s.offset_bytes + s.bytes);
        write!(f, "{:?}[{start}..{end}] {}", s.buffer, s.dtype)
    }

    /// Prints the size range of a branch.
    fn show_arm(&self, f: &mut fmt::Formatter<'_>, arm: ShapeBranch) -> fmt::Result {
        let choice = &self.shape_switches[arm.choice.0 as usize];
        let (above, upto) = choice.range(arm.index);
        write!(f, "if ")?;
        if above != i64::MIN {
            write!(f, "{above} < ")?;
        }
        write!(f, "{}", DisplayExpr(choice.value, &self.tape))?;
        if upto != i64::MAX {
            write!(f, " <= {upto}")?;
        }
        write!(f, ": ")
    }

    fn show_step(&self, f: &mut fmt::Formatter<'_>, step: &ProgramStep) -> fmt::Result {
        if step.barrier {
            writeln!(f, "  --")?;
        }
        let shown = |n: SymInt| DisplayExpr(n, &self.tape);
        write!(f, "  ")?;
        for arm in &step.branches {
            self.show_arm(f, *arm)?;
        }
        match &step.work {
            StepOp::Dispatch(d) => {
                let kernel = &self.kernels[d.kernel.0 as usize];
                let [x, y, z] = d.grid.map(shown);
                write!(f, "{} {kernel} grid {x} {y} {z} (", step.op)?;
                for (i, (slot, access)) in d.args.iter().zip(&kernel.args).enumerate() {
                    let comma = if i > 0 { ", " } else { "" };
                    let arrow = if *access == ArgAccess::Write {
                        "-> "
                    } else {
                        ""
                    };
                    write!(f, "{comma}{arrow}")?;
                    self.show_slot(f, *slot)?;
                }
                write!(f, ") [")?;
                let words = (kernel.block_bytes / 4) as usize;
                for (i, word) in self.params[d.block as usize..]
                    .iter()
                    .take(words)
                    .enumerate()
                {
                    let comma = if i > 0 { " " } else { "" };
                    match word {
                        ParamWord::SymInt(n) => write!(f, "{comma}{}", shown(*n))?,
                        ParamWord::F32(x) => write!(f, "{comma}{x:?}")?,
                    }
                }
                writeln!(f, "]")
            }
            StepOp::Copy { src, dst, bytes } => {
                write!(f, "copy {} bytes ", shown(*bytes))?;
                self.show_slot(f, *src)?;
                write!(f, " -> ")?;
                self.show_slot(f, *dst)?;
                writeln!(f)
            }
            StepOp::Fill { dst, word } => {
                write!(f, "fill {word:#x} ")?;
                self.show_slot(f, *dst)?;
                writeln!(f)
            }
        }
    }
}

/// Active steps of a run at the symbols' bounds, with each stage once. Returns all steps if no run
/// can have these sizes.
fn at_bounds(program: &GpuProgram) -> Vec<ActiveStep> {
    let symbols = program.symbols.iter();
    let sizes = symbols.fold(Bindings::new(), |b, (s, n)| b.with(s.name(), *n));
    let mut launch = LaunchSizes::default();
    let steps = program.steps.iter().enumerate();
    match launch.compute(program, &sizes, RngState::default()) {
        Ok(()) => (0..program.stages().len())
            .flat_map(|at| {
                program.active_steps_of_stage(StageId(at as u32), &launch.has_workgroups)
            })
            .collect(),
        Err(_) => steps
            .map(|(step, s)| ActiveStep {
                step,
                barrier: s.barrier,
                link: None,
            })
            .collect(),
    }
}

/// Selected kernel variants with their reasons: each distinct line once, with its number of
/// occurrences. Empty if there are none.
fn variants(program: &GpuProgram) -> String {
    let mut lines: Vec<(String, usize)> = Vec::new();
    for taken in &program.variants {
        let line = format!("{:<22} {taken}", taken.op);
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, count)) => *count += 1,
            None => lines.push((line, 1)),
        }
    }
    let lines = lines
        .iter()
        .map(|(line, count)| format!("  {count:>5} x {line}\n"));
    let lines: String = lines.collect();
    match lines.is_empty() {
        true => lines,
        false => format!("variants:\n{lines}"),
    }
}

/// Data of a program for the command `explain`. Dispatches and barriers are those of a run at the
/// symbols' bounds; kernels are those of all sizes. Each stage of data-dependent control flow
/// counts once, even if a run may repeat or skip it.
pub fn explain(program: &GpuProgram, target: &'static str) -> Explanation {
    let kernel = |step: &ProgramStep| match &step.work {
        StepOp::Dispatch(d) => program.kernels[d.kernel.0 as usize].to_string(),
        StepOp::Copy { .. } => "copy".to_string(),
        StepOp::Fill { .. } => "fill".to_string(),
    };
    type Kind = (&'static str, fn(ProgramBuffer) -> bool);
    let kinds: [Kind; 7] = [
        ("inputs", |b| b == ProgramBuffer::Input),
        ("outputs", |b| {
            matches!(b, ProgramBuffer::Output | ProgramBuffer::Faults)
        }),
        ("params", |b| matches!(b, ProgramBuffer::Param(_))),
        ("constants", |b| matches!(b, ProgramBuffer::Const(_))),
        ("prepared", |b| b == ProgramBuffer::Prepared),
        ("states", |b| matches!(b, ProgramBuffer::State(_))),
        ("arena", |b| {
            matches!(b, ProgramBuffer::Arena | ProgramBuffer::Counters)
        }),
    ];
    let written = |step: &ProgramStep| match &step.work {
        StepOp::Dispatch(d) => {
            let args = &program.kernels[d.kernel.0 as usize].args;
            args.iter().filter(|how| **how == ArgAccess::Write).count()
        }
        StepOp::Copy { .. } | StepOp::Fill { .. } => 0,
    };
    let played = at_bounds(program);
    let bytes = kinds.map(|(name, kind)| (name, program.bytes_of(kind)));
    Explanation {
        target,
        kernels: Explanation::count(program.steps.iter().map(|s| (s.op, kernel(s)))),
        dispatches: played.len(),
        written: program.steps.iter().map(written).sum(),
        barriers: played.iter().filter(|p| p.needs_barrier()).count(),
        prepare: program.prepare.len(),
        // All steps of a compiled program run on the device, none on the host.
        host_fallbacks: 0,
        bytes: bytes.to_vec(),
        switches: Vec::new(),
        listing: format!("{program}{}", variants(program)),
    }
}
