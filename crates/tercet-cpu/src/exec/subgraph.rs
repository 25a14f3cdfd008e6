//! The programs of graphs inside nodes: compiled once with the graph around them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use tercet_ir::subgraph::inside;
use tercet_ir::{EvalCtx, EvalError};

use crate::args::View;
use crate::exec::constants::Constants;
use crate::exec::frame::Frame;
use crate::pages::Buffer;
use crate::plan::Program;

/// The program of a graph inside a node.
pub(crate) struct Sub {
    /// The attribute that holds the graph, for errors.
    name: &'static str,
    pub(crate) program: Program,
    threads: usize,
    /// Frames that no run uses now. A run takes one for its time, so that runs on several threads never
    /// wait for each other.
    free: Mutex<Vec<Frame>>,
    /// Buffers that no run uses now, of one run each.
    spare: Mutex<Vec<Vec<Buffer>>>,
}

/// A run inside a node, with a frame of its own.
pub(crate) struct Inside<'s> {
    sub: &'s Sub,
    frame: Option<Frame>,
    ctx: EvalCtx,
}

impl Sub {
    pub(crate) fn new(name: &'static str, program: Program, threads: usize) -> Sub {
        Sub {
            name,
            program,
            threads,
            free: Mutex::new(Vec::new()),
            spare: Mutex::new(Vec::new()),
        }
    }

    /// Makes ready for arguments of these shapes.
    ///
    /// # Errors
    /// [`EvalError::Within`] when a size is not possible or a constant cannot be computed.
    pub(crate) fn start<'s>(
        &'s self,
        ctx: EvalCtx,
        shapes: &[&[usize]],
    ) -> Result<Inside<'s>, EvalError> {
        let free = lock(&self.free).pop();
        let mut frame = free.unwrap_or_else(|| Frame::new(Constants::new(&self.program)));
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
        let run = Inside {
            sub: self,
            frame: Some(frame),
            ctx,
        };
        ready.map(|()| run).map_err(|e| inside(self.name, e))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        lock(&self.sub.free).extend(self.frame.take());
    }
}

impl Inside<'_> {
    /// Runs the program; outputs have exactly the bytes of the results.
    ///
    /// # Errors
    /// [`EvalError::Within`] that names the node.
    pub(crate) fn run(
        &mut self,
        inputs: &[&[u8]],
        outputs: SmallVec<[&mut [u8]; 8]>,
    ) -> Result<(), EvalError> {
        let program = &self.sub.program;
        let Some(frame) = &mut self.frame else {
            unreachable!("invariant: the frame is there until the end")
        };
        let done = frame.play(program, self.ctx, inputs, outputs, &mut []);
        done.map_err(|e| inside(self.sub.name, e))
    }
}

/// Buffers of a run inside a node, kept for the next run.
pub(crate) struct Spare<'s> {
    sub: &'s Sub,
    pub(crate) buffers: Vec<Buffer>,
}

impl Sub {
    /// Buffers of at least these sizes.
    ///
    /// # Errors
    /// [`EvalError::Data`] when there is no room.
    pub(crate) fn spare(&self, sizes: &[usize]) -> Result<Spare<'_>, EvalError> {
        let mut buffers = lock(&self.spare).pop().unwrap_or_default();
        buffers.resize_with(buffers.len().max(sizes.len()), Buffer::default);
        for (buffer, &bytes) in buffers.iter_mut().zip(sizes) {
            if buffer.bytes().len() < bytes {
                let made = Buffer::zeroed(bytes, "a value carried by a loop");
                *buffer = made.map_err(|e| EvalError::Data(e.to_string()))?;
            }
        }
        Ok(Spare { sub: self, buffers })
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        lock(&self.sub.spare).push(std::mem::take(&mut self.buffers));
    }
}

fn lock<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes of a dense operand.
pub(crate) fn bytes_of<'a>(view: &View<'a>) -> &'a [u8] {
    match view.layout.numel() {
        0 => crate::exec::memory::nothing(),
        _ => view.dense_bytes(),
    }
}
