//! Steps of the nodes whose results lie with their channels last, as views of the types that they have.

use tercet_ir::passes::{FROM_LAST, TO_LAST};
use tercet_ir::{CompileError, Node, NodeId, Op, Type};

use super::steps::Site;
use super::{Builder, Homes};
use crate::lower::last;
use crate::plan::Place;

impl Builder<'_> {
    /// The step of a convolution or pool, and the view of its result.
    pub(super) fn last(
        &mut self,
        kernel: &'static str,
        id: NodeId,
        node: &Node,
    ) -> Result<Vec<Place>, CompileError> {
        let mut ins: Vec<Place> = node.inputs.iter().map(|v| self.place(*v).clone()).collect();
        let turned = ins[0].layout.transpose(&TO_LAST);
        let in_planes = !turned.has_dense_rows() && ins[0].layout.is_contiguous();
        let is_first = in_planes && last::reads_planes(self.graph, node);
        if !is_first {
            ins[0].layout = turned;
        }
        let sum = self.last.sums.get(&id);
        if let Some(sum) = sum {
            let mut to = self.place(sum.to).clone();
            to.layout = to.layout.transpose(&TO_LAST);
            ins.push(to);
        }
        let lowered = match &node.op {
            Op::Conv(_) => last::lower_conv(node, is_first, sum),
            _ => last::lower_pool(node),
        };
        let ty = &node.outputs[0];
        let shape: Vec<_> = TO_LAST.iter().map(|&a| ty.shape[a].clone()).collect();
        let site = Site::of(id, node, kernel);
        let results = [Type::new(ty.dtype, shape)];
        let mut places = self.emit(site, lowered, ins, &results, &Homes::new(), false)?;
        for place in &mut places {
            place.layout = place.layout.transpose(&FROM_LAST);
        }
        if let Some(sum) = sum {
            self.made.insert(sum.node, places.clone());
        }
        Ok(places)
    }
}
