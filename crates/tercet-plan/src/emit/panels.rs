//! Panel-packed activation rows. If the only reader of 16-bit rows is a matmul with prepacked
//! weights, the rows are stored in panels of 32 columns, `[k / 32, rows, 32]`. In this layout, a
//! subgroup reads eight rows of one k step as 512 contiguous bytes.
//!
//! The lowering of a kernel that can write panels registers it as a producer; the lowering of the
//! matmul later requests panels. If both happen, a word of the producer's parameter block enables
//! panels. Only this matmul reads a panel-packed slot.

use tercet_ir::{NodeId, Value};

use super::{LoweringCtx, SlotPlacement};
use tercet_program::SymInt;
use tercet_program::{ParamBlock, ParamWord};
use tercet_program::{ProgramStep, ShapeBranch, ShapeBranches, SlotId, StepOp};

/// A dispatch that can write the rows of its result slot panel-packed.
#[derive(Clone, Debug)]
pub(super) struct PanelProducer {
    slot: SlotId,
    /// Shape branches that the dispatch belongs to.
    branches: ShapeBranches,
    /// Number of rows and number of columns of the slot.
    size: [SymInt; 2],
    /// Index of the dispatch in the stage under construction, and the start of its parameter block.
    step: usize,
    block: u32,
    /// Index of the parameter word that is set to 1 if the dispatch must write panels.
    word: usize,
}

impl LoweringCtx<'_> {
    /// Registers the last dispatch as a producer: it writes the `[rows, columns]` values of `slot`
    /// panel-packed if its parameter `field` is 1.
    pub(crate) fn offer_panels<P: ParamBlock>(
        &mut self,
        field: &'static str,
        slot: SlotId,
        size: [SymInt; 2],
    ) {
        let known = P::FIELDS.iter().find(|f| f.name == field);
        let is_last = |work: &StepOp| matches!(work, StepOp::Dispatch(d) if d.args.contains(&slot));
        let writes = self.draft.steps.last().is_some_and(|s| is_last(&s.work));
        let runs = writes && !self.cursor.constant && !self.facts.has_flow;
        let (Some(field), SlotPlacement::Arena, true) = (known, self.home(slot), runs) else {
            return;
        };
        let block = self.last_block();
        self.values.panels.push(PanelProducer {
            slot,
            branches: self.cursor.branches.clone(),
            size,
            step: self.draft.steps.len() - 1,
            block,
            word: (block + field.offset_bytes / 4) as usize,
        });
    }

    /// Requests that the `[rows, columns]` values of `slot` are panel-packed in the current shape
    /// branches. Returns true if the producer can write panels and only the current node reads the
    /// slot.
    pub(crate) fn accept_panels(&mut self, slot: SlotId, size: [SymInt; 2]) -> bool {
        let arms = self.cursor.branches.clone();
        let fits = |o: &&PanelProducer| {
            let is_near = o.branches == arms || o.branches.is_empty();
            o.slot == slot && o.size == size && is_near
        };
        let Some(offer) = self.values.panels.iter().rev().find(fits).cloned() else {
            return false;
        };
        let steps = &self.draft.steps;
        let is_there = steps
            .get(offer.step)
            .is_some_and(|s| matches!(&s.work, StepOp::Dispatch(d) if d.block == offer.block));
        // A step of another branch of the same shape switch never executes in the same run as the
        // current step.
        let is_elsewhere = |step: &ProgramStep| {
            let other = |a, b: &ShapeBranch| b.choice == a && !arms.contains(b);
            arms.iter()
                .any(|arm| step.branches.iter().any(|of| other(arm.choice, of)))
        };
        let touches = |step: &ProgramStep| match &step.work {
            StepOp::Dispatch(d) => d.args.contains(&slot),
            StepOp::Copy { src, dst, .. } => *src == slot || *dst == slot,
            StepOp::Fill { dst, .. } => *dst == slot,
        };
        let since = steps.get(offer.step + 1..).unwrap_or_default();
        let is_read = since.iter().any(|s| touches(s) && !is_elsewhere(s));
        if !is_there || is_read || self.is_read_later(slot) {
            return false;
        }
        let taken = match offer.branches == arms {
            true => Some(SymInt::ONE),
            false => self.are_taken(&arms),
        };
        if let Some(taken) = taken {
            self.draft.params[offer.word] = ParamWord::SymInt(taken);
        }
        taken.is_some()
    }

    /// A symbolic value that is 1 in runs that execute these shape branches, else 0. `None` unless
    /// each branch is the last one of its shape switch and all switches test the same value.
    fn are_taken(&mut self, arms: &ShapeBranches) -> Option<SymInt> {
        let mut last: Option<(SymInt, u32)> = None;
        for arm in arms {
            let choice = &self.draft.shape_switches[arm.choice.0 as usize];
            let bound = *choice.bounds.last()?;
            let is_last = arm.index as usize == choice.bounds.len();
            let (value, above) = last.unwrap_or((choice.value, bound));
            if !is_last || value != choice.value {
                return None;
            }
            last = Some((value, above.max(bound)));
        }
        let (value, above) = last?;
        let tape = &mut self.draft.tape;
        let over = tape.sub(value, SymInt::Const(above.into()));
        let over = tape.max(over, SymInt::ZERO);
        Some(tape.min(over, SymInt::ONE))
    }

    /// True if a later node, an output or a state may read a value in this slot.
    fn is_read_later(&self, slot: SlotId) -> bool {
        let lies_there = |v: Value| {
            let places = &self.values.views[v.node.index()];
            places
                .get(usize::from(v.port))
                .is_some_and(|view| view.slot == slot)
        };
        // The later readers of a value that is computed on demand are unknown.
        let mut on_demand = self.values.materialized.iter();
        if on_demand.any(|(.., view)| view.slot == slot) {
            return true;
        }
        let NodeId(at) = self.cursor.at;
        let later = self.graph.nodes().filter(|(id, _)| id.0 > at);
        let mut inputs = later.flat_map(|(_, node)| node.inputs.iter().copied());
        let mut results = self.graph.outputs().iter().map(|o| o.value);
        let mut states = self.graph.assigns().iter().map(|a| a.value);
        inputs.any(lies_there) || results.any(lies_there) || states.any(lies_there)
    }
}
