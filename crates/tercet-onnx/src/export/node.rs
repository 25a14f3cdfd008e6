//! The table of exportable operators, and the node being exported.

use tercet_ir::{DType, Graph, Node, Op, Tensor, Type, Value};

use super::proto::{OnnxAttrValue, code};
use super::writer::{ExportNodeError, ExportNodeResult, OnnxWriter};
use super::{control, elementwise, movement, recurrent, windows};

/// The node being exported.
pub(super) struct ExportNode<'a> {
    pub(super) w: &'a mut OnnxWriter,
    graph: &'a Graph,
    node: &'a Node,
    /// The names of its operands.
    pub(super) names: Vec<String>,
}

impl<'a> ExportNode<'a> {
    /// The name of an operand.
    pub(super) fn x(&self, operand: usize) -> &str {
        &self.names[operand]
    }

    /// The type of an operand.
    pub(super) fn ty(&self, operand: usize) -> &'a Type {
        self.graph.ty(self.node.inputs[operand])
    }

    /// The type of a result.
    pub(super) fn result(&self, port: usize) -> &'a Type {
        &self.node.outputs[port]
    }

    /// The operator that computes an operand, and its operands.
    pub(super) fn source(&self, operand: usize) -> (&'a Op, &'a [Value]) {
        let node = self.graph.node(self.node.inputs[operand].node);
        (&node.op, &node.inputs)
    }

    /// The operator that computes a value.
    pub(super) fn op_of(&self, value: Value) -> &'a Op {
        &self.graph.node(value.node).op
    }

    /// The number of operands.
    pub(super) fn operands(&self) -> usize {
        self.names.len()
    }

    /// The tensor of an operand, if it is a constant of the graph.
    pub(super) fn constant(&self, operand: usize) -> Option<&'a Tensor> {
        match &self.graph.node(self.node.inputs[operand].node).op {
            Op::Const(c) => Some(&c.tensor),
            _ => None,
        }
    }

    /// The operand cast to another dtype if needed.
    pub(super) fn cast_to(&mut self, operand: usize, dtype: DType) -> String {
        match self.ty(operand).dtype == dtype {
            true => self.names[operand].clone(),
            false => self.w.cast(&self.names[operand], code(dtype)),
        }
    }

    /// Writes the node `op` with all operands unchanged.
    pub(super) fn plain(&mut self, op: &str, attrs: Vec<(&str, OnnxAttrValue)>) -> String {
        let operands: Vec<&str> = self.names.iter().map(String::as_str).collect();
        self.w.add(op, &operands, attrs)
    }
}

/// Writes a node and returns the names of its results.
///
/// # Errors
/// [`ExportNodeError`] if ONNX cannot express the node, or if a size is unknown to the model.
pub(super) fn emit(w: &mut OnnxWriter, graph: &Graph, node: &Node) -> ExportNodeResult {
    let names = node.inputs.iter().map(|v| w.name(*v)).collect();
    let mut at = ExportNode {
        w,
        graph,
        node,
        names,
    };
    let at = &mut at;
    let one = |name: Result<String, ExportNodeError>| name.map(|name| vec![name]);
    match &node.op {
        Op::Unary(o) => one(elementwise::unary(at, o.f)),
        Op::Binary(o) => one(elementwise::binary(at, o.f)),
        Op::Compare(o) => one(elementwise::compare(at, o.f)),
        Op::Where(_) => Ok(vec![at.plain("Where", Vec::new())]),
        Op::Fma(_) => one(elementwise::fma(at)),
        Op::Clamp(o) => one(elementwise::clamp(at, o.lo.0, o.hi.0)),
        Op::Cast(o) => one(elementwise::cast(at, o.to)),
        Op::StopGradient(_) | Op::Checkpoint(_) => Ok(vec![at.names[0].clone()]),

        Op::Reshape(o) => one(movement::reshape(at, &o.shape)),
        Op::Transpose(o) => Ok(vec![movement::transpose(at, &o.perm)]),
        Op::Slice(o) => Ok(vec![movement::slice(at, o)]),
        Op::Concat(o) => Ok(vec![movement::concat(at, o.axis)]),
        Op::Expand(o) => one(movement::expand(at, &o.shape)),
        Op::Pad(o) => Ok(vec![movement::pad(at, o)]),
        Op::Tile(o) => Ok(vec![movement::tile(at, &o.reps)]),
        Op::Trilu(o) => Ok(vec![movement::trilu(at, o.upper, o.k)]),
        Op::Gather(o) => Ok(vec![movement::gather(at, o.axis)]),
        Op::GatherElements(o) => Ok(vec![movement::gather_elements(at, o.axis)]),
        Op::GatherNd(o) => one(movement::gather_nd(at, o.batch_dims)),
        Op::ScatterElements(o) => Ok(vec![movement::scatter_elements(at, o.axis, o.reduce)]),
        Op::ScatterNd(o) => Ok(vec![movement::scatter_nd(at, o.reduce)]),
        Op::ScatterAdd(o) => one(movement::scatter_add(at, &o.rows)),
        Op::OneHot(o) => one(movement::one_hot(at, o.depth, o.to)),
        Op::DynamicSlice(o) => one(movement::dynamic_slice(at, &o.sizes)),
        Op::DynamicUpdateSlice(_) => one(movement::dynamic_update_slice(at)),
        Op::TopK(o) => movement::top_k(at, o),
        Op::Sort(o) => movement::sort(at, o),
        Op::ArgMax(o) => Ok(vec![movement::arg(at, "ArgMax", o.axis, o.keep_dim)]),
        Op::ArgMin(o) => Ok(vec![movement::arg(at, "ArgMin", o.axis, o.keep_dim)]),
        _ => contraction(at),
    }
}

/// Exports reductions, matmuls, windows, random numbers and control flow.
fn contraction(at: &mut ExportNode<'_>) -> ExportNodeResult {
    let one = |name: Result<String, ExportNodeError>| name.map(|name| vec![name]);
    match &at.node.op {
        Op::Reduce(o) => one(windows::reduce(at, o)),
        Op::CumSum(o) => one(windows::cum_sum(at, o)),
        Op::Softmax(o) => Ok(vec![windows::softmax(at, o.axis, "Softmax", 0.0)]),
        Op::LogSoftmax(o) => {
            let of_nothing = f64::NEG_INFINITY;
            Ok(vec![windows::softmax(at, o.axis, "LogSoftmax", of_nothing)])
        }
        Op::LayerNorm(o) => one(windows::layer_norm(at, o)),
        Op::BatchNormInference(o) => one(windows::batch_norm(at, o.eps.0)),
        Op::MatMul(_) => Ok(vec![windows::mat_mul(at)]),
        Op::GroupedMatMul(_) => one(windows::grouped_mat_mul(at)),
        Op::Conv(o) => one(windows::conv(at, o)),
        Op::ConvTranspose(o) => one(windows::conv_transpose(at, o)),
        Op::Pool(o) => one(windows::pool(at, o)),
        Op::Resize(o) => one(windows::resize(at, o)),
        Op::Fft(o) => one(windows::fft(at, o)),
        Op::Dequantize(o) => windows::dequantize(at, o),
        Op::Sample(o) if o.temperature.0 == 0.0 => Ok(vec![movement::greatest(at)]),
        Op::RngUniform(o) => {
            let limits = [("low", o.lo.0), ("high", o.hi.0)];
            one(windows::random(
                at,
                "RandomUniformLike",
                o.dtype,
                &o.shape,
                limits,
            ))
        }
        Op::RngNormal(o) => {
            let shape = [("mean", o.mean.0), ("scale", o.std.0)];
            one(windows::random(
                at,
                "RandomNormalLike",
                o.dtype,
                &o.shape,
                shape,
            ))
        }

        Op::SelectiveScan(o) => recurrent::selective_scan(at, o),
        Op::Mamba2(o) => recurrent::mamba2(at, o),
        Op::GatedDeltaNet(o) => recurrent::gated_delta_net(at, o),
        Op::If(o) => control::branch(at, o),
        Op::While(o) => control::repeat(at, o),
        Op::Scan(o) => control::scan(at, o),
        _ => ExportNodeError::because("ONNX has no operator for it"),
    }
}
