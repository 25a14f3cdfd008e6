//! Maps whose values are all f32, or integers that are exact in f32. All steps run in one call of
//! [`crate::kernels::chain`] per block. Integer operands and results are converted at the boundary.

use bytemuck::{cast_slice, cast_slice_mut};
use smallvec::SmallVec;
use tercet_ir::DType;
use tercet_ir::scalar::{BinaryFn, ScalarOp, UnaryFn};

use super::body::{MapBody, MapBodyStep, MapStepArg, MapStepDst};
use super::geometry::{MapBlock, MapOperandWalk};
use super::{MapOuts, MapTaskArgs, load, step};
use crate::kernels::chain::{self, ChainInput, ChainOp, ChainSource, ChainTarget, scratch_len};
use crate::kernels::vmath;

/// Elements of a block. A block of a chain is larger than [`BLOCK`](super::BLOCK): a chain needs
/// block-sized registers only for operands that it cannot read in place.
pub(super) const CHAIN_BLOCK: usize = 4096;

/// Fused steps of a map, for [`chain::run`].
#[derive(Clone, Debug)]
pub(super) struct MapChain {
    steps: Vec<chain::ChainStep>,
    tiles: usize,
    /// Number of results whose memory operands may share.
    results: usize,
}

/// True if a chain supports this f32 step.
pub(super) fn supports(op: &ScalarOp) -> bool {
    match op {
        ScalarOp::Const(..) | ScalarOp::Clamp { .. } | ScalarOp::Fma => true,
        ScalarOp::Unary(f) => vmath::vectorized(*f).is_some(),
        ScalarOp::Binary(f) => binary(*f).is_some(),
        ScalarOp::Cast(_) | ScalarOp::Where => true,
        ScalarOp::Compare(_) => false,
    }
}

/// True if a chain supports this step, which compares floats and gives booleans.
pub(super) fn supports_predicate(op: &ScalarOp) -> bool {
    matches!(op, ScalarOp::Compare(_) | ScalarOp::Unary(UnaryFn::IsNan))
}

fn binary(f: BinaryFn) -> Option<fn(ChainSource, ChainSource) -> ChainOp> {
    Some(match f {
        BinaryFn::Add => ChainOp::Add,
        BinaryFn::Sub => ChainOp::Sub,
        BinaryFn::Mul => ChainOp::Mul,
        BinaryFn::Div => ChainOp::Div,
        BinaryFn::Max => ChainOp::Max,
        BinaryFn::Min => ChainOp::Min,
        BinaryFn::Pow => ChainOp::Pow,
        BinaryFn::Rem
        | BinaryFn::Atan2
        | BinaryFn::And
        | BinaryFn::Or
        | BinaryFn::Xor
        | BinaryFn::Shl
        | BinaryFn::Shr => return None,
    })
}

impl MapChain {
    /// Builds the chain of a body; [`supports`] must have accepted every step. All steps are f32,
    /// and no result is a constant. `derivatives` marks the `GeluTanh` steps that stand for the
    /// derivative of GELU. Also returns the bytes of scratch memory that the chain needs in
    /// addition to the operands' registers.
    pub(super) fn new(
        body: &MapBody,
        register_bytes: usize,
        derivatives: &[bool],
    ) -> (MapChain, usize) {
        let inputs = body.inputs.len();
        let tile = |offset: usize| offset / register_bytes - inputs;
        let constant = |offset: usize| {
            let held = |s: &&MapBodyStep| {
                s.once && matches!(s.dst, MapStepDst::Reg(r) if r.offset == offset)
            };
            body.steps.iter().find(held).map(value)
        };
        let source = |arg: &MapStepArg| match *arg {
            MapStepArg::Input(i) => ChainSource::Input(i),
            MapStepArg::Reg(r) => match constant(r.offset) {
                Some(c) => ChainSource::Const(c),
                None => ChainSource::Tile(tile(r.offset)),
            },
        };
        let mut steps = Vec::new();
        // Index of a tile for the value between the two comparisons of a clamp.
        let spare = body.scratch_bytes / register_bytes - inputs;
        for (at, step) in body.steps.iter().enumerate().filter(|(_, s)| !s.once) {
            let args: SmallVec<[ChainSource; 3]> = step.args.iter().map(source).collect();
            let to = match step.dst {
                MapStepDst::Out(k) => ChainTarget::Out(k),
                MapStepDst::Reg(r) => ChainTarget::Tile(tile(r.offset)),
            };
            if let ScalarOp::Clamp { lo, hi } = step.op {
                let bound = |b: f64| ChainSource::Const(step.from.round_f64(b) as f32);
                let raised = match lo.0.to_bits() == 0 {
                    true => ChainOp::Relu(args[0]),
                    false => ChainOp::Max(args[0], bound(lo.0)),
                };
                steps.push(chain::ChainStep {
                    action: raised,
                    to: ChainTarget::Tile(spare),
                });
                let action = ChainOp::Min(ChainSource::Tile(spare), bound(hi.0));
                steps.push(chain::ChainStep { action, to });
            } else {
                let action = match derivatives[at] {
                    true => ChainOp::Call(vmath::gelu_tanh_grad, args[0]),
                    false => action(step, &args),
                };
                steps.push(chain::ChainStep { action, to });
            }
            let ChainTarget::Tile(t) = to else { continue };
            // A result that later steps read is also stored in a tile.
            let kept = (0..body.results.len()).filter(|&k| body.results[k] == at);
            steps.extend(kept.map(|k| chain::ChainStep {
                action: ChainOp::Copy(ChainSource::Tile(t)),
                to: ChainTarget::Out(k),
            }));
        }
        let tiles = spare + 1;
        let held = body.results.len();
        let bytes = 4 * scratch_len(tiles, held);
        (
            MapChain {
                steps,
                tiles,
                results: held,
            },
            bytes,
        )
    }

    /// Steps of a run after substitution of its single-element operands.
    pub(super) fn settled(&self, job: &MapTaskArgs<'_>) -> chain::ChainSteps {
        let known = job.body.inputs.iter().zip(job.ins).zip(&job.geometry.walks);
        let scalars: SmallVec<[Option<f32>; 8]> = known
            .map(|((input, view), walk)| {
                let first = job.geometry.block(0);
                let is_one = walk.uniform && !view.root.is_empty();
                is_one.then(|| scalar(job, &first, input.dtype, view.root, walk))
            })
            .collect();
        chain::settled(job.level, &self.steps, &scalars, self.tiles)
    }

    /// Runs the chain over one block; `first` is true for the first block of a task. The registers of operands keep
    /// their contents until the next block.
    pub(super) fn run(
        &self,
        job: &MapTaskArgs<'_>,
        block: &MapBlock,
        outs: &mut MapOuts<'_>,
        scratch: &mut [u8],
        first: bool,
    ) {
        let len = scratch.len() - 4 * scratch_len(self.tiles, self.results);
        let (registers, tiles) = scratch.split_at_mut(len);
        let own = len - job.body.results.len() * 4 * job.body.block;
        let (registers, converted) = registers.split_at_mut(own);
        let result = |k: usize| job.body.steps[job.body.results[k]].dtype;
        let known = job.body.inputs.iter().zip(job.ins).zip(&job.geometry.walks);
        // An operand that shares the memory of a result is read there if both are F32.
        let in_place = |dtype: DType, within: u8| {
            dtype == DType::F32 && result(usize::from(within)) == DType::F32
        };
        for ((input, view), walk) in known.clone() {
            let to = &mut registers[input.reg.range(block.len)];
            if view.root.is_empty() {
                if !in_place(input.dtype, view.within) {
                    let held = &*outs[usize::from(view.within)];
                    load::floats(job, block, input.dtype, held, None, to);
                }
            } else if !job.geometry.is_steady(walk, block)
                && load::direct(job, block, walk, input.dtype).is_none()
                && (first || !job.geometry.repeats_in_blocks(walk))
            {
                load::floats(job, block, input.dtype, view.root, Some(walk), to);
            }
        }
        let inputs: SmallVec<[ChainInput<'_>; 8]> = known
            .map(|((input, view), walk)| {
                let register: &[f32] = cast_slice(&registers[input.reg.range(block.len)]);
                if view.root.is_empty() {
                    match in_place(input.dtype, view.within) {
                        true => ChainInput::InPlace(usize::from(view.within)),
                        false => ChainInput::Slice(register),
                    }
                } else if job.geometry.is_steady(walk, block) {
                    ChainInput::Scalar(scalar(job, block, input.dtype, view.root, walk))
                } else if let Some(start) = load::direct(job, block, walk, input.dtype) {
                    ChainInput::Slice(&view.root_as()[start..start + block.len])
                } else {
                    ChainInput::Slice(register)
                }
            })
            .collect();
        let mut spare = converted.chunks_exact_mut(4 * job.body.block);
        let mut floats: SmallVec<[&mut [f32]; 3]> = SmallVec::new();
        for (k, out) in outs.iter_mut().enumerate() {
            let register = spare.next().expect("invariant: a register for each result");
            floats.push(match result(k) {
                DType::F32 => cast_slice_mut(out),
                _ => cast_slice_mut(&mut register[..4 * block.len]),
            });
        }
        let tiles = cast_slice_mut(tiles);
        chain::run(job.level, &job.settled, &inputs, &mut floats, tiles);
        drop(floats);
        let made = converted.chunks_exact(4 * job.body.block);
        for (k, (out, made)) in outs.iter_mut().zip(made).enumerate() {
            if result(k) != DType::F32 {
                let made: &[f32] = cast_slice(&made[..4 * block.len]);
                load::store_integral(job.level, result(k), made, out);
            }
        }
    }
}

/// Value of an operand that is uniform within a block.
fn scalar(
    job: &MapTaskArgs<'_>,
    block: &MapBlock,
    dtype: DType,
    root: &[u8],
    walk: &MapOperandWalk,
) -> f32 {
    let one = MapBlock {
        len: 1,
        rows: 1,
        cols: 1,
        ..*block
    };
    let mut value = [0.0f32];
    load::floats(
        job,
        &one,
        dtype,
        root,
        Some(walk),
        cast_slice_mut(&mut value),
    );
    value[0]
}

/// Value of a constant step.
fn value(step: &MapBodyStep) -> f32 {
    step.op.eval(step.from, step.dtype, &[]).as_f64() as f32
}

fn action(step: &MapBodyStep, args: &[ChainSource]) -> ChainOp {
    match (&step.op, args) {
        (ScalarOp::Unary(UnaryFn::Relu), &[x]) => ChainOp::Relu(x),
        (ScalarOp::Unary(UnaryFn::Abs), &[x]) => ChainOp::Abs(x),
        (ScalarOp::Unary(UnaryFn::Neg), &[x]) => ChainOp::Neg(x),
        (ScalarOp::Unary(UnaryFn::Round), &[x]) => ChainOp::Round(x),
        (ScalarOp::Unary(UnaryFn::IsNan), &[x]) => ChainOp::IsNan(x),
        (ScalarOp::Compare(f), &[a, b]) => ChainOp::Compare(step::comparison(*f), a, b),
        (ScalarOp::Where, &[a, b, c]) => ChainOp::Pick(a, b, c),
        (ScalarOp::Unary(f), &[x]) => {
            let f = vmath::vectorized(*f).expect("invariant: `takes` accepted the step");
            ChainOp::Call(f, x)
        }
        (ScalarOp::Binary(f), &[a, b]) => {
            let f = binary(*f).expect("invariant: `takes` accepted the step");
            f(a, b)
        }
        (ScalarOp::Fma, &[a, b, c]) => ChainOp::Fma(a, b, c),
        (ScalarOp::Cast(to), &[x]) if step.from == DType::F32 && *to != DType::F32 => {
            ChainOp::Truncate(x)
        }
        (ScalarOp::Cast(_), &[x]) => ChainOp::Copy(x),
        _ => unreachable!("invariant: `takes` accepted the step"),
    }
}
