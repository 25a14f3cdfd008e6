//! The executable: binds sizes, runs the steps, keeps the states.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::{
    Bindings, EvalCtx, EvalError, Executable, NodeId, RunError, Signature, Tensor, TensorType,
    backend::{LastRun, StepTime, Wanted, find_port, places},
};

use crate::args::View;
use crate::exec::constants::{Constants, Failure};
use crate::exec::memory::{Buffer, Call, Memory};
use crate::lower::copy_view;
use crate::plan::{Program, Root};
use crate::pool::Pool;
use tercet_ir::layout::Layout;

/// Element operations from which a step, or a run, is worth waking other threads for.
const PARALLEL_WORK: usize = 1 << 17;

/// A compiled graph of the fast executor.
pub(crate) struct CpuExecutable {
    program: Arc<Program>,
    pool: Pool,
    bounds: Bindings,
    constants: Constants,
    states: Vec<Buffer>,
    arena: Option<Buffer>,
    /// The sizes of this run and of the one that `layouts` are for.
    sizes: Bindings,
    sized: Option<Bindings>,
    layouts: Vec<Layout>,
    outputs: Vec<Layout>,
    /// Per step, whether it is spread over threads.
    parallel: Vec<bool>,
    runs: u64,
    last: LastRun,
}

impl CpuExecutable {
    pub(crate) fn new(
        program: Program,
        pool: Pool,
        bounds: Bindings,
    ) -> Result<CpuExecutable, RunError> {
        let states = new_states(&program)?;
        Ok(CpuExecutable {
            constants: Constants::new(&program),
            program: Arc::new(program),
            pool,
            bounds,
            states,
            arena: None,
            sizes: Bindings::new(),
            sized: None,
            layouts: Vec::new(),
            outputs: Vec::new(),
            parallel: Vec::new(),
            runs: 0,
            last: LastRun::default(),
        })
    }

    /// Evaluates every layout for the bound sizes, unless they are those of the run before.
    fn resize(&mut self) -> Result<(), RunError> {
        if self.sized.as_ref() == Some(&self.sizes) {
            return Ok(());
        }
        self.sized = None;
        for check in &self.program.checks {
            let (from, to) = (check.from.eval(&self.sizes)?, check.to.eval(&self.sizes)?);
            let slice = check.slice.axes(&from, &to);
            slice.map_err(|e| self.fail(check.node, check.op, e))?;
        }
        self.layouts.clear();
        for operand in &self.program.operands {
            self.layouts.push(operand.layout.eval(&self.sizes)?);
        }
        self.outputs.clear();
        for ty in &self.program.outputs {
            self.outputs
                .push(Layout::dense(&ty.shape.eval(&self.sizes)?));
        }
        self.parallel.clear();
        for step in &self.program.steps {
            let work = (step.work)(&self.layouts[step.operands.clone()]);
            self.parallel
                .push(work >= PARALLEL_WORK && self.pool.threads() > 1);
        }
        self.sized = Some(self.sizes.clone());
        Ok(())
    }

    fn fail(&self, node: NodeId, op: &'static str, source: EvalError) -> RunError {
        let origin = self.program.origins.get(node.index()).copied().flatten();
        let node = origin.unwrap_or(node);
        RunError::Node { node, op, source }
    }

    /// Makes the output tensors the right types, keeping their memory.
    fn reset_outputs(&self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        outputs.truncate(self.outputs.len());
        for (i, (layout, ty)) in self.outputs.iter().zip(&self.program.outputs).enumerate() {
            let bytes = (layout.numel() * ty.dtype.size_bytes()) as u64;
            let what = "an output";
            match outputs.get_mut(i) {
                Some(tensor) => tensor
                    .reset_to(ty.dtype, layout.shape())
                    .map_err(|_| RunError::OutOfMemory { what, bytes })?,
                None => {
                    let ty = TensorType::new(ty.dtype, layout.shape());
                    outputs.push(crate::reference::zeros(ty, what)?);
                }
            }
        }
        Ok(())
    }
}

fn new_states(program: &Program) -> Result<Vec<Buffer>, RunError> {
    let ports = program.signature.states.iter();
    ports
        .map(|port| {
            let shape = port.ty.shape.eval(&Bindings::new())?;
            let ty = TensorType::new(port.ty.dtype, &shape);
            Buffer::zeroed(ty.size_bytes(), "a state")
        })
        .collect()
}

/// Runs every step, then writes the states. After a failure the states are as before.
fn play(
    program: &Program,
    constants: &Constants,
    layouts: &[Layout],
    parallel: &[bool],
    ctx: EvalCtx,
    memory: &mut Memory<'_>,
) -> Result<(), (usize, EvalError)> {
    let call = |at: usize| {
        let step = &program.steps[at];
        Call {
            step,
            operands: &program.operands[step.operands.clone()],
            layouts: &layouts[step.operands.clone()],
            packed: step.pack.and_then(|p| constants.packs[p].as_deref()),
            ctx,
            parallel: parallel[at],
        }
    };
    for (at, step) in program.steps.iter().enumerate() {
        let fenced = memory.fence(step, &program.operands[step.operands.clone()]);
        let done = memory.call(&call(at), &*step.run);
        memory.check_fence(step, fenced);
        let Err(e) = done else { continue };
        for (earlier, step) in program.steps[..at].iter().enumerate().rev() {
            if let Some(undo) = &step.undo {
                memory
                    .call(&call(earlier), &**undo)
                    .map_err(|e| (earlier, e))?;
            }
        }
        return Err((at, e));
    }
    for commit in &program.commits {
        let operand = &program.operands[commit.from];
        let mut state = std::mem::take(&mut memory.states[commit.state]);
        let view = View {
            root: memory.read(operand.root),
            dtype: operand.dtype,
            layout: &layouts[commit.from],
        };
        copy_view(&view, state.bytes_mut(), false);
        memory.states[commit.state] = state;
    }
    Ok(())
}

impl Executable for CpuExecutable {
    fn signature(&self) -> &Signature {
        &self.program.signature
    }

    fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), RunError> {
        let (at, port) = find_port(&self.program.signature.params, "param", name)?;
        port.check("param", &tensor)?;
        self.constants.set(&self.program, at, tensor);
        Ok(())
    }

    fn run_into(
        &mut self,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        self.last.forget();
        self.program
            .signature
            .bind(inputs, &self.bounds, &mut self.sizes)?;
        self.resize()?;
        let prepared = self
            .constants
            .prepare(&self.program, self.pool.threads() > 1);
        prepared.map_err(|e| match e {
            Failure::Node(node, op, source) => self.fail(node, op, source),
            Failure::Run(e) => e,
        })?;
        self.reset_outputs(outputs)?;
        let mut arena = match self.arena.take() {
            Some(arena) => arena,
            None => Buffer::zeroed(self.program.arena_bytes, "the arena")?,
        };
        let ordered: SmallVec<[&Tensor; 8]> = self
            .program
            .signature
            .inputs
            .iter()
            .filter_map(|p| inputs.iter().find(|(n, _)| *n == p.name).map(|(_, t)| *t))
            .collect();
        let mut memory = Memory {
            arena: arena.bytes_mut(),
            slots: &self.program.slots,
            states: &mut self.states,
            outputs: outputs.iter_mut().map(Tensor::bytes_mut).collect(),
            inputs: ordered,
            consts: &self.constants.values,
        };
        let ctx = EvalCtx { step: self.runs };
        let (program, constants, layouts) = (&*self.program, &self.constants, &*self.layouts);
        let parallel = &*self.parallel;
        let done = match parallel.contains(&true) {
            true => self
                .pool
                .install(|| play(program, constants, layouts, parallel, ctx, &mut memory)),
            false => play(program, constants, layouts, parallel, ctx, &mut memory),
        };
        drop(memory);
        self.arena = Some(arena);
        match done {
            Ok(()) => {
                self.runs += 1;
                self.last.keep(outputs);
                Ok(())
            }
            Err((at, source)) => {
                let step = &self.program.steps[at];
                Err(self.fail(step.node, step.op, source))
            }
        }
    }

    fn submit(&mut self, inputs: &[(&str, &Tensor)], wanted: Wanted<'_>) -> Result<(), RunError> {
        let places = places(&self.program.signature, wanted)?;
        let mut outputs = self.last.reuse();
        self.run_into(inputs, &mut outputs)?;
        self.last.want(places);
        Ok(())
    }

    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.last.take(outputs);
        Ok(())
    }

    fn read_output_rows(&mut self, output: &str, rows: Range<usize>) -> Result<Tensor, RunError> {
        self.last.rows(&self.program.signature, output, &rows)
    }

    fn timings(&mut self) -> Vec<StepTime> {
        Vec::new()
    }

    fn write_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError> {
        let (at, port) = find_port(&self.program.signature.states, "state", name)?;
        port.check("state", tensor)?;
        self.states[at].bytes_mut().copy_from_slice(tensor.bytes());
        Ok(())
    }

    fn read_state(&self, name: &str) -> Result<Tensor, RunError> {
        let (at, port) = find_port(&self.program.signature.states, "state", name)?;
        let shape = port.ty.shape.eval(&Bindings::new())?;
        let ty = TensorType::new(port.ty.dtype, &shape);
        let bytes = ty.size_bytes() as u64;
        Tensor::from_bytes(ty, self.states[at].bytes()).map_err(|_| RunError::OutOfMemory {
            what: "a copy of a state",
            bytes,
        })
    }

    fn reset(&mut self) {
        for state in &mut self.states {
            state.bytes_mut().fill(0);
        }
        self.runs = 0;
    }

    fn try_clone(&self) -> Result<Box<dyn Executable>, RunError> {
        let mut states = new_states(&self.program)?;
        for (to, from) in states.iter_mut().zip(&self.states) {
            to.bytes_mut().copy_from_slice(from.bytes());
        }
        Ok(Box::new(CpuExecutable {
            program: self.program.clone(),
            pool: self.pool.clone(),
            bounds: self.bounds.clone(),
            constants: self.constants.clone(),
            states,
            arena: None,
            sizes: Bindings::new(),
            sized: None,
            layouts: Vec::new(),
            outputs: Vec::new(),
            parallel: Vec::new(),
            runs: self.runs,
            last: LastRun::default(),
        }))
    }
}

/// Slots whose sentinel was filled before a step.
pub(super) type Fence = SmallVec<[usize; 4]>;

const SENTINEL: u8 = 0xa5;

impl Memory<'_> {
    /// In debug builds, fills the bytes after each slot that a step writes.
    fn fence(&mut self, step: &crate::plan::Step, operands: &[crate::plan::Operand]) -> Fence {
        let mut fence = Fence::new();
        if crate::plan::SENTINEL_BYTES == 0 {
            return fence;
        }
        let outs = operands[step.ins..].iter().filter_map(|o| match o.root {
            Root::Slot(s) => Some(s),
            Root::Input(_) | Root::Const(_) | Root::State(_) | Root::Output(_) => None,
        });
        fence.extend(outs.chain(step.scratch.as_ref().map(|(s, _)| *s)));
        for &s in &fence {
            let end = self.slots[s].offset + self.slots[s].bytes;
            self.arena[end..end + crate::plan::SENTINEL_BYTES].fill(SENTINEL);
        }
        fence
    }

    /// Checks what [`Memory::fence`] filled.
    fn check_fence(&self, step: &crate::plan::Step, fence: Fence) {
        for s in fence {
            let end = self.slots[s].offset + self.slots[s].bytes;
            let intact = self.arena[end..end + crate::plan::SENTINEL_BYTES]
                .iter()
                .all(|&b| b == SENTINEL);
            assert!(
                intact,
                "invariant: kernel {} writes only its result",
                step.kernel
            );
        }
    }
}
