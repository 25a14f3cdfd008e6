//! Lowering of `Custom`: user-supplied WGSL kernels, validated before use.

mod check;

use tercet_ir::custom::{CustomOp, WgslGrid, WgslKernel, WgslParam};
use tercet_ir::{CompileError, Dim, Graph, Node, Op, OpKind, Support, Type, UnsupportedNode};

use super::Lowering;
use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::copy;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, KernelInstance, KernelSource, ParamWord};

/// Lowering of `Custom`.
pub(crate) static CUSTOMS: Lowering = Lowering {
    name: "custom",
    ops: &[OpKind::Custom],
    kernels: &[],
    supports,
    lower,
};

fn operator(node: &Node) -> &dyn CustomOp {
    match &node.op {
        Op::Custom(custom) => custom.op(),
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    }
}

/// The validated WGSL kernels of a `Custom` node.
///
/// # Errors
/// The reason why the node has no kernels for a device with these capabilities.
fn kernels(graph: &Graph, node: &Node, caps: &DeviceCaps) -> Result<Vec<WgslKernel>, String> {
    let op = operator(node);
    let operands: Vec<&Type> = node.inputs.iter().map(|v| graph.ty(*v)).collect();
    let kernels = op.kernels(&operands, &node.outputs).ok_or_else(|| {
        let types: Vec<String> = operands.iter().map(ToString::to_string).collect();
        format!("`{}` has no WGSL for {}", op.name(), types.join(", "))
    })?;
    let mut written = vec![0usize; node.outputs.len()];
    for kernel in &kernels {
        check::kernel(kernel, operands.len(), node.outputs.len(), caps)
            .map_err(|e| format!("the WGSL of `{}`: {e}", op.name()))?;
        kernel.writes.iter().for_each(|&port| written[port] += 1);
    }
    match written.iter().position(|n| *n != 1) {
        None => Ok(kernels),
        Some(port) => Err(format!(
            "the WGSL of `{}`: {} kernels write result {port}; expected exactly one",
            op.name(),
            written[port]
        )),
    }
}

fn supports(graph: &Graph, node: &Node, caps: &DeviceCaps) -> Support {
    match kernels(graph, node, caps) {
        Ok(_) => Support::Native,
        Err(reason) => Support::Missing { reason },
    }
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let name = operator(node).name();
    let kernels = kernels(e.graph, node, e.caps)
        .unwrap_or_else(|why| unreachable!("invariant: the legalizer validated the node: {why}"));
    let mut operands: Vec<SlotView> = Vec::with_capacity(node.inputs.len());
    for v in &node.inputs {
        let view = e.view(*v);
        let dense = e.dense(&view)?;
        // An operand that shares a slot with another operand is copied, because devices may require
        // the same type in all bindings of a slot.
        let is_bound = operands.iter().any(|known| known.slot == dense.slot);
        operands.push(match is_bound {
            true => {
                let to = e.temp(dense.dtype, dense.layout.shape())?;
                copy::emit(e, &dense, &to)?;
                to
            }
            false => dense,
        });
    }
    let results: Result<Vec<SlotView>, CompileError> =
        (0..node.outputs.len()).map(|port| e.result(port)).collect();
    let results = results?;
    for kernel in &kernels {
        let written = kernel.writes.iter().map(|&port| &results[port]);
        let args: Vec<_> = operands.iter().chain(written).map(|v| v.slot).collect();
        let words = words(e, kernel)?;
        let grid = grid(e, kernel)?;
        let instance = KernelInstance {
            name: format!("{name} {}", kernel.entry),
            source: KernelSource::UserWgsl {
                text: kernel.source.as_str().into(),
                entry: kernel.entry.as_str().into(),
            },
            args: (0..args.len())
                .map(|i| match i < operands.len() {
                    true => ArgAccess::Read,
                    false => ArgAccess::Write,
                })
                .collect(),
            block_bytes: (words.len() as u32 * 4).next_multiple_of(16),
        };
        e.dispatch_instance(instance, &args, &words, grid);
    }
    Ok(())
}

/// The words of a custom kernel's parameter block.
fn words(e: &mut LoweringCtx<'_>, kernel: &WgslKernel) -> Result<Vec<ParamWord>, CompileError> {
    let mut words = Vec::with_capacity(kernel.params.len());
    for param in &kernel.params {
        words.push(match param {
            WgslParam::U32(dim) => {
                let most = e.bound(dim)?;
                if u32::try_from(most).is_err() {
                    return Err(unsupported(
                        e,
                        format!("a parameter may be {most}, which exceeds u32"),
                    ));
                }
                ParamWord::SymInt(e.num(dim))
            }
            WgslParam::I32(n) => ParamWord::SymInt(SymInt::Const(i64::from(*n))),
            WgslParam::F32(x) => ParamWord::F32(*x),
        });
    }
    Ok(words)
}

/// Dispatch grid of a custom kernel, in workgroups.
fn grid(e: &mut LoweringCtx<'_>, kernel: &WgslKernel) -> Result<[SymInt; 3], CompileError> {
    let axes = match &kernel.grid {
        WgslGrid::Line(count) => {
            let most = groups(e, count, kernel.workgroup[0])?;
            let max = u64::from(e.caps.max_grid);
            if most > max * max {
                return Err(unsupported(
                    e,
                    format!("its one-dimensional grid has up to {most} workgroups"),
                ));
            }
            let count = e.num(count);
            return Ok(e.grid_of(count, kernel.workgroup[0]));
        }
        WgslGrid::Axes(axes) => axes,
    };
    let mut grid = [SymInt::ONE; 3];
    for (axis, (count, size)) in axes.iter().zip(kernel.workgroup).enumerate() {
        let most = groups(e, count, size)?;
        let max = e.caps.max_grid;
        if most > u64::from(max) {
            let reason = format!(
                "its grid has up to {most} workgroups along axis {axis}; expected at most {max}"
            );
            return Err(unsupported(e, reason));
        }
        let count = e.num(count);
        grid[axis] = e.tape().ceil_div(count, size);
    }
    Ok(grid)
}

/// Number of workgroups along an axis for the upper bound of `count` threads.
fn groups(e: &LoweringCtx<'_>, count: &Dim, size: u32) -> Result<u64, CompileError> {
    Ok((e.bound(count)? as u64).div_ceil(u64::from(size)))
}

/// The compile error that no lowering supports the current node, with this reason.
fn unsupported(e: &LoweringCtx<'_>, reason: String) -> CompileError {
    let site = e.site();
    CompileError::Unsupported {
        target: e.caps.target,
        nodes: vec![UnsupportedNode {
            node: site.node,
            op: e.cursor.op,
            results: e.graph.node(e.cursor.at).outputs.clone(),
            reason,
            remedy: "reduce the bounds of its symbols".to_string(),
        }],
    }
}
