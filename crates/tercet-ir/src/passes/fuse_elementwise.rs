//! Elementwise fusion: regions of elementwise operators become one [`Map`].
//!
//! A region grows from its last node (the root) towards the operands. A producer joins if it has
//! the root's shape and all its other readers come after the root. The producer is then computed at
//! the root, and results that other nodes read become additional results of the map.
//!
//! A producer that cannot join because of other readers may be recomputed in the region: a few
//! cheap steps from 16-bit values that together have no more bytes than its F32 result. Reading
//! those values then costs no more than reading the result. Constants with one value become steps.
//!
//! Transposes, broadcasts, slices and reshapes that only add or remove axes of size 1 are absorbed
//! into the index maps of the operands. Nothing is fused across a change of the element count.
//! Every step rounds to its dtype, so results equal those of the unfused graph.

use std::collections::{BTreeSet, HashMap};

use tercet_tensor::{DType, Tensor};

use super::rewrite::{ValueUses, live_nodes, rebuild};
use super::view::{OperandAccess, read_through};
use crate::attr::FloatAttr;
use crate::error::CompileError;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::ops::{IndexMap, Map, MapArg, MapStep, Op};
use crate::scalar::{BinaryFn, ScalarOp, UnaryFn};

/// Maximum operands of a map, limited by the bindings of small GPUs.
const MAX_INPUTS: usize = 8;
/// Maximum steps of a map.
const MAX_STEPS: usize = 64;
/// Maximum nodes recomputed for one value.
const MAX_COPIES: usize = 8;
/// Operands by which a growing region may temporarily exceed the limit. Producers that join later
/// may read operands that the region already has, so that it has fewer operands afterwards.
const MORE_INPUTS: usize = 6;
/// Maximum nodes that join a region consecutively while it has too many operands.
const MORE_NODES: usize = 24;

/// Fuses elementwise regions.
pub(super) fn fuse_elementwise(graph: &Graph) -> Result<Graph, CompileError> {
    let fusion = ElementwiseFusion::new(graph);
    rebuild(graph, |rw, id, _| {
        if !fusion.live[id.index()] {
            return Ok(());
        }
        let Some(region) = fusion.region_of(id) else {
            return rw.copy(id);
        };
        if region.root != id {
            return Ok(());
        }
        let inputs: Vec<Value> = region
            .plan
            .inputs
            .iter()
            .map(|r| rw.value(r.source))
            .collect();
        let map = rw.add(region.plan.map.clone(), &inputs)?;
        for (port, result) in region.plan.results.iter().enumerate() {
            rw.bind(*result, map.port(port as u8));
        }
        Ok(())
    })
}

struct ElementwiseRegion {
    root: NodeId,
    plan: RegionPlan,
    /// Nodes that this region recomputes although they are also computed elsewhere.
    copies: BTreeSet<NodeId>,
}

/// The regions of a graph and the region of each node.
struct ElementwiseFusion {
    live: Vec<bool>,
    regions: Vec<ElementwiseRegion>,
    member_of: Vec<Option<usize>>,
    /// Values that recomputed nodes read, in addition to the operands of the original nodes.
    read_by_copies: BTreeSet<Value>,
}

impl ElementwiseFusion {
    fn new(graph: &Graph) -> ElementwiseFusion {
        let uses = ValueUses::new(graph);
        let mut fusion = ElementwiseFusion {
            live: live_nodes(graph),
            regions: Vec::new(),
            member_of: vec![None; graph.len()],
            read_by_copies: BTreeSet::new(),
        };
        for (id, node) in graph.nodes().rev() {
            let free = fusion.live[id.index()] && fusion.member_of[id.index()].is_none();
            if !free || scalar_op(&node.op).is_none() {
                continue;
            }
            let mut grower = RegionBuilder {
                graph,
                uses: &uses,
                fusion: &fusion,
                root: id,
                members: BTreeSet::from([id]),
                copies: BTreeSet::new(),
            };
            let Some(plan) = grower.grow() else {
                continue;
            };
            let (members, copies) = (grower.members, grower.copies);
            for m in members {
                fusion.member_of[m.index()] = Some(fusion.regions.len());
            }
            let reads = copies.iter().flat_map(|c| &graph.node(*c).inputs);
            let reads = reads.filter(|v| !copies.contains(&v.node));
            fusion.read_by_copies.extend(reads);
            fusion.regions.push(ElementwiseRegion {
                root: id,
                plan,
                copies,
            });
        }
        fusion
    }

    fn region_of(&self, id: NodeId) -> Option<&ElementwiseRegion> {
        self.member_of[id.index()].map(|r| &self.regions[r])
    }

    /// Whether `reader` recomputes `id` instead of reading its result.
    fn copies(&self, reader: NodeId, id: NodeId) -> bool {
        let region = self.region_of(reader);
        region.is_some_and(|r| r.copies.contains(&id))
    }

    /// The node at which a node's results are computed in the new order.
    fn position(&self, id: NodeId) -> NodeId {
        self.region_of(id).map_or(id, |r| r.root)
    }
}

/// A region under construction.
struct RegionBuilder<'a> {
    graph: &'a Graph,
    uses: &'a ValueUses,
    fusion: &'a ElementwiseFusion,
    root: NodeId,
    /// Nodes that are computed only in this region.
    members: BTreeSet<NodeId>,
    /// Nodes that this region recomputes.
    copies: BTreeSet<NodeId>,
}

impl RegionBuilder<'_> {
    /// Adds all possible producers. Returns the plan if fusing the region is profitable.
    fn grow(&mut self) -> Option<RegionPlan> {
        let mut plan = self.plan().filter(RegionPlan::is_within_limits)?;
        let mut candidates = BTreeSet::new();
        self.want_producers(self.root, &mut candidates);
        // In descending order of ids, all readers of a node are decided before the node.
        while let Some(id) = candidates.pop_last() {
            let Some(joins) = self.joins(id) else {
                continue;
            };
            let before = (
                self.members.clone(),
                self.copies.clone(),
                candidates.clone(),
            );
            self.take(id, joins, &mut candidates);
            match self.ahead(&mut candidates) {
                Some(larger) => plan = larger,
                None => (self.members, self.copies, candidates) = before,
            }
        }
        let worth = self.members.len() + self.copies.len() > 1 || plan.absorbs_views;
        worth.then_some(plan)
    }

    /// The plan of the region. If the region has too many operands, more producers join, because
    /// that may reduce the number of operands. An optimizer's update, for example, reads moments
    /// and a gradient in several places.
    fn ahead(&mut self, candidates: &mut BTreeSet<NodeId>) -> Option<RegionPlan> {
        let mut taken = 0;
        loop {
            let plan = self.plan()?;
            if plan.is_within_limits() {
                return Some(plan);
            }
            loop {
                let id = candidates.pop_last()?;
                if let Some(joins) = self.joins(id) {
                    self.take(id, joins, candidates);
                    break;
                }
            }
            taken += 1;
            if taken > MORE_NODES {
                return None;
            }
        }
    }

    /// Adds a node to the region, and its producers to the candidates.
    fn take(&mut self, id: NodeId, joins: RegionJoin, candidates: &mut BTreeSet<NodeId>) {
        match joins {
            RegionJoin::Moves => {
                self.members.insert(id);
                self.want_producers(id, candidates);
            }
            RegionJoin::Copied(nodes) => self.copies.extend(nodes),
        }
    }

    fn want_producers(&self, id: NodeId, candidates: &mut BTreeSet<NodeId>) {
        candidates.extend(self.graph.node(id).inputs.iter().map(|v| v.node));
    }

    /// Whether and how a producer of a member can join.
    fn joins(&self, id: NodeId) -> Option<RegionJoin> {
        let node = self.graph.node(id);
        let scalar = scalar_op(&node.op)?;
        let root = self.graph.node(self.root);
        if node.outputs[0].shape != root.outputs[0].shape
            || self.fusion.member_of[id.index()].is_some()
        {
            return None;
        }
        let readers = &self.uses.readers_of(Value { node: id, port: 0 }).nodes;
        let later = |r: &NodeId| self.members.contains(r) || self.fusion.position(*r) > self.root;
        if readers.iter().all(later) {
            return Some(RegionJoin::Moves);
        }
        let from = self.graph.ty(*node.inputs.first()?).dtype;
        match scalar {
            ScalarOp::Cast(to) if to.size_bytes() > from.size_bytes() => {
                Some(RegionJoin::Copied(BTreeSet::from([id])))
            }
            _ => self.light(id).map(RegionJoin::Copied),
        }
    }

    /// The nodes that compute an F32 value from 16-bit values, if they are few and cheap and read
    /// no more bytes than the F32 value has.
    fn light(&self, id: NodeId) -> Option<BTreeSet<NodeId>> {
        let shape = &self.graph.node(id).outputs[0].shape;
        let (mut nodes, mut leaves) = (BTreeSet::new(), BTreeSet::new());
        let mut open = vec![Value { node: id, port: 0 }];
        while let Some(v) = open.pop() {
            let ty = self.graph.ty(v);
            // Broadcast operands are small, so they are ignored.
            if ty.shape != *shape {
                continue;
            }
            if ty.dtype.size_bytes() == 2 {
                leaves.insert(v);
                continue;
            }
            let node = self.graph.node(v.node);
            if let Op::Expand(_) = node.op {
                continue;
            }
            let is_cheap = match scalar_op(&node.op)? {
                ScalarOp::Cast(DType::F32) | ScalarOp::Fma => true,
                ScalarOp::Binary(f) => {
                    matches!(f, BinaryFn::Add | BinaryFn::Sub | BinaryFn::Mul)
                }
                ScalarOp::Unary(f) => f == UnaryFn::Neg,
                ScalarOp::Cast(_)
                | ScalarOp::Const(..)
                | ScalarOp::Compare(_)
                | ScalarOp::Where
                | ScalarOp::Clamp { .. } => false,
            };
            if !is_cheap || ty.dtype != DType::F32 {
                return None;
            }
            if nodes.insert(v.node) {
                open.extend(&node.inputs);
            }
        }
        let is_less = !leaves.is_empty() && leaves.len() <= 2;
        let fits = is_less && !nodes.is_empty() && nodes.len() <= MAX_COPIES;
        fits.then_some(nodes)
    }

    /// The map of the current region, possibly with a few operands too many; `None` if it exceeds
    /// another limit.
    fn plan(&self) -> Option<RegionPlan> {
        let shape = &self.graph.node(self.root).outputs[0].shape;
        let mut body = MapBodyBuilder::default();
        let mut absorbs_views = false;
        let mut results = Vec::new();
        let mut result_steps = Vec::new();
        for &id in self.members.union(&self.copies) {
            let node = self.graph.node(id);
            let op = scalar_op(&node.op)?;
            let mut args = Vec::with_capacity(node.inputs.len());
            for &v in &node.inputs {
                if let Some(&step) = body.step_of.get(&v) {
                    args.push(MapArg::Step(step));
                } else if let Some((dtype, value)) = splat(self.graph, v) {
                    args.push(body.constant(dtype, value));
                } else {
                    let read = read_through(self.graph, self.uses, v, shape);
                    absorbs_views |= read.absorbed;
                    args.push(body.input(read));
                }
            }
            let own = Value { node: id, port: 0 };
            let step = body.push(MapStep::new(op, args));
            body.step_of.insert(own, step);
            let readers = self.uses.readers_of(own);
            let inside = |r: &NodeId| self.members.contains(r) || self.copies.contains(r);
            let outside = |r: &NodeId| !inside(r) && !self.fusion.copies(*r, id);
            let is_read = readers.result
                || readers.nodes.iter().any(outside)
                || self.fusion.read_by_copies.contains(&own);
            if self.members.contains(&id) && is_read {
                results.push(own);
                result_steps.push(step);
            }
        }
        if body.inputs.len() > MAX_INPUTS + MORE_INPUTS || body.steps.len() > MAX_STEPS {
            return None;
        }
        let axes = |r: &OperandAccess| IndexMap {
            axes: r.axes.clone(),
        };
        Some(RegionPlan {
            map: Map {
                shape: shape.clone(),
                inputs: body.inputs.iter().map(axes).collect(),
                body: body.steps,
                results: result_steps,
            },
            inputs: body.inputs,
            results,
            absorbs_views,
        })
    }
}

enum RegionJoin {
    Moves,
    /// The producer stays, and the region recomputes it by copies of these nodes.
    Copied(BTreeSet<NodeId>),
}

/// A map with the old values that it reads and replaces.
struct RegionPlan {
    map: Map,
    inputs: Vec<OperandAccess>,
    results: Vec<Value>,
    absorbs_views: bool,
}

impl RegionPlan {
    fn is_within_limits(&self) -> bool {
        self.inputs.len() <= MAX_INPUTS
    }
}

/// The steps and operands of a map under construction, without duplicates.
#[derive(Default)]
struct MapBodyBuilder {
    steps: Vec<MapStep>,
    inputs: Vec<OperandAccess>,
    step_of: HashMap<Value, usize>,
    constants: HashMap<(DType, FloatAttr), usize>,
}

impl MapBodyBuilder {
    fn push(&mut self, step: MapStep) -> usize {
        self.steps.push(step);
        self.steps.len() - 1
    }

    fn constant(&mut self, dtype: DType, value: FloatAttr) -> MapArg {
        let key = (dtype, value);
        if let Some(&step) = self.constants.get(&key) {
            return MapArg::Step(step);
        }
        let step = self.push(MapStep::new(ScalarOp::Const(dtype, value), []));
        self.constants.insert(key, step);
        MapArg::Step(step)
    }

    fn input(&mut self, read: OperandAccess) -> MapArg {
        let same = |r: &OperandAccess| r.source == read.source && r.axes == read.axes;
        let at = self.inputs.iter().position(same).unwrap_or_else(|| {
            self.inputs.push(read.clone());
            self.inputs.len() - 1
        });
        MapArg::Input(at)
    }
}

/// The scalar function of an elementwise operator.
fn scalar_op(op: &Op) -> Option<ScalarOp> {
    match op {
        Op::Unary(o) => Some(ScalarOp::Unary(o.f)),
        Op::Binary(o) => Some(ScalarOp::Binary(o.f)),
        Op::Compare(o) => Some(ScalarOp::Compare(o.f)),
        Op::Where(_) => Some(ScalarOp::Where),
        Op::Fma(_) => Some(ScalarOp::Fma),
        Op::Clamp(o) => Some(ScalarOp::Clamp { lo: o.lo, hi: o.hi }),
        Op::Cast(o) => Some(ScalarOp::Cast(o.to)),
        _ => None,
    }
}

/// The value of a constant whose elements are equal, if a step can represent it exactly.
fn splat(graph: &Graph, v: Value) -> Option<(DType, FloatAttr)> {
    let Node {
        op: Op::Const(c), ..
    } = graph.node(v.node)
    else {
        return None;
    };
    splat_value(&c.tensor).map(|x| (c.tensor.dtype(), FloatAttr(x)))
}

/// The common value of all elements of a tensor, if an `f64` represents it exactly.
pub(super) fn splat_value(t: &Tensor) -> Option<f64> {
    let size = t.dtype().size_bytes();
    let first = t.bytes().get(..size)?;
    if !t.bytes().chunks_exact(size).all(|x| x == first) {
        return None;
    }
    let one = Tensor::from_bytes(crate::TensorType::new(t.dtype(), &[]), first).ok()?;
    let value = *one.to_f64s().first()?;
    let exact = t.dtype().is_float() || one.to_i64s().first() == Some(&(value as i64));
    // 2^63 converted to i64::MAX would pass the comparison because of saturation.
    (exact && (t.dtype().is_float() || value.abs() < 9e18)).then_some(value)
}
