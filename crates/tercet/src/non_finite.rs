//! Devices that name the first node whose result is not finite although its operands are.
//!
//! `probe` makes a graph that fails there, on any executor. When it has failed, states are as before the
//! run: it is done again, in a program that gives the result and its operands, and the error says what they hold.

mod probe;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use tercet_ir::backend::{DeviceTensor, Explanation, Fetch, StepTime, Wanted, places};
use tercet_ir::random::Random;
use tercet_ir::{
    Backend, Bindings, CompileError, CompileOptions, DType, EvalError, Executable, Found, Graph,
    Keep, NodeId, NonFinite, Op, OpError, RunError, Scheme, Signature, Span, Tensor, Value,
};

use self::probe::{End, probe};
use crate::Device;

impl Device {
    /// The same device, on which a run fails with [`RunError::NonFinite`] at the first node, in the order of the
    /// graph, whose result is not finite although all of its operands are: infinities and NaNs are found where they
    /// come from. The check runs on the device, beside every node, which all run as they are written, without passes:
    /// it costs time and memory.
    ///
    /// Infinities that are meant do no harm: those in constants and in what is given (masks), and those that
    /// attributes ask for; what is computed from them is not looked at. NaN in an input, parameter or state is named as such. Graphs inside
    /// nodes are not looked into; results of such nodes are.
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
        Device::from_backend(Checking(self.shared()))
    }
}

/// A backend whose executables look for results that are not finite.
struct Checking(Arc<dyn Backend>);

/// What the executables of one graph share.
struct Checked {
    backend: Arc<dyn Backend>,
    graph: Graph,
    options: CompileOptions,
    signature: Signature,
    /// The results that may be the first, by the number of the failure, and the node that fails.
    candidates: Vec<Value>,
    end: NodeId,
}

/// An executable of a probe.
struct Seeking {
    inner: Box<dyn Executable>,
    checked: Arc<Checked>,
    params: BTreeMap<String, Tensor>,
    /// The inputs of the last run.
    given: Vec<(String, Tensor)>,
    bound: BTreeMap<String, DeviceTensor>,
}

/// An error of building a probe, which adds nodes to a graph that was well typed.
fn refused(source: OpError) -> CompileError {
    let node = NodeId(0);
    CompileError::Rewrite { node, source }
}

impl Backend for Checking {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Nodes are computed as they are written.
    fn products(&self) -> Vec<DType> {
        Vec::new()
    }

    fn packed_rows(&self, scheme: Scheme) -> Option<usize> {
        self.0.packed_rows(scheme)
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
        let Some(probe) = probe(&graph, End::Fails).map_err(refused)? else {
            return self.0.compile(&graph, &options);
        };
        let inner = self.0.compile(&probe.graph, &options)?;
        let checked = Checked {
            backend: Arc::clone(&self.0),
            signature: Signature::of(&graph),
            graph,
            options,
            candidates: probe.candidates,
            end: probe.end.node,
        };
        Ok(Box::new(Seeking {
            inner,
            checked: Arc::new(checked),
            params: BTreeMap::new(),
            given: Vec::new(),
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
        match probe(&graph, End::Fails).map_err(refused)? {
            Some(probe) => self.0.explain(&probe.graph, &options),
            None => self.0.explain(&graph, &options),
        }
    }
}

impl Seeking {
    /// The error of a failed run, in the words of the graph as it was given.
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
            // Another index into an axis of one element.
            Ok(None) => e,
            Err(_) if *node == self.checked.end => self.unseen(value).unwrap_or(e),
            Err(_) => e,
        }
    }

    /// The error where the run could not be done again, if only for lack of memory.
    fn unseen(&self, value: Value) -> Option<RunError> {
        let Checked {
            graph,
            signature,
            options,
            ..
        } = &*self.checked;
        let mut sizes = Bindings::new();
        signature
            .bind(&self.given(), &options.bounds, &mut sizes)
            .ok()?;
        let op = &graph.node(value.node).op;
        Some(RunError::NonFinite(Box::new(NonFinite {
            result: Span {
                value,
                op: op.kind().doc().name,
                name: leaf_name(op),
                ty: graph.ty(value).eval(&sizes).ok()?,
                finite: None,
            },
            found: None,
        })))
    }

    fn given(&self) -> Vec<(&str, &Tensor)> {
        let given = self.given.iter();
        given.map(|(name, tensor)| (&**name, tensor)).collect()
    }

    /// Does the run again with a look at a result and its operands; `None` if the number of the first result is
    /// another this time.
    fn again(&self, value: Value, number: i64) -> Result<Option<NonFinite>, Refused> {
        let Checked { graph, backend, .. } = &*self.checked;
        let Some(probe) = probe(graph, End::Output)? else {
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
        let keep = Keep::Values(values.collect());
        let (_, kept) = keep.of(&probe.graph)?;
        let options = self.checked.options.clone().keeping(keep);
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
        let results = exe.run_outputs(&self.given(), &wanted)?;
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
            Some(Span::of(v, op.kind().doc().name, leaf_name(op), tensor(v)?))
        };
        let operands = looked_at[1..].iter().filter_map(|v| span(*v)).collect();
        let found = tensor(value).and_then(|t| Found::of(t, operands));
        Ok(span(value).map(|result| NonFinite { result, found }))
    }
}

/// Why a run could not be done again.
struct Refused;

impl From<OpError> for Refused {
    fn from(_: OpError) -> Refused {
        Refused
    }
}

impl From<CompileError> for Refused {
    fn from(_: CompileError) -> Refused {
        Refused
    }
}

impl From<RunError> for Refused {
    fn from(_: RunError) -> Refused {
        Refused
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

impl Executable for Seeking {
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
        self.submit(inputs, Wanted::All)?;
        self.wait(outputs)
    }

    fn submit(&mut self, inputs: &[(&str, &Tensor)], wanted: Wanted<'_>) -> Result<(), RunError> {
        let outputs = &self.checked.signature.outputs;
        let wanted = places(&self.checked.signature, wanted)?;
        let wanted: Vec<&str> = wanted.iter().map(|at| &*outputs[*at].name).collect();
        let given = inputs.iter().map(|(n, t)| ((*n).to_string(), (*t).clone()));
        self.given = given.collect();
        let submitted = self.inner.submit(inputs, Wanted::Only(&wanted));
        submitted.map_err(|e| self.named(e))
    }

    /// What a run was given is kept until it is over: one at a time.
    fn submit_behind(
        &mut self,
        _: &[(&str, &Tensor)],
        _: &[(&str, &str)],
        _: Wanted<'_>,
    ) -> Result<bool, RunError> {
        Ok(false)
    }

    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.inner.wait(outputs).map_err(|e| self.named(e))
    }

    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        self.inner.poll_run(cx).map_err(|e| self.named(e))
    }

    fn fetch_output_rows(&mut self, output: &str, rows: Range<usize>) -> Result<Fetch, RunError> {
        self.inner.fetch_output_rows(output, rows)
    }

    fn fetch_state(&mut self, name: &str) -> Result<Fetch, RunError> {
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

    fn timings(&mut self) -> Vec<StepTime> {
        self.inner.timings()
    }

    fn write_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError> {
        self.inner.write_state(name, tensor)
    }

    fn read_state(&self, name: &str) -> Result<Tensor, RunError> {
        self.inner.read_state(name)
    }

    fn random(&self) -> Random {
        self.inner.random()
    }

    fn set_random(&mut self, random: Random) {
        self.inner.set_random(random);
    }

    fn reset(&mut self) {
        self.inner.reset();
    }

    fn try_clone(&self) -> Result<Box<dyn Executable>, RunError> {
        Ok(Box::new(Seeking {
            inner: self.inner.try_clone()?,
            checked: Arc::clone(&self.checked),
            params: self.params.clone(),
            given: Vec::new(),
            bound: self.bound.clone(),
        }))
    }
}
