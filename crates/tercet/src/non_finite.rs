//! Devices that find the first node with a non-finite result from finite operands.
//!
//! `probe` builds a graph that fails at such a node, on any executor. A failed run leaves the
//! states unchanged. The run is therefore repeated with a program that returns the result and its
//! operands, and the error summarizes their contents.

mod probe;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use tercet_ir::backend::{
    DeviceTensor, Explanation, OutputSelection, StepTime, TensorFuture, places,
};
use tercet_ir::random::RngState;
use tercet_ir::{
    Backend, Bindings, CompileError, CompileOptions, DType, EvalError, Executable, Graph, NodeId,
    NonFinite, NonFiniteKind, Op, OpError, RetainValues, RunError, Scheme, Signature, Tensor,
    TensorSummary, Value,
};

use self::probe::{ProbeEnd, probe};
use crate::Device;

impl Device {
    /// A copy of this device whose runs stop at the first node that produces NaN or infinity from
    /// finite operands. The error is [`RunError::NonFinite`]; "first" refers to the order of the
    /// graph. All nodes run without passes, with a check on the device for each, which costs time
    /// and memory.
    ///
    /// Intended infinities are not reported: those in constants and inputs (masks), and those that
    /// an attribute sets. Nodes that compute with them are not checked. A NaN in an input,
    /// parameter or state is reported. Nodes inside subgraphs are not checked, but the results of
    /// the enclosing node are.
    ///
    /// ```
    /// # #[cfg(feature = "cpu")] {
    /// use tercet::{CompileOptions, DType, Device, Graph, Tensor, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [2]))?;
    /// let y = g.exp(x)?;
    /// let z = g.sqrt(y)?;
    /// g.output("z", z)?;
    /// let mut exe = Device::cpu().with_finite_check().compile(&g, &CompileOptions::new())?;
    /// let x = Tensor::from_slice(&[2], &[1f32, 100.0])?;
    /// let e = exe.run(&[("x", &x)]).unwrap_err();
    /// assert!(e.to_string().starts_with("%1 (unary) is inf at element 1 of f32[2]"));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_finite_check(&self) -> Device {
        self.with_backend(FiniteCheckBackend(self.shared()))
    }
}

/// A backend whose executables check for non-finite results.
struct FiniteCheckBackend(Arc<dyn Backend>);

/// Data shared by the executables of one graph.
struct CheckedGraph {
    backend: Arc<dyn Backend>,
    graph: Graph,
    options: CompileOptions,
    signature: Signature,
    /// Results that may be the first non-finite one. The failing gather reports their position plus
    /// 1.
    candidates: Vec<Value>,
    end: NodeId,
}

/// An executable that runs the probe graph.
struct ProbeExecutable {
    inner: Box<dyn Executable>,
    checked: Arc<CheckedGraph>,
    params: BTreeMap<String, Tensor>,
    /// Inputs of the last run.
    last_inputs: Vec<(String, Tensor)>,
    bound: BTreeMap<String, DeviceTensor>,
}

/// An error while building the probe, whose nodes are added to a well-typed graph.
fn probe_error(source: OpError) -> CompileError {
    let node = NodeId(0);
    CompileError::Rewrite { node, source }
}

impl Backend for FiniteCheckBackend {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Returns no dtypes, because all nodes run without passes.
    fn fast_matmul_dtypes(&self) -> Vec<DType> {
        Vec::new()
    }

    fn max_small_m_rows(&self, scheme: Scheme) -> Option<usize> {
        self.0.max_small_m_rows(scheme)
    }

    fn variant_families(&self) -> Vec<tercet_ir::VariantFamily> {
        self.0.variant_families()
    }

    fn description(&self) -> String {
        self.0.description()
    }

    fn free_memory_bytes(&self) -> Option<u64> {
        self.0.free_memory_bytes()
    }

    fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        let graph = options.opened(graph)?.into_owned();
        let options = CompileOptions {
            bounds: options.bounds.clone(),
            ..CompileOptions::new().without_any_pass()
        };
        let Some(probe) = probe(&graph, ProbeEnd::Fails).map_err(probe_error)? else {
            return self.0.compile(&graph, &options);
        };
        let inner = self.0.compile(&probe.graph, &options)?;
        let checked = CheckedGraph {
            backend: Arc::clone(&self.0),
            signature: Signature::of(&graph),
            graph,
            options,
            candidates: probe.candidates,
            end: probe.end.node,
        };
        Ok(Box::new(ProbeExecutable {
            inner,
            checked: Arc::new(checked),
            params: BTreeMap::new(),
            last_inputs: Vec::new(),
            bound: BTreeMap::new(),
        }))
    }

    fn explain(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Explanation, CompileError> {
        let graph = options.opened(graph)?;
        let options = CompileOptions {
            bounds: options.bounds.clone(),
            ..CompileOptions::new().without_any_pass()
        };
        match probe(&graph, ProbeEnd::Fails).map_err(probe_error)? {
            Some(probe) => self.0.explain(&probe.graph, &options),
            None => self.0.explain(&graph, &options),
        }
    }
}

impl ProbeExecutable {
    /// Converts the error of the probe node to one about the original graph.
    fn named(&self, e: RunError) -> RunError {
        let RunError::Node {
            node,
            source: EvalError::Index { index, len: 1 },
            ..
        } = &e
        else {
            return e;
        };
        let place = usize::try_from(*index).ok().and_then(|i| i.checked_sub(1));
        let Some(&value) = place.and_then(|at| self.checked.candidates.get(at)) else {
            return e;
        };
        match self.again(value, *index) {
            Ok(Some(found)) => RunError::NonFinite(Box::new(found)),
            // The error comes from another gather on an axis of one element.
            Ok(None) => e,
            Err(_) if *node == self.checked.end => self.rerun_error(value).unwrap_or(e),
            Err(_) => e,
        }
    }

    /// Error without a summary of values, if the run cannot be repeated, for example for lack of
    /// memory.
    fn rerun_error(&self, value: Value) -> Option<RunError> {
        let CheckedGraph {
            graph,
            signature,
            options,
            ..
        } = &*self.checked;
        let mut sizes = Bindings::new();
        signature
            .bind(&self.input_refs(), &options.bounds, &mut sizes)
            .ok()?;
        let op = &graph.node(value.node).op;
        Some(RunError::NonFinite(Box::new(NonFinite {
            result: TensorSummary {
                value,
                op: op.kind().doc().name,
                name: leaf_name(op),
                ty: graph.ty(value).eval(&sizes).ok()?,
                finite: None,
            },
            kind: None,
        })))
    }

    fn input_refs(&self) -> Vec<(&str, &Tensor)> {
        let given = self.last_inputs.iter();
        given.map(|(name, tensor)| (&**name, tensor)).collect()
    }

    /// Repeats the run and reads the result and its operands. Returns `None` if the probe finds
    /// another first result this time.
    fn again(&self, value: Value, number: i64) -> Result<Option<NonFinite>, RerunRefused> {
        let CheckedGraph { graph, backend, .. } = &*self.checked;
        let Some(probe) = probe(graph, ProbeEnd::Output)? else {
            return Ok(None);
        };
        let node = graph.node(value.node);
        let is_float = |v: &&Value| graph.ty(**v).dtype.is_float();
        let mut looked_at = vec![value];
        for operand in node.inputs.iter().filter(is_float) {
            if !looked_at.contains(operand) {
                looked_at.push(*operand);
            }
        }
        let is_at_hand = |v: &Value| matches!(graph.node(v.node).op, Op::Param(_) | Op::Const(_));
        let values = looked_at.iter().copied().filter(|v| !is_at_hand(v));
        let keep = RetainValues::Values(values.collect());
        let (_, kept) = keep.add_outputs(&probe.graph)?;
        let options = self.checked.options.clone().retain(keep);
        let mut exe = backend.compile(&probe.graph, &options)?;
        for (name, tensor) in &self.params {
            exe.set_param(name, tensor.clone())?;
        }
        for port in &self.checked.signature.states {
            exe.write_state(&port.name, &self.inner.read_state(&port.name)?)?;
        }
        for (name, tensor) in &self.bound {
            exe.bind(name, tensor)?;
        }
        exe.set_random(self.inner.random());
        let mut wanted = vec![probe.output.as_str()];
        wanted.extend(kept.iter().map(|k| k.output.as_str()));
        let results = exe.run_outputs(&self.input_refs(), &wanted)?;
        let (code, results) = match results.split_first() {
            Some((code, results)) => (code.to_i64s(), results),
            None => return Ok(None),
        };
        if code.first() != Some(&number) {
            return Ok(None);
        }
        let tensor = |v: Value| match &graph.node(v.node).op {
            Op::Param(p) => self.params.get(&p.name),
            Op::Const(c) => Some(&c.tensor),
            _ => kept
                .iter()
                .position(|k| k.value == v)
                .and_then(|at| results.get(at)),
        };
        let span = |v: Value| {
            let op = &graph.node(v.node).op;
            Some(TensorSummary::new(
                v,
                op.kind().doc().name,
                leaf_name(op),
                tensor(v)?,
            ))
        };
        let operands = looked_at[1..].iter().filter_map(|v| span(*v)).collect();
        let found = tensor(value).and_then(|t| NonFiniteKind::detect(t, operands));
        Ok(span(value).map(|result| NonFinite {
            result,
            kind: found,
        }))
    }
}

/// The run could not be repeated.
struct RerunRefused;

impl From<OpError> for RerunRefused {
    fn from(_: OpError) -> RerunRefused {
        RerunRefused
    }
}

impl From<CompileError> for RerunRefused {
    fn from(_: CompileError) -> RerunRefused {
        RerunRefused
    }
}

impl From<RunError> for RerunRefused {
    fn from(_: RunError) -> RerunRefused {
        RerunRefused
    }
}

fn leaf_name(op: &Op) -> Option<String> {
    match op {
        Op::Input(o) => Some(o.name.clone()),
        Op::Param(o) => Some(o.name.clone()),
        Op::State(o) => Some(o.name.clone()),
        _ => None,
    }
}

impl Executable for ProbeExecutable {
    fn signature(&self) -> &Signature {
        &self.checked.signature
    }

    fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), RunError> {
        self.inner.set_param(name, tensor.clone())?;
        self.params.insert(name.to_string(), tensor);
        Ok(())
    }

    fn run_into(
        &mut self,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        self.submit(inputs, OutputSelection::All)?;
        self.wait(outputs)
    }

    fn submit(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: OutputSelection<'_>,
    ) -> Result<(), RunError> {
        let outputs = &self.checked.signature.outputs;
        let wanted = places(&self.checked.signature, wanted)?;
        let wanted: Vec<&str> = wanted.iter().map(|at| &*outputs[*at].name).collect();
        let given = inputs.iter().map(|(n, t)| ((*n).to_string(), (*t).clone()));
        self.last_inputs = given.collect();
        let submitted = self.inner.submit(inputs, OutputSelection::Only(&wanted));
        submitted.map_err(|e| self.named(e))
    }

    /// The inputs are stored until the run ends, so only one run can be in flight.
    fn submit_pipelined(
        &mut self,
        _: &[(&str, &Tensor)],
        _: &[(&str, &str)],
        _: OutputSelection<'_>,
    ) -> Result<bool, RunError> {
        Ok(false)
    }

    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.inner.wait(outputs).map_err(|e| self.named(e))
    }

    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        self.inner.poll_run(cx).map_err(|e| self.named(e))
    }

    fn fetch_output_rows(
        &mut self,
        output: &str,
        rows: Range<usize>,
    ) -> Result<TensorFuture, RunError> {
        self.inner.fetch_output_rows(output, rows)
    }

    fn fetch_state(&mut self, name: &str) -> Result<TensorFuture, RunError> {
        self.inner.fetch_state(name)
    }

    fn read_output_rows(&mut self, output: &str, rows: Range<usize>) -> Result<Tensor, RunError> {
        self.inner.read_output_rows(output, rows)
    }

    fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError> {
        self.inner.upload(tensor)
    }

    fn output_on_device(&mut self, output: &str) -> Result<DeviceTensor, RunError> {
        self.inner.output_on_device(output)
    }

    fn release_outputs(&mut self) {
        self.inner.release_outputs();
    }

    fn bind(&mut self, input: &str, tensor: &DeviceTensor) -> Result<(), RunError> {
        self.inner.bind(input, tensor)?;
        self.bound.insert(input.to_string(), tensor.clone());
        Ok(())
    }

    fn unbind(&mut self, input: &str) -> Result<(), RunError> {
        self.inner.unbind(input)?;
        self.bound.remove(input);
        Ok(())
    }

    fn kernel_variants(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<u32>, RunError> {
        self.inner.kernel_variants(inputs)
    }

    fn timings(&mut self) -> Vec<StepTime> {
        self.inner.timings()
    }

    fn write_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError> {
        self.inner.write_state(name, tensor)
    }

    fn read_state(&self, name: &str) -> Result<Tensor, RunError> {
        self.inner.read_state(name)
    }

    fn write_state_elements(
        &mut self,
        name: &str,
        first: usize,
        values: &Tensor,
    ) -> Result<(), RunError> {
        self.inner.write_state_elements(name, first, values)
    }

    fn read_state_elements(&self, name: &str, elements: Range<usize>) -> Result<Tensor, RunError> {
        self.inner.read_state_elements(name, elements)
    }

    fn random(&self) -> RngState {
        self.inner.random()
    }

    fn set_random(&mut self, random: RngState) {
        self.inner.set_random(random);
    }

    fn reset(&mut self) {
        self.inner.reset();
    }

    fn try_clone(&self) -> Result<Box<dyn Executable>, RunError> {
        Ok(Box::new(ProbeExecutable {
            inner: self.inner.try_clone()?,
            checked: Arc::clone(&self.checked),
            params: self.params.clone(),
            last_inputs: Vec::new(),
            bound: self.bound.clone(),
        }))
    }
}
