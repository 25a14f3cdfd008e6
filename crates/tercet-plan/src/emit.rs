//! What a family may do while it lowers a node: look at operands, take slots, dispatch kernels.
//!
//! Order of work for a family: [`Emit::view`] the operands; [`Emit::dense`] those whose strides its
//! kernel does not take; [`Emit::result`] for each result; [`Emit::dispatch`]. Sizes are [`Num`]s
//! ([`Emit::num`] and the arithmetic beside it): known, or computed at each run. What decides which
//! kernel runs may only look at [`Emit::bound`].
//!
//! Invariant: what a family emits depends on the graph, the capabilities and the bounds only.
//!
//! Next: `emit/dispatch.rs` for kernels as steps, `emit/choices.rs` for ways of which a run takes one, `emit/checks.rs` for what ends a run,
//! `emit/blocks.rs` for graphs inside nodes.

mod blocks;
mod checks;
mod choices;
mod dispatch;

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;
use tercet_ir::layout::{SymLayout, Term, numel};
use tercet_ir::legalize::Origins;
use tercet_ir::{
    Bindings, CompileError, DType, Dim, Graph, Node, NodeId, Shape, Signature, Tensor, Value,
};

use crate::caps::Caps;
use crate::emit::blocks::Around;
pub(crate) use crate::emit::blocks::Block;
use crate::families::copy;
use crate::families::rope::Waiting;
use crate::flow::Flow;
use crate::fusions::RowNorm;
use crate::kernel::{Instance, Word};
use crate::num::{Num, Tape};
use crate::planes::Planes;
use crate::program::{
    Arms, Buffer, CheckKind, Choice, DataCheck, KernelId, SizeCheck, SizeRule, SlotId, Step,
};

/// The distance of the records of data checks: the largest alignment a device may ask for.
pub(crate) const RECORD_BYTES: u64 = 256;

/// A value: a slot and how its elements lie in it.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The slot.
    pub slot: SlotId,
    /// Sizes, strides and offset in elements.
    pub layout: SymLayout,
    /// The element type.
    pub dtype: DType,
}

/// What memory a slot gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// A range of the arena, shared over time.
    Arena,
    /// A range of the prepared values.
    Prepared,
    /// A range of the outputs.
    Output,
    /// A range of the inputs.
    Input,
    /// A range of the counters.
    Counters,
    /// A buffer, from this offset.
    At(Buffer, u64),
}

impl Home {
    /// True if the contents are the same in every run with the same parameters.
    pub(crate) fn is_constant(self) -> bool {
        match self {
            Home::Prepared | Home::At(Buffer::Const(_) | Buffer::Param(_), _) => true,
            Home::Arena | Home::Output | Home::Input | Home::Counters | Home::At(..) => false,
        }
    }
}

/// The order of elements of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// That of the view, without gaps.
    Dense,
    /// As fragments of matrices take them (`matmul/laid.rs`).
    Laid,
}

/// A slot while the program is made.
#[derive(Clone, Debug)]
pub(crate) struct SlotDraft {
    pub(crate) bytes: u64,
    pub(crate) dtype: DType,
    /// Elements, to tell whether a view is the whole slot.
    pub(crate) numel: Option<Dim>,
    pub(crate) home: Home,
}

/// A program while it is made.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) slots: Vec<SlotDraft>,
    pub(crate) kernels: Vec<Instance>,
    known: HashMap<Instance, KernelId>,
    pub(crate) prepare: Vec<Step>,
    /// The steps of the stage that is open.
    pub(crate) steps: Vec<Step>,
    /// What is closed, in the graph at hand.
    pub(crate) flow: Vec<Flow<Vec<Step>>>,
    pub(crate) params: Vec<Word>,
    /// Constants of the graph and tables of families, by the number of their buffer.
    pub(crate) consts: Vec<Tensor>,
    pub(crate) choices: Vec<Choice>,
    pub(crate) tape: Tape,
    pub(crate) data_checks: Vec<DataCheck>,
    pub(crate) size_checks: Vec<SizeCheck>,
    /// Words of parameter blocks that take the number of data checks.
    pub(crate) guards: Vec<usize>,
    /// The slot over all records of data checks.
    pub(crate) faults: Option<SlotId>,
    /// Checks made so far: operand, kind, size.
    checked: Vec<(View, CheckKind, Num)>,
}

/// The state of planning, as families see it.
pub struct Emit<'a> {
    /// The legal graph.
    pub graph: &'a Graph,
    /// What the device offers.
    pub caps: &'a Caps,
    pub(crate) bounds: &'a Bindings,
    pub(crate) signature: &'a Signature,
    pub(crate) draft: Draft,
    pub(crate) places: Vec<Vec<View>>,
    /// Values whose packed rows lie in planes.
    pub(crate) planes: HashMap<Value, Planes>,
    /// For the legal nodes those of the graph as it was given.
    pub(crate) origins: Origins,
    /// The nodes that this graph lies in, outermost first, each with the attribute that holds the next
    /// graph.
    pub(crate) around: Vec<Around>,
    /// Checks of sizes that this graph needs, where it lies in a node.
    pub(crate) own_checks: Vec<usize>,
    /// Sizes that are checked for this graph or for one around it, where it lies in a node.
    pub(crate) own_dims: HashSet<Dim>,
    /// Some node has graphs inside: records of checks are cleared first, and keep what is found first.
    pub(crate) has_flow: bool,
    pub(crate) at: NodeId,
    pub(crate) op: &'static str,
    /// What is emitted now depends on parameters and constants only.
    pub(crate) constant: bool,
    /// The state that the first result of this node is written into.
    pub(crate) into_state: Option<SlotId>,
    pub(crate) results: Vec<Option<View>>,
    /// Nodes left to their only reader, without a place of their own.
    pub(crate) deferred: HashSet<NodeId>,
    /// Norms left to the products that read them, without a place of their own.
    pub(crate) norms: HashMap<Value, RowNorm>,
    /// What waits for what belongs to it, to be one step; emitted before any other step is.
    pub(crate) waiting: Waiting,
    /// The arms that steps are emitted for now.
    arms: Arms,
    dense: Vec<(View, Order, View)>,
    /// Values that are made where they are first asked for, with the arms that they are there in.
    made: Vec<(Value, Arms, View)>,
}

impl<'a> Emit<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        caps: &'a Caps,
        bounds: &'a Bindings,
        signature: &'a Signature,
        origins: Origins,
    ) -> Emit<'a> {
        Emit {
            graph,
            caps,
            bounds,
            signature,
            draft: Draft::default(),
            places: Vec::with_capacity(graph.len()),
            planes: HashMap::new(),
            origins,
            around: Vec::new(),
            own_checks: Vec::new(),
            own_dims: HashSet::new(),
            has_flow: graph.nodes().any(|(_, n)| !n.op.subgraphs().is_empty()),
            at: NodeId(0),
            op: "",
            constant: false,
            into_state: None,
            results: Vec::new(),
            deferred: HashSet::new(),
            norms: HashMap::new(),
            waiting: Waiting::default(),
            arms: Arms::new(),
            dense: Vec::new(),
            made: Vec::new(),
        }
    }

    /// The value as it lies, without any copy.
    pub fn view(&self, v: Value) -> View {
        self.places[v.node.index()][v.port as usize].clone()
    }

    /// The node of a value that was left to its only reader, which is the node at hand.
    pub(crate) fn deferred(&self, v: Value) -> Option<&'a Node> {
        let graph = self.graph;
        self.deferred.contains(&v.node).then(|| graph.node(v.node))
    }

    /// The value as a dense slot from element 0: itself, or a copy that is made once however many
    /// ask for it.
    ///
    /// # Errors
    /// [`CompileError`] when the copy is too large.
    pub fn dense(&mut self, view: &View) -> Result<View, CompileError> {
        if view.layout.is_contiguous() && view.layout.offset().is_empty() {
            return Ok(view.clone());
        }
        self.in_order(view, Order::Dense, |e, to| copy::emit(e, view, to))
    }

    /// A slot with the elements of a view in some order, which the closure writes, once for each order.
    ///
    /// # Errors
    /// [`CompileError`] when the copy is too large, or the closure's.
    pub(crate) fn in_order(
        &mut self,
        view: &View,
        order: Order,
        write: impl FnOnce(&mut Self, &View) -> Result<(), CompileError>,
    ) -> Result<View, CompileError> {
        let same = |(from, of, _): &&(View, Order, View)| from == view && *of == order;
        if let Some((.., done)) = self.dense.iter().find(same) {
            return Ok(done.clone());
        }
        let constant = self.is_constant(view) && all_known(view.layout.shape());
        let before = std::mem::replace(&mut self.constant, constant);
        let to = self.temp(view.dtype, view.layout.shape());
        let done = to.and_then(|to| write(self, &to).map(|()| to));
        self.constant = before;
        let done = done?;
        // A state changes in the run: a copy of it is good only where it was made.
        if !matches!(self.home(view.slot), Home::At(Buffer::State(_), _)) {
            self.dense.push((view.clone(), order, done.clone()));
        }
        Ok(done)
    }

    /// A new slot of this type that lives as long as steps use it.
    ///
    /// # Errors
    /// [`CompileError::TooLarge`] when it exceeds what one binding reaches.
    pub fn temp(&mut self, dtype: DType, shape: &[Dim]) -> Result<View, CompileError> {
        let home = if self.constant {
            Home::Prepared
        } else {
            Home::Arena
        };
        self.place(dtype, shape, home)
    }

    /// A slot that holds a constant: the graph's, or a table that a kernel reads. The same contents
    /// are placed again under the same buffer.
    ///
    /// # Errors
    /// As [`Emit::temp`].
    pub fn constant(&mut self, tensor: Tensor) -> Result<View, CompileError> {
        let ty = tensor.ty().clone();
        let consts = &mut self.draft.consts;
        let at = consts.iter().position(|known| *known == tensor);
        let at = at.unwrap_or_else(|| {
            consts.push(tensor);
            consts.len() - 1
        });
        let home = Home::At(Buffer::Const(at as u32), 0);
        self.place(ty.dtype, &Shape::known(&ty.shape), home)
    }

    /// The slot of a result, dense; the state's own where the node updates a state in place.
    ///
    /// # Errors
    /// As [`Emit::temp`].
    pub fn result(&mut self, port: usize) -> Result<View, CompileError> {
        debug_assert!(self.arms.is_empty(), "invariant: all arms have one result");
        let graph = self.graph;
        let ty = &graph.node(self.at).outputs[port];
        let view = match self.into_state {
            Some(slot) if port == 0 => View {
                slot,
                layout: self.dense_layout(&ty.shape)?,
                dtype: ty.dtype,
            },
            Some(_) | None => self.temp(ty.dtype, &ty.shape)?,
        };
        self.results[port] = Some(view.clone());
        Ok(view)
    }

    /// Makes a value that exists already the result, instead of a new slot.
    pub fn forward(&mut self, port: usize, view: View) {
        self.results[port] = Some(view);
    }

    /// True if the value was left to its readers, without a place of its own.
    pub(crate) fn is_left(&self, v: Value) -> bool {
        self.deferred.contains(&v.node) || self.norms.contains_key(&v)
    }

    /// A value without a place of its own: made once for all that ask for it in the same arms.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn made(
        &mut self,
        of: Value,
        make: impl FnOnce(&mut Emit<'a>) -> Result<View, CompileError>,
    ) -> Result<View, CompileError> {
        let known =
            |(value, arms, _): &&(Value, Arms, View)| *value == of && self.arms.starts_with(arms);
        if let Some((.., view)) = self.made.iter().find(known) {
            return Ok(view.clone());
        }
        let view = make(self)?;
        self.made.push((of, self.arms.clone(), view.clone()));
        Ok(view)
    }

    /// True if this node's first result is written into the state that its first operand reads.
    pub fn updates_in_place(&self) -> bool {
        self.into_state.is_some()
    }

    /// True if the value is the same in every run with the same parameters.
    pub fn is_constant(&self, view: &View) -> bool {
        self.home(view.slot).is_constant()
    }

    pub(crate) fn home(&self, slot: SlotId) -> Home {
        self.draft.slots[slot.0 as usize].home
    }

    fn dense_layout(&self, shape: &[Dim]) -> Result<SymLayout, CompileError> {
        SymLayout::dense(shape).ok_or_else(|| self.too_large(u64::MAX))
    }

    fn too_large(&self, bytes: u64) -> CompileError {
        let site = self.site();
        CompileError::TooLarge {
            node: site.node,
            op: site.op,
            bytes,
            limit: self.caps.max_binding_bytes,
        }
    }

    pub(crate) fn place(
        &mut self,
        dtype: DType,
        shape: &[Dim],
        home: Home,
    ) -> Result<View, CompileError> {
        let mut bytes = Some(dtype.size_bytes());
        for dim in shape {
            let size = dim.upper_bound(self.bounds)?;
            bytes = bytes.and_then(|n| n.checked_mul(size));
        }
        let bytes = bytes.map_or(u64::MAX, |n| n as u64);
        if bytes > self.caps.max_binding_bytes {
            return Err(self.too_large(bytes));
        }
        let layout = self.dense_layout(shape)?;
        let slot = self.slot(SlotDraft {
            // A binding cannot be empty.
            bytes: bytes.next_multiple_of(4).max(4),
            dtype,
            numel: numel(shape),
            home,
        });
        Ok(View {
            slot,
            layout,
            dtype,
        })
    }

    /// As [`Emit::place`], for rows that lie in planes: each begins where they are aligned.
    pub(crate) fn place_planes(
        &mut self,
        planes: &Planes,
        shape: &[Dim],
        home: Home,
    ) -> Result<View, CompileError> {
        let all = self.place(DType::U8, &planes.stored(shape), home)?;
        let layout = planes.layout(shape);
        let layout = layout.ok_or_else(|| self.too_large(u64::MAX))?;
        Ok(View { layout, ..all })
    }

    pub(crate) fn slot(&mut self, draft: SlotDraft) -> SlotId {
        self.draft.slots.push(draft);
        SlotId(self.draft.slots.len() as u32 - 1)
    }

    /// The size at the symbols' bounds: what choices may depend on.
    ///
    /// # Errors
    /// [`CompileError::Bounds`] when it is not possible.
    pub fn bound(&self, dim: &Dim) -> Result<usize, CompileError> {
        Ok(dim.upper_bound(self.bounds)?)
    }

    /// The size at each run; of a graph inside a node, at each run that comes to it.
    pub fn num(&mut self, dim: &Dim) -> Num {
        if self.around.is_empty() {
            return self.draft.tape.dim(dim);
        }
        let is_given = dim.known().is_some() || dim.as_symbol().is_some();
        if !is_given && self.own_dims.insert(dim.clone()) {
            self.check_sizes(self.op, SizeRule::Size { dim: dim.clone() });
        }
        self.draft.tape.dim_inside(dim)
    }

    /// The number of elements at each run.
    pub fn numel(&mut self, shape: &[Dim]) -> Num {
        let mut n = Num::ONE;
        for dim in shape {
            let d = self.num(dim);
            n = self.draft.tape.mul(n, d);
        }
        n
    }

    /// The tape, for further arithmetic.
    pub fn tape(&mut self) -> &mut Tape {
        &mut self.draft.tape
    }

    /// The words that a dense tensor of this dtype takes at each run.
    pub fn words(&mut self, dtype: DType, shape: &[Dim]) -> Num {
        let n = self.numel(shape);
        let lanes = (4 / dtype.size_bytes().min(4)) as u32;
        self.draft.tape.ceil_div(n, lanes)
    }

    /// The offset of a view in elements.
    pub fn offset(&mut self, view: &View) -> Num {
        let mut sum = Num::ZERO;
        for term in view.layout.offset() {
            let t = self.term(term);
            sum = self.draft.tape.add(sum, t);
        }
        sum
    }

    /// The strides of a view in elements, one for each axis.
    pub fn strides(&mut self, view: &View) -> SmallVec<[Num; 8]> {
        view.layout.strides().iter().map(|t| self.term(t)).collect()
    }

    /// The sizes of a view.
    pub fn sizes(&mut self, shape: &[Dim]) -> SmallVec<[Num; 8]> {
        shape.iter().map(|d| self.num(d)).collect()
    }

    fn term(&mut self, term: &Term) -> Num {
        let dim = self.num(term.dim());
        self.draft.tape.mul(dim, Num::Const(term.factor()))
    }

    /// A grid of `groups` workgroups, split over two axes where one is too short. The kernel's flat
    /// group is `group.y * count.x + group.x`; groups beyond `groups` must do nothing.
    pub fn flat_grid(&mut self, groups: Num) -> [Num; 3] {
        let max = Num::Const(i64::from(self.caps.max_grid));
        let tape = &mut self.draft.tape;
        [tape.min(groups, max), tape.ceil_div(groups, max), Num::ONE]
    }

    /// The grid for `items` invocations in workgroups of `size`.
    pub fn grid_of(&mut self, items: Num, size: u32) -> [Num; 3] {
        let groups = self.draft.tape.ceil_div(items, size);
        self.flat_grid(groups)
    }

    /// A slot to bind where a kernel's optional argument is absent. Its kernel never reads it. It is no other's, for
    /// kernels may bind that as another type.
    ///
    /// # Errors
    /// As [`Emit::temp`].
    pub fn absent(&mut self) -> Result<SlotId, CompileError> {
        Ok(self.temp(DType::U32, &[Dim::Known(4)])?.slot)
    }
}

/// True if every dimension is known.
pub(crate) fn all_known(shape: &[Dim]) -> bool {
    shape.iter().all(|d| d.known().is_some())
}
