//! Walks the legal graph once: a place for every value, a step for every kernel.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::legalize::Origins;
use tercet_ir::{
    Bindings, CompileError, DimError, Graph, MAX_ELEMENTS_LOG2, Node, NodeId, Op, Signature, Type,
    Value,
};

use super::{
    Commit, Const, Operand, PackDef, Place, Program, Root, SizeCheck, SlotDraft, Source, Step,
    finish,
};
use crate::exec::Sub;
use crate::lower::{Lower, Lowered, Pack, control, copy_kernel, find, varies};
use tercet_ir::layout::{SymLayout, View, check_slice, in_place_updates, numel, view_of};

/// The program of a legal graph, whose nodes stand for those of another graph as `origins` says.
///
/// # Errors
/// [`CompileError`] when memory at the bounds exceeds the address space or a size is not possible.
pub(crate) fn build(
    graph: &Graph,
    signature: Signature,
    bounds: &Bindings,
    threads: usize,
    origins: Origins,
) -> Result<Program, CompileError> {
    let mut updates = in_place_updates(graph);
    let draft = |updates| {
        drafted(
            graph,
            signature.clone(),
            bounds,
            threads,
            origins.clone(),
            updates,
        )
    };
    let (mut program, mut slots) = draft(updates.clone())?;
    if loses_state(&program) {
        updates.retain(|value, _| !matches!(graph.node(value.node).op, Op::Map(_)));
        (program, slots) = draft(updates)?;
    }
    finish::finish(program, slots)
}

/// True if a step may fail after one that wrote a state and cannot take that back.
fn loses_state(program: &Program) -> bool {
    let mut fallible_after = false;
    program.steps.iter().rev().any(|step| {
        let results = &program.operands[step.operands.clone()][step.ins..];
        let writes = results.iter().any(|o| matches!(o.root, Root::State(_)));
        let loses = writes && step.undo.is_none() && fallible_after;
        fallible_after |= step.fallible;
        loses
    })
}

/// Steps and slots of a program, with these updates in place.
fn drafted(
    graph: &Graph,
    signature: Signature,
    bounds: &Bindings,
    threads: usize,
    origins: Origins,
    updates: HashMap<Value, NodeId>,
) -> Result<(Program, Vec<SlotDraft>), CompileError> {
    let Signature {
        inputs,
        params,
        states,
        ..
    } = &signature;
    // No two leaves of a graph have one name.
    let leaves = [inputs, params, states].into_iter().flat_map(|ports| {
        let names = ports.iter().enumerate();
        names.map(|(at, port)| (port.name.clone(), at))
    });
    let leaves: HashMap<String, usize> = leaves.collect();
    let mut b = Builder {
        graph,
        leaves,
        bounds,
        threads,
        places: Vec::with_capacity(graph.len()),
        dense: HashMap::new(),
        slots: Vec::new(),
        updates,
        program: Program {
            signature,
            prepare: Vec::new(),
            steps: Vec::new(),
            operands: Vec::new(),
            consts: Vec::new(),
            checks: Vec::new(),
            packs: Vec::new(),
            commits: Vec::new(),
            slots: Vec::new(),
            arena_bytes: 0,
            threads,
            outputs: graph
                .outputs()
                .iter()
                .map(|o| graph.ty(o.value).clone())
                .collect(),
            origins,
            subs: Vec::new(),
        },
    };
    for (id, node) in graph.nodes() {
        let places = b.node(id, node)?;
        b.places.push(places);
    }
    b.outputs()?;
    b.assigns()?;
    Ok((b.program, b.slots))
}

/// Where results of a step lie already, by port.
type Homes = SmallVec<[(u8, Root); 1]>;

struct Builder<'a> {
    graph: &'a Graph,
    /// The place of each named leaf among those of its kind in the signature.
    leaves: HashMap<String, usize>,
    bounds: &'a Bindings,
    threads: usize,
    places: Vec<Vec<Place>>,
    /// Dense copies made so far, by root and layout.
    dense: HashMap<Root, Vec<(SymLayout, Place)>>,
    slots: Vec<SlotDraft>,
    /// Values that are written where states lie, with those states' leaves.
    updates: HashMap<Value, NodeId>,
    program: Program,
}

/// The error of a type whose bytes at the symbols' bounds cannot be counted.
fn too_large(ty: &Type) -> CompileError {
    CompileError::Bounds(DimError::TooMany {
        shape: ty.shape.clone(),
        log2: MAX_ELEMENTS_LOG2,
    })
}

impl Builder<'_> {
    fn place(&self, v: Value) -> &Place {
        &self.places[v.node.index()][v.port as usize]
    }

    fn node(&mut self, id: NodeId, node: &Node) -> Result<Vec<Place>, CompileError> {
        let kernel = find(self.graph, node)
            .expect("invariant: the legalizer leaves nodes that have a kernel");
        match kernel.lower {
            Lower::Leaf => Ok(vec![self.leaf(node)?]),
            Lower::View => {
                let from = self.place(node.inputs[0]).clone();
                let operand = self.graph.ty(node.inputs[0]);
                if let Some(slice) = check_slice(node, operand) {
                    self.program.checks.push(SizeCheck {
                        node: id,
                        op: node.op.kind().doc().name,
                        slice: slice.clone(),
                        from: operand.shape.clone(),
                        to: node.outputs[0].shape.clone(),
                    });
                }
                let layout = match view_of(node, operand, &from.layout) {
                    View::Free(layout) => return Ok(vec![Place { layout, ..from }]),
                    View::NeedsDense => self.dense(&from, id)?,
                };
                match view_of(node, operand, &layout.layout) {
                    View::Free(view) => Ok(vec![Place {
                        layout: view,
                        ..layout
                    }]),
                    View::NeedsDense => Err(too_large(&node.outputs[0])),
                }
            }
            Lower::Kernel(lower) => {
                let ins: Vec<Place> = node.inputs.iter().map(|v| self.place(*v).clone()).collect();
                let site = Site {
                    id,
                    op: node.op.kind().doc().name,
                    kernel: kernel.name,
                };
                let homes = self.homes(id, node);
                self.emit(
                    site,
                    kernel.make(lower, self.graph, node),
                    ins,
                    &node.outputs,
                    &homes,
                    varies(&node.op),
                )
            }
            Lower::Control => {
                let ins: Vec<Place> = node.inputs.iter().map(|v| self.place(*v).clone()).collect();
                let site = Site {
                    id,
                    op: node.op.kind().doc().name,
                    kernel: kernel.name,
                };
                let lowered = self.control(id, node)?;
                self.emit(site, lowered, ins, &node.outputs, &Homes::new(), true)
            }
        }
    }

    /// The states that results of a node are written into.
    fn homes(&self, node: NodeId, n: &Node) -> Homes {
        let ports = 0..n.outputs.len() as u8;
        let home = |port| self.updates.get(&Value { node, port });
        let homes = ports.filter_map(|port| Some((port, self.places[home(port)?.index()][0].root)));
        homes.collect()
    }

    /// A node that runs the programs of the graphs inside it.
    fn control(&mut self, id: NodeId, node: &Node) -> Result<Lowered, CompileError> {
        let mut subs = Vec::new();
        for (at, (name, block)) in node.op.subgraphs().into_iter().enumerate() {
            let (graph, origins) = (block.graph(), self.program.origins.inside(id, at));
            let signature = Signature::of(graph);
            let program = build(graph, signature, self.bounds, self.threads, origins)?;
            subs.push(Arc::new(Sub::new(name, program, self.threads)));
        }
        self.program.subs.extend(subs.iter().cloned());
        Ok(control::lower(node, &subs))
    }

    fn leaf(&mut self, node: &Node) -> Result<Place, CompileError> {
        let ty = &node.outputs[0];
        let place = |name: &String| {
            let place = self.leaves.get(name).copied();
            place.expect("invariant: passes keep the leaves of the graph")
        };
        let root = match &node.op {
            Op::Input(o) => Root::Input(place(&o.name)),
            Op::State(o) => Root::State(place(&o.name)),
            Op::Param(o) => {
                let param = place(&o.name);
                self.constant(Source::Param, vec![param])
            }
            Op::Const(o) => self.constant(Source::Tensor(o.tensor.clone()), vec![]),
            _ => unreachable!("invariant: the table has four leaves"),
        };
        let layout = SymLayout::dense(&ty.shape).ok_or_else(|| too_large(ty))?;
        Ok(Place {
            root,
            layout,
            dtype: ty.dtype,
        })
    }

    fn constant(&mut self, source: Source, params: Vec<usize>) -> Root {
        self.program.consts.push(Const {
            source,
            params,
            wanted: false,
        });
        Root::Const(self.program.consts.len() - 1)
    }

    fn slot(&mut self, ty: &Type) -> Result<Root, CompileError> {
        let shape = ty.shape.upper_bound(self.bounds)?;
        let bytes = shape
            .iter()
            .try_fold(ty.dtype.size_bytes(), |n, &d| n.checked_mul(d))
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| too_large(ty))?;
        self.slots.push(SlotDraft {
            numel: numel(&ty.shape),
            elem_bytes: ty.dtype.size_bytes(),
            bytes,
            pinned: false,
        });
        Ok(Root::Slot(self.slots.len() - 1))
    }

    /// The value as dense memory, copied once however many need it.
    fn dense(&mut self, from: &Place, id: NodeId) -> Result<Place, CompileError> {
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

    fn copy(&mut self, from: &Place, id: NodeId, to: Option<Root>) -> Result<Place, CompileError> {
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

    fn emit(
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
        let mut places = Vec::with_capacity(results.len());
        let params = self.params_of(&operands);
        for (port, ty) in results.iter().enumerate() {
            let home = homes.iter().find(|(p, _)| usize::from(*p) == port);
            let root = match (home, varies) {
                (Some((_, root)), _) => *root,
                (None, true) => self.slot(ty)?,
                (None, false) => {
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
        let bytes = size(&layouts?, self.threads);
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

    /// Outputs are computed where they are wanted if they are the whole of a slot, else copied.
    fn outputs(&mut self) -> Result<(), CompileError> {
        let mut renamed: HashMap<usize, usize> = HashMap::new();
        let mut copies = Vec::new();
        for (i, output) in self.graph.outputs().iter().enumerate() {
            let place = self.place(output.value).clone();
            match place.root {
                Root::Slot(s)
                    if !renamed.contains_key(&s)
                        && place.layout.is_whole(self.slots[s].numel.as_ref())
                        && place.dtype.size_bytes() == self.slots[s].elem_bytes =>
                {
                    renamed.insert(s, i);
                }
                Root::Slot(_)
                | Root::Input(_)
                | Root::Const(_)
                | Root::State(_)
                | Root::Output(_) => {
                    copies.push((i, place, output.value.node));
                }
            }
        }
        let rename = |root: &mut Root| {
            if let Root::Slot(s) = *root
                && let Some(&i) = renamed.get(&s)
            {
                *root = Root::Output(i);
            }
        };
        self.program
            .operands
            .iter_mut()
            .for_each(|o| rename(&mut o.root));
        self.places
            .iter_mut()
            .flatten()
            .for_each(|p| rename(&mut p.root));
        for (i, mut place, id) in copies {
            rename(&mut place.root);
            self.copy(&place, id, Some(Root::Output(i)))?;
        }
        Ok(())
    }

    fn assigns(&mut self) -> Result<(), CompileError> {
        for assign in self.graph.assigns() {
            let Root::State(state) = self.place(assign.state).root else {
                unreachable!("invariant: assignments are to states");
            };
            let mut place = self.place(assign.value).clone();
            if place.root == Root::State(state) && place.layout.is_contiguous() {
                continue;
            }
            // Commits come one after the other: what reads a state is copied before any writes.
            if matches!(place.root, Root::State(_)) {
                place = self.copy(&place, assign.value.node, None)?;
            }
            let from = self.program.operands.len();
            self.program.operands.push(place.operand());
            self.program.commits.push(Commit { state, from });
        }
        Ok(())
    }
}

struct Site {
    id: NodeId,
    op: &'static str,
    kernel: &'static str,
}
