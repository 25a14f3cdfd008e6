//! Execution context of one run: constants, memory, and the layouts for the current sizes.

use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::backend::StepTime;
use tercet_ir::layout::Layout;
use tercet_ir::{Bindings, EvalCtx, EvalError, NodeId, RunError};

use crate::aligned_alloc::AlignedBuffer;
use crate::exec::constants::{ConstEvalFailure, Constants};
use crate::exec::execute::play;
use crate::exec::memory::RunMemory;
use crate::exec::shared::ArenaPool;
use crate::plan::CpuProgram;

/// Minimum element operations of a step for using several threads. Kernels may still use a single
/// thread.
const PARALLEL_WORK: usize = 1 << 13;

/// Memory of a program, reused by later runs. Runs of the same sizes allocate nothing.
pub(crate) struct ExecutionContext {
    pub(crate) constants: Constants,
    arenas: Arc<ArenaPool>,
    /// Sizes of the next run. `layouts` were evaluated for the sizes in `sized`.
    pub(crate) sizes: Bindings,
    sized: Option<Bindings>,
    /// True if the steps were assigned to several threads.
    is_spread: bool,
    layouts: Vec<Layout>,
    /// Layouts of the outputs.
    pub(crate) outputs: Vec<Layout>,
    /// Per step: true if it uses several threads.
    parallel: Vec<bool>,
    /// The times of the steps of the last run, if they are measured.
    pub(crate) times: Option<Vec<StepTime>>,
}

/// Builds the error of a node of the legal graph; it names the corresponding node of the original
/// graph.
pub(crate) fn fail(
    program: &CpuProgram,
    node: NodeId,
    op: &'static str,
    source: EvalError,
) -> RunError {
    match program.origins.get(node) {
        Some(origin) => origin.failed(source),
        None => RunError::Node { node, op, source },
    }
}

impl ExecutionContext {
    pub(crate) fn new(constants: Constants) -> ExecutionContext {
        ExecutionContext {
            constants,
            arenas: ArenaPool::of_process(),
            sizes: Bindings::new(),
            sized: None,
            is_spread: false,
            layouts: Vec::new(),
            outputs: Vec::new(),
            parallel: Vec::new(),
            times: None,
        }
    }

    /// Evaluates every layout for the bound sizes. Does nothing if the sizes, and whether several
    /// threads are used, did not change.
    ///
    /// # Errors
    /// [`RunError`] if a size is invalid.
    pub(crate) fn resize(&mut self, program: &CpuProgram, threads: usize) -> Result<(), RunError> {
        let is_spread = threads > 1;
        if self.sized.as_ref() == Some(&self.sizes) && self.is_spread == is_spread {
            return Ok(());
        }
        self.sized = None;
        self.is_spread = is_spread;
        for check in &program.checks {
            let (from, to) = (check.from.eval(&self.sizes)?, check.to.eval(&self.sizes)?);
            let slice = check.slice.axes(&from, &to);
            slice.map_err(|e| fail(program, check.node, check.op, e))?;
        }
        self.layouts.clear();
        for operand in &program.operands {
            self.layouts.push(operand.layout.eval(&self.sizes)?);
        }
        self.outputs.clear();
        for ty in &program.outputs {
            self.outputs
                .push(Layout::dense(&ty.shape.eval(&self.sizes)?));
        }
        self.parallel.clear();
        for step in &program.steps {
            let work = (step.work)(&self.layouts[step.operands.clone()]);
            self.parallel.push(work >= PARALLEL_WORK && is_spread);
        }
        self.sized = Some(self.sizes.clone());
        Ok(())
    }

    /// Computes the missing constants.
    ///
    /// # Errors
    /// [`RunError`] if a parameter is missing or a kernel fails.
    pub(crate) fn prepare(&mut self, program: &CpuProgram, threads: usize) -> Result<(), RunError> {
        let prepared = self.constants.prepare(program, threads > 1);
        prepared.map_err(|e| match e {
            ConstEvalFailure::Node(node, op, source) => fail(program, node, op, source),
            ConstEvalFailure::Run(e) => e,
        })
    }

    /// Executes the steps for the sizes of the last [`ExecutionContext::resize`].
    ///
    /// # Errors
    /// [`RunError`] that names the failed node; states are then unchanged.
    pub(crate) fn play(
        &mut self,
        program: &CpuProgram,
        ctx: EvalCtx,
        inputs: &[&[u8]],
        mut outputs: SmallVec<[&mut [u8]; 8]>,
        states: &mut [AlignedBuffer],
    ) -> Result<(), RunError> {
        let mut arena = self.arenas.take(program.arena_bytes)?;
        let mut memory = RunMemory {
            arena: arena.bytes_mut(),
            slots: &program.slots,
            states,
            outputs: outputs.iter_mut().map(|o| &mut **o).collect(),
            inputs,
            consts: &self.constants.values,
        };
        let (constants, layouts, parallel) = (&self.constants, &*self.layouts, &*self.parallel);
        let times = self.times.as_mut();
        let done = play(
            program,
            constants,
            layouts,
            parallel,
            ctx,
            &mut memory,
            times,
        );
        drop(memory);
        self.arenas.give_back(arena);
        done.map_err(|(at, source)| {
            let step = &program.steps[at];
            fail(program, step.node, step.op, source)
        })
    }
}
