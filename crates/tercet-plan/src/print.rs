//! A program as text: what runs, on what, with which numbers.

use std::fmt;

use tercet_ir::Bindings;
use tercet_ir::backend::Explanation;
use tercet_ir::random::Random;

use crate::flow::{Flow, StageId};
use crate::kernel::{Access, Word};
use crate::launch::Launch;
use crate::num::{Num, Shown};
use crate::played::Played;
use crate::program::{Arm, Buffer, Program, SlotId, Step, Work};

/// The text has one line per symbol, buffer and step. Numbers that depend on sizes are shown as
/// expressions over the symbols.
impl fmt::Display for Program {
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

impl Program {
    /// The stages as they follow on each other.
    fn show_flow(&self, f: &mut fmt::Formatter<'_>, flow: &[Flow]) -> fmt::Result {
        for part in flow {
            match part {
                Flow::Stage(id) => {
                    writeln!(f, "  stage {}:", id.0)?;
                    for step in &self.steps[self.stage(*id)] {
                        self.show_step(f, step)?;
                    }
                }
                Flow::Sizes(checks) => writeln!(f, "  check sizes {checks:?}")?,
                Flow::If {
                    pred,
                    then,
                    otherwise,
                } => {
                    write!(f, "  if ")?;
                    self.show_slot(f, *pred)?;
                    writeln!(f, " {{")?;
                    self.show_flow(f, then)?;
                    writeln!(f, "  }} else {{")?;
                    self.show_flow(f, otherwise)?;
                    writeln!(f, "  }}")?;
                }
                Flow::While {
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
                Flow::Repeat { count, body } => {
                    writeln!(f, "  repeat {} times {{", Shown(*count, &self.tape))?;
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

    /// The sizes that an arm is for.
    fn show_arm(&self, f: &mut fmt::Formatter<'_>, arm: Arm) -> fmt::Result {
        let choice = &self.choices[arm.choice.0 as usize];
        let (above, upto) = choice.range(arm.index);
        write!(f, "if ")?;
        if above != i64::MIN {
            write!(f, "{above} < ")?;
        }
        write!(f, "{}", Shown(choice.value, &self.tape))?;
        if upto != i64::MAX {
            write!(f, " <= {upto}")?;
        }
        write!(f, ": ")
    }

    fn show_step(&self, f: &mut fmt::Formatter<'_>, step: &Step) -> fmt::Result {
        if step.barrier {
            writeln!(f, "  --")?;
        }
        let shown = |n: Num| Shown(n, &self.tape);
        write!(f, "  ")?;
        for arm in &step.arms {
            self.show_arm(f, *arm)?;
        }
        match &step.work {
            Work::Dispatch(d) => {
                let kernel = &self.kernels[d.kernel.0 as usize];
                let [x, y, z] = d.grid.map(shown);
                write!(f, "{} {kernel} grid {x} {y} {z} (", step.op)?;
                for (i, (slot, access)) in d.args.iter().zip(&kernel.args).enumerate() {
                    let comma = if i > 0 { ", " } else { "" };
                    let arrow = if *access == Access::Write { "-> " } else { "" };
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
                        Word::Num(n) => write!(f, "{comma}{}", shown(*n))?,
                        Word::F32(x) => write!(f, "{comma}{x:?}")?,
                    }
                }
                writeln!(f, "]")
            }
            Work::Copy { src, dst, bytes } => {
                write!(f, "copy {} bytes ", shown(*bytes))?;
                self.show_slot(f, *src)?;
                write!(f, " -> ")?;
                self.show_slot(f, *dst)?;
                writeln!(f)
            }
            Work::Fill { dst, word } => {
                write!(f, "fill {word:#x} ")?;
                self.show_slot(f, *dst)?;
                writeln!(f)
            }
        }
    }
}

/// What a run at the symbols' bounds plays, each stage once; every step where no run has these sizes.
fn at_bounds(program: &Program) -> Vec<Played> {
    let symbols = program.symbols.iter();
    let sizes = symbols.fold(Bindings::new(), |b, (s, n)| b.with(s.name(), *n));
    let mut launch = Launch::default();
    let steps = program.steps.iter().enumerate();
    match launch.compute(program, &sizes, Random::default()) {
        Ok(()) => (0..program.stages().len())
            .flat_map(|at| program.played_stage(StageId(at as u32), &launch.chosen))
            .collect(),
        Err(_) => steps
            .map(|(step, s)| Played {
                step,
                barrier: s.barrier,
                link: None,
            })
            .collect(),
    }
}

/// Which variants of kernels a program has and why, each line once with how often it occurs; empty where there are none.
fn variants(program: &Program) -> String {
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

/// What a program runs, for `explain`. Dispatches and barriers are those of a run at the symbols'
/// bounds, kernels those of runs of all sizes; what data decides is counted once.
pub fn explain(program: &Program, target: &'static str) -> Explanation {
    let kernel = |step: &Step| match &step.work {
        Work::Dispatch(d) => program.kernels[d.kernel.0 as usize].to_string(),
        Work::Copy { .. } => "copy".to_string(),
        Work::Fill { .. } => "fill".to_string(),
    };
    type Kind = (&'static str, fn(Buffer) -> bool);
    let kinds: [Kind; 7] = [
        ("inputs", |b| b == Buffer::Input),
        ("outputs", |b| matches!(b, Buffer::Output | Buffer::Faults)),
        ("params", |b| matches!(b, Buffer::Param(_))),
        ("constants", |b| matches!(b, Buffer::Const(_))),
        ("prepared", |b| b == Buffer::Prepared),
        ("states", |b| matches!(b, Buffer::State(_))),
        ("arena", |b| matches!(b, Buffer::Arena | Buffer::Counters)),
    ];
    let played = at_bounds(program);
    let bytes = kinds.map(|(name, kind)| (name, program.bytes_of(kind)));
    Explanation {
        target,
        kernels: Explanation::count(program.steps.iter().map(|s| (s.op, kernel(s)))),
        dispatches: played.len(),
        barriers: played.iter().filter(|p| p.needs_barrier()).count(),
        prepare: program.prepare.len(),
        // A program has no step that runs on the host.
        host_fallbacks: 0,
        bytes: bytes.to_vec(),
        listing: format!("{program}{}", variants(program)),
    }
}
