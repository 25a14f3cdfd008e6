//! Compiles the legal graph in one pass: a placement for every value and a step for every kernel.

mod channels_last;
mod gradients;
mod steps;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::legalize::NodeOrigins;
use tercet_ir::{
    Bindings, CompileError, DimError, Graph, MAX_ELEMENTS_LOG2, Node, NodeId, Op, Signature, Type,
    Value,
};

use super::{
    ConstSource, CpuProgram, CpuSizeCheck, MemoryRoot, PendingArenaSlot, ProgramConst, RowSwitch,
    StateCommit, ValuePlacement, finish,
};
use crate::exec::SubgraphProgram;
use crate::lower::attention::grad::twin;
use crate::lower::{CpuKernel, LowerFn, LoweredNode, control, find, varies};
use steps::StepLabel;
use tercet_ir::layout::{SymLayout, ViewLowering, check_slice, in_place_updates, numel, view_of};
use tercet_ir::passes::ConvResidualSum;

/// Options of building a CPU program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuildOptions {
    /// Maximum number of threads of a run.
    pub(crate) threads: usize,
    /// True if matmuls with quantized weights may round activations to 16-bit fixed point.
    pub(crate) i16_activations: bool,
}

/// Builds the program of a legal graph. `origins` maps its nodes to those of the original graph.
/// The results of the nodes in `last` are stored channels-last.
///
/// # Errors
/// [`CompileError`] if memory at the bounds exceeds the address space, or a size is invalid.
pub(crate) fn build(
    graph: &Graph,
    signature: Signature,
    bounds: &Bindings,
    how: BuildOptions,
    origins: NodeOrigins,
    last: &ChannelsLastPlan,
) -> Result<CpuProgram, CompileError> {
    let mut updates = in_place_updates(graph);
    let draft = |updates| {
        pending_slots(
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
        // Among the steps that write a state, only `DynamicUpdateSlice` can restore its old
        // contents.
        let of_window = |op: &Op| matches!(op, Op::DynamicUpdateSlice(_));
        updates.retain(|value, _| of_window(&graph.node(value.node).op));
        (program, slots) = draft(updates)?;
    }
    finish::finish(program, slots)
}

/// True if a step can fail after an earlier step overwrote a state whose old contents it cannot
/// restore.
fn loses_state(program: &CpuProgram) -> bool {
    let mut fallible_after = false;
    program.steps.iter().rev().any(|step| {
        let results = &program.operands[step.operands.clone()][step.ins..];
        let writes = results
            .iter()
            .any(|o| matches!(o.root, MemoryRoot::State(_)));
        let loses = writes && step.undo.is_none() && fallible_after;
        fallible_after |= step.fallible;
        loses
    })
}

/// Builds the steps and slots of a program. The values in `updates` are written in place into their
/// states.
fn pending_slots(
    graph: &Graph,
    signature: Signature,
    bounds: &Bindings,
    how: BuildOptions,
    origins: NodeOrigins,
    updates: HashMap<Value, NodeId>,
    last: &ChannelsLastPlan,
) -> Result<(CpuProgram, Vec<PendingArenaSlot>), CompileError> {
    let Signature {
        inputs,
        params,
        states,
        ..
    } = &signature;
    // Inputs, parameters and states never share a name.
    let leaves = [inputs, params, states].into_iter().flat_map(|ports| {
        let names = ports.iter().enumerate();
        names.map(|(at, port)| (port.name.clone(), at))
    });
    let leaves: HashMap<String, usize> = leaves.collect();
    let mut b = CpuProgramBuilder {
        graph,
        leaves,
        bounds,
        options: how,
        places: Vec::with_capacity(graph.len()),
        dense: HashMap::new(),
        slots: Vec::new(),
        updates,
        channels_last: last,
        computed: HashMap::new(),
        program: CpuProgram {
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
            row_switches: RowSwitch::of_graph(graph, how.i16_activations),
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

/// Results of a step, by port, whose memory is fixed before the step is emitted.
type ResultPlacements = SmallVec<[(u8, MemoryRoot); 1]>;

struct CpuProgramBuilder<'a> {
    graph: &'a Graph,
    /// Position of each input, parameter or state in its list of the signature, by name.
    leaves: HashMap<String, usize>,
    bounds: &'a Bindings,
    options: BuildOptions,
    places: Vec<Vec<ValuePlacement>>,
    /// Dense copies that already exist, by root and layout.
    dense: HashMap<MemoryRoot, Vec<(SymLayout, ValuePlacement)>>,
    slots: Vec<PendingArenaSlot>,
    /// Values that their step writes directly into the memory of a state, with the node of the
    /// state.
    updates: HashMap<Value, NodeId>,
    /// Nodes whose results are stored channels-last.
    channels_last: &'a ChannelsLastPlan,
    /// Placements of the results of nodes that the step of an earlier node computes too.
    computed: HashMap<NodeId, Vec<ValuePlacement>>,
    program: CpuProgram,
}

/// Error for a type whose byte count at the symbols' bounds overflows.
fn too_large(ty: &Type) -> CompileError {
    CompileError::Bounds(DimError::TooMany {
        shape: ty.shape.to_string(),
        log2: MAX_ELEMENTS_LOG2,
    })
}

/// Nodes of a graph that run channels-last: see [`tercet_ir::passes::ChannelsLast`].
#[derive(Debug, Default)]
pub(crate) struct ChannelsLastPlan {
    pub(crate) nodes: HashSet<NodeId>,
    pub(crate) sums: HashMap<NodeId, ConvResidualSum>,
}

impl CpuProgramBuilder<'_> {
    fn place(&self, v: Value) -> &ValuePlacement {
        &self.places[v.node.index()][v.port as usize]
    }

    fn node(&mut self, id: NodeId, node: &Node) -> Result<Vec<ValuePlacement>, CompileError> {
        let kernel =
            find(self.graph, node).expect("invariant: after legalization every node has a kernel");
        match kernel.lower {
            LowerFn::Leaf => Ok(vec![self.leaf(node)?]),
            LowerFn::View => {
                let from = self.place(node.inputs[0]).clone();
                let operand = self.graph.ty(node.inputs[0]);
                if let Some(slice) = check_slice(node, operand) {
                    self.program.checks.push(CpuSizeCheck {
                        node: id,
                        op: node.op.kind().doc().name,
                        slice: slice.clone(),
                        from: operand.shape.clone(),
                        to: node.outputs[0].shape.clone(),
                    });
                }
                let layout = match view_of(node, operand, &from.layout) {
                    ViewLowering::Free(layout) => {
                        return Ok(vec![ValuePlacement { layout, ..from }]);
                    }
                    ViewLowering::NeedsDense => self.dense(&from, id)?,
                };
                match view_of(node, operand, &layout.layout) {
                    ViewLowering::Free(view) => Ok(vec![ValuePlacement {
                        layout: view,
                        ..layout
                    }]),
                    ViewLowering::NeedsDense => Err(too_large(&node.outputs[0])),
                }
            }
            LowerFn::Kernel(_) if self.computed.contains_key(&id) => Ok(self.computed[&id].clone()),
            LowerFn::Kernel(_) if self.channels_last.nodes.contains(&id) => {
                self.channels_last_step(kernel.name, id, node)
            }
            LowerFn::Kernel(lower) => match twin(self.graph, id, node) {
                Some(other) => self.both_gradients(kernel, id, node, other),
                None => self.call(kernel, id, node, lower),
            },
            LowerFn::MatMul(lower) => {
                let rounded = self.options.i16_activations;
                self.call(kernel, id, node, move |graph, node| {
                    lower(graph, node, rounded)
                })
            }
            LowerFn::Control => {
                let ins: Vec<ValuePlacement> =
                    node.inputs.iter().map(|v| self.place(*v).clone()).collect();
                let site = StepLabel::new(id, node, kernel.name);
                let lowered = self.control(id, node)?;
                self.emit(
                    site,
                    lowered,
                    ins,
                    &node.outputs,
                    &ResultPlacements::new(),
                    true,
                )
            }
        }
    }

    /// Emits the kernel call that `lower` makes of the node.
    fn call(
        &mut self,
        kernel: &CpuKernel,
        id: NodeId,
        node: &Node,
        lower: impl Fn(&Graph, &Node) -> LoweredNode,
    ) -> Result<Vec<ValuePlacement>, CompileError> {
        let ins: Vec<ValuePlacement> = node.inputs.iter().map(|v| self.place(*v).clone()).collect();
        let site = StepLabel::new(id, node, kernel.name);
        let homes = self.homes(id, node);
        let lowered = kernel.lower_node(lower, self.graph, node);
        self.emit(site, lowered, ins, &node.outputs, &homes, varies(&node.op))
    }

    /// For the results of a node that are written directly into states, the memory of these states.
    fn homes(&self, node: NodeId, n: &Node) -> ResultPlacements {
        let ports = 0..n.outputs.len() as u8;
        let home = |port| self.updates.get(&Value { node, port });
        let homes = ports.filter_map(|port| Some((port, self.places[home(port)?.index()][0].root)));
        homes.collect()
    }

    /// Emits a control-flow node, whose nested graphs become programs.
    fn control(&mut self, id: NodeId, node: &Node) -> Result<LoweredNode, CompileError> {
        let mut subs = Vec::new();
        for (at, (name, block)) in node.op.subgraphs().into_iter().enumerate() {
            let (graph, origins) = (block.graph(), self.program.origins.inside(id, at));
            let signature = Signature::of(graph);
            let program = build(
                graph,
                signature,
                self.bounds,
                self.options,
                origins,
                &ChannelsLastPlan::default(),
            )?;
            subs.push(Arc::new(SubgraphProgram::new(
                name,
                program,
                self.options.threads,
            )));
        }
        self.program.subs.extend(subs.iter().cloned());
        Ok(control::lower(node, &subs))
    }

    fn leaf(&mut self, node: &Node) -> Result<ValuePlacement, CompileError> {
        let ty = &node.outputs[0];
        let place = |name: &String| {
            let place = self.leaves.get(name).copied();
            place.expect("invariant: passes preserve the leaves of the graph")
        };
        let root = match &node.op {
            Op::Input(o) => MemoryRoot::Input(place(&o.name)),
            Op::State(o) => MemoryRoot::State(place(&o.name)),
            Op::Param(o) => {
                let param = place(&o.name);
                self.constant(ConstSource::Param, vec![param])
            }
            Op::Const(o) => self.constant(ConstSource::Tensor(o.tensor.clone()), vec![]),
            _ => unreachable!("invariant: the table has four leaves"),
        };
        let layout = SymLayout::dense(&ty.shape).ok_or_else(|| too_large(ty))?;
        Ok(ValuePlacement {
            root,
            layout,
            dtype: ty.dtype,
        })
    }

    fn constant(&mut self, source: ConstSource, params: Vec<usize>) -> MemoryRoot {
        self.program.consts.push(ProgramConst {
            source,
            params,
            is_read_in_run: false,
        });
        MemoryRoot::Const(self.program.consts.len() - 1)
    }

    fn slot(&mut self, ty: &Type) -> Result<MemoryRoot, CompileError> {
        let shape = ty.shape.upper_bound(self.bounds)?;
        let bytes = shape
            .iter()
            .try_fold(ty.dtype.size_bytes(), |n, &d| n.checked_mul(d))
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| too_large(ty))?;
        self.slots.push(PendingArenaSlot {
            numel: numel(&ty.shape),
            elem_bytes: ty.dtype.size_bytes(),
            bytes,
            pinned: false,
        });
        Ok(MemoryRoot::Slot(self.slots.len() - 1))
    }

    /// If a slot contains an output and nothing else, its step writes the output tensor instead of
    /// the slot. Other outputs are copied.
    fn outputs(&mut self) -> Result<(), CompileError> {
        let mut renamed: HashMap<usize, usize> = HashMap::new();
        let mut copies = Vec::new();
        for (i, output) in self.graph.outputs().iter().enumerate() {
            let place = self.place(output.value).clone();
            match place.root {
                MemoryRoot::Slot(s)
                    if !renamed.contains_key(&s)
                        && place.layout.covers_root(self.slots[s].numel.as_ref())
                        && place.dtype.size_bytes() == self.slots[s].elem_bytes =>
                {
                    renamed.insert(s, i);
                }
                MemoryRoot::Slot(_)
                | MemoryRoot::Input(_)
                | MemoryRoot::Const(_)
                | MemoryRoot::State(_)
                | MemoryRoot::Output(_) => {
                    copies.push((i, place, output.value.node));
                }
            }
        }
        let rename = |root: &mut MemoryRoot| {
            if let MemoryRoot::Slot(s) = *root
                && let Some(&i) = renamed.get(&s)
            {
                *root = MemoryRoot::Output(i);
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
            self.copy(&place, id, Some(MemoryRoot::Output(i)))?;
        }
        Ok(())
    }

    fn assigns(&mut self) -> Result<(), CompileError> {
        for assign in self.graph.assigns() {
            let MemoryRoot::State(state) = self.place(assign.state).root else {
                unreachable!("invariant: the target of an assignment is a state");
            };
            let mut place = self.place(assign.value).clone();
            if place.root == MemoryRoot::State(state) && place.layout.is_contiguous() {
                continue;
            }
            // Values are copied to states one after the other. If a value is itself the memory of a
            // state, it is copied to a slot first, so that another copy to that state cannot
            // overwrite it.
            if matches!(place.root, MemoryRoot::State(_)) {
                place = self.copy(&place, assign.value.node, None)?;
            }
            let from = self.program.operands.len();
            self.program.operands.push(place.operand());
            self.program.commits.push(StateCommit { state, from });
        }
        Ok(())
    }
}
