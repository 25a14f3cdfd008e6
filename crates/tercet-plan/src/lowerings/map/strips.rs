//! Sums of strips over leading axes, and what adds them up.
//!
//! Sums of one kind lie behind each other in one buffer, so that one kernel adds them all.

use tercet_ir::layout::{Cut, SymLayout};
use tercet_ir::ops::{Op, ReduceFn};
use tercet_ir::{CompileError, DType, Dim, NodeId, Type, Value};

use crate::emit::{Emit, View};
use crate::families::reduce::{self, Last};
use crate::families::rows::Rows;
use crate::fusions::Columns;
use crate::num::Num;

/// The sums of strips of a group.
pub(super) struct Strips {
    /// One for all sums, `[sums, strips, columns]`, or one for each, `[strips, columns]`.
    partial: Vec<View>,
    /// How each result lies in what adds them all, if that is one.
    together: Option<Vec<SymLayout>>,
    columns: Dim,
}

impl Strips {
    /// Memory for them.
    ///
    /// # Errors
    /// [`CompileError`] when they are too large.
    pub(super) fn new(
        e: &mut Emit<'_>,
        group: &Columns,
        strips: usize,
        columns: Dim,
    ) -> Result<Strips, CompileError> {
        let together = together(e, group, &columns);
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
        Ok(Strips {
            partial,
            together,
            columns,
        })
    }

    /// What the kernel writes.
    pub(super) fn partial(&self) -> &[View] {
        &self.partial
    }

    /// Whether all sums are written to one buffer.
    pub(super) fn is_together(&self) -> bool {
        self.together.is_some()
    }

    /// The sums of strips, put together; `count` elements are in each.
    ///
    /// # Errors
    /// [`CompileError`] when a result is too large.
    pub(super) fn added(
        self,
        e: &mut Emit<'_>,
        group: &Columns,
        count: Num,
    ) -> Result<Vec<View>, CompileError> {
        if let Some(layouts) = self.together {
            let (f, ty) = result(e, group.sums[0]);
            let shape = [Dim::Known(group.sums.len()), self.columns];
            let y = e.temp(ty.dtype, &shape)?;
            let rows = Rows::of(e, &self.partial[0], &[1])?;
            let last = Last::new(f == ReduceFn::Mean, count);
            reduce::stage(e, f, &self.partial[0], &rows, &y, 1, Some(last));
            let results = layouts.into_iter().map(|layout| View {
                layout,
                ..y.clone()
            });
            return Ok(results.collect());
        }
        let mut results = Vec::new();
        for (&sum, partial) in group.sums.iter().zip(&self.partial) {
            let (f, ty) = result(e, sum);
            let y = e.temp(ty.dtype, &ty.shape)?;
            let rows = Rows::of(e, partial, &[0])?;
            let last = Last::new(f == ReduceFn::Mean, count);
            reduce::stage(e, f, partial, &rows, &y, 1, Some(last));
            results.push(y);
        }
        Ok(results)
    }
}

/// What a sum is, and its type.
fn result(e: &Emit<'_>, sum: NodeId) -> (ReduceFn, Type) {
    let Op::Reduce(op) = &e.graph.node(sum).op else {
        unreachable!("invariant: the group is of sums")
    };
    (op.f, e.graph.ty(Value { node: sum, port: 0 }).clone())
}

/// The layouts of several sums of one kind and dtype as rows of one matrix, if they have such.
fn together(e: &Emit<'_>, group: &Columns, columns: &Dim) -> Option<Vec<SymLayout>> {
    let count = group.sums.len();
    let kinds: Vec<(ReduceFn, Type)> = group.sums.iter().map(|sum| result(e, *sum)).collect();
    let alike = |k: &(ReduceFn, Type)| k.0 == kinds[0].0 && k.1.dtype == kinds[0].1.dtype;
    if count < 2 || !kinds.iter().all(alike) {
        return None;
    }
    let all = SymLayout::dense(&[Dim::Known(count), columns.clone()])?;
    let row = |(i, (_, ty)): (usize, &(ReduceFn, Type))| {
        let cut = |start: usize| Cut {
            start: Dim::Known(start),
            step: 1,
        };
        let row = all.slice(&[cut(i), cut(0)], &[Dim::Known(1), columns.clone()])?;
        row.reshape(&ty.shape)
    };
    kinds.iter().enumerate().map(row).collect()
}
