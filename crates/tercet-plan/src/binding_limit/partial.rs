//! Operands that are read piece by piece: tables whose rows are gathered, factors of products, what is reduced along the
//! axis that is cut.

use std::ops::Range;

use tercet_ir::ops::{Gather, MatMul, Op, Reduce, ReduceFn};
use tercet_ir::{DType, Dim, Node, NodeId, OpError, Shape, Tensor, TensorType, Value};

use super::Rewrite;
use super::place::Place;
use super::range::{Region, full};

/// Ranges of the first axis of an operand, each a value of its own.
type Rows = Vec<(Range<usize>, Value)>;

/// The operand of a node that is read piece by piece.
pub(super) enum Pieces {
    None,
    /// A table whose rows are gathered.
    Table(Rows),
    /// A right factor whose columns are the rows of these: given as a transpose, or packed.
    Columns(Rows),
    /// A right factor: what its rows give is added up.
    Summed(Rows),
}

impl Pieces {
    /// Its place among the operands.
    pub(super) fn operand(&self) -> Option<usize> {
        match self {
            Pieces::None => None,
            Pieces::Table(_) => Some(0),
            Pieces::Columns(_) | Pieces::Summed(_) => Some(1),
        }
    }
}

/// True if a product reads this operand as its right factor.
fn is_right_factor(node: &Node, at: usize) -> bool {
    at == 1 && matches!(node.op, Op::MatMul(_) | Op::Linear(_))
}

impl Rewrite<'_> {
    /// The parts of an old value above the limit, where each is a range of its first axis.
    fn rows(&self, old: Value) -> Option<Rows> {
        let (place, sizes) = (self.place(old), self.old.ty(old).shape.as_known()?);
        let is_by_rows = place.is_large && place.is_by_rows(&sizes);
        let rows = place.parts.iter().map(|(r, v)| (r[0].clone(), *v));
        is_by_rows.then(|| rows.collect())
    }

    /// True if nothing but products reads this transpose of rows in parts.
    pub(super) fn is_for_products(&self, id: NodeId, node: &Node) -> bool {
        let Op::Transpose(o) = &node.op else {
            return false;
        };
        let reads = |n: &Node| {
            let mut inputs = n.inputs.iter().enumerate();
            inputs.all(|(at, v)| v.node != id || is_right_factor(n, at))
        };
        o.perm == [1, 0]
            && self.rows(node.inputs[0]).is_some()
            && self.old.nodes().all(|(_, n)| reads(n))
            && self.old.results().all(|v| v.node != id)
    }

    /// What a node reads piece by piece, if anything.
    pub(super) fn pieces(&self, node: &Node) -> Pieces {
        let pieces = match &node.op {
            Op::Gather(o) if o.axis == 0 && self.old.ty(node.inputs[1]).dtype == DType::I32 => {
                self.rows(node.inputs[0]).map(Pieces::Table)
            }
            Op::DequantMatMul(_) => self.rows(node.inputs[1]).map(Pieces::Columns),
            Op::MatMul(_) | Op::Linear(_) if self.old.ty(node.inputs[1]).rank() == 2 => {
                match self.place(node.inputs[1]).transposed {
                    Some(of) => self.rows(of).map(Pieces::Columns),
                    None => self.rows(node.inputs[1]).map(Pieces::Summed),
                }
            }
            _ => None,
        };
        pieces.unwrap_or(Pieces::None)
    }

    /// The results of an operator for regions of the operands of a node; all of those without one.
    pub(super) fn apply(
        &mut self,
        node: &Node,
        op: Op,
        reads: &[Option<Region>],
        pieces: &Pieces,
    ) -> Result<Vec<Value>, OpError> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (at, (v, read)) in node.inputs.iter().zip(reads).enumerate() {
            if pieces.operand() == Some(at) {
                continue;
            }
            inputs.push(match read {
                Some(region) => self.region(*v, region)?,
                None => self.whole(*v)?,
            });
        }
        let (x, bias) = (inputs[0], inputs.get(1).copied());
        match pieces {
            Pieces::None => {
                let first = self.graph.add(op, &inputs)?;
                Ok((0..node.outputs.len() as u8)
                    .map(|p| first.port(p))
                    .collect())
            }
            Pieces::Table(rows) => Ok(vec![self.gathered(x, rows)?]),
            Pieces::Columns(rows) => Ok(vec![self.columns(&op, x, bias, rows)?]),
            Pieces::Summed(rows) => Ok(vec![self.summed(&op, x, bias, rows)?]),
        }
    }

    /// Rows of a table in parts: those of each part, of which each index takes its own.
    fn gathered(&mut self, idx: Value, parts: &Rows) -> Result<Value, OpError> {
        let rows = parts.last().map_or(0, |(rows, _)| rows.end);
        let rank = parts
            .first()
            .map_or(1, |(_, part)| self.graph.ty(*part).rank());
        let g = &mut self.graph;
        // An index out of range is found against all rows; parts are read where they have some.
        let zero = g.scalar(DType::I32, 0.0)?;
        let one = g.reshape(zero, [1usize])?;
        let zeros = g.expand(one, [rows])?;
        let checked = g.add(Gather { axis: 0 }, &[zeros, idx])?;
        let all = g.scalar(DType::I32, rows as f64)?;
        let (is_back, back) = (g.lt(idx, zero)?, g.plus(idx, all)?);
        let at = g.where_(is_back, back, idx)?;
        let at = g.plus(at, checked)?;
        let mut choice: Vec<Dim> = g.ty(idx).shape.iter().cloned().collect();
        choice.extend((1..rank).map(|_| Dim::Known(1)));
        let choice = Shape::from(choice);
        let mut taken: Option<Value> = None;
        for (rows, part) in parts {
            let first = g.scalar(DType::I32, rows.start as f64)?;
            let local = g.sub(at, first)?;
            let local = g.clamp(local, 0.0, (rows.len() - 1) as f64)?;
            let here = g.gather(*part, local, 0)?;
            taken = Some(match taken {
                None => here,
                Some(before) => {
                    let is_here = g.ge(at, first)?;
                    let is_here = g.reshape(is_here, choice.clone())?;
                    g.where_(is_here, here, before)?
                }
            });
        }
        Ok(taken.unwrap_or_else(|| unreachable!("invariant: a value in parts has one")))
    }

    /// Columns of a product: those of each part, side by side.
    fn columns(
        &mut self,
        op: &Op,
        x: Value,
        bias: Option<Value>,
        parts: &Rows,
    ) -> Result<Value, OpError> {
        let g = &mut self.graph;
        let mut columns = Vec::with_capacity(parts.len());
        for (rows, part) in parts {
            let mut inputs = vec![x];
            inputs.push(match op {
                Op::DequantMatMul(_) => *part,
                _ => g.transpose(*part, &[1, 0])?,
            });
            if let Some(bias) = bias {
                let (from, to) = (rows.start as i64, rows.end as i64);
                inputs.push(g.slice_axis(bias, 0, from, to, 1)?);
            }
            columns.push(g.add(op.clone(), &inputs)?);
        }
        let axis = columns.first().map_or(1, |y| g.ty(*y).rank()) - 1;
        g.concat(&columns, axis)
    }

    /// A product whose sums go over parts: narrow floats are added as F32.
    fn summed(
        &mut self,
        op: &Op,
        x: Value,
        bias: Option<Value>,
        parts: &Rows,
    ) -> Result<Value, OpError> {
        let g = &mut self.graph;
        let (dtype, last) = (g.ty(x).dtype, g.ty(x).rank() - 1);
        let wide = match dtype {
            DType::F16 | DType::BF16 => DType::F32,
            _ => dtype,
        };
        let mut sum: Option<Value> = None;
        for (rows, part) in parts {
            let (from, to) = (rows.start as i64, rows.end as i64);
            let x = g.slice_axis(x, last, from, to, 1)?;
            let y = g.add(MatMul {}, &[x, *part])?;
            let y = g.cast(y, wide)?;
            sum = Some(match sum {
                None => y,
                Some(sum) => g.plus(sum, y)?,
            });
        }
        let mut y = sum.unwrap_or_else(|| unreachable!("invariant: a value in parts has one"));
        if let Some(bias) = bias {
            let bias = g.cast(bias, wide)?;
            y = g.plus(y, bias)?;
        }
        if let Op::Linear(o) = op
            && let Some(f) = o.activation
        {
            y = g.unary(f, y)?;
        }
        g.cast(y, dtype)
    }

    /// True if parts of the value do not have all of these axes.
    pub(super) fn is_cut_along(&self, old: Value, axes: &[usize]) -> bool {
        let (place, sizes) = (self.place(old), self.old.ty(old).shape.as_known());
        let all = full(&sizes.unwrap_or_default());
        let is_cut = |r: &Region| axes.iter().any(|a| r[*a] != all[*a]);
        place.is_large && place.parts.iter().any(|(r, _)| is_cut(r))
    }

    /// A reduction of what is cut along the axes it goes over: of each part, then of what they gave.
    pub(super) fn reduced(
        &mut self,
        node: &Node,
        reduce: &Reduce,
    ) -> Result<Option<Vec<Place>>, OpError> {
        let parts = self.place(node.inputs[0]).parts.clone();
        let is_reduced = |axis: usize| reduce.axes.contains(&axis);
        // Parts with the same indices of the other axes belong together.
        let mut groups: Vec<(Region, Vec<(usize, Value)>)> = Vec::new();
        for (region, part) in parts {
            let own = |(axis, r): (usize, &Range<usize>)| match is_reduced(axis) {
                true => 0..1,
                false => r.clone(),
            };
            let kept: Region = region.iter().enumerate().map(own).collect();
            let count = reduce.axes.iter().map(|a| region[*a].len()).product();
            match groups.iter_mut().find(|(of, _)| *of == kept) {
                Some((_, members)) => members.push((count, part)),
                None => groups.push((kept, vec![(count, part)])),
            }
        }
        let mut done = Vec::with_capacity(groups.len());
        for (mut kept, members) in groups {
            let value = self.reduced_group(reduce, &members)?;
            if !reduce.keep_dim {
                let mut axes = 0..;
                kept.retain(|_| axes.next().is_some_and(|a| !is_reduced(a)));
            }
            done.push((kept, value));
        }
        let is_large = super::over(&node.outputs[0], self.caps);
        Ok(Some(vec![match done[..] {
            [(_, ref only)] => Place::whole(*only),
            _ => Place {
                parts: done,
                is_large,
                ..Place::default()
            },
        }]))
    }

    /// The reduction of parts, each with the number of elements that are reduced to one.
    fn reduced_group(
        &mut self,
        reduce: &Reduce,
        members: &[(usize, Value)],
    ) -> Result<Value, OpError> {
        let g = &mut self.graph;
        if let [(_, only)] = members {
            return g.add(reduce.clone(), &[*only]);
        }
        let partly = Reduce {
            keep_dim: true,
            ..reduce.clone()
        };
        let mut partial = Vec::with_capacity(members.len());
        for (_, part) in members {
            partial.push(g.add(partly.clone(), &[*part])?);
        }
        let axis = reduce.axes[0];
        let mut all = g.concat(&partial, axis)?;
        let mut last = reduce.clone();
        if reduce.f == ReduceFn::Mean {
            // Means of parts count by their sizes: sums would leave the range of F16.
            let total: usize = members.iter().map(|(count, _)| count).sum();
            let shares = members
                .iter()
                .map(|(count, _)| *count as f64 / total as f64);
            let mut sizes = vec![1; g.ty(all).rank()];
            sizes[axis] = members.len();
            let ty = TensorType::new(g.ty(all).dtype, &sizes);
            if let Ok(shares) = Tensor::from_f64s(ty, &shares.collect::<Vec<_>>()) {
                let shares = g.constant(shares)?;
                all = g.mul(all, shares)?;
            }
            last.f = ReduceFn::Sum;
        }
        g.add(last, &[all])
    }
}
