//! Parameters, constants, and what is computed from them once.
//!
//! A constant is computed when the first run needs it. Setting a parameter forgets what depends on
//! it and nothing else. What no run reads itself (an intermediate, or a weight whose packed form is
//! kept) is dropped after use, but a parameter only if setting it again is the only way in which
//! its dependents can change.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tercet_ir::{Bindings, EvalCtx, EvalError, RunError, Tensor, TensorType};

use crate::args::{Args, Packed, View, ViewMut};
use crate::exec::memory::{Buffer, nothing};
use crate::kernels::{Threads, parallel};
use crate::plan::{Operand, Program, Root, Source, Step};
use tercet_ir::layout::Layout;

/// Weights of a thread that are packed before the next ones are computed.
const TOGETHER: usize = 4;
/// Bytes of them, about.
const TOGETHER_BYTES: usize = 16 << 20;

/// The constants of an executable. Clones share the memory.
#[derive(Clone)]
pub(crate) struct Constants {
    /// By constant; `None` when not computed, or dropped.
    pub(crate) values: Vec<Option<Tensor>>,
    /// By pack.
    pub(crate) packs: Vec<Option<Arc<Packed>>>,
    /// Which parameters were set.
    set: Vec<bool>,
    ready: bool,
}

/// A failure while computing constants: the step or pack, and why.
pub(crate) enum Failure {
    /// A kernel failed at a node.
    Node(tercet_ir::NodeId, &'static str, EvalError),
    /// Something else.
    Run(RunError),
}

impl From<RunError> for Failure {
    fn from(e: RunError) -> Failure {
        Failure::Run(e)
    }
}

impl Constants {
    pub(crate) fn new(program: &Program) -> Constants {
        let values = program.consts.iter().map(|c| match &c.source {
            Source::Tensor(t) => Some(t.clone()),
            Source::Param | Source::Step(_) => None,
        });
        Constants {
            values: values.collect(),
            packs: program.packs.iter().map(|_| None).collect(),
            set: vec![false; program.signature.params.len()],
            ready: false,
        }
    }

    /// Sets a parameter and forgets what depends on it.
    pub(crate) fn set(&mut self, program: &Program, param: usize, tensor: Tensor) {
        self.set[param] = true;
        self.ready = false;
        for (c, def) in program.consts.iter().enumerate() {
            if def.params.binary_search(&param).is_ok() {
                self.values[c] = match def.source {
                    Source::Param => Some(tensor.clone()),
                    Source::Tensor(_) | Source::Step(_) => None,
                };
            }
        }
        for (p, def) in program.packs.iter().enumerate() {
            if program.consts[def.of].params.binary_search(&param).is_ok() {
                self.packs[p] = None;
            }
        }
    }

    /// Computes what runs read and is not there.
    ///
    /// # Errors
    /// A missing parameter, a kernel's failure, or no memory.
    pub(crate) fn prepare(&mut self, program: &Program, parallel: bool) -> Result<(), Failure> {
        if self.ready {
            return Ok(());
        }
        for (port, set) in program.signature.params.iter().zip(&self.set) {
            if !set {
                let (name, ty) = (port.name.clone(), port.ty.clone());
                return Err(RunError::Missing {
                    what: "param",
                    name,
                    ty,
                }
                .into());
            }
        }
        let mut scratch = Buffer::default();
        let mut next = 0;
        while next < program.packs.len() {
            next = self.pack_some(program, next, parallel, &mut scratch)?;
        }
        for (c, def) in program.consts.iter().enumerate() {
            if def.wanted {
                self.require(program, c, parallel, &mut scratch)?;
            }
        }
        for c in 0..program.consts.len() {
            self.drop_unless_needed(program, c);
        }
        self.ready = true;
        Ok(())
    }

    /// Packs weights from pack `first` on, several at once, and says which comes next.
    fn pack_some(
        &mut self,
        program: &Program,
        first: usize,
        parallel: bool,
        scratch: &mut Buffer,
    ) -> Result<usize, Failure> {
        let threads = Threads::parallel(parallel);
        let most = TOGETHER * threads.count();
        let (mut own, mut layouts, mut next, mut bytes) = (Vec::new(), Vec::new(), first, 0);
        while next < program.packs.len() && own.len() < most && bytes < TOGETHER_BYTES {
            if self.packs[next].is_none() {
                let def = &program.packs[next];
                self.require(program, def.of, parallel, scratch)?;
                bytes += self.values[def.of].as_ref().map_or(0, |t| t.bytes().len());
                layouts.push(layout_of(&def.operand)?);
                own.push(next);
            }
            next += 1;
        }
        let done: Vec<OnceLock<_>> = own.iter().map(|_| OnceLock::new()).collect();
        parallel::for_each(threads, own.len(), |i| {
            let def = &program.packs[own[i]];
            let packed = (def.pack)(&self.view(&def.operand, &layouts[i]));
            let _ = done[i].set(packed);
        });
        for (p, packed) in own.iter().zip(done) {
            let def = &program.packs[*p];
            if let Some(packed) = packed.into_inner() {
                let packed = packed.map_err(|e| Failure::Node(def.node, def.op, e))?;
                self.packs[*p] = Some(Arc::new(packed));
            }
        }
        // Peak memory: weights go as soon as their packed forms are there.
        for p in own {
            self.drop_unless_needed(program, program.packs[p].of);
        }
        Ok(next)
    }

    fn require(
        &mut self,
        program: &Program,
        c: usize,
        parallel: bool,
        scratch: &mut Buffer,
    ) -> Result<(), Failure> {
        if self.values[c].is_some() {
            return Ok(());
        }
        // Chains of constants are as deep as graphs are: a list, not recursion.
        let mut needed = vec![c];
        let mut at = 0;
        while let Some(&next) = needed.get(at) {
            let operands = operands_of(program, next).iter().filter(|o| !o.absent);
            needed.extend(
                operands
                    .filter_map(const_of)
                    .filter(|&of| self.values[of].is_none()),
            );
            at += 1;
        }
        // Constants are numbered after what they are made of.
        needed.sort_unstable();
        needed.dedup();
        for c in needed {
            if self.values[c].is_none() {
                self.compute(program, c, parallel, scratch)?;
            }
        }
        Ok(())
    }

    fn compute(
        &mut self,
        program: &Program,
        c: usize,
        parallel: bool,
        scratch: &mut Buffer,
    ) -> Result<(), Failure> {
        let Source::Step(step) = program.consts[c].source else {
            return Ok(());
        };
        let step = &program.prepare[step];
        let operands = &program.operands[step.operands.clone()];
        let layouts: Result<Vec<Layout>, _> = operands.iter().map(layout_of).collect();
        let layouts = layouts?;
        let outs = &operands[step.ins..];
        let mut results = Vec::with_capacity(outs.len());
        for (out, layout) in outs.iter().zip(&layouts[step.ins..]) {
            let ty = TensorType::new(out.dtype, layout.shape());
            results.push(crate::reference::zeros(ty, "a prepared constant")?);
        }
        self.call(program, step, &layouts, &mut results, parallel, scratch)?;
        for (out, tensor) in outs.iter().zip(results) {
            if let Some(c) = const_of(out) {
                self.values[c] = Some(tensor);
            }
        }
        Ok(())
    }

    fn call(
        &self,
        program: &Program,
        step: &Step,
        layouts: &[Layout],
        results: &mut [Tensor],
        parallel: bool,
        scratch: &mut Buffer,
    ) -> Result<(), Failure> {
        let operands = &program.operands[step.operands.clone()];
        let (ins, outs) = operands.split_at(step.ins);
        let views = ins.iter().zip(layouts).map(|(o, l)| self.view(o, l));
        let views: SmallVec<[View<'_>; 8]> = views.collect();
        let results = outs.iter().zip(&layouts[step.ins..]).zip(results);
        let outs = results.map(|((out, layout), tensor)| ViewMut {
            bytes: tensor.bytes_mut(),
            dtype: out.dtype,
            layout,
        });
        let outs = outs.collect();
        let needed = step
            .scratch
            .as_ref()
            .map_or(0, |(s, _)| program.slots[*s].bytes);
        if scratch.bytes().len() < needed {
            *scratch = Buffer::zeroed(needed, "scratch memory")?;
        }
        let mut args = Args {
            ctx: EvalCtx::default(),
            parallel,
            ins: views,
            outs,
            scratch: &mut scratch.bytes_mut()[..needed],
            packed: step.pack.and_then(|p| self.packs[p].as_deref()),
        };
        (step.run)(&mut args).map_err(|e| Failure::Node(step.node, step.op, e))
    }

    fn view<'a>(&'a self, operand: &Operand, layout: &'a Layout) -> View<'a> {
        let value = const_of(operand).and_then(|c| self.values[c].as_ref());
        View {
            root: match (value, operand.absent) {
                (Some(t), false) => t.bytes(),
                (_, true) | (None, _) => nothing(),
            },
            within: operand.within,
            dtype: operand.dtype,
            layout,
        }
    }

    fn drop_unless_needed(&mut self, program: &Program, c: usize) {
        let def = &program.consts[c];
        let packs_wait = |of: usize| {
            program
                .packs
                .iter()
                .zip(&self.packs)
                .any(|(p, done)| p.of == of && done.is_none())
        };
        if def.wanted || packs_wait(c) {
            return;
        }
        match def.source {
            Source::Tensor(_) => {}
            Source::Step(_) => self.values[c] = None,
            Source::Param => {
                let alone = program.consts.iter().all(|other| {
                    other.params.binary_search(&def.params[0]).is_err()
                        || (other.params.len() == 1 && other.params == def.params)
                });
                let computed = program
                    .consts
                    .iter()
                    .zip(&self.values)
                    .all(|(other, value)| {
                        other.params != def.params || !other.wanted || value.is_some()
                    });
                let packed =
                    program.packs.iter().zip(&self.packs).all(|(p, done)| {
                        program.consts[p.of].params != def.params || done.is_some()
                    });
                if alone && computed && packed {
                    self.values[c] = None;
                }
            }
        }
    }
}

fn layout_of(operand: &Operand) -> Result<Layout, Failure> {
    operand
        .layout
        .eval(&Bindings::new())
        .map_err(|e| Failure::Run(e.into()))
}

fn const_of(operand: &Operand) -> Option<usize> {
    match operand.root {
        Root::Const(c) => Some(c),
        Root::Input(_) | Root::State(_) | Root::Output(_) | Root::Slot(_) => None,
    }
}

fn operands_of(program: &Program, c: usize) -> &[Operand] {
    match program.consts[c].source {
        Source::Step(step) => {
            let step = &program.prepare[step];
            &program.operands[step.operands.clone()][..step.ins]
        }
        Source::Param | Source::Tensor(_) => &[],
    }
}
