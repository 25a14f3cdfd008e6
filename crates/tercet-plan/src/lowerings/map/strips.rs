//! Buffers for the partial sums of column and channel sums, and the kernel that adds them up.
//!
//! If all sums of a fusion group have the same function and dtype, they share a buffer, so that one
//! kernel adds up all of them.

use tercet_ir::layout::{AxisSlice, SymLayout};
use tercet_ir::ops::{Op, ReduceFn};
use tercet_ir::{CompileError, DType, Dim, NodeId, Type, Value};

use crate::emit::{LoweringCtx, SlotView};
use crate::fusions::ColumnSumGroup;
use crate::lowerings::reduce::{self, ReduceFinish};
use crate::lowerings::rows::RowLayout;
use tercet_program::SymInt;

/// The partial sums of a fusion group of column or channel sums.
pub(super) struct StripSums {
    /// Partial sums: one buffer `[sums, strips, columns]` for all sums, or one buffer `[strips,
    /// columns]` per sum.
    partial: Vec<SlotView>,
    /// Layout of each final sum within a common buffer, if one kernel adds up all partial sums.
    together: Option<Vec<SymLayout>>,
    columns: Dim,
}

impl StripSums {
    /// Allocates the partial sums.
    ///
    /// # Errors
    /// [`CompileError`] if the partial sums are too large.
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        group: &ColumnSumGroup,
        strips: usize,
        columns: Dim,
    ) -> Result<StripSums, CompileError> {
        let together = combined_layouts(e, group, &columns);
        let shape = [Dim::Known(strips), columns.clone()];
        let partial = match together {
            Some(_) => {
                let sums = Dim::Known(group.sums.len());
                let all = [&[sums], &shape[..]].concat();
                vec![e.temp(DType::F32, &all)?]
            }
            None => {
                let each = group.sums.iter().map(|_| e.temp(DType::F32, &shape));
                each.collect::<Result<_, _>>()?
            }
        };
        Ok(StripSums {
            partial,
            together,
            columns,
        })
    }

    /// Views of the partial sums, which the kernel that sums strips writes.
    pub(super) fn partial(&self) -> &[SlotView] {
        &self.partial
    }

    /// Whether all partial sums share one buffer.
    pub(super) fn is_single_buffer(&self) -> bool {
        self.together.is_some()
    }

    /// Emits the kernel that adds the partial sums of each result; a result is a sum or mean of
    /// `count` elements.
    ///
    /// # Errors
    /// [`CompileError`] if a result is too large.
    pub(super) fn added(
        self,
        e: &mut LoweringCtx<'_>,
        group: &ColumnSumGroup,
        count: SymInt,
    ) -> Result<Vec<SlotView>, CompileError> {
        if let Some(layouts) = self.together {
            let (f, ty) = result(e, group.sums[0]);
            let shape = [Dim::Known(group.sums.len()), self.columns];
            let y = e.temp(ty.dtype, &shape)?;
            let rows = RowLayout::new(e, &self.partial[0], &[1])?;
            let last = ReduceFinish::new(f == ReduceFn::Mean, count);
            reduce::stage(e, f, &self.partial[0], &rows, &y, 1, Some(last));
            let results = layouts.into_iter().map(|layout| SlotView {
                layout,
                ..y.clone()
            });
            return Ok(results.collect());
        }
        let mut results = Vec::new();
        for (&sum, partial) in group.sums.iter().zip(&self.partial) {
            let (f, ty) = result(e, sum);
            let y = e.temp(ty.dtype, &ty.shape)?;
            let rows = RowLayout::new(e, partial, &[0])?;
            let last = ReduceFinish::new(f == ReduceFn::Mean, count);
            reduce::stage(e, f, partial, &rows, &y, 1, Some(last));
            results.push(y);
        }
        Ok(results)
    }
}

/// Reduction function (sum or mean) and result type of node `sum`.
fn result(e: &LoweringCtx<'_>, sum: NodeId) -> (ReduceFn, Type) {
    let Op::Reduce(op) = &e.graph.node(sum).op else {
        unreachable!("invariant: the group consists of sums")
    };
    (op.f, e.graph.ty(Value { node: sum, port: 0 }).clone())
}

/// Layouts of the group's sums as rows of one matrix; `None` if functions or dtypes differ.
fn combined_layouts(
    e: &LoweringCtx<'_>,
    group: &ColumnSumGroup,
    columns: &Dim,
) -> Option<Vec<SymLayout>> {
    let count = group.sums.len();
    let kinds: Vec<(ReduceFn, Type)> = group.sums.iter().map(|sum| result(e, *sum)).collect();
    let alike = |k: &(ReduceFn, Type)| k.0 == kinds[0].0 && k.1.dtype == kinds[0].1.dtype;
    if count < 2 || !kinds.iter().all(alike) {
        return None;
    }
    let all = SymLayout::dense(&[Dim::Known(count), columns.clone()])?;
    let row = |(i, (_, ty)): (usize, &(ReduceFn, Type))| {
        let cut = |start: usize| AxisSlice {
            start: Dim::Known(start),
            step: 1,
        };
        let row = all.slice(&[cut(i), cut(0)], &[Dim::Known(1), columns.clone()])?;
        row.reshape(&ty.shape)
    };
    kinds.iter().enumerate().map(row).collect()
}
