//! Lookup tables for maps of one byte-sized operand: 256 results, computed once.

use tercet_ir::ops::{Map, MapArg};
use tercet_ir::scalar::{Scalar, ScalarOp};
use tercet_ir::{DType, EvalError, Graph, Node};

use super::TASK;
use crate::args::KernelArgs;
use crate::lower::LoweredNode;
use crate::lower::elem::parts;

/// Minimum steps, without constants, for which a table is faster than computing the map.
const MIN_STEPS_FOR_LUT: usize = 3;

/// Results for every byte.
enum ByteLut {
    Bytes(Box<[u8; 256]>),
    Words(Box<[u32; 256]>),
}

/// Lowers a map with enough steps and one 8-bit operand of the size of the results. `None` for
/// other maps.
pub(super) fn lower(
    graph: &Graph,
    node: &Node,
    map: &Map,
    inputs: &[DType],
    dtypes: &[DType],
) -> Option<LoweredNode> {
    let &[from @ (DType::U8 | DType::I8)] = inputs else {
        return None;
    };
    let out = &node.outputs[0];
    let same = map.inputs[0].is_identity(out.rank()) && graph.ty(node.inputs[0]).shape == out.shape;
    let constant = |op: &ScalarOp| matches!(op, ScalarOp::Const(..));
    let steps = map.body.iter().filter(|step| !constant(&step.op)).count();
    if !same || steps < MIN_STEPS_FOR_LUT {
        return None;
    }
    let tables = tables(map, from, dtypes)?;
    // A single 8-bit result can share the operand's memory.
    let in_place = match tables.as_slice() {
        [ByteLut::Bytes(_)] => vec![0],
        _ => Vec::new(),
    };
    let run = move |args: &mut KernelArgs<'_>| -> Result<(), EvalError> {
        look_up(&tables, args);
        Ok(())
    };
    Some(LoweredNode {
        in_place,
        ..LoweredNode::new(1, run)
    })
}

fn look_up(tables: &[ByteLut], args: &mut KernelArgs<'_>) {
    let (x, parallel) = (args.ins[0], args.parallel);
    for (table, out) in tables.iter().zip(&mut args.outs) {
        match table {
            ByteLut::Bytes(table) if x.root.is_empty() => {
                parts(parallel, out.bytes, TASK, |_, part| {
                    part.iter_mut().for_each(|y| *y = table[usize::from(*y)]);
                });
            }
            ByteLut::Bytes(table) => {
                let x = x.dense_bytes();
                parts(parallel, out.bytes, TASK, |i, part| {
                    let x = &x[i * TASK..][..part.len()];
                    part.iter_mut()
                        .zip(x)
                        .for_each(|(y, x)| *y = table[usize::from(*x)]);
                });
            }
            ByteLut::Words(table) => {
                let x = x.dense_bytes();
                let words: &mut [u32] = bytemuck::cast_slice_mut(out.bytes);
                parts(parallel, words, TASK, |i, part| {
                    let x = &x[i * TASK..][..part.len()];
                    part.iter_mut()
                        .zip(x)
                        .for_each(|(y, x)| *y = table[usize::from(*x)]);
                });
            }
        }
    }
}

fn tables(map: &Map, from: DType, dtypes: &[DType]) -> Option<Vec<ByteLut>> {
    let all = all_values(map, from, dtypes);
    let table = |&result: &usize| {
        let words = |f: &dyn Fn(Scalar) -> u32| {
            let mut table = Box::new([0; 256]);
            for (y, values) in table.iter_mut().zip(&all) {
                *y = f(values[result]);
            }
            table
        };
        Some(match dtypes[result] {
            DType::U8 | DType::I8 | DType::Bool => {
                let words = words(&|v| v.as_i64() as u32);
                ByteLut::Bytes(Box::new(words.map(|word| word as u8)))
            }
            DType::I32 | DType::U32 => ByteLut::Words(words(&|v| v.as_i64() as u32)),
            DType::F32 => ByteLut::Words(words(&|v| (v.as_f64() as f32).to_bits())),
            DType::F16 | DType::BF16 | DType::F64 | DType::I64 | DType::I16 => return None,
        })
    };
    map.results.iter().map(table).collect()
}

/// Values of all steps of the map for each of the 256 values of its operand.
pub(super) fn all_values(map: &Map, from: DType, dtypes: &[DType]) -> Vec<Vec<Scalar>> {
    let of = |byte: usize| match from {
        DType::I8 => Scalar::I(i64::from(byte as u8 as i8)),
        _ => Scalar::I(byte as i64),
    };
    (0..256)
        .map(|byte| values(map, from, dtypes, of(byte)))
        .collect()
}

/// Values of all steps of the map if its operand is `x`.
fn values(map: &Map, from: DType, dtypes: &[DType], x: Scalar) -> Vec<Scalar> {
    let mut done: Vec<Scalar> = Vec::with_capacity(map.body.len());
    let mut args = Vec::new();
    for (step, dtype) in map.body.iter().zip(dtypes) {
        args.clear();
        args.extend(step.args.iter().map(|arg| match *arg {
            MapArg::Input(_) => x,
            MapArg::Step(s) => done[s],
        }));
        let last = match step.args.last() {
            Some(MapArg::Input(_)) => from,
            Some(&MapArg::Step(s)) => dtypes[s],
            None => *dtype,
        };
        done.push(step.op.eval(last, *dtype, &args));
    }
    done
}
