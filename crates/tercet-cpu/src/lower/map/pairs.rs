//! Maps of one function of two operands of F32, I64 or Bool: rows of the operands are read in
//! place, without registers.

use tercet_ir::ops::{Map, MapArg};
use tercet_ir::scalar::{BinaryFn, CompareFn, ScalarOp};
use tercet_ir::{DType, Element};

use super::body::MapBodyInput;
use super::geometry::MapGeometry;
use super::{TASK, TASKS_PER_THREAD, step};
use crate::args::KernelArgs;
use crate::kernels::pairs::{
    PairFn, PairOperand, PairRows, compare_bytes, compare_floats, compare_words, floats, words,
};
use crate::kernels::vmath::VmathComparison;
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::elem::parts;

/// The function of the map.
#[derive(Clone, Copy, Debug)]
enum PairStep {
    Number(PairFn),
    Compare(VmathComparison),
}

/// A map that this kernel supports; whether it runs depends on the layouts of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapPair {
    f: PairStep,
    dtype: DType,
    /// The operands of the map, in the order of the function.
    order: [usize; 2],
}

/// The function of a map of one step. `None` for other maps.
pub(super) fn of(map: &Map, inputs: &[DType]) -> Option<MapPair> {
    let ([step], &[dtype, other]) = (map.body.as_slice(), inputs) else {
        return None;
    };
    let shifted = (map.inputs.iter().flat_map(|input| &input.axes)).any(|axis| axis.shift != 0);
    if dtype != other || shifted || map.results != [0] {
        return None;
    }
    let &[MapArg::Input(a), MapArg::Input(b)] = step.args.as_slice() else {
        return None;
    };
    let f = match &step.op {
        ScalarOp::Binary(f) => {
            let f = match f {
                BinaryFn::Add => PairFn::Add,
                BinaryFn::Sub => PairFn::Sub,
                BinaryFn::Mul => PairFn::Mul,
                BinaryFn::Max => PairFn::Max,
                BinaryFn::Min => PairFn::Min,
                BinaryFn::Div if dtype == DType::F32 => PairFn::Div,
                BinaryFn::Div
                | BinaryFn::Rem
                | BinaryFn::Pow
                | BinaryFn::Atan2
                | BinaryFn::And
                | BinaryFn::Or
                | BinaryFn::Xor
                | BinaryFn::Shl
                | BinaryFn::Shr => return None,
            };
            matches!(dtype, DType::F32 | DType::I64).then_some(PairStep::Number(f))?
        }
        ScalarOp::Compare(f) => match (dtype, f) {
            (DType::F32 | DType::I64, f) => PairStep::Compare(step::comparison(*f)),
            (DType::Bool, CompareFn::Eq | CompareFn::Ne) => PairStep::Compare(step::comparison(*f)),
            _ => return None,
        },
        _ => return None,
    };
    Some(MapPair {
        f,
        dtype,
        order: [a, b],
    })
}

impl MapPair {
    /// Computes the map. Returns false if an operand shares the memory of the result, or its rows
    /// are not contiguous.
    pub(super) fn run(
        self,
        level: SimdLevel,
        inputs: &[MapBodyInput],
        args: &mut KernelArgs<'_>,
    ) -> bool {
        if args.ins.iter().any(|x| x.root.is_empty()) {
            return false;
        }
        match (self.f, self.dtype) {
            (PairStep::Number(f), DType::F32) => self.over(inputs, args, |rows, first, out| {
                floats(level, f, rows, first, out);
            }),
            (PairStep::Number(f), _) => self.over(inputs, args, |rows, first, out| {
                words(level, f, rows, first, out);
            }),
            (PairStep::Compare(f), DType::F32) => self.over(inputs, args, |rows, first, out| {
                compare_floats(level, f, rows, first, out);
            }),
            (PairStep::Compare(f), DType::I64) => self.over(inputs, args, |rows, first, out| {
                compare_words(level, f, rows, first, out);
            }),
            (PairStep::Compare(f), _) => self.over(inputs, args, |rows, first, out| {
                compare_bytes(level, f, rows, first, out);
            }),
        }
    }

    fn over<T: Element, U: Element>(
        self,
        inputs: &[MapBodyInput],
        args: &mut KernelArgs<'_>,
        run: impl Fn(&PairRows<'_, T>, usize, &mut [U]) + Send + Sync,
    ) -> bool {
        let out = &mut args.outs[0];
        let numel = out.layout.numel();
        let geometry = MapGeometry::new(inputs, &args.ins, out.layout.shape(), TASK);
        let Some((sizes, walks)) = geometry.rows_in_place() else {
            return false;
        };
        if numel == 0 {
            return true;
        }
        let ins = &args.ins;
        let rows = PairRows {
            operands: self.order.map(|i| PairOperand {
                x: &ins[i].root_as::<T>()[walks[i].offset as usize..],
                strides: walks[i].strides.map(|stride| stride as usize),
            }),
            rank: sizes.len(),
            sizes: std::array::from_fn(|axis| sizes.get(axis).copied().unwrap_or(1)),
        };
        let threads = KernelThreads::parallel(args.parallel);
        let tasks = match threads.count() {
            1 => 1,
            n => (n * TASKS_PER_THREAD).min(numel / TASK).max(1),
        };
        // Whole cache lines.
        let task = numel.div_ceil(tasks).next_multiple_of(64);
        parts(args.parallel, out.as_mut(), task, |i, out| {
            run(&rows, i * task, out);
        });
        true
    }
}
