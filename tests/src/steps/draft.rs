//! A builder of graphs with F32 master weights (states), which are cast to the compute dtype at
//! their uses.

use tercet::{DType, Graph, OpError, Tensor, TensorType, Type, Value, fill::InputFill};

use super::{BoxError, StepNet, pattern};

/// A graph under construction, with the initial values of its states.
pub(super) struct StepGraphBuilder {
    pub(super) graph: Graph,
    /// The compute dtype.
    pub(super) dtype: DType,
    trained: Vec<(String, Tensor)>,
    states: Vec<(String, Tensor)>,
}

impl StepGraphBuilder {
    pub(super) fn new(dtype: DType) -> StepGraphBuilder {
        StepGraphBuilder {
            graph: Graph::new(),
            dtype,
            trained: Vec::new(),
            states: Vec::new(),
        }
    }

    /// Adds a trained F32 weight with uniformly distributed initial values around 0.
    pub(super) fn master(
        &mut self,
        name: &str,
        shape: &[usize],
        width: f64,
    ) -> Result<Value, BoxError> {
        let ty = TensorType::new(DType::F32, shape);
        let first = pattern(name, &ty, &InputFill::Uniform(-width, width))?;
        self.trained.push((name.to_string(), first));
        Ok(self.graph.state(name, Type::new(DType::F32, shape))?)
    }

    /// Adds a trained F32 vector with a constant initial value.
    pub(super) fn vector(&mut self, name: &str, len: usize, value: f32) -> Result<Value, BoxError> {
        let first = Tensor::from_slice(&[len], &vec![value; len])?;
        self.trained.push((name.to_string(), first));
        Ok(self.graph.state(name, Type::new(DType::F32, [len]))?)
    }

    /// As [`StepGraphBuilder::vector`], cast to the compute dtype.
    pub(super) fn filled(&mut self, name: &str, len: usize, value: f32) -> Result<Value, BoxError> {
        let master = self.vector(name, len, value)?;
        Ok(self.own(master)?)
    }

    /// Adds an F32 vector that is not trained (running statistics), with a constant initial value.
    pub(super) fn running(
        &mut self,
        name: &str,
        len: usize,
        value: f32,
    ) -> Result<Value, BoxError> {
        let first = Tensor::from_slice(&[len], &vec![value; len])?;
        self.states.push((name.to_string(), first));
        Ok(self.graph.state(name, Type::new(DType::F32, [len]))?)
    }

    /// Casts `x` to the compute dtype.
    pub(super) fn own(&mut self, x: Value) -> Result<Value, OpError> {
        match self.graph.ty(x).dtype == self.dtype {
            true => Ok(x),
            false => self.graph.cast(x, self.dtype),
        }
    }

    /// `x w + b` with `w [inner, out]`.
    pub(super) fn linear(
        &mut self,
        x: Value,
        name: &str,
        [inner, out]: [usize; 2],
    ) -> Result<Value, BoxError> {
        let w = self.master(&format!("{name}.weight"), &[inner, out], 0.035)?;
        let w = self.own(w)?;
        let b = self.filled(&format!("{name}.bias"), out, 0.0)?;
        Ok(self.graph.linear(x, w, Some(b), None)?)
    }

    pub(super) fn layer_norm(
        &mut self,
        x: Value,
        name: &str,
        width: usize,
    ) -> Result<Value, BoxError> {
        let gamma = self.filled(&format!("{name}.weight"), width, 1.0)?;
        let beta = self.filled(&format!("{name}.bias"), width, 0.0)?;
        let axis = self.graph.ty(x).rank() - 1;
        Ok(self.graph.layer_norm(x, gamma, Some(beta), axis, 1e-5)?)
    }

    /// The mean cross-entropy in F32 of `logits [n, classes or more]` and `labels [n]`; additional
    /// columns are ignored.
    pub(super) fn finish(
        mut self,
        logits: Value,
        labels: Value,
        classes: usize,
        batch: Vec<(&'static str, Tensor)>,
        (count, unit): (usize, &'static str),
    ) -> Result<StepNet, BoxError> {
        let loss = cross_entropy(&mut self.graph, logits, labels, classes)?;
        Ok(StepNet {
            graph: self.graph,
            loss,
            params: Vec::new(),
            trained: self.trained,
            states: self.states,
            batch,
            count,
            unit,
        })
    }
}

/// The mean cross-entropy over rows in F32 of `logits [n, classes or more]` and `labels [n]`;
/// additional columns are ignored.
///
/// # Errors
/// Errors of the graph builder.
pub fn cross_entropy(
    g: &mut Graph,
    logits: Value,
    labels: Value,
    classes: usize,
) -> Result<Value, OpError> {
    let wide = match g.ty(logits).dtype {
        DType::F32 => logits,
        _ => g.cast(logits, DType::F32)?,
    };
    let columns = g.ty(wide).shape[1].known().unwrap_or(classes);
    let scores = match columns > classes {
        true => {
            let mut mask = vec![0.0_f32; columns];
            mask[classes..].fill(f32::NEG_INFINITY);
            let mask = Tensor::from_slice(&[1, columns], &mask);
            let mask = g.constant(mask.expect("invariant: one number per column"))?;
            g.plus(wide, mask)?
        }
        false => wide,
    };
    let most = g.reduce_max(scores, &[1], true)?;
    let most = g.stop_gradient(most)?;
    let shifted = g.sub(scores, most)?;
    let sum = g.exp(shifted)?;
    let sum = g.reduce_sum(sum, &[1], true)?;
    let log_sum = g.ln(sum)?;
    let at = g.unsqueeze(labels, 1)?;
    let own = g.gather_elements(wide, at, 1)?;
    let own = g.sub(own, most)?;
    let losses = g.sub(log_sum, own)?;
    g.reduce_mean(losses, &[0, 1], false)
}
