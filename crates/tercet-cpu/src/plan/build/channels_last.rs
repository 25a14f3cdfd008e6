//! Steps of nodes whose results are stored channels-last. Later steps read these results through
//! permuted layouts, in the axis order of the graph.

use tercet_ir::passes::{FROM_LAST, TO_LAST};
use tercet_ir::{CompileError, Node, NodeId, Op, Type};

use super::steps::StepLabel;
use super::{CpuProgramBuilder, ResultPlacements};
use crate::lower::channels_last;
use crate::plan::ValuePlacement;

impl CpuProgramBuilder<'_> {
    /// Emits the channels-last step of a convolution or pool, and returns its result as a view in
    /// the axis order of the graph.
    pub(super) fn channels_last_step(
        &mut self,
        kernel: &'static str,
        id: NodeId,
        node: &Node,
    ) -> Result<Vec<ValuePlacement>, CompileError> {
        let mut ins: Vec<ValuePlacement> =
            node.inputs.iter().map(|v| self.place(*v).clone()).collect();
        let turned = ins[0].layout.transpose(&TO_LAST);
        let in_planes = !turned.has_dense_rows() && ins[0].layout.is_contiguous();
        let is_first = in_planes && channels_last::reads_planes(self.graph, node);
        if !is_first {
            ins[0].layout = turned;
        }
        let sum = self.channels_last.sums.get(&id);
        if let Some(sum) = sum {
            let mut to = self.place(sum.to).clone();
            to.layout = to.layout.transpose(&TO_LAST);
            ins.push(to);
        }
        let lowered = match &node.op {
            Op::Conv(_) => channels_last::lower_conv(node, is_first, sum),
            _ => channels_last::lower_pool(node),
        };
        let ty = &node.outputs[0];
        let shape: Vec<_> = TO_LAST.iter().map(|&a| ty.shape[a].clone()).collect();
        let site = StepLabel::new(id, node, kernel);
        let results = [Type::new(ty.dtype, shape)];
        let mut places = self.emit(
            site,
            lowered,
            ins,
            &results,
            &ResultPlacements::new(),
            false,
        )?;
        for place in &mut places {
            place.layout = place.layout.transpose(&FROM_LAST);
        }
        if let Some(sum) = sum {
            self.computed.insert(sum.node, places.clone());
        }
        Ok(places)
    }
}
