//! Where the values of a graph lie: operands, results, and copies that are made once.

use tercet_ir::{CompileError, DType, Graph, NodeId, Value};

use super::panels::Offer;
use super::{Emit, Home, View, all_known};
use crate::families::copy;
use crate::num::Num;
use crate::program::{Arms, Buffer, SlotId};

/// The order of elements of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// That of the view, without gaps.
    Dense,
    /// As fragments of matrices take them (`matmul/prepack.rs`).
    Laid,
    /// As F32.
    Wide,
    /// As pairs of F16 (`attention/pairs.rs`), of rows of so many query heads of a key head and so many columns; those that
    /// these lengths count.
    Pairs {
        group: usize,
        columns: u32,
        lens: Option<SlotId>,
    },
}

/// A matrix of F32, or a batch of such, of which pairs of F16 are made (`matmul/pairs.rs`): columns lie beside each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Halves {
    pub(crate) slot: SlotId,
    pub(crate) offset: Num,
    /// From row to row.
    pub(crate) row: Num,
    /// Rows and columns.
    pub(crate) size: [Num; 2],
    /// The size and the distance.
    pub(crate) batch: [Num; 2],
}

/// Where values of the graph lie so far.
#[derive(Debug)]
pub(crate) struct Values {
    /// The results of each node that has been emitted.
    pub(super) places: Vec<Vec<View>>,
    /// Copies, by what they are copies of.
    pub(super) copies: Vec<(View, Order, View)>,
    /// Values that are made where they are first asked for, with the arms that they are there in.
    pub(super) made: Vec<(Value, Arms, View)>,
    /// Slots of the same elements rounded to 16 bits, with the arms that they are there in.
    rounded: Vec<(SlotId, Arms, DType, SlotId)>,
    /// Pairs of F16, with the arms that they are there in and the node that they were made for.
    halves: Vec<(Halves, Arms, NodeId, SlotId)>,
    /// Kernels that can write rows in panels.
    pub(super) panels: Vec<Offer>,
}

impl Values {
    /// Of a graph of which nothing has been emitted.
    pub(super) fn of(graph: &Graph) -> Values {
        Values {
            places: vec![Vec::new(); graph.len()],
            copies: Vec::new(),
            made: Vec::new(),
            rounded: Vec::new(),
            halves: Vec::new(),
            panels: Vec::new(),
        }
    }
}

impl<'a> Emit<'a> {
    /// The value as it lies, without any copy.
    pub fn view(&self, v: Value) -> View {
        self.values.places[v.node.index()][v.port as usize].clone()
    }

    /// Where the results of a node lie.
    pub(crate) fn places(&self, node: NodeId) -> Vec<View> {
        self.values.places[node.index()].clone()
    }

    /// Says where the results of a node lie.
    pub(crate) fn set_places(&mut self, node: NodeId, places: Vec<View>) {
        self.values.places[node.index()] = places;
    }

    /// Emits with another place for the first result of a node.
    pub(crate) fn with_place<T>(
        &mut self,
        node: NodeId,
        place: View,
        emit: impl FnOnce(&mut Emit<'a>) -> T,
    ) -> T {
        let at = node.index();
        let before = std::mem::replace(&mut self.values.places[at], vec![place]);
        let done = emit(self);
        self.values.places[at] = before;
        done
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
        self.once(view, order, |e| {
            let constant = e.is_constant(view) && all_known(view.layout.shape());
            e.as_constant(constant, |e| {
                let to = e.temp(view.dtype, view.layout.shape())?;
                write(e, &to)?;
                Ok::<_, CompileError>(to)
            })
        })
    }

    /// What the closure makes of a view, once for each order.
    ///
    /// # Errors
    /// The closure's.
    pub(crate) fn once(
        &mut self,
        view: &View,
        order: Order,
        make: impl FnOnce(&mut Self) -> Result<View, CompileError>,
    ) -> Result<View, CompileError> {
        let same = |(from, of, _): &&(View, Order, View)| from == view && *of == order;
        if let Some((.., done)) = self.values.copies.iter().find(same) {
            return Ok(done.clone());
        }
        let done = make(self)?;
        // A state changes in the run: a copy of it is good only where it was made. Unless nothing is assigned to it.
        let is_state = matches!(self.home(view.slot), Home::At(Buffer::State(_), _));
        let stays = |e: &Self| {
            let mut assigns = e.graph.assigns().iter();
            matches!(order, Order::Pairs { .. })
                && !assigns.any(|to| e.view(to.state).slot == view.slot)
        };
        if !is_state || stays(self) {
            self.values.copies.push((view.clone(), order, done.clone()));
        }
        Ok(done)
    }

    /// The slot of a result, dense; an operand's own where the node updates that in place.
    ///
    /// # Errors
    /// As [`Emit::temp`].
    pub fn result(&mut self, port: usize) -> Result<View, CompileError> {
        debug_assert!(
            self.cursor.arms.is_empty(),
            "invariant: all arms have one result"
        );
        let graph = self.graph;
        let ty = &graph.node(self.cursor.at).outputs[port];
        let view = match self.updated(port) {
            Some(slot) => View {
                slot,
                layout: self.dense_layout(&ty.shape)?,
                dtype: ty.dtype,
            },
            None => self.temp(ty.dtype, &ty.shape)?,
        };
        self.cursor.results[port] = Some(view.clone());
        Ok(view)
    }

    /// Makes a value that exists already the result, instead of a new slot.
    pub fn forward(&mut self, port: usize, view: View) {
        self.cursor.results[port] = Some(view);
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
        let known = |(value, arms, _): &&(Value, Arms, View)| {
            *value == of && self.cursor.arms.starts_with(arms)
        };
        if let Some((.., view)) = self.values.made.iter().find(known) {
            return Ok(view.clone());
        }
        let view = make(self)?;
        let arms = self.cursor.arms.clone();
        self.values.made.push((of, arms, view.clone()));
        Ok(view)
    }

    /// A slot for the elements of a dense value in 16 bits, which the kernel that makes the value writes as well, for products in
    /// these arms. None where the value does not stay as it is.
    ///
    /// # Errors
    /// As [`Emit::temp`].
    pub(crate) fn round(&mut self, of: &View, to: DType) -> Result<Option<View>, CompileError> {
        if self.home(of.slot) != Home::Arena {
            return Ok(None);
        }
        let copy = self.temp(to, of.layout.shape())?;
        let arms = self.cursor.arms.clone();
        self.values.rounded.push((of.slot, arms, to, copy.slot));
        Ok(Some(copy))
    }

    /// The slot of the same elements in this dtype, where there is one in these arms.
    pub(crate) fn rounded(&self, of: SlotId, to: DType) -> Option<SlotId> {
        let known = |(slot, arms, dtype, _): &&(SlotId, Arms, DType, SlotId)| {
            *slot == of && *dtype == to && self.cursor.arms.starts_with(arms)
        };
        let found = self.values.rounded.iter().find(known);
        found.map(|(.., copy)| *copy)
    }

    /// The pairs of F16 of a matrix, which the closure makes: before the first run where it is constant and of known size, else
    /// once for nodes that are near each other, so that they do not take memory from the way forward to that of gradients.
    ///
    /// # Errors
    /// The closure's.
    pub(crate) fn halves(
        &mut self,
        of: Halves,
        is_known: bool,
        make: impl FnOnce(&mut Self) -> Result<SlotId, CompileError>,
    ) -> Result<SlotId, CompileError> {
        const NEAR: usize = 64;
        let constant = is_known && self.home(of.slot).is_constant();
        let at = self.cursor.at;
        let known = |(known, arms, node, _): &&(Halves, Arms, NodeId, SlotId)| {
            let is_near = at.index().abs_diff(node.index()) <= NEAR;
            *known == of && (constant || is_near && self.cursor.arms.starts_with(arms))
        };
        if let Some((.., slot)) = self.values.halves.iter().find(known) {
            return Ok(*slot);
        }
        let slot = self.as_constant(constant, make)?;
        // A state changes in the run.
        if constant || matches!(self.home(of.slot), Home::Arena | Home::Input) {
            let arms = self.cursor.arms.clone();
            self.values.halves.push((of, arms, at, slot));
        }
        Ok(slot)
    }

    /// The slot that a result of the node is written into because an operand lies there.
    pub fn updated(&self, port: usize) -> Option<SlotId> {
        let own = self
            .cursor
            .into
            .iter()
            .find(|(p, _)| usize::from(*p) == port);
        own.map(|(_, slot)| *slot)
    }

    /// Gives results slots of their own: what updates its operands in place reads them after it wrote some.
    pub(crate) fn update_apart(&mut self) {
        self.cursor.into.clear();
    }

    /// True if the value is the same in every run with the same parameters.
    pub fn is_constant(&self, view: &View) -> bool {
        self.home(view.slot).is_constant()
    }

    pub(crate) fn home(&self, slot: SlotId) -> Home {
        self.draft.home(slot)
    }

    /// Copies of an arm are not there in others: forgets those since `first` that a run makes.
    pub(super) fn forget_copies(&mut self, first: usize) {
        let made = self.values.copies.split_off(first);
        let is_prepared = |(.., done): &(View, Order, View)| self.home(done.slot) == Home::Prepared;
        let kept: Vec<_> = made.into_iter().filter(is_prepared).collect();
        self.values.copies.extend(kept);
    }
}
