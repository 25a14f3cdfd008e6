//! Graphs that are compiled once for each size.
//!
//! Most graphs are compiled once, with symbols for the sizes of their inputs. If an operator needs
//! known sizes, or a program for one size is faster, one compiled form is kept for each size.

use std::sync::Arc;

use tercet_tensor::{Bindings, Symbol, Tensor};

use super::{Backend, CompileOptions, Executable};
use crate::error::{CompileError, OpError, RunError};
use crate::graph::{Graph, SizesError};

/// Why a graph could not run at a size.
///
/// ```
/// use tercet_ir::PerSizeError;
/// use tercet_ir::{Bindings, Symbol};
/// let error = PerSizeError::TooLarge { sizes: "s = 9".to_string(), bytes: 512, limit: 256 };
/// assert!(error.to_string().contains("s = 9"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum PerSizeError {
    /// The graph cannot have these sizes.
    #[error("the graph cannot have the sizes of the inputs")]
    Sizes(#[from] SizesError),
    /// The graph could not be built for these sizes.
    #[error("the graph cannot be built for the sizes of the inputs")]
    Build(#[from] OpError),
    /// The graph could not be compiled for these sizes.
    #[error("the graph cannot be compiled for the sizes of the inputs")]
    Compile(#[from] CompileError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A single form exceeds the memory limit.
    #[error("the program for {sizes} takes {bytes} bytes; at most {limit} are permitted")]
    TooLarge {
        /// The sizes.
        sizes: String,
        /// Peak memory of the program.
        bytes: u64,
        /// The memory limit of all forms together.
        limit: u64,
    },
}

/// Builds the graph for the sizes of a run.
type GraphBuilder = Box<dyn FnMut(&Bindings) -> Result<Graph, PerSizeError> + Send>;

/// The program for one choice of sizes.
struct SizedForm {
    sizes: Bindings,
    bytes: u64,
    executable: Box<dyn Executable>,
}

/// A graph on a device, compiled again for each new choice of sizes. The programs of the last sizes
/// are kept, up to a number and an amount of memory; the least recently used one is dropped first.
/// Parameters are shared between programs, and states move to the program that runs.
///
/// ```
/// # use tercet_ir::backend::{Explanation, check_interface};
/// use std::sync::Arc;
/// use tercet_ir::{Backend, Bindings, CompileOptions, DType, Dim, Graph, PerSizeExecutable, Type};
/// # use tercet_ir::{CompileError, Executable, Scheme};
/// # type Compiled = Result<Box<dyn Executable>, CompileError>;
/// # struct Stub;
/// # impl Backend for Stub {
/// #     fn name(&self) -> &'static str { "stub" }
/// #     fn fast_matmul_dtypes(&self) -> Vec<DType> { vec![] }
/// #     fn max_small_m_rows(&self, _: Scheme) -> Option<usize> { None }
/// #     fn compile(&self, _: &Graph, _: &CompileOptions) -> Compiled {
/// #         Err(CompileError::NoOutputs)
/// #     }
/// #     fn explain(&self, g: &Graph, o: &CompileOptions) -> Result<Explanation, CompileError> {
/// #         check_interface(g, &o.bounds)?;
/// #         Ok(Explanation::default())
/// #     }
/// # }
/// # let backend: Arc<dyn Backend> = Arc::new(Stub);
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [Dim::sym("rows"), Dim::Known(2)]))?;
/// let y = g.softmax(x, 1)?;
/// g.output("y", y)?;
/// let per_size = PerSizeExecutable::new(backend, g, CompileOptions::new()).with_limits(4, 1 << 30);
/// assert_eq!(per_size.compilations(), 0);
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
pub struct PerSizeExecutable {
    backend: Arc<dyn Backend>,
    options: CompileOptions,
    build: GraphBuilder,
    params: Vec<(String, Tensor)>,
    /// The programs; the most recently used one is last.
    forms: Vec<SizedForm>,
    max_forms: usize,
    max_bytes: u64,
    compilations: usize,
}

impl std::fmt::Debug for PerSizeExecutable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sizes: Vec<String> = self.forms.iter().map(|f| text(&f.sizes)).collect();
        let mut of = f.debug_struct("PerSizeExecutable");
        of.field("forms", &sizes).finish_non_exhaustive()
    }
}

/// Default number of programs.
const MAX_FORMS: usize = 8;

impl PerSizeExecutable {
    /// Fixes the symbols of `graph` in each run ([`Graph::with_sizes`]).
    pub fn new(
        backend: Arc<dyn Backend>,
        graph: Graph,
        options: CompileOptions,
    ) -> PerSizeExecutable {
        PerSizeExecutable::from_builder(backend, options, move |sizes| Ok(graph.with_sizes(sizes)?))
    }

    /// Builds the graph for the sizes of each run. Operators that need known sizes are possible.
    pub fn from_builder(
        backend: Arc<dyn Backend>,
        options: CompileOptions,
        build: impl FnMut(&Bindings) -> Result<Graph, PerSizeError> + Send + 'static,
    ) -> PerSizeExecutable {
        PerSizeExecutable {
            backend,
            options,
            build: Box::new(build),
            params: Vec::new(),
            forms: Vec::new(),
            max_forms: MAX_FORMS,
            max_bytes: u64::MAX,
            compilations: 0,
        }
    }

    /// Limits the kept programs to a number, at least one, and to an amount of memory in bytes.
    pub fn with_limits(mut self, forms: usize, bytes: u64) -> PerSizeExecutable {
        (self.max_forms, self.max_bytes) = (forms.max(1), bytes);
        self
    }

    /// The number of compilations so far.
    pub fn compilations(&self) -> usize {
        self.compilations
    }

    /// The number of kept programs.
    pub fn forms(&self) -> usize {
        self.forms.len()
    }

    /// Peak memory of the kept programs, in bytes.
    pub fn bytes(&self) -> u64 {
        self.forms.iter().map(|f| f.bytes).sum()
    }

    /// Sets a parameter of all programs.
    ///
    /// # Errors
    /// [`RunError`] when the parameter does not exist or its type differs. Without a program, the
    /// next run reports the error.
    pub fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), RunError> {
        for form in &mut self.forms {
            form.executable.set_param(name, tensor.clone())?;
        }
        self.params.retain(|(known, _)| known != name);
        self.params.push((name.to_string(), tensor));
        Ok(())
    }

    /// The program for these sizes, which is compiled if it is not kept.
    ///
    /// # Errors
    /// [`PerSizeError`] when the graph cannot have the sizes, or cannot be compiled for them.
    pub fn form(&mut self, sizes: &Bindings) -> Result<&mut dyn Executable, PerSizeError> {
        let last = self.forms.len().checked_sub(1);
        let at = match self.forms.iter().position(|f| f.sizes == *sizes) {
            Some(at) => at,
            None => self.compile(sizes)?,
        };
        // States of the program that ran last are those of all programs.
        if let Some(last) = last.filter(|last| *last != at) {
            self.move_states(last, at)?;
        }
        let form = self.forms.remove(at);
        self.forms.push(form);
        self.drop_unused();
        let form = self.forms.last_mut().expect("invariant: just pushed");
        Ok(&mut *form.executable)
    }

    /// Runs the graph at these sizes, and returns the results in the order of the outputs.
    ///
    /// # Errors
    /// [`PerSizeError`] as [`PerSizeExecutable::form`], and the errors of the run.
    pub fn run(
        &mut self,
        sizes: &Bindings,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Vec<Tensor>, PerSizeError> {
        Ok(self.form(sizes)?.run(inputs)?)
    }

    fn compile(&mut self, sizes: &Bindings) -> Result<usize, PerSizeError> {
        let graph = (self.build)(sizes)?;
        let bytes = self.backend.explain(&graph, &self.options)?.peak_bytes();
        if bytes > self.max_bytes {
            return Err(PerSizeError::TooLarge {
                sizes: text(sizes),
                bytes,
                limit: self.max_bytes,
            });
        }
        let mut executable = self.backend.compile(&graph, &self.options)?;
        self.compilations += 1;
        for (name, tensor) in &self.params {
            executable.set_param(name, tensor.clone())?;
        }
        self.forms.push(SizedForm {
            sizes: sizes.clone(),
            bytes,
            executable,
        });
        Ok(self.forms.len() - 1)
    }

    fn move_states(&mut self, from: usize, to: usize) -> Result<(), RunError> {
        let signature = self.forms[from].executable.signature();
        let names: Vec<String> = signature.states.iter().map(|p| p.name.clone()).collect();
        for name in names {
            let state = self.forms[from].executable.read_state(&name)?;
            self.forms[to].executable.write_state(&name, &state)?;
        }
        let random = self.forms[from].executable.random();
        self.forms[to].executable.set_random(random);
        Ok(())
    }

    /// Drops the least recently used programs beyond the limits, except the last one.
    fn drop_unused(&mut self) {
        while self.forms.len() > 1
            && (self.forms.len() > self.max_forms || self.bytes() > self.max_bytes)
        {
            self.forms.remove(0);
        }
    }
}

/// Sizes in words: `s = 3, t = 4`.
fn text(sizes: &Bindings) -> String {
    let all: Vec<String> = sizes
        .iter()
        .map(|(symbol, n): (&Symbol, usize)| format!("{symbol} = {n}"))
        .collect();
    match all.is_empty() {
        true => "no symbols".to_string(),
        false => all.join(", "),
    }
}
