//! The steps of a program: operands where their kernel takes them, results, scratch memory, what is packed.

use tercet_ir::layout::SymLayout;
use tercet_ir::{CompileError, Node, NodeId, Type};

use super::{Builder, Homes, too_large};
use crate::lower::{Lowered, Pack, copy_kernel};
use crate::plan::{Operand, PackDef, Place, Root, SlotDraft, Source, Step};

/// What a step is said to do.
pub(super) struct Site {
    pub(super) id: NodeId,
    pub(super) op: &'static str,
    pub(super) kernel: &'static str,
}

impl Site {
    /// The call of a kernel for a node.
    pub(super) fn of(id: NodeId, node: &Node, kernel: &'static str) -> Site {
        Site {
            id,
            op: node.op.kind().doc().name,
            kernel,
        }
    }
}

impl Builder<'_> {
    /// The value as dense memory, copied once however many need it.
    pub(super) fn dense(&mut self, from: &Place, id: NodeId) -> Result<Place, CompileError> {
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
        from: &Place,
        id: NodeId,
        to: Option<Root>,
    ) -> Result<Place, CompileError> {
        let ty = Type::new(from.dtype, from.layout.shape().to_vec());
        let site = Site {
            id,
            op: "copy",
            kernel: "copy",
        };
        let homes: Homes = to.map(|root| (0, root)).into_iter().collect();
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
        site: Site,
        lowered: Lowered,
        mut ins: Vec<Place>,
        results: &[Type],
        homes: &Homes,
        varies: bool,
    ) -> Result<Vec<Place>, CompileError> {
        let Lowered {
            run,
            accepts,
            fallible,
            in_place,
            scratch,
            pack,
            work,
            undo,
        } = lowered;
        // What depends on sizes of the run cannot be made before it: results, or a constant that is spread over them.
        let of_run = |dims: &[tercet_ir::Dim]| dims.iter().any(|d| d.known().is_none());
        let sized_by_run = results.iter().any(|ty| of_run(&ty.shape))
            || ins.iter().any(|place| of_run(place.layout.shape()));
        let varies =
            varies || sized_by_run || ins.iter().any(|p| !matches!(p.root, Root::Const(_)));
        for (place, accept) in ins.iter_mut().zip(&accepts) {
            if !accept.takes(&place.layout) {
                *place = self.dense(place, site.id)?;
            }
        }
        let mut operands: Vec<Operand> = ins.iter().map(Place::operand).collect();
        let packed = pack.and_then(|(at, pack)| self.packed(&site, &mut operands, at, pack));
        let params = self.params_of(&operands);
        let places = self.results(results, homes, (!varies).then_some(params))?;
        for (port, root) in homes {
            self.dense.remove(root);
            for operand in operands.iter_mut().filter(|o| o.root == *root) {
                (operand.absent, operand.within) = (true, *port);
            }
        }
        let n_ins = operands.len();
        operands.extend(places.iter().map(Place::operand));
        let scratch = match scratch {
            Some(size) => Some((self.scratch(&operands, &size)?, size)),
            None => None,
        };
        let start = self.program.operands.len();
        self.program.operands.append(&mut operands);
        let step = Step {
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
            undo: undo.filter(|_| homes.iter().any(|(_, root)| matches!(root, Root::State(_)))),
        };
        match varies {
            true => self.program.steps.push(step),
            false => self.program.prepare.push(step),
        }
        Ok(places)
    }

    /// Where the results of the next step lie: at home, else in slots, else in constants that `prepared` says the
    /// parameters of.
    fn results(
        &mut self,
        results: &[Type],
        homes: &Homes,
        prepared: Option<Vec<usize>>,
    ) -> Result<Vec<Place>, CompileError> {
        let mut places = Vec::with_capacity(results.len());
        for (port, ty) in results.iter().enumerate() {
            let home = homes.iter().find(|(p, _)| usize::from(*p) == port);
            let root = match (home, &prepared) {
                (Some((_, root)), _) => *root,
                (None, None) => self.slot(ty)?,
                (None, Some(params)) => {
                    let step = self.program.prepare.len();
                    self.constant(Source::Step(step), params.clone())
                }
            };
            let layout = SymLayout::dense(&ty.shape).ok_or_else(|| too_large(ty))?;
            places.push(Place {
                root,
                layout,
                dtype: ty.dtype,
            });
        }
        Ok(places)
    }

    /// Packs operand `at` when the program is made, if it is a constant: the step then reads the packed form only.
    fn packed(
        &mut self,
        site: &Site,
        operands: &mut [Operand],
        at: usize,
        pack: Pack,
    ) -> Option<usize> {
        let operand = operands.get_mut(at)?;
        let Root::Const(of) = operand.root else {
            return None;
        };
        let whole = operand.clone();
        operand.absent = true;
        self.program.packs.push(PackDef {
            operand: whole,
            pack,
            of,
            node: site.id,
            op: site.op,
        });
        Some(self.program.packs.len() - 1)
    }

    /// A slot for scratch memory, sized at the bounds.
    fn scratch(
        &mut self,
        operands: &[Operand],
        size: &crate::lower::Scratch,
    ) -> Result<usize, CompileError> {
        let layouts: Result<Vec<_>, _> = operands
            .iter()
            .map(|o| o.layout.eval(self.bounds))
            .collect();
        let bytes = size(&layouts?, self.how.threads);
        self.slots.push(SlotDraft {
            numel: None,
            elem_bytes: 1,
            bytes,
            pinned: false,
        });
        Ok(self.slots.len() - 1)
    }

    fn params_of(&self, operands: &[Operand]) -> Vec<usize> {
        let mut params: Vec<usize> = operands
            .iter()
            .filter_map(|o| match o.root {
                Root::Const(c) => Some(self.program.consts[c].params.iter().copied()),
                Root::Input(_) | Root::State(_) | Root::Output(_) | Root::Slot(_) => None,
            })
            .flatten()
            .collect();
        params.sort_unstable();
        params.dedup();
        params
    }
}
