//! Maps whose every value is f32: the steps become one call of [`crate::kernels::chain`] per block.

use bytemuck::{cast_slice, cast_slice_mut};
use smallvec::SmallVec;
use tercet_ir::DType;
use tercet_ir::scalar::{BinaryFn, ScalarOp, UnaryFn};

use super::body::{Arg, Body, Dst, Step};
use super::geometry::Block;
use super::{Job, Outs, load, step};
use crate::kernels::chain::{self, Action, Input, Source, Target, scratch_len};

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

/// True if a chain can run this step.
pub(super) fn takes(op: &ScalarOp) -> bool {
    match op {
        ScalarOp::Const(..) | ScalarOp::Clamp { .. } | ScalarOp::Fma => true,
        ScalarOp::Unary(f) => step::unary_function(*f).is_some(),
        ScalarOp::Binary(f) => binary(*f).is_some(),
        ScalarOp::Cast(to) => *to == DType::F32,
        ScalarOp::Compare(_) | ScalarOp::Where => false,
    }
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
    /// constant; and the bytes of its scratch memory after the operands' registers.
    pub(super) fn new(body: &Body, register_bytes: usize) -> (Chain, usize) {
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
                let raised = Action::Max(args[0], bound(lo.0));
                steps.push(chain::Step {
                    action: raised,
                    to: Target::Tile(spare),
                });
                let action = Action::Min(Source::Tile(spare), bound(hi.0));
                steps.push(chain::Step { action, to });
            } else {
                let action = action(&step.op, &args);
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
        let known = job.body.inputs.iter().zip(job.ins).zip(&job.geometry.walks);
        for ((input, view), walk) in known.clone() {
            let read_in_place = view.root.is_empty() || walk.uniform;
            if !read_in_place && load::direct(job, block, walk, input.dtype).is_none() {
                let to = &mut registers[input.reg.range(block.len)];
                load::gather(job, block, input.dtype, view.root, walk, to);
            }
        }
        let inputs: SmallVec<[Input<'_>; 8]> = known
            .map(|((input, view), walk)| {
                if view.root.is_empty() {
                    Input::InPlace(usize::from(view.within))
                } else if walk.uniform {
                    Input::Scalar(view.root_as::<f32>()[walk.offset as usize])
                } else if let Some(start) = load::direct(job, block, walk, input.dtype) {
                    Input::Slice(&view.root_as()[start..start + block.len])
                } else {
                    Input::Slice(cast_slice(&registers[input.reg.range(block.len)]))
                }
            })
            .collect();
        let mut outs: SmallVec<[&mut [f32]; 3]> =
            outs.iter_mut().map(|o| cast_slice_mut(o)).collect();
        let tiles = cast_slice_mut(tiles);
        chain::run(job.level, &self.steps, &inputs, &mut outs, tiles);
    }
}

/// The value of a constant step.
fn value(step: &Step) -> f32 {
    step.op.eval(step.from, step.dtype, &[]).as_f64() as f32
}

fn action(op: &ScalarOp, args: &[Source]) -> Action {
    match (op, args) {
        (ScalarOp::Unary(UnaryFn::Relu), &[x]) => Action::Relu(x),
        (ScalarOp::Unary(UnaryFn::Abs), &[x]) => Action::Abs(x),
        (ScalarOp::Unary(UnaryFn::Neg), &[x]) => Action::Neg(x),
        (ScalarOp::Unary(f), &[x]) => {
            let f = step::unary_function(*f).expect("invariant: `takes` accepted it");
            Action::Call(f, x)
        }
        (ScalarOp::Binary(f), &[a, b]) => {
            let f = binary(*f).expect("invariant: `takes` accepted it");
            f(a, b)
        }
        (ScalarOp::Fma, &[a, b, c]) => Action::Fma(a, b, c),
        (ScalarOp::Cast(_), &[x]) => Action::Copy(x),
        _ => unreachable!("invariant: `takes` accepted it"),
    }
}
