//! Programs of nested graphs (graphs inside nodes), compiled once together with the outer graph.

use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use tercet_ir::subgraph::inside;
use tercet_ir::{EvalCtx, EvalError};

use crate::aligned_alloc::AlignedBuffer;
use crate::args::KernelView;
use crate::exec::constants::Constants;
use crate::exec::frame::ExecutionContext;
use crate::plan::CpuProgram;

/// Compiled program of a nested graph.
pub(crate) struct SubgraphProgram {
    /// Attribute that holds the graph, for error messages.
    name: &'static str,
    pub(crate) program: CpuProgram,
    threads: usize,
    /// Idle execution contexts. Each run takes one of these buffer sets, so concurrent runs never
    /// block each other.
    free: Mutex<Vec<ExecutionContext>>,
    /// Idle buffer sets, one set per run.
    spare: Mutex<Vec<Vec<AlignedBuffer>>>,
}

/// Run of a nested graph, with its own execution context.
pub(crate) struct SubgraphRun<'s> {
    sub: &'s SubgraphProgram,
    frame: Option<ExecutionContext>,
    ctx: EvalCtx,
}

impl SubgraphProgram {
    pub(crate) fn new(name: &'static str, program: CpuProgram, threads: usize) -> SubgraphProgram {
        SubgraphProgram {
            name,
            program,
            threads,
            free: Mutex::new(Vec::new()),
            spare: Mutex::new(Vec::new()),
        }
    }

    /// Starts a run for arguments of these shapes.
    ///
    /// # Errors
    /// [`EvalError::Within`] if a size is invalid or a constant cannot be computed.
    pub(crate) fn start<'s>(
        &'s self,
        ctx: EvalCtx,
        shapes: &[&[usize]],
    ) -> Result<SubgraphRun<'s>, EvalError> {
        let free = lock(&self.free).pop();
        let mut frame =
            free.unwrap_or_else(|| ExecutionContext::new(Constants::new(&self.program)));
        frame.sizes.clear();
        for (port, sizes) in self.program.signature.inputs.iter().zip(shapes) {
            for (dim, &size) in port.ty.shape.iter().zip(*sizes) {
                if let Some(symbol) = dim.as_symbol() {
                    frame.sizes.set(symbol, size);
                }
            }
        }
        let resized = frame.resize(&self.program, self.threads);
        let ready = resized.and_then(|()| frame.prepare(&self.program, self.threads));
        let run = SubgraphRun {
            sub: self,
            frame: Some(frame),
            ctx,
        };
        ready.map(|()| run).map_err(|e| inside(self.name, e))
    }
}

impl Drop for SubgraphRun<'_> {
    fn drop(&mut self) {
        lock(&self.sub.free).extend(self.frame.take());
    }
}

impl SubgraphRun<'_> {
    /// Runs the program; `outputs` have exactly the bytes of the results.
    ///
    /// # Errors
    /// [`EvalError::Within`] that names the failed node.
    pub(crate) fn run(
        &mut self,
        inputs: &[&[u8]],
        outputs: SmallVec<[&mut [u8]; 8]>,
    ) -> Result<(), EvalError> {
        let program = &self.sub.program;
        let Some(frame) = &mut self.frame else {
            unreachable!("invariant: the execution context exists until drop")
        };
        let done = frame.play(program, self.ctx, inputs, outputs, &mut []);
        done.map_err(|e| inside(self.sub.name, e))
    }
}

/// Buffers of a nested run; returned for reuse on drop.
pub(crate) struct SubgraphBuffers<'s> {
    sub: &'s SubgraphProgram,
    pub(crate) buffers: Vec<AlignedBuffer>,
}

impl SubgraphProgram {
    /// Buffers of at least these sizes.
    ///
    /// # Errors
    /// [`EvalError::Data`] if memory is exhausted.
    pub(crate) fn spare(&self, sizes: &[usize]) -> Result<SubgraphBuffers<'_>, EvalError> {
        let mut buffers = lock(&self.spare).pop().unwrap_or_default();
        buffers.resize_with(buffers.len().max(sizes.len()), AlignedBuffer::default);
        for (buffer, &bytes) in buffers.iter_mut().zip(sizes) {
            if buffer.bytes().len() < bytes {
                let made = AlignedBuffer::zeroed(bytes, "a value carried by a loop");
                *buffer = made.map_err(|e| EvalError::Data(e.to_string()))?;
            }
        }
        Ok(SubgraphBuffers { sub: self, buffers })
    }
}

impl Drop for SubgraphBuffers<'_> {
    fn drop(&mut self) {
        lock(&self.sub.spare).push(std::mem::take(&mut self.buffers));
    }
}

fn lock<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of a dense operand.
pub(crate) fn bytes_of<'a>(view: &KernelView<'a>) -> &'a [u8] {
    match view.layout.numel() {
        0 => crate::exec::memory::nothing(),
        _ => view.dense_bytes(),
    }
}
