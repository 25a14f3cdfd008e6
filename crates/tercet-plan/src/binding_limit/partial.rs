//! Operators that consume an operand partition by partition: gathers (their data), matmuls (their
//! right operand), and reductions along the partitioned axis.

use std::ops::Range;

use tercet_ir::ops::{Gather, MatMul, Op, Reduce, ReduceFn};
use tercet_ir::{DType, Dim, Node, NodeId, OpError, Shape, Tensor, TensorType, Value};

use super::PartitionRewriter;
use super::place::PartitionedValue;
use super::range::{IndexRegion, full};

/// Partitions of an operand along its first axis: the index range and the value of each partition.
type RowRanges = Vec<(Range<usize>, Value)>;

/// An operand that is consumed partition by partition.
pub(super) enum PartialOperand {
    None,
    /// The data operand of a gather, partitioned by rows.
    Table(RowRanges),
    /// A right matmul operand partitioned by columns, which are the rows of these values: a
    /// transpose, or quantized weights.
    Columns(RowRanges),
    /// A right matmul operand partitioned along k; the partial products are added.
    Summed(RowRanges),
}

impl PartialOperand {
    /// Index of the operand among the node's operands.
    pub(super) fn operand(&self) -> Option<usize> {
        match self {
            PartialOperand::None => None,
            PartialOperand::Table(_) => Some(0),
            PartialOperand::Columns(_) | PartialOperand::Summed(_) => Some(1),
        }
    }
}

/// True if the node is a matmul and operand `at` is its right operand.
fn is_matmul_rhs(node: &Node, at: usize) -> bool {
    at == 1 && matches!(node.op, Op::MatMul(_) | Op::Linear(_))
}

impl PartitionRewriter<'_> {
    /// The partitions of a value above the binding limit in the original graph, if each partition
    /// is a range of its first axis.
    fn rows(&self, old: Value) -> Option<RowRanges> {
        let (place, sizes) = (self.place(old), self.source.ty(old).shape.as_known()?);
        let is_by_rows = place.is_large && place.is_by_rows(&sizes);
        let rows = place.parts.iter().map(|(r, v)| (r[0].clone(), *v));
        is_by_rows.then(|| rows.collect())
    }

    /// True if only matmuls read this transpose of partitioned rows.
    pub(super) fn feeds_only_matmuls(&self, id: NodeId, node: &Node) -> bool {
        let Op::Transpose(o) = &node.op else {
            return false;
        };
        let reads = |n: &Node| {
            let mut inputs = n.inputs.iter().enumerate();
            inputs.all(|(at, v)| v.node != id || is_matmul_rhs(n, at))
        };
        o.perm == [1, 0]
            && self.rows(node.inputs[0]).is_some()
            && self.source.nodes().all(|(_, n)| reads(n))
            && self.source.results().all(|v| v.node != id)
    }

    /// Finds the operand that a node consumes partition by partition, if any.
    pub(super) fn pieces(&self, node: &Node) -> PartialOperand {
        let pieces = match &node.op {
            Op::Gather(o) if o.axis == 0 && self.source.ty(node.inputs[1]).dtype == DType::I32 => {
                self.rows(node.inputs[0]).map(PartialOperand::Table)
            }
            Op::DequantMatMul(_) => self.rows(node.inputs[1]).map(PartialOperand::Columns),
            Op::MatMul(_) | Op::Linear(_) if self.source.ty(node.inputs[1]).rank() == 2 => {
                match self.place(node.inputs[1]).transposed {
                    Some(of) => self.rows(of).map(PartialOperand::Columns),
                    None => self.rows(node.inputs[1]).map(PartialOperand::Summed),
                }
            }
            _ => None,
        };
        pieces.unwrap_or(PartialOperand::None)
    }

    /// Adds an operator on these operand regions to the rewritten graph and returns its results;
    /// `None` means the whole operand.
    pub(super) fn apply(
        &mut self,
        node: &Node,
        op: Op,
        reads: &[Option<IndexRegion>],
        pieces: &PartialOperand,
    ) -> Result<Vec<Value>, OpError> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (at, (v, read)) in node.inputs.iter().zip(reads).enumerate() {
            if pieces.operand() == Some(at) {
                continue;
            }
            inputs.push(match read {
                Some(region) => self.region(*v, region)?,
                None => self.whole_value(*v)?,
            });
        }
        let (x, bias) = (inputs[0], inputs.get(1).copied());
        match pieces {
            PartialOperand::None => {
                let first = self.graph.add(op, &inputs)?;
                Ok((0..node.outputs.len() as u8)
                    .map(|p| first.port(p))
                    .collect())
            }
            PartialOperand::Table(rows) => Ok(vec![self.gathered(x, rows)?]),
            PartialOperand::Columns(rows) => Ok(vec![self.columns(&op, x, bias, rows)?]),
            PartialOperand::Summed(rows) => Ok(vec![self.summed(&op, x, bias, rows)?]),
        }
    }

    /// Gathers rows of a partitioned table: gathers from every partition, then selects the row from
    /// the partition that contains the index.
    fn gathered(&mut self, idx: Value, parts: &RowRanges) -> Result<Value, OpError> {
        let rows = parts.last().map_or(0, |(rows, _)| rows.end);
        let rank = parts
            .first()
            .map_or(1, |(_, part)| self.graph.ty(*part).rank());
        let g = &mut self.graph;
        // This gather from zeros only adds a data check of the indices against the row count of the
        // whole table. The gathers from single partitions clamp their indices, so they cannot
        // detect invalid ones.
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
        Ok(taken.unwrap_or_else(|| unreachable!("invariant: a partitioned value has partitions")))
    }

    /// Computes the result columns of a matmul for each partition of its right operand, and
    /// concatenates them.
    fn columns(
        &mut self,
        op: &Op,
        x: Value,
        bias: Option<Value>,
        parts: &RowRanges,
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

    /// A matmul whose right operand is partitioned along k: adds the products of all partitions, in
    /// F32 for 16-bit floats.
    fn summed(
        &mut self,
        op: &Op,
        x: Value,
        bias: Option<Value>,
        parts: &RowRanges,
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
        let mut y =
            sum.unwrap_or_else(|| unreachable!("invariant: a partitioned value has partitions"));
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

    /// True if the value is partitioned along at least one of these axes.
    pub(super) fn is_partitioned_along(&self, old: Value, axes: &[usize]) -> bool {
        let (place, sizes) = (self.place(old), self.source.ty(old).shape.as_known());
        let all = full(&sizes.unwrap_or_default());
        let is_cut = |r: &IndexRegion| axes.iter().any(|a| r[*a] != all[*a]);
        place.is_large && place.parts.iter().any(|(r, _)| is_cut(r))
    }

    /// Results of a reduction along partitioned axes: reduces each partition, then combines the
    /// partial results.
    pub(super) fn reduced(
        &mut self,
        node: &Node,
        reduce: &Reduce,
    ) -> Result<Option<Vec<PartitionedValue>>, OpError> {
        let parts = self.place(node.inputs[0]).parts.clone();
        let is_reduced = |axis: usize| reduce.axes.contains(&axis);
        // Partitions with the same index ranges on the axes that are not reduced contribute to the
        // same results.
        let mut groups: Vec<(IndexRegion, Vec<(usize, Value)>)> = Vec::new();
        for (region, part) in parts {
            let own = |(axis, r): (usize, &Range<usize>)| match is_reduced(axis) {
                true => 0..1,
                false => r.clone(),
            };
            let kept: IndexRegion = region.iter().enumerate().map(own).collect();
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
            [(_, ref only)] => PartitionedValue::whole(*only),
            _ => PartitionedValue {
                parts: done,
                is_large,
                ..PartitionedValue::default()
            },
        }]))
    }

    /// Reduces each of these partitions and combines the partial results; each partition comes with
    /// its number of elements per result.
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
            // A mean is the average of the partitions' means, weighted by their sizes, because
            // partial sums could exceed the F16 range.
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
