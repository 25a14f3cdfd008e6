//! Parameters, constants, and what is computed from them once.
//!
//! A constant is computed when the first run needs it. Setting a parameter forgets what depends on
//! it and nothing else. What no run reads itself (an intermediate, or a weight whose packed form is
//! kept) is dropped after use, but a parameter only if setting it again is the only way in which
//! its dependents can change.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tercet_ir::{Bindings, EvalCtx, EvalError, NodeId, RunError, Tensor, TensorType};

use crate::args::{Args, Packed, View, ViewMut};
use crate::exec::memory::nothing;
use crate::kernels::{Threads, parallel};
use crate::pages::Buffer;
use crate::plan::{ALIGN_BYTES, Operand, Program, Root, Source, Step};
use tercet_ir::layout::Layout;

/// Weights of a thread that are packed before the next ones are computed.
const TOGETHER: usize = 4;
/// Bytes of them, about.
const TOGETHER_BYTES: usize = 16 << 20;

/// Bytes of a weight that is not aligned up to which a thread copies it into memory of its own before it packs it: others
/// are aligned for good.
const STAGED_BYTES: usize = 32 << 20;

/// What depends on what, found once.
#[derive(Default)]
struct Dependents {
    /// The constants that depend on each parameter.
    of_param: Vec<Vec<usize>>,
    /// The packs that are made of each constant.
    packs: Vec<Vec<usize>>,
}

impl Dependents {
    fn of(program: &Program) -> Dependents {
        let mut of_param = vec![Vec::new(); program.signature.params.len()];
        for (c, def) in program.consts.iter().enumerate() {
            def.params.iter().for_each(|p| of_param[*p].push(c));
        }
        let mut packs = vec![Vec::new(); program.consts.len()];
        for (p, def) in program.packs.iter().enumerate() {
            packs[def.of].push(p);
        }
        Dependents { of_param, packs }
    }
}

/// Memory that computing constants uses again: a page that was never written costs more than what is computed into it.
#[derive(Default)]
struct Room {
    /// Scratch memory of kernels.
    scratch: Buffer,
    /// Constants that were dropped.
    spare: Vec<Tensor>,
}

impl Room {
    /// Scratch memory of so many bytes at least.
    fn scratch(&mut self, bytes: usize, what: &'static str) -> Result<&mut [u8], RunError> {
        if self.scratch.bytes().len() < bytes {
            self.scratch = Buffer::zeroed(bytes, what)?;
        }
        Ok(self.scratch.bytes_mut())
    }

    /// A tensor whose contents are not specified. What it is made of is less than twice its size: it may be kept.
    fn tensor(&mut self, ty: TensorType) -> Result<Tensor, RunError> {
        let len = |t: &Tensor| t.bytes().len();
        let needed = ty.size_bytes();
        let spare = self.spare.iter().enumerate();
        let fits = spare.filter(|(_, t)| (needed..needed.saturating_mul(2)).contains(&len(t)));
        match fits.min_by_key(|(_, t)| len(t)).map(|(i, _)| i) {
            Some(i) => {
                let mut tensor = self.spare.swap_remove(i);
                tensor.reset_to(ty.dtype, &ty.shape)?;
                Ok(tensor)
            }
            None => crate::reference::zeros(ty, "a prepared constant"),
        }
    }

    /// Keeps what was dropped while there is not much of it.
    fn keep(&mut self, dropped: Option<Tensor>) {
        let kept: usize = self.spare.iter().map(|t| t.bytes().len()).sum();
        let dropped = dropped.filter(|t| kept + t.bytes().len() <= TOGETHER_BYTES);
        self.spare.extend(dropped);
    }
}

/// The constants of an executable. Clones share the memory.
#[derive(Clone)]
pub(crate) struct Constants {
    dependents: Arc<Dependents>,
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
    Node(NodeId, &'static str, EvalError),
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
            dependents: Arc::new(Dependents::of(program)),
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
        for &c in &self.dependents.of_param[param] {
            self.values[c] = match program.consts[c].source {
                Source::Param => Some(tensor.clone()),
                Source::Tensor(_) | Source::Step(_) => None,
            };
            for &p in &self.dependents.packs[c] {
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
        let mut room = Room::default();
        let mut next = 0;
        while next < program.packs.len() {
            next = self.pack_some(program, next, parallel, &mut room)?;
        }
        for (c, def) in program.consts.iter().enumerate() {
            if def.wanted {
                self.require(program, c, parallel, &mut room)?;
                self.values[c]
                    .as_ref()
                    .map_or(Ok(()), Tensor::align)
                    .map_err(RunError::from)?;
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
        room: &mut Room,
    ) -> Result<usize, Failure> {
        let threads = Threads::parallel(parallel);
        let most = TOGETHER * threads.count();
        let (mut own, mut layouts, mut next, mut bytes) = (Vec::new(), Vec::new(), first, 0);
        let mut staged = 0;
        while next < program.packs.len() && own.len() < most && bytes < TOGETHER_BYTES {
            if self.packs[next].is_none() {
                let def = &program.packs[next];
                self.require(program, def.of, parallel, room)?;
                if let Some(tensor) = &self.values[def.of] {
                    let len = tensor.loose_bytes().len();
                    bytes += len;
                    match tensor.is_loose() && len <= STAGED_BYTES {
                        true => staged = staged.max(len.next_multiple_of(ALIGN_BYTES)),
                        false => align(tensor, def.node, def.op)?,
                    }
                }
                layouts.push(layout_of(&def.operand)?);
                own.push(next);
            }
            next += 1;
        }
        let needed = staged * threads.count().min(own.len());
        let done: Vec<OnceLock<_>> = own.iter().map(|_| OnceLock::new()).collect();
        let stages = room.scratch(needed, "weights that are not aligned")?;
        parallel::for_each_with_scratch(threads, own.len(), stages, staged, |i, stage| {
            let def = &program.packs[own[i]];
            let root: &[u8] = match const_of(&def.operand).and_then(|c| self.values[c].as_ref()) {
                Some(loose) if loose.is_loose() => {
                    let stage = &mut stage[..loose.loose_bytes().len()];
                    stage.copy_from_slice(loose.loose_bytes());
                    stage
                }
                Some(tensor) => tensor.bytes(),
                None => nothing(),
            };
            let packed = (def.pack)(&view(&def.operand, &layouts[i], root));
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
            room.keep(self.drop_unless_needed(program, program.packs[p].of));
        }
        Ok(next)
    }

    fn require(
        &mut self,
        program: &Program,
        c: usize,
        parallel: bool,
        room: &mut Room,
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
                self.compute(program, c, parallel, room)?;
            }
        }
        Ok(())
    }

    fn compute(
        &mut self,
        program: &Program,
        c: usize,
        parallel: bool,
        room: &mut Room,
    ) -> Result<(), Failure> {
        let Source::Step(step) = program.consts[c].source else {
            return Ok(());
        };
        let step = &program.prepare[step];
        let operands = &program.operands[step.operands.clone()];
        for operand in operands[..step.ins].iter().filter(|o| !o.absent) {
            if let Some(tensor) = const_of(operand).and_then(|c| self.values[c].as_ref()) {
                align(tensor, step.node, step.op)?;
            }
        }
        let layouts: Result<Vec<Layout>, _> = operands.iter().map(layout_of).collect();
        let layouts = layouts?;
        let outs = &operands[step.ins..];
        let mut results = Vec::with_capacity(outs.len());
        for (out, layout) in outs.iter().zip(&layouts[step.ins..]) {
            let ty = TensorType::new(out.dtype, layout.shape());
            results.push(room.tensor(ty)?);
        }
        self.call(program, step, &layouts, &mut results, parallel, room)?;
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
        room: &mut Room,
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
        let scratch = room.scratch(needed, "scratch memory")?;
        let mut args = Args {
            ctx: EvalCtx::default(),
            parallel,
            ins: views,
            outs,
            scratch: &mut scratch[..needed],
            packed: step.pack.and_then(|p| self.packs[p].as_deref()),
        };
        (step.run)(&mut args).map_err(|e| Failure::Node(step.node, step.op, e))
    }

    fn view<'a>(&'a self, operand: &Operand, layout: &'a Layout) -> View<'a> {
        let value = const_of(operand).and_then(|c| self.values[c].as_ref());
        let root = match (value, operand.absent) {
            (Some(t), false) => t.bytes(),
            (_, true) | (None, _) => nothing(),
        };
        view(operand, layout, root)
    }

    /// Drops a constant that nothing needs any more; what was computed is handed back.
    fn drop_unless_needed(&mut self, program: &Program, c: usize) -> Option<Tensor> {
        let def = &program.consts[c];
        let packed = |of: usize| {
            let mut packs = self.dependents.packs[of].iter();
            packs.all(|p| self.packs[*p].is_some())
        };
        if def.wanted || !packed(c) {
            return None;
        }
        match def.source {
            Source::Tensor(_) => {}
            Source::Step(_) => return self.values[c].take(),
            Source::Param => {
                let mut dependents = self.dependents.of_param[def.params[0]].iter();
                let done = dependents.all(|&other| {
                    let of = &program.consts[other];
                    let is_there = !of.wanted || self.values[other].is_some();
                    of.params == def.params && is_there && packed(other)
                });
                if done {
                    self.values[c] = None;
                }
            }
        }
        None
    }
}

fn view<'a>(operand: &Operand, layout: &'a Layout, root: &'a [u8]) -> View<'a> {
    View {
        root,
        within: operand.within,
        dtype: operand.dtype,
        layout,
    }
}

/// Aligns a tensor that a node reads.
fn align(tensor: &Tensor, node: NodeId, op: &'static str) -> Result<(), Failure> {
    let aligned = tensor.align();
    aligned.map_err(|e| Failure::Node(node, op, e.into()))
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
