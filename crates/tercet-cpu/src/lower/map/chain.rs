//! Maps whose every value is f32, or an integer that f32 holds: the steps become one call of [`crate::kernels::chain`] per block.
//! Operands and results of integers are converted on the way.

use bytemuck::{cast_slice, cast_slice_mut};
use smallvec::SmallVec;
use tercet_ir::DType;
use tercet_ir::scalar::{BinaryFn, ScalarOp, UnaryFn};

use super::body::{Arg, Body, Dst, Step};
use super::geometry::{Block, Walk};
use super::{Job, Outs, load, step};
use crate::kernels::chain::{self, Action, Input, Source, Target, scratch_len};
use crate::kernels::vmath;

/// Elements of a block: no register holds one, unless an operand has to be gathered.
pub(super) const CHAIN_BLOCK: usize = 4096;

/// The steps of a map for [`chain::run`].
#[derive(Clone, Debug)]
pub(super) struct Chain {
    steps: Vec<chain::Step>,
    tiles: usize,
    /// Results that operands may lie in.
    held: usize,
}

/// True if a chain can run this step of f32.
pub(super) fn takes(op: &ScalarOp) -> bool {
    match op {
        ScalarOp::Const(..) | ScalarOp::Clamp { .. } | ScalarOp::Fma => true,
        ScalarOp::Unary(f) => step::unary_function(*f).is_some(),
        ScalarOp::Binary(f) => binary(*f).is_some(),
        ScalarOp::Cast(_) | ScalarOp::Where => true,
        ScalarOp::Compare(_) => false,
    }
}

/// True if a chain can run this step that gives truth values, of floats.
pub(super) fn tells(op: &ScalarOp) -> bool {
    matches!(op, ScalarOp::Compare(_) | ScalarOp::Unary(UnaryFn::IsNan))
}

fn binary(f: BinaryFn) -> Option<fn(Source, Source) -> Action> {
    Some(match f {
        BinaryFn::Add => Action::Add,
        BinaryFn::Sub => Action::Sub,
        BinaryFn::Mul => Action::Mul,
        BinaryFn::Div => Action::Div,
        BinaryFn::Max => Action::Max,
        BinaryFn::Min => Action::Min,
        BinaryFn::Rem
        | BinaryFn::Pow
        | BinaryFn::Atan2
        | BinaryFn::And
        | BinaryFn::Or
        | BinaryFn::Xor
        | BinaryFn::Shl
        | BinaryFn::Shr => return None,
    })
}

impl Chain {
    /// The chain of a body of which [`takes`] accepted every step, all of f32, where no result is a
    /// constant; and the bytes of its scratch memory after the operands' registers. `derivatives` are the steps that stand for one
    /// of GELU by tanh.
    pub(super) fn new(body: &Body, register_bytes: usize, derivatives: &[bool]) -> (Chain, usize) {
        let inputs = body.inputs.len();
        let tile = |offset: usize| offset / register_bytes - inputs;
        let constant = |offset: usize| {
            let held = |s: &&Step| s.once && matches!(s.dst, Dst::Reg(r) if r.offset == offset);
            body.steps.iter().find(held).map(value)
        };
        let source = |arg: &Arg| match *arg {
            Arg::Input(i) => Source::Input(i),
            Arg::Reg(r) => match constant(r.offset) {
                Some(c) => Source::Const(c),
                None => Source::Tile(tile(r.offset)),
            },
        };
        let mut steps = Vec::new();
        // Room for the value between the two comparisons of a clamp.
        let spare = body.scratch_bytes / register_bytes - inputs;
        for (at, step) in body.steps.iter().enumerate().filter(|(_, s)| !s.once) {
            let args: SmallVec<[Source; 3]> = step.args.iter().map(source).collect();
            let to = match step.dst {
                Dst::Out(k) => Target::Out(k),
                Dst::Reg(r) => Target::Tile(tile(r.offset)),
            };
            if let ScalarOp::Clamp { lo, hi } = step.op {
                let bound = |b: f64| Source::Const(step.from.round_f64(b) as f32);
                let raised = match lo.0.to_bits() == 0 {
                    true => Action::Relu(args[0]),
                    false => Action::Max(args[0], bound(lo.0)),
                };
                steps.push(chain::Step {
                    action: raised,
                    to: Target::Tile(spare),
                });
                let action = Action::Min(Source::Tile(spare), bound(hi.0));
                steps.push(chain::Step { action, to });
            } else {
                let action = match derivatives[at] {
                    true => Action::Call(vmath::gelu_tanh_grad, args[0]),
                    false => action(step, &args),
                };
                steps.push(chain::Step { action, to });
            }
            let Target::Tile(t) = to else { continue };
            // A result that later steps read lies in a tile too.
            let kept = (0..body.results.len()).filter(|&k| body.results[k] == at);
            steps.extend(kept.map(|k| chain::Step {
                action: Action::Copy(Source::Tile(t)),
                to: Target::Out(k),
            }));
        }
        let tiles = spare + 1;
        let held = body.results.len();
        let bytes = 4 * scratch_len(tiles, held);
        (Chain { steps, tiles, held }, bytes)
    }

    /// The steps of a run, with what its operands of one element make of them.
    pub(super) fn settled(&self, job: &Job<'_>) -> chain::Steps {
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

    /// Runs the chain over one block.
    pub(super) fn run(
        &self,
        job: &Job<'_>,
        block: &Block,
        outs: &mut Outs<'_>,
        scratch: &mut [u8],
    ) {
        let len = scratch.len() - 4 * scratch_len(self.tiles, self.held);
        let (registers, tiles) = scratch.split_at_mut(len);
        let own = len - job.body.results.len() * 4 * job.body.block;
        let (registers, converted) = registers.split_at_mut(own);
        let result = |k: usize| job.body.steps[job.body.results[k]].dtype;
        let known = job.body.inputs.iter().zip(job.ins).zip(&job.geometry.walks);
        // An operand that lies in a result is read there if both are floats.
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
            {
                load::floats(job, block, input.dtype, view.root, Some(walk), to);
            }
        }
        let inputs: SmallVec<[Input<'_>; 8]> = known
            .map(|((input, view), walk)| {
                let register: &[f32] = cast_slice(&registers[input.reg.range(block.len)]);
                if view.root.is_empty() {
                    match in_place(input.dtype, view.within) {
                        true => Input::InPlace(usize::from(view.within)),
                        false => Input::Slice(register),
                    }
                } else if job.geometry.is_steady(walk, block) {
                    Input::Scalar(scalar(job, block, input.dtype, view.root, walk))
                } else if let Some(start) = load::direct(job, block, walk, input.dtype) {
                    Input::Slice(&view.root_as()[start..start + block.len])
                } else {
                    Input::Slice(register)
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
                load::store_whole(job.level, result(k), made, out);
            }
        }
    }
}

/// The element that an operand is throughout a block.
fn scalar(job: &Job<'_>, block: &Block, dtype: DType, root: &[u8], walk: &Walk) -> f32 {
    let one = Block {
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

/// The value of a constant step.
fn value(step: &Step) -> f32 {
    step.op.eval(step.from, step.dtype, &[]).as_f64() as f32
}

fn action(step: &Step, args: &[Source]) -> Action {
    match (&step.op, args) {
        (ScalarOp::Unary(UnaryFn::Relu), &[x]) => Action::Relu(x),
        (ScalarOp::Unary(UnaryFn::Abs), &[x]) => Action::Abs(x),
        (ScalarOp::Unary(UnaryFn::Neg), &[x]) => Action::Neg(x),
        (ScalarOp::Unary(UnaryFn::IsNan), &[x]) => Action::IsNan(x),
        (ScalarOp::Compare(f), &[a, b]) => Action::Compare(step::comparison(*f), a, b),
        (ScalarOp::Where, &[a, b, c]) => Action::Pick(a, b, c),
        (ScalarOp::Unary(f), &[x]) => {
            let f = step::unary_function(*f).expect("invariant: `takes` accepted it");
            Action::Call(f, x)
        }
        (ScalarOp::Binary(f), &[a, b]) => {
            let f = binary(*f).expect("invariant: `takes` accepted it");
            f(a, b)
        }
        (ScalarOp::Fma, &[a, b, c]) => Action::Fma(a, b, c),
        (ScalarOp::Cast(to), &[x]) if step.from == DType::F32 && *to != DType::F32 => {
            Action::Whole(x)
        }
        (ScalarOp::Cast(_), &[x]) => Action::Copy(x),
        _ => unreachable!("invariant: `takes` accepted it"),
    }
}
