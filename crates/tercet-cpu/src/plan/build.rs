//! Walks the legal graph once: a place for every value, a step for every kernel.

mod gradients;
mod last;
mod steps;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::legalize::Origins;
use tercet_ir::{
    Bindings, CompileError, DimError, Graph, MAX_ELEMENTS_LOG2, Node, NodeId, Op, Signature, Type,
    Value,
};

use super::{Commit, Const, Place, Program, Root, SizeCheck, SlotDraft, Source, finish};
use crate::exec::Sub;
use crate::lower::attention::grad::twin;
use crate::lower::{Kernel, Lower, Lowered, control, find, varies};
use steps::Site;
use tercet_ir::layout::{SymLayout, View, check_slice, in_place_updates, numel, view_of};
use tercet_ir::passes::Sum;

/// How programs are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// The most threads of a run.
    pub(crate) threads: usize,
    /// Whether rows may be rounded in products with packed weights.
    pub(crate) rounded: bool,
}

/// The program of a legal graph, whose nodes stand for those of another graph as `origins` says; the results of `last` are written
/// with their channels last.
///
/// # Errors
/// [`CompileError`] when memory at the bounds exceeds the address space or a size is not possible.
pub(crate) fn build(
    graph: &Graph,
    signature: Signature,
    bounds: &Bindings,
    how: How,
    origins: Origins,
    last: &Last,
) -> Result<Program, CompileError> {
    let mut updates = in_place_updates(graph);
    let draft = |updates| {
        drafted(
            graph,
            signature.clone(),
            bounds,
            how,
            origins.clone(),
            updates,
            last,
        )
    };
    let (mut program, mut slots) = draft(updates.clone())?;
    if loses_state(&program) {
        // Updates of windows can be taken back.
        let of_window = |op: &Op| matches!(op, Op::DynamicUpdateSlice(_));
        updates.retain(|value, _| of_window(&graph.node(value.node).op));
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
    how: How,
    origins: Origins,
    updates: HashMap<Value, NodeId>,
    last: &Last,
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
        how,
        places: Vec::with_capacity(graph.len()),
        dense: HashMap::new(),
        slots: Vec::new(),
        updates,
        last,
        made: HashMap::new(),
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
            threads: how.threads,
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
    how: How,
    places: Vec<Vec<Place>>,
    /// Dense copies made so far, by root and layout.
    dense: HashMap<Root, Vec<(SymLayout, Place)>>,
    slots: Vec<SlotDraft>,
    /// Values that are written where states lie, with those states' leaves.
    updates: HashMap<Value, NodeId>,
    /// Nodes whose results are written with channels last.
    last: &'a Last,
    /// The results of nodes that an earlier step has computed with its own.
    made: HashMap<NodeId, Vec<Place>>,
    program: Program,
}

/// The error of a type whose bytes at the symbols' bounds cannot be counted.
fn too_large(ty: &Type) -> CompileError {
    CompileError::Bounds(DimError::TooMany {
        shape: ty.shape.clone(),
        log2: MAX_ELEMENTS_LOG2,
    })
}

/// What a graph's convolutions do with channels last: see [`tercet_ir::passes::ChannelsLast`].
#[derive(Debug, Default)]
pub(crate) struct Last {
    pub(crate) nodes: HashSet<NodeId>,
    pub(crate) sums: HashMap<NodeId, Sum>,
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
            Lower::Kernel(_) if self.made.contains_key(&id) => Ok(self.made[&id].clone()),
            Lower::Kernel(_) if self.last.nodes.contains(&id) => self.last(kernel.name, id, node),
            Lower::Kernel(lower) => match twin(self.graph, id, node) {
                Some(other) => self.both_gradients(kernel, id, node, other),
                None => self.call(kernel, id, node, lower),
            },
            Lower::Product(lower) => {
                let rounded = self.how.rounded;
                self.call(kernel, id, node, move |graph, node| {
                    lower(graph, node, rounded)
                })
            }
            Lower::Control => {
                let ins: Vec<Place> = node.inputs.iter().map(|v| self.place(*v).clone()).collect();
                let site = Site::of(id, node, kernel.name);
                let lowered = self.control(id, node)?;
                self.emit(site, lowered, ins, &node.outputs, &Homes::new(), true)
            }
        }
    }

    /// A call of a kernel, which `lower` makes of the node.
    fn call(
        &mut self,
        kernel: &Kernel,
        id: NodeId,
        node: &Node,
        lower: impl Fn(&Graph, &Node) -> Lowered,
    ) -> Result<Vec<Place>, CompileError> {
        let ins: Vec<Place> = node.inputs.iter().map(|v| self.place(*v).clone()).collect();
        let site = Site::of(id, node, kernel.name);
        let homes = self.homes(id, node);
        let lowered = kernel.make(lower, self.graph, node);
        self.emit(site, lowered, ins, &node.outputs, &homes, varies(&node.op))
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
            let program = build(
                graph,
                signature,
                self.bounds,
                self.how,
                origins,
                &Last::default(),
            )?;
            subs.push(Arc::new(Sub::new(name, program, self.how.threads)));
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
