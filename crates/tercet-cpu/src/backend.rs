//! The fast executor as a backend: passes, legalization, plan.

use tercet_ir::{
    Backend, CompileError, CompileOptions, Executable, Graph, Node, NodeId, OpKind, RunError,
    Signature, Support, Target, legalize::legalize, passes,
};

use crate::exec::CpuExecutable;
use crate::lower;
use crate::plan::build;
use crate::pool::Pool;
use crate::reference::check_borders;

/// What the fast executor runs, read off its kernel table.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTarget;

impl Target for CpuTarget {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn supports(&self, graph: &Graph, node: &Node) -> Support {
        match lower::find(graph, node) {
            Ok(_) => Support::Native,
            Err(reason) => Support::Missing { reason },
        }
    }
}

/// Compiles graphs for the processor.
///
/// ```
/// use tercet_cpu::CpuBackend;
/// use tercet_ir::{Backend, CompileOptions, DType, Dim, Graph, Tensor, Type};
///
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [Dim::sym("n"), Dim::Known(2)]))?;
/// let y = g.softmax(x, 1)?;
/// g.output("y", y)?;
///
/// let mut exe = CpuBackend::new().compile(&g, &CompileOptions::new().bound("n", 1024))?;
/// let x = Tensor::from_slice(&[1, 2], &[0.5f32, 0.5])?;
/// assert_eq!(exe.run(&[("x", &x)])?[0].as_slice::<f32>()?, [0.5, 0.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CpuBackend {
    pool: Pool,
}

impl CpuBackend {
    /// A backend on rayon's global pool.
    pub fn new() -> CpuBackend {
        CpuBackend::default()
    }

    /// A backend with a pool of its own of `threads` threads (0: as many as there are cores). With
    /// 1 everything runs on the calling thread. Results do not depend on the number.
    ///
    /// # Errors
    /// [`RunError::DeviceLost`] when the system gives no threads.
    pub fn with_threads(threads: usize) -> Result<CpuBackend, RunError> {
        let pool = Pool::of(threads).map_err(|e| RunError::DeviceLost {
            reason: format!("no pool of {threads} threads: {e}"),
        })?;
        Ok(CpuBackend { pool })
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        check_borders(graph, &options.bounds)?;
        let optimized = passes::optimize(graph, options)?;
        let legal = legalize(&optimized, &CpuTarget)?;
        let threads = self.pool.threads();
        let mut program = build(&legal, Signature::of(graph), &options.bounds, threads)?;
        program.origins = origins(graph, &legal);
        let exe = CpuExecutable::new(program, self.pool.clone(), options.bounds.clone());
        exe.map(|exe| Box::new(exe) as Box<dyn Executable>)
            .map_err(|e| match e {
                RunError::OutOfMemory { what, bytes } => CompileError::OutOfMemory { what, bytes },
                RunError::Dim(e) => CompileError::Bounds(e),
                RunError::UnknownName { .. }
                | RunError::Missing { .. }
                | RunError::Type { .. }
                | RunError::AboveBound { .. }
                | RunError::Conflict { .. }
                | RunError::Node { .. }
                | RunError::DeviceLost { .. } => {
                    unreachable!("invariant: making states needs sizes and memory only")
                }
            })
    }
}

/// For each node of the legal graph, the node of the given graph whose fault it would report.
///
/// Passes keep the order of the operators that can fault (indexing and the like), so that the k-th
/// of a kind is the k-th of the given graph where both have as many; else the first one with the
/// same attributes and result types.
fn origins(given: &Graph, legal: &Graph) -> Vec<Option<NodeId>> {
    let of_kind = |graph: &Graph, kind: OpKind| -> Vec<NodeId> {
        let nodes = graph.nodes().filter(|(_, n)| n.op.kind() == kind);
        nodes.map(|(id, _)| id).collect()
    };
    let mut origins = vec![None; legal.len()];
    for &kind in OpKind::ALL {
        let (from, to) = (of_kind(given, kind), of_kind(legal, kind));
        for (i, id) in to.iter().enumerate() {
            let node = legal.node(*id);
            origins[id.index()] = if from.len() == to.len() {
                Some(from[i])
            } else {
                let same = |g: &&NodeId| {
                    let g = given.node(**g);
                    g.op == node.op && g.outputs == node.outputs
                };
                from.iter().find(same).copied()
            };
        }
    }
    origins
}
