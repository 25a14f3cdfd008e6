//! The fast executor as a backend: passes, legalization, plan.

use tercet_ir::backend::{Explanation, Keep, check_borders};
use tercet_ir::{
    Backend, CompileError, CompileOptions, DType, Executable, Graph, Node, Port, RunError, Scheme,
    Signature, Support, Target, TensorType,
    legalize::{legalize, origins},
    passes,
};

use crate::exec::CpuExecutable;
use crate::kernels::SimdLevel;
use crate::kernels::quant::rounding_pays;
use crate::lower;
use crate::plan::{How, Last, Program, build};
use crate::pool::Pool;

/// What the fast executor runs, read off its kernel table.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTarget;

impl CpuTarget {
    /// The name of the kernel that runs a node, if one does.
    pub fn kernel(&self, graph: &Graph, node: &Node) -> Option<&'static str> {
        lower::find(graph, node).ok().map(|kernel| kernel.name)
    }
}

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
    /// A backend whose runs are spread over the rayon pool of their caller: the one that its thread belongs to, as inside of
    /// `ThreadPool::install`, for other threads the global one, which has as many threads as there are cores or as its
    /// builder or the environment variable `RAYON_NUM_THREADS` says. A graph compiled in a pool runs on as many threads as
    /// that has at most, in any pool. The caller works, too, and never waits for a thread of the pool that is busy.
    pub fn new() -> CpuBackend {
        CpuBackend::default()
    }

    /// A backend with a rayon pool of its own, for `threads` threads, of which the caller of a run is one (0:
    /// as many as there are cores). With 1 everything runs on the calling thread. Results do not depend on the number.
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

impl CpuBackend {
    fn program(&self, graph: &Graph, options: &CompileOptions) -> Result<Program, CompileError> {
        let graph = &*options.opened(graph)?;
        check_borders(graph, &options.bounds)?;
        let optimized = passes::optimize_for(graph, options, &CpuTarget)?;
        let legal = legalize(&optimized, &CpuTarget)?;
        let how = How {
            threads: self.pool.threads(),
            // Rows of 16 digits are at least as exact for their greatest elements as either type.
            rounded: options.products.is_some(),
        };
        let last = match options.keep {
            Keep::Outputs => {
                let able = passes::Able {
                    last: &lower::last::able(&legal),
                    sums: &lower::last::adds,
                };
                passes::channels_last(&legal, &able)?
            }
            Keep::All | Keep::Values(_) => None,
        };
        let (legal, last) = match last {
            Some(passes::ChannelsLast { graph, nodes, sums }) => (graph, Last { nodes, sums }),
            None => (legal, Last::default()),
        };
        let origins = origins(&legal);
        let signature = Signature::of(graph);
        build(&legal, signature, &options.bounds, how, origins, &last)
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn products(&self) -> Vec<DType> {
        Vec::new()
    }

    fn packed_products(&self) -> Vec<DType> {
        match rounding_pays(SimdLevel::detect()) {
            true => vec![DType::F16],
            false => Vec::new(),
        }
    }

    fn packed_rows(&self, _: Scheme) -> Option<usize> {
        None
    }

    fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        let program = self.program(graph, options)?;
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
                | RunError::Narrow { .. }
                | RunError::Rows { .. }
                | RunError::Tensor(_)
                | RunError::Node { .. }
                | RunError::NonFinite(_)
                | RunError::OtherDevice { .. }
                | RunError::DeviceLost { .. } => {
                    unreachable!("invariant: making states needs sizes and memory only")
                }
            })
    }

    fn explain(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Explanation, CompileError> {
        let program = self.program(graph, options)?;
        let mut programs = Vec::new();
        program.visit(&mut |p| programs.push(p));
        let calls = programs.iter().flat_map(|p| &p.steps);
        let kernels = Explanation::count(calls.clone().map(|s| (s.op, s.kernel.to_string())));
        let bytes_of = |ports: &[Port]| -> Result<u64, CompileError> {
            let mut sum = 0u64;
            for port in ports {
                let shape = port.ty.shape.upper_bound(&options.bounds)?;
                let bytes = TensorType::new(port.ty.dtype, &shape).saturating_bytes();
                sum = sum.saturating_add(bytes);
            }
            Ok(sum)
        };
        let signature = &program.signature;
        Ok(Explanation {
            target: "cpu",
            dispatches: calls.count(),
            prepare: programs.iter().map(|p| p.prepare.len()).sum(),
            kernels,
            bytes: vec![
                ("inputs", bytes_of(&signature.inputs)?),
                ("outputs", bytes_of(&signature.outputs)?),
                ("params", bytes_of(&signature.params)?),
                ("states", bytes_of(&signature.states)?),
                ("arena", programs.iter().map(|p| p.arena_bytes as u64).sum()),
            ],
            ..Explanation::default()
        })
    }
}
