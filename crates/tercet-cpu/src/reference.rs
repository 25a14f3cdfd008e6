//! The reference executor: evaluates every operator of the unmodified graph through its own `eval`.
//!
//! The reference executor defines the results that other executors are compared with. The reference
//! executor runs no passes and no legalization. Runs share only parameters, states and the step
//! counter.

use std::collections::BTreeMap;
use std::future::ready;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use tercet_ir::backend::{
    DeviceTensor, Explanation, LastRun, OutputSelection, StepTime, TensorFuture, check_interface,
    places,
};
use tercet_ir::random::RngState;
use tercet_ir::{
    Backend, Bindings, CompileError, CompileOptions, DType, EvalCtx, Executable, Graph, Op,
    RunError, Scheme, Signature, Tensor, TensorType, backend::find_port, evaluate,
};

use crate::bound_inputs::{BoundInputs, on_host};

/// Reference backend: its executables evaluate node by node, slowly and exactly.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceBackend;

impl ReferenceBackend {
    /// A reference backend; it has no settings.
    pub fn new() -> ReferenceBackend {
        ReferenceBackend
    }
}

impl Backend for ReferenceBackend {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn fast_matmul_dtypes(&self) -> Vec<DType> {
        Vec::new()
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
        let graph = &*options.opened(graph)?;
        check_interface(graph, &options.bounds)?;
        Ok(Box::new(ReferenceExecutable {
            signature: Signature::of(graph),
            graph: Arc::new(graph.clone()),
            bounds: options.bounds.clone(),
            leaves: BTreeMap::new(),
            random: RngState::default(),
            last: LastRun::default(),
            bound: BoundInputs::default(),
        }))
    }

    fn explain(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Explanation, CompileError> {
        let graph = &*options.opened(graph)?;
        check_interface(graph, &options.bounds)?;
        let calls = graph.nodes().map(|(_, n)| {
            let op = n.op.kind().doc().name;
            (op, "eval".to_string())
        });
        Ok(Explanation {
            target: "reference",
            dispatches: graph.len(),
            written: graph.nodes().map(|(_, n)| n.outputs.len()).sum(),
            kernels: Explanation::count(calls),
            listing: graph.to_string(),
            ..Explanation::default()
        })
    }
}

#[derive(Clone)]
struct ReferenceExecutable {
    graph: Arc<Graph>,
    signature: Signature,
    bounds: Bindings,
    /// Tensors of parameters and states by name, and during a run of inputs too. A state without an
    /// entry is all zeros.
    leaves: BTreeMap<String, Tensor>,
    random: RngState,
    last: LastRun,
    bound: BoundInputs,
}

impl Executable for ReferenceExecutable {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), RunError> {
        find_port(&self.signature.params, "param", name)?
            .1
            .check("param", &tensor)?;
        self.leaves.insert(name.to_string(), tensor);
        Ok(())
    }

    fn run_into(
        &mut self,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        self.last.clear();
        let inputs = &*self.bound.with(inputs);
        self.signature
            .bind(inputs, &self.bounds, &mut Bindings::new())?;
        for (name, tensor) in inputs {
            self.leaves.insert((*name).to_string(), (*tensor).clone());
        }
        let ctx = EvalCtx {
            random: self.random,
        };
        let done = evaluate(&self.graph, &ctx, &self.leaves);
        for (name, _) in inputs {
            self.leaves.remove(*name);
        }
        let done = done?;
        outputs.clear();
        outputs.extend(
            self.graph
                .outputs()
                .iter()
                .map(|o| done.get(o.value).clone()),
        );
        for a in self.graph.assigns() {
            if let Op::State(state) = &self.graph.node(a.state.node).op {
                self.leaves
                    .insert(state.name.clone(), done.get(a.value).clone());
            }
        }
        self.random.count();
        self.last.retain(outputs);
        Ok(())
    }

    fn submit(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: OutputSelection<'_>,
    ) -> Result<(), RunError> {
        let places = places(&self.signature, wanted)?;
        let mut outputs = self.last.reuse();
        self.run_into(inputs, &mut outputs)?;
        self.last.request(places);
        Ok(())
    }

    /// Runs are synchronous, so a submitted run has already finished.
    fn submit_pipelined(
        &mut self,
        _: &[(&str, &Tensor)],
        _: &[(&str, &str)],
        _: OutputSelection<'_>,
    ) -> Result<bool, RunError> {
        Ok(false)
    }

    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.last.take_requested(outputs);
        Ok(())
    }

    fn poll_run(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        Poll::Ready(Ok(()))
    }

    fn fetch_output_rows(
        &mut self,
        output: &str,
        rows: Range<usize>,
    ) -> Result<TensorFuture, RunError> {
        let tensor = self.read_output_rows(output, rows)?;
        Ok(Box::pin(ready(Ok(tensor))))
    }

    fn fetch_state(&mut self, name: &str) -> Result<TensorFuture, RunError> {
        let tensor = self.read_state(name)?;
        Ok(Box::pin(ready(Ok(tensor))))
    }

    fn read_output_rows(&mut self, output: &str, rows: Range<usize>) -> Result<Tensor, RunError> {
        self.last.rows(&self.signature, output, &rows)
    }

    fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError> {
        Ok(on_host(tensor.clone()))
    }

    fn output_on_device(&mut self, output: &str) -> Result<DeviceTensor, RunError> {
        Ok(on_host(self.last.tensor(&self.signature, output)?.clone()))
    }

    fn release_outputs(&mut self) {
        self.last.clear();
    }

    fn bind(&mut self, input: &str, tensor: &DeviceTensor) -> Result<(), RunError> {
        self.bound.bind(&self.signature, "reference", input, tensor)
    }

    fn unbind(&mut self, input: &str) -> Result<(), RunError> {
        self.bound.unbind(&self.signature, input)
    }

    /// The reference has one kernel per operator.
    fn kernel_variants(&self, _: &[(&str, &Tensor)]) -> Result<Vec<u32>, RunError> {
        Ok(Vec::new())
    }

    fn timings(&mut self) -> Vec<StepTime> {
        Vec::new()
    }

    fn write_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError> {
        find_port(&self.signature.states, "state", name)?
            .1
            .check("state", tensor)?;
        self.leaves.insert(name.to_string(), tensor.clone());
        Ok(())
    }

    fn read_state(&self, name: &str) -> Result<Tensor, RunError> {
        let (_, port) = find_port(&self.signature.states, "state", name)?;
        match self.leaves.get(name) {
            Some(tensor) => Ok(tensor.clone()),
            None => {
                let shape = port.ty.shape.eval(&Bindings::new())?;
                zeros(TensorType::new(port.ty.dtype, &shape), "state")
            }
        }
    }

    fn random(&self) -> RngState {
        self.random
    }

    fn set_random(&mut self, random: RngState) {
        self.random = random;
    }

    fn reset(&mut self) {
        for port in &self.signature.states {
            self.leaves.remove(&port.name);
        }
        self.random.counter = 0;
    }

    fn try_clone(&self) -> Result<Box<dyn Executable>, RunError> {
        Ok(Box::new(self.clone()))
    }
}

/// A tensor of zeros, or an out-of-memory error.
pub(crate) fn zeros(ty: TensorType, what: &'static str) -> Result<Tensor, RunError> {
    let bytes = ty.saturating_bytes();
    Tensor::zeros(ty).map_err(|_| RunError::OutOfMemory { what, bytes })
}
