//! The fast CPU executor as a [`Backend`]: passes, legalization, planning.

use tercet_ir::backend::{Explanation, RetainValues, check_interface};
use tercet_ir::{
    Backend, CompileError, CompileOptions, DType, DeviceSwitches, Executable, Graph, Node, Port,
    RunError, Scheme, Signature, Support, SwitchError, Target, TensorType, VariantFamily,
    legalize::{legalize, origins},
    passes,
};

use crate::exec::CpuExecutable;
use crate::kernels::SimdLevel;
use crate::kernels::quant::i16_is_profitable;
use crate::lower;
use crate::plan::{BuildOptions, ChannelsLastPlan, CpuProgram, build};
use crate::pool::HelperPool;
use crate::switches;

/// Operators that the fast executor supports, according to its kernel table.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTarget;

impl CpuTarget {
    /// Name of the kernel for a node, or `None` if no kernel supports it.
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
    pool: HelperPool,
    switches: DeviceSwitches,
    /// The instruction set that the switches select; `None` without switches.
    level: Option<SimdLevel>,
    timed: bool,
}

impl CpuBackend {
    /// A backend that runs in the rayon pool of the calling thread.
    ///
    /// Inside `ThreadPool::install` that is the installed pool, otherwise the global one. The
    /// global pool has one thread per core unless its builder or the environment variable
    /// `RAYON_NUM_THREADS` sets another number. A compiled graph never uses more threads than the
    /// pool had at compile time. The calling thread takes part in the work and never blocks on a
    /// busy thread of the pool.
    pub fn new() -> CpuBackend {
        CpuBackend::default()
    }

    /// A backend with a private rayon pool of `threads` threads, including the caller of a run.
    ///
    /// 0 means one thread per core. With 1, everything runs on the calling thread. Results do not
    /// depend on the number of threads.
    ///
    /// # Errors
    /// [`RunError::DeviceLost`] if the system cannot create the threads.
    pub fn with_threads(threads: usize) -> Result<CpuBackend, RunError> {
        let pool = HelperPool::with_threads(threads).map_err(|e| RunError::DeviceLost {
            reason: format!("cannot create a pool of {threads} threads: {e}"),
        })?;
        Ok(CpuBackend {
            pool,
            ..CpuBackend::default()
        })
    }

    /// This backend; with `timed`, its executables measure each step: see [`Executable::timings`].
    pub fn timed(self, timed: bool) -> CpuBackend {
        CpuBackend { timed, ..self }
    }

    /// This backend with switches, which select the instruction set of its kernels.
    ///
    /// # Errors
    /// [`SwitchError`] if a family or variant does not exist, this machine cannot run the forced
    /// instruction set, or every one is forbidden.
    ///
    /// ```
    /// use tercet_cpu::CpuBackend;
    /// use tercet_ir::DeviceSwitches;
    /// let plain = DeviceSwitches::parse("", "simd=portable")?;
    /// let backend = CpuBackend::new().switched(&plain)?;
    /// # Ok::<(), tercet_ir::SwitchError>(())
    /// ```
    pub fn switched(self, switches: &DeviceSwitches) -> Result<CpuBackend, SwitchError> {
        let level = switches::level(switches)?;
        Ok(CpuBackend {
            level: (!switches.is_empty()).then_some(level),
            switches: switches.clone(),
            ..self
        })
    }
}

impl CpuBackend {
    /// The switches and the instruction set that they select; empty without switches.
    fn explained_switches(&self) -> Vec<String> {
        let level = self.level().name();
        let lines = self.switches.lines().into_iter();
        lines.map(|line| format!("{line} (simd {level})")).collect()
    }

    fn level(&self) -> SimdLevel {
        self.level.unwrap_or_else(SimdLevel::detect)
    }

    fn program(&self, graph: &Graph, options: &CompileOptions) -> Result<CpuProgram, CompileError> {
        self.level().scope(|| self.leveled_program(graph, options))
    }

    fn leveled_program(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<CpuProgram, CompileError> {
        let graph = &*options.opened(graph)?;
        check_interface(graph, &options.bounds)?;
        let optimized = passes::optimize_for(graph, options, &CpuTarget)?;
        let legal = legalize(&optimized, &CpuTarget)?;
        let how = BuildOptions {
            threads: self.pool.threads(),
            // 16-bit fixed-point activations are at least as exact as F16 or BF16 for the largest
            // elements of a row.
            i16_activations: options.matmul_precision.is_some(),
        };
        let last = match options.retain {
            RetainValues::Outputs => {
                let able = passes::ChannelsLastSupport {
                    last: &lower::channels_last::able(&legal),
                    sums: &lower::channels_last::adds,
                };
                passes::channels_last(&legal, &able)?
            }
            RetainValues::All | RetainValues::Values(_) => None,
        };
        let (legal, last) = match last {
            Some(passes::ChannelsLast { graph, nodes, sums }) => {
                (graph, ChannelsLastPlan { nodes, sums })
            }
            None => (legal, ChannelsLastPlan::default()),
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

    fn fast_matmul_dtypes(&self) -> Vec<DType> {
        Vec::new()
    }

    fn fast_quant_matmul_dtypes(&self) -> Vec<DType> {
        match i16_is_profitable(self.level()) {
            true => vec![DType::F16],
            false => Vec::new(),
        }
    }

    fn max_small_m_rows(&self, _: Scheme) -> Option<usize> {
        None
    }

    fn free_memory_bytes(&self) -> Option<u64> {
        crate::host_memory::free_bytes()
    }

    fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        let program = self.program(graph, options)?;
        let exe = CpuExecutable::new(program, self.pool.clone(), options.bounds.clone());
        let exe = exe.map(|exe| if self.timed { exe.timed() } else { exe });
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
                | RunError::Elements { .. }
                | RunError::Tensor(_)
                | RunError::Node { .. }
                | RunError::NonFinite(_)
                | RunError::OtherDevice { .. }
                | RunError::DeviceLost { .. } => {
                    unreachable!("invariant: creating states can only fail for sizes or memory")
                }
            })
    }

    fn variant_families(&self) -> Vec<VariantFamily> {
        switches::families()
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
            written: calls
                .clone()
                .filter(|s| s.kernel != "copy")
                .map(|s| s.operands.len() - s.ins)
                .sum(),
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
            switches: self.explained_switches(),
            ..Explanation::default()
        })
    }
}
