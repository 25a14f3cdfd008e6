//! What a family may do while it lowers a node: look at operands, take slots, dispatch kernels.
//!
//! Order of work for a family: [`Emit::view`] the operands; [`Emit::dense`] those whose strides its
//! kernel does not take; [`Emit::result`] for each result; [`Emit::dispatch`]. Sizes are [`Num`]s
//! ([`Emit::num`] and the arithmetic beside it): known, or computed at each run. What decides which
//! kernel runs may only look at [`Emit::bound`].
//!
//! Invariant: what a family emits depends on the graph, the capabilities and the bounds only.
//!
//! Next: `emit/values.rs` for operands and results, `emit/dispatch.rs` for kernels as steps, `emit/choices.rs` for ways of
//! which a run takes one, `emit/checks.rs` for what ends a run, `emit/chain.rs` for dispatches that wait for each other, `emit/blocks.rs` for graphs inside nodes,
//! `emit/cursor.rs` for the node that is emitted, `emit/decoding.rs` for when weights are decoded, `emit/draft.rs` for the
//! program so far.

mod blocks;
mod chain;
mod checks;
mod choices;
mod cursor;
mod decoding;
mod dispatch;
mod draft;
mod panels;
mod values;

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;
use tercet_ir::layout::{SymLayout, Term, numel};
use tercet_ir::legalize::Origins;
use tercet_ir::{
    Bindings, CompileError, DType, Dim, Graph, NodeId, Shape, Signature, Tensor, TensorType, Value,
};

use self::blocks::Around;
pub(crate) use self::blocks::Block;
use self::cursor::Cursor;
pub(crate) use self::cursor::UpdatedSlots;
pub(crate) use self::draft::{Draft, Home, SlotDraft};
use self::values::Values;
pub(crate) use self::values::{Halves, Order};
use crate::caps::Caps;
use crate::num::{Num, Tape};
use crate::planes::Planes;
use crate::program::{Buffer, SizeRule, SlotId};
use crate::split::Parts;

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

/// What is known of a graph before anything is emitted.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) bounds: &'a Bindings,
    pub(crate) signature: &'a Signature,
    /// For the legal nodes those of the graph as it was given.
    pub(crate) origins: Origins,
    /// Values whose packed rows lie in planes.
    pub(crate) planes: HashMap<Value, Planes>,
    /// Leaves and results above the binding limit, which kernels reach in parts.
    pub(crate) parts: Parts,
    /// The nodes that this graph lies in, outermost first, each with the attribute that holds the next
    /// graph.
    pub(crate) around: Vec<Around>,
    /// Packed operands that several nodes read.
    pub(crate) shared_packed: HashSet<Value>,
    /// Attention that writes its results with positions before heads.
    pub(crate) turned_attention: HashSet<NodeId>,
    /// What rows of F32 may be rounded to on their way into products ([`tercet_ir::CompileOptions::products`]).
    pub(crate) products: Option<DType>,
    /// Dispatches may wait for each other without barriers, and there are enough that gain by it.
    pub(crate) has_chains: bool,
    /// Some node has graphs inside: records of checks are cleared first, and keep what is found first.
    pub(crate) has_flow: bool,
}

/// Sizes that a graph inside a node checks when a run comes to it.
#[derive(Debug, Default)]
pub(crate) struct OwnSizes {
    /// The checks, by their place.
    checks: Vec<usize>,
    /// Sizes that are checked for this graph or for one around it.
    dims: HashSet<Dim>,
}

/// The state of planning, as families see it.
pub struct Emit<'a> {
    /// The legal graph.
    pub graph: &'a Graph,
    /// What the device offers.
    pub caps: &'a Caps,
    pub(crate) facts: Facts<'a>,
    /// The program so far.
    pub(crate) draft: Draft,
    /// Where the graph's values lie so far.
    values: Values,
    pub(crate) cursor: Cursor,
    own_sizes: OwnSizes,
}

impl<'a> Emit<'a> {
    pub(crate) fn new(graph: &'a Graph, caps: &'a Caps, facts: Facts<'a>) -> Emit<'a> {
        Emit {
            graph,
            caps,
            facts,
            draft: Draft::default(),
            values: Values::of(graph),
            cursor: Cursor::start(),
            own_sizes: OwnSizes::default(),
        }
    }

    /// A new slot of this type that lives as long as steps use it.
    ///
    /// # Errors
    /// [`CompileError::TooLarge`] when it exceeds what one binding reaches.
    pub fn temp(&mut self, dtype: DType, shape: &[Dim]) -> Result<View, CompileError> {
        let home = if self.cursor.constant {
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
        let (ty, home) = self.constant_home(tensor);
        self.place(ty.dtype, &Shape::known(&ty.shape), home)
    }

    /// As [`Emit::constant`], for one that kernels bind in parts.
    pub(crate) fn constant_unbound(&mut self, tensor: Tensor) -> Result<View, CompileError> {
        let (ty, home) = self.constant_home(tensor);
        self.place_unbound(ty.dtype, &Shape::known(&ty.shape), home)
    }

    fn constant_home(&mut self, tensor: Tensor) -> (TensorType, Home) {
        let ty = tensor.ty().clone();
        let consts = &mut self.draft.consts;
        let at = consts.iter().position(|known| *known == tensor);
        let at = at.unwrap_or_else(|| {
            consts.push(tensor);
            consts.len() - 1
        });
        (ty, Home::At(Buffer::Const(at as u32), 0))
    }

    pub(crate) fn dense_layout(&self, shape: &[Dim]) -> Result<SymLayout, CompileError> {
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
        let bytes = self.bytes_at_bounds(dtype, shape)?;
        if bytes > self.caps.max_binding_bytes {
            return Err(self.too_large(bytes));
        }
        self.place_unbound(dtype, shape, home)
    }

    fn bytes_at_bounds(&self, dtype: DType, shape: &[Dim]) -> Result<u64, CompileError> {
        let mut bytes = Some(dtype.size_bytes());
        for dim in shape {
            let size = dim.upper_bound(self.facts.bounds)?;
            bytes = bytes.and_then(|n| n.checked_mul(size));
        }
        Ok(bytes.map_or(u64::MAX, |n| n as u64))
    }

    /// As [`Emit::place`], of any size: kernels bind parts of it ([`Emit::part`]) or nothing.
    pub(crate) fn place_unbound(
        &mut self,
        dtype: DType,
        shape: &[Dim],
        home: Home,
    ) -> Result<View, CompileError> {
        let bytes = self.bytes_at_bounds(dtype, shape)?;
        let layout = self.dense_layout(shape)?;
        let words = bytes.checked_next_multiple_of(4);
        let slot = SlotDraft {
            // A binding cannot be empty.
            bytes: words.ok_or_else(|| self.too_large(bytes))?.max(4),
            dtype,
            numel: numel(shape),
            home,
        };
        Ok(View {
            slot: self.slot(slot),
            layout,
            dtype,
        })
    }

    /// Where a part of a slot lies that begins so many bytes after it.
    pub(crate) fn part(&self, of: SlotId, offset_bytes: u64) -> Home {
        match self.home(of) {
            Home::At(buffer, first) => Home::At(buffer, first + offset_bytes),
            Home::Arena
            | Home::Prepared
            | Home::Output
            | Home::Input
            | Home::Counters
            | Home::Within(..) => Home::Within(of, offset_bytes),
        }
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
        Ok(dim.upper_bound(self.facts.bounds)?)
    }

    /// The size at each run; of a graph inside a node, at each run that comes to it.
    pub fn num(&mut self, dim: &Dim) -> Num {
        if self.facts.around.is_empty() {
            return self.draft.tape.dim(dim);
        }
        let is_given = dim.known().is_some() || dim.as_symbol().is_some();
        if !is_given && self.own_sizes.dims.insert(dim.clone()) {
            self.check_sizes(SizeRule::Size { dim: dim.clone() });
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
