//! What one run of a program at a time needs: constants, memory, and the layouts of its sizes.

use smallvec::SmallVec;
use tercet_ir::layout::Layout;
use tercet_ir::{Bindings, EvalCtx, EvalError, NodeId, RunError};

use crate::exec::constants::{Constants, Failure};
use crate::exec::memory::Memory;
use crate::exec::play::play;
use crate::pages::Buffer;
use crate::plan::Program;

/// Element operations from which a step may be worth posting to other threads: kernels know better.
const PARALLEL_WORK: usize = 1 << 13;

/// The memory of a program, kept from run to run: the same sizes allocate nothing.
pub(crate) struct Frame {
    pub(crate) constants: Constants,
    arena: Option<Buffer>,
    /// The sizes of the next run; `layouts` are for those of `sized`.
    pub(crate) sizes: Bindings,
    sized: Option<Bindings>,
    /// Whether steps were looked at for several threads.
    is_spread: bool,
    layouts: Vec<Layout>,
    /// Those of the outputs.
    pub(crate) outputs: Vec<Layout>,
    /// Per step, whether it is spread over threads.
    parallel: Vec<bool>,
}

/// The error of a node of a program's legal graph: that of the node that it stands for.
pub(crate) fn fail(
    program: &Program,
    node: NodeId,
    op: &'static str,
    source: EvalError,
) -> RunError {
    match program.origins.get(node) {
        Some(origin) => origin.failed(source),
        None => RunError::Node { node, op, source },
    }
}

impl Frame {
    pub(crate) fn new(constants: Constants) -> Frame {
        Frame {
            constants,
            arena: None,
            sizes: Bindings::new(),
            sized: None,
            is_spread: false,
            layouts: Vec::new(),
            outputs: Vec::new(),
            parallel: Vec::new(),
        }
    }

    /// Evaluates every layout for the bound sizes, unless they and whether there are several threads are those of the run
    /// before.
    ///
    /// # Errors
    /// [`RunError`] when a size is not possible.
    pub(crate) fn resize(&mut self, program: &Program, threads: usize) -> Result<(), RunError> {
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

    /// Computes the constants that are not there.
    ///
    /// # Errors
    /// [`RunError`] when a parameter is missing or a kernel fails.
    pub(crate) fn prepare(&mut self, program: &Program, threads: usize) -> Result<(), RunError> {
        let prepared = self.constants.prepare(program, threads > 1);
        prepared.map_err(|e| match e {
            Failure::Node(node, op, source) => fail(program, node, op, source),
            Failure::Run(e) => e,
        })
    }

    /// Runs the steps, for the sizes of the last [`Frame::resize`].
    ///
    /// # Errors
    /// [`RunError`] that names the node; states are then as before.
    pub(crate) fn play(
        &mut self,
        program: &Program,
        ctx: EvalCtx,
        inputs: &[&[u8]],
        mut outputs: SmallVec<[&mut [u8]; 8]>,
        states: &mut [Buffer],
    ) -> Result<(), RunError> {
        let mut arena = match self.arena.take() {
            Some(arena) => arena,
            None => Buffer::zeroed(program.arena_bytes, "the arena")?,
        };
        let mut memory = Memory {
            arena: arena.bytes_mut(),
            slots: &program.slots,
            states,
            outputs: outputs.iter_mut().map(|o| &mut **o).collect(),
            inputs,
            consts: &self.constants.values,
        };
        let (constants, layouts, parallel) = (&self.constants, &*self.layouts, &*self.parallel);
        let done = play(program, constants, layouts, parallel, ctx, &mut memory);
        drop(memory);
        self.arena = Some(arena);
        done.map_err(|(at, source)| {
            let step = &program.steps[at];
            fail(program, step.node, step.op, source)
        })
    }
}
