//! Emits the steps of a program: operand layouts that the kernel accepts, results, scratch memory
//! and packed operands.

use tercet_ir::layout::SymLayout;
use tercet_ir::{CompileError, Node, NodeId, Type};

use super::{CpuProgramBuilder, ResultPlacements, too_large};
use crate::lower::{KernelPackFn, LoweredNode, copy_kernel};
use crate::plan::{
    ConstSource, CpuStep, MemoryRoot, PackDef, PendingArenaSlot, StepOperand, ValuePlacement,
};

/// Names that identify a step in errors and plans: its node, operator and kernel.
pub(super) struct StepLabel {
    pub(super) id: NodeId,
    pub(super) op: &'static str,
    pub(super) kernel: &'static str,
}

impl StepLabel {
    /// Label of a kernel call for a node.
    pub(super) fn new(id: NodeId, node: &Node, kernel: &'static str) -> StepLabel {
        StepLabel {
            id,
            op: node.op.kind().doc().name,
            kernel,
        }
    }
}

impl CpuProgramBuilder<'_> {
    /// Returns the value in dense layout. If a copy is needed, all readers share one.
    pub(super) fn dense(
        &mut self,
        from: &ValuePlacement,
        id: NodeId,
    ) -> Result<ValuePlacement, CompileError> {
        let known = self.dense.get(&from.root).and_then(|list| {
            list.iter()
                .find(|(layout, _)| *layout == from.layout)
                .map(|(_, place)| place.clone())
        });
        if let Some(place) = known {
            return Ok(place);
        }
        let place = self.copy(from, id, None)?;
        self.dense
            .entry(from.root)
            .or_default()
            .push((from.layout.clone(), place.clone()));
        Ok(place)
    }

    pub(super) fn copy(
        &mut self,
        from: &ValuePlacement,
        id: NodeId,
        to: Option<MemoryRoot>,
    ) -> Result<ValuePlacement, CompileError> {
        let ty = Type::new(from.dtype, from.layout.shape().to_vec());
        let site = StepLabel {
            id,
            op: "copy",
            kernel: "copy",
        };
        let homes: ResultPlacements = to.map(|root| (0, root)).into_iter().collect();
        let forced = to.is_some();
        let places = self.emit(
            site,
            copy_kernel(),
            vec![from.clone()],
            &[ty],
            &homes,
            forced,
        )?;
        Ok(places
            .into_iter()
            .next()
            .expect("invariant: a copy has one result"))
    }

    pub(super) fn emit(
        &mut self,
        site: StepLabel,
        lowered: LoweredNode,
        mut ins: Vec<ValuePlacement>,
        results: &[Type],
        homes: &ResultPlacements,
        varies: bool,
    ) -> Result<Vec<ValuePlacement>, CompileError> {
        let LoweredNode {
            run,
            accepts,
            fallible,
            in_place,
            scratch,
            pack,
            pack_name,
            work,
            undo,
        } = lowered;
        // A step is not run once in advance if its results, or constants that it broadcasts, have
        // sizes that are only known per run.
        let of_run = |dims: &[tercet_ir::Dim]| dims.iter().any(|d| d.known().is_none());
        let sized_by_run = results.iter().any(|ty| of_run(&ty.shape))
            || ins.iter().any(|place| of_run(place.layout.shape()));
        let varies =
            varies || sized_by_run || ins.iter().any(|p| !matches!(p.root, MemoryRoot::Const(_)));
        for (place, accept) in ins.iter_mut().zip(&accepts) {
            if !accept.accepts(&place.layout) {
                *place = self.dense(place, site.id)?;
            }
        }
        let mut operands: Vec<StepOperand> = ins.iter().map(ValuePlacement::operand).collect();
        let packed =
            pack.and_then(|(at, pack)| self.packed(&site, &mut operands, at, (pack, pack_name)));
        let params = self.params_of(&operands);
        let places = self.results(results, homes, (!varies).then_some(params))?;
        for (port, root) in homes {
            self.dense.remove(root);
            for operand in operands.iter_mut().filter(|o| o.root == *root) {
                (operand.absent, operand.within) = (true, *port);
            }
        }
        let n_ins = operands.len();
        operands.extend(places.iter().map(ValuePlacement::operand));
        let scratch = match scratch {
            Some(size) => Some((self.scratch(&operands, &size)?, size)),
            None => None,
        };
        let start = self.program.operands.len();
        self.program.operands.append(&mut operands);
        let step = CpuStep {
            op: site.op,
            kernel: site.kernel,
            node: site.id,
            run,
            operands: start..self.program.operands.len(),
            ins: n_ins,
            scratch,
            pack: packed,
            fallible,
            in_place,
            work,
            undo: undo.filter(|_| {
                homes
                    .iter()
                    .any(|(_, root)| matches!(root, MemoryRoot::State(_)))
            }),
        };
        match varies {
            true => self.program.steps.push(step),
            false => self.program.prepare.push(step),
        }
        Ok(places)
    }

    /// Places the results of the next step: in predefined memory, in slots, or in constants. If
    /// `prepared` is present, the results are constants, and `prepared` lists the parameters that
    /// they depend on.
    fn results(
        &mut self,
        results: &[Type],
        homes: &ResultPlacements,
        prepared: Option<Vec<usize>>,
    ) -> Result<Vec<ValuePlacement>, CompileError> {
        let mut places = Vec::with_capacity(results.len());
        for (port, ty) in results.iter().enumerate() {
            let home = homes.iter().find(|(p, _)| usize::from(*p) == port);
            let root = match (home, &prepared) {
                (Some((_, root)), _) => *root,
                (None, None) => self.slot(ty)?,
                (None, Some(params)) => {
                    let step = self.program.prepare.len();
                    self.constant(ConstSource::Step(step), params.clone())
                }
            };
            let layout = SymLayout::dense(&ty.shape).ok_or_else(|| too_large(ty))?;
            places.push(ValuePlacement {
                root,
                layout,
                dtype: ty.dtype,
            });
        }
        Ok(places)
    }

    /// Packs operand `at` once if it is a constant; the step then reads only the packed form. Steps
    /// of an unrolled loop share the form.
    fn packed(
        &mut self,
        site: &StepLabel,
        operands: &mut [StepOperand],
        at: usize,
        (pack, name): (KernelPackFn, Option<&'static str>),
    ) -> Option<usize> {
        let operand = operands.get_mut(at)?;
        let MemoryRoot::Const(of) = operand.root else {
            return None;
        };
        let whole = operand.clone();
        operand.absent = true;
        let same = |own: &PackDef| {
            own.of == of
                && name.is_some()
                && own.name == name
                && own.operand.dtype == whole.dtype
                && own.operand.layout == whole.layout
        };
        if let Some(shared) = self.program.packs.iter().position(same) {
            return Some(shared);
        }
        self.program.packs.push(PackDef {
            operand: whole,
            pack,
            name,
            of,
            node: site.id,
            op: site.op,
        });
        Some(self.program.packs.len() - 1)
    }

    /// A slot for scratch memory, sized for the bounds.
    fn scratch(
        &mut self,
        operands: &[StepOperand],
        size: &crate::lower::KernelScratchFn,
    ) -> Result<usize, CompileError> {
        let layouts: Result<Vec<_>, _> = operands
            .iter()
            .map(|o| o.layout.eval(self.bounds))
            .collect();
        let bytes = size(&layouts?, self.options.threads);
        self.slots.push(PendingArenaSlot {
            numel: None,
            elem_bytes: 1,
            bytes,
            pinned: false,
        });
        Ok(self.slots.len() - 1)
    }

    fn params_of(&self, operands: &[StepOperand]) -> Vec<usize> {
        let mut params: Vec<usize> = operands
            .iter()
            .filter_map(|o| match o.root {
                MemoryRoot::Const(c) => Some(self.program.consts[c].params.iter().copied()),
                MemoryRoot::Input(_)
                | MemoryRoot::State(_)
                | MemoryRoot::Output(_)
                | MemoryRoot::Slot(_) => None,
            })
            .flatten()
            .collect();
        params.sort_unstable();
        params.dedup();
        params
    }
}
