//! Parameters, constants and the values computed from them once (constant folding at the first
//! run).
//!
//! A constant is computed when the first run needs it. Setting a parameter invalidates its
//! dependents and nothing else. Values that no run reads directly, such as intermediates and the
//! originals of packed weights, are dropped after use. A parameter is dropped only if its
//! dependents cannot change unless it is set again.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tercet_ir::{Bindings, EvalCtx, EvalError, NodeId, RunError, Tensor, TensorType};

use crate::aligned_alloc::AlignedBuffer;
use crate::args::{KernelArgs, KernelView, KernelViewMut, PackedConst};
use crate::exec::memory::nothing;
use crate::exec::shared::shared;
use crate::kernels::{KernelThreads, parallel};
use crate::plan::{ALIGN_BYTES, ConstSource, CpuProgram, CpuStep, MemoryRoot, StepOperand};
use tercet_ir::layout::Layout;

/// Number of weights per thread that are packed as one group, before the next group is computed.
const TOGETHER: usize = 4;
/// Approximate limit of the bytes of the weights that are packed as one group.
const TOGETHER_BYTES: usize = 16 << 20;

/// Maximum bytes of an unaligned weight that a thread copies into private scratch memory before
/// packing. A larger unaligned weight is copied once to aligned memory, which the executable keeps.
const STAGED_BYTES: usize = 32 << 20;

/// Dependents of parameters and constants, computed once per program.
#[derive(Default)]
struct ConstDependents {
    /// Constants that depend on each parameter.
    of_param: Vec<Vec<usize>>,
    /// For each constant, the indices of the packed operands that are made from it.
    packs: Vec<Vec<usize>>,
}

impl ConstDependents {
    fn new(program: &CpuProgram) -> ConstDependents {
        let mut of_param = vec![Vec::new(); program.signature.params.len()];
        for (c, def) in program.consts.iter().enumerate() {
            def.params.iter().for_each(|p| of_param[*p].push(c));
        }
        let mut packs = vec![Vec::new(); program.consts.len()];
        for (p, def) in program.packs.iter().enumerate() {
            packs[def.of].push(p);
        }
        ConstDependents { of_param, packs }
    }
}

/// Buffers reused while constants are computed. A first-touch page fault costs more than the
/// computation of the page's content.
#[derive(Default)]
struct ScratchPool {
    /// Scratch memory of kernels.
    scratch: AlignedBuffer,
    /// Memory of dropped constants, for reuse.
    spare: Vec<Tensor>,
}

impl ScratchPool {
    /// Scratch memory of at least `bytes` bytes.
    fn scratch(&mut self, bytes: usize, what: &'static str) -> Result<&mut [u8], RunError> {
        if self.scratch.bytes().len() < bytes {
            self.scratch = AlignedBuffer::zeroed(bytes, what)?;
        }
        Ok(self.scratch.bytes_mut())
    }

    /// A tensor with unspecified contents. Reused memory is less than twice the required size,
    /// because the tensor may be retained.
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

    /// Retains the memory of a dropped constant while the total is small.
    fn recycle(&mut self, dropped: Option<Tensor>) {
        let kept: usize = self.spare.iter().map(|t| t.bytes().len()).sum();
        let dropped = dropped.filter(|t| kept + t.bytes().len() <= TOGETHER_BYTES);
        self.spare.extend(dropped);
    }
}

/// Constants of an executable. Clones share the memory.
#[derive(Clone)]
pub(crate) struct Constants {
    dependents: Arc<ConstDependents>,
    /// Values by constant index; `None` if not computed yet, or dropped.
    pub(crate) values: Vec<Option<Tensor>>,
    /// Packed operands by pack index.
    pub(crate) packs: Vec<Option<Arc<PackedConst>>>,
    /// Flags of the parameters that were set.
    set: Vec<bool>,
    ready: bool,
}

/// Failure while computing constants.
pub(crate) enum ConstEvalFailure {
    /// A kernel failed at this node; with its operator and the error.
    Node(NodeId, &'static str, EvalError),
    /// Any other failure, such as a missing parameter.
    Run(RunError),
}

impl From<RunError> for ConstEvalFailure {
    fn from(e: RunError) -> ConstEvalFailure {
        ConstEvalFailure::Run(e)
    }
}

impl Constants {
    pub(crate) fn new(program: &CpuProgram) -> Constants {
        let values = program.consts.iter().map(|c| match &c.source {
            ConstSource::Tensor(t) => Some(t.clone()),
            ConstSource::Param | ConstSource::Step(_) => None,
        });
        Constants {
            dependents: Arc::new(ConstDependents::new(program)),
            values: values.collect(),
            packs: program.packs.iter().map(|_| None).collect(),
            set: vec![false; program.signature.params.len()],
            ready: false,
        }
    }

    /// Sets a parameter and invalidates its dependents.
    pub(crate) fn set(&mut self, program: &CpuProgram, param: usize, tensor: Tensor) {
        self.set[param] = true;
        self.ready = false;
        for &c in &self.dependents.of_param[param] {
            self.values[c] = match program.consts[c].source {
                ConstSource::Param => Some(tensor.clone()),
                ConstSource::Tensor(_) | ConstSource::Step(_) => None,
            };
            for &p in &self.dependents.packs[c] {
                self.packs[p] = None;
            }
        }
    }

    /// Computes the constants and packed operands that runs read and that do not exist yet.
    ///
    /// # Errors
    /// A missing parameter, a failure of a kernel, or out of memory.
    pub(crate) fn prepare(
        &mut self,
        program: &CpuProgram,
        parallel: bool,
    ) -> Result<(), ConstEvalFailure> {
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
        let mut room = ScratchPool::default();
        let mut next = 0;
        while next < program.packs.len() {
            next = self.pack_some(program, next, parallel, &mut room)?;
        }
        for (c, def) in program.consts.iter().enumerate() {
            if def.is_read_in_run {
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

    /// Packs several weights in parallel, starting with pack `first`. Returns the index of the next
    /// pack.
    fn pack_some(
        &mut self,
        program: &CpuProgram,
        first: usize,
        parallel: bool,
        room: &mut ScratchPool,
    ) -> Result<usize, ConstEvalFailure> {
        let threads = KernelThreads::parallel(parallel);
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
        let stages = room.scratch(needed, "unaligned weights")?;
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
            let packed = packed.map(shared);
            let _ = done[i].set(packed);
        });
        for (p, packed) in own.iter().zip(done) {
            let def = &program.packs[*p];
            if let Some(packed) = packed.into_inner() {
                let packed = packed.map_err(|e| ConstEvalFailure::Node(def.node, def.op, e))?;
                self.packs[*p] = Some(packed);
            }
        }
        // Reduces peak memory: a weight is dropped as soon as its packed forms exist.
        for p in own {
            room.recycle(self.drop_unless_needed(program, program.packs[p].of));
        }
        Ok(next)
    }

    fn require(
        &mut self,
        program: &CpuProgram,
        c: usize,
        parallel: bool,
        room: &mut ScratchPool,
    ) -> Result<(), ConstEvalFailure> {
        if self.values[c].is_some() {
            return Ok(());
        }
        // An explicit worklist instead of recursion: chains of constants are as deep as the graph.
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
        // Constants are numbered in topological order.
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
        program: &CpuProgram,
        c: usize,
        parallel: bool,
        room: &mut ScratchPool,
    ) -> Result<(), ConstEvalFailure> {
        let ConstSource::Step(step) = program.consts[c].source else {
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
        program: &CpuProgram,
        step: &CpuStep,
        layouts: &[Layout],
        results: &mut [Tensor],
        parallel: bool,
        room: &mut ScratchPool,
    ) -> Result<(), ConstEvalFailure> {
        let operands = &program.operands[step.operands.clone()];
        let (ins, outs) = operands.split_at(step.ins);
        let views = ins.iter().zip(layouts).map(|(o, l)| self.view(o, l));
        let views: SmallVec<[KernelView<'_>; 8]> = views.collect();
        let results = outs.iter().zip(&layouts[step.ins..]).zip(results);
        let outs = results.map(|((out, layout), tensor)| KernelViewMut {
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
        let mut args = KernelArgs {
            ctx: EvalCtx::default(),
            parallel,
            ins: views,
            outs,
            scratch: &mut scratch[..needed],
            packed: step.pack.and_then(|p| self.packs[p].as_deref()),
        };
        (step.run)(&mut args).map_err(|e| ConstEvalFailure::Node(step.node, step.op, e))
    }

    fn view<'a>(&'a self, operand: &StepOperand, layout: &'a Layout) -> KernelView<'a> {
        let value = const_of(operand).and_then(|c| self.values[c].as_ref());
        let root = match (value, operand.absent) {
            (Some(t), false) => t.bytes(),
            (_, true) | (None, _) => nothing(),
        };
        view(operand, layout, root)
    }

    /// Drops a constant that has no remaining readers. Returns the value of the dropped constant if
    /// a step computed it.
    fn drop_unless_needed(&mut self, program: &CpuProgram, c: usize) -> Option<Tensor> {
        let def = &program.consts[c];
        let packed = |of: usize| {
            let mut packs = self.dependents.packs[of].iter();
            packs.all(|p| self.packs[*p].is_some())
        };
        if def.is_read_in_run || !packed(c) {
            return None;
        }
        match def.source {
            ConstSource::Tensor(_) => {}
            ConstSource::Step(_) => return self.values[c].take(),
            ConstSource::Param => {
                let mut dependents = self.dependents.of_param[def.params[0]].iter();
                let done = dependents.all(|&other| {
                    let of = &program.consts[other];
                    let is_there = !of.is_read_in_run || self.values[other].is_some();
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

fn view<'a>(operand: &StepOperand, layout: &'a Layout, root: &'a [u8]) -> KernelView<'a> {
    KernelView {
        root,
        within: operand.within,
        dtype: operand.dtype,
        layout,
    }
}

/// Aligns the memory of a tensor that a node reads.
fn align(tensor: &Tensor, node: NodeId, op: &'static str) -> Result<(), ConstEvalFailure> {
    let aligned = tensor.align();
    aligned.map_err(|e| ConstEvalFailure::Node(node, op, e.into()))
}

fn layout_of(operand: &StepOperand) -> Result<Layout, ConstEvalFailure> {
    operand
        .layout
        .eval(&Bindings::new())
        .map_err(|e| ConstEvalFailure::Run(e.into()))
}

fn const_of(operand: &StepOperand) -> Option<usize> {
    match operand.root {
        MemoryRoot::Const(c) => Some(c),
        MemoryRoot::Input(_)
        | MemoryRoot::State(_)
        | MemoryRoot::Output(_)
        | MemoryRoot::Slot(_) => None,
    }
}

fn operands_of(program: &CpuProgram, c: usize) -> &[StepOperand] {
    match program.consts[c].source {
        ConstSource::Step(step) => {
            let step = &program.prepare[step];
            &program.operands[step.operands.clone()][..step.ins]
        }
        ConstSource::Param | ConstSource::Tensor(_) => &[],
    }
}
