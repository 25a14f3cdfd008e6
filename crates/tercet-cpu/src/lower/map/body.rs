//! The steps of a map with their registers, decided when compiling.

use tercet_ir::ops::{IndexMap, Map, MapArg, MapStep};
use tercet_ir::scalar::ScalarOp;
use tercet_ir::{DType, DTypeClass, Dim, Op, Shape};

use super::BLOCK;
use super::chain::{CHAIN_BLOCK, Chain};
use super::derivative::Shorter;
use super::whole;

/// How the elements of a register are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// f32, for f32, f16 and bf16.
    F32,
    /// f64.
    F64,
    /// i64, for every integer.
    Int,
    /// u8, 0 or 1.
    Bool,
}

impl Class {
    pub(super) fn of(dtype: DType) -> Class {
        match (dtype, dtype.class()) {
            (DType::F64, _) => Class::F64,
            (_, DTypeClass::Float) => Class::F32,
            (_, DTypeClass::Bool) => Class::Bool,
            (_, DTypeClass::Signed | DTypeClass::Unsigned) => Class::Int,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Class::F32 => 4,
            Class::F64 | Class::Int => 8,
            Class::Bool => 1,
        }
    }

    /// True if memory of this dtype is a register of this class as it is.
    pub(super) fn is_native(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::F64 | DType::Bool | DType::I64)
    }
}

/// A register: a range of the scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reg {
    pub(super) offset: usize,
    pub(super) class: Class,
}

impl Reg {
    /// The bytes of `len` elements.
    pub(super) fn range(self, len: usize) -> std::ops::Range<usize> {
        self.offset..self.offset + len * self.class.bytes()
    }
}

/// Where a step writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dst {
    /// A register.
    Reg(Reg),
    /// Result `k`, which no later step reads.
    Out(usize),
}

/// An operand of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arg {
    Input(usize),
    Reg(Reg),
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) op: ScalarOp,
    pub(super) args: Vec<Arg>,
    /// The dtype of the last operand; of the result if there is none.
    pub(super) from: DType,
    pub(super) dtype: DType,
    pub(super) dst: Dst,
    /// A constant or, outside of chains, one number for the whole result, computed for the first block of a task: its register
    /// keeps it from block to block.
    pub(super) once: bool,
    /// Whether what it gives once is read element by element: its register is filled with it.
    pub(super) spread: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) map: IndexMap,
    pub(super) dtype: DType,
    /// Where it is loaded if it cannot be read where it lies.
    pub(super) reg: Reg,
}

/// A map made ready to run.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) inputs: Vec<Input>,
    pub(super) steps: Vec<Step>,
    pub(super) results: Vec<usize>,
    /// Bytes of an element of each result.
    pub(super) result_bytes: Vec<usize>,
    /// The registers of one task.
    pub(super) scratch_bytes: usize,
    /// Elements of a block and of a register.
    pub(super) block: usize,
    /// The steps in one call, where all values are f32, integers that f32 holds, or truth values between them.
    pub(super) chain: Option<Chain>,
}

/// An elementwise operator as a map.
pub(super) fn as_map(op: &Op, operands: &[&[Dim]], shape: &Shape) -> Map {
    let op = match op {
        Op::Map(map) => return map.clone(),
        Op::Unary(o) => ScalarOp::Unary(o.f),
        Op::Binary(o) => ScalarOp::Binary(o.f),
        Op::Compare(o) => ScalarOp::Compare(o.f),
        Op::Where(_) => ScalarOp::Where,
        Op::Fma(_) => ScalarOp::Fma,
        Op::Clamp(o) => ScalarOp::Clamp { lo: o.lo, hi: o.hi },
        Op::Cast(o) => ScalarOp::Cast(o.to),
        _ => unreachable!("invariant: the table gives this kernel elementwise operators only"),
    };
    let args: Vec<MapArg> = (0..operands.len()).map(MapArg::Input).collect();
    let inputs = operands.iter().map(|from| IndexMap::broadcast(from, shape));
    Map {
        shape: shape.clone(),
        inputs: inputs.collect(),
        body: vec![MapStep::new(op, args)],
        results: vec![0],
    }
}

/// Hands out registers and takes them back.
struct Registers {
    block: usize,
    free: Vec<Reg>,
    bytes: usize,
}

impl Registers {
    fn take(&mut self, class: Class) -> Reg {
        if let Some(at) = self.free.iter().rposition(|r| r.class == class) {
            return self.free.swap_remove(at);
        }
        self.fresh(class)
    }

    /// A register that no step had before: for what is written once and stays.
    fn fresh(&mut self, class: Class) -> Reg {
        let reg = Reg {
            offset: self.bytes,
            class,
        };
        self.bytes += self.block * class.bytes();
        reg
    }
}

impl Body {
    /// The body of a map whose I32 operands `small` are within [`whole::SMALL`].
    pub(super) fn new(map: &Map, inputs: &[DType], dtypes: &[DType], small: &[usize]) -> Body {
        let chained = is_chain(map, inputs, dtypes, small);
        let shorter = chained.then(|| {
            let (map, dtypes) = whole::without_copies(map, inputs, dtypes);
            Shorter::new(&map, &dtypes)
        });
        let (map, dtypes) = match &shorter {
            Some(shorter) => (&shorter.map, shorter.dtypes.as_slice()),
            None => (map, dtypes),
        };
        let floats = (inputs.iter().chain(dtypes)).all(|&d| matches!(d, DType::F32 | DType::Bool));
        let block = if chained && floats {
            CHAIN_BLOCK
        } else {
            BLOCK
        };
        let class = |dtype| class_of(chained, dtype);
        let mut registers = Registers {
            block,
            free: Vec::new(),
            bytes: 0,
        };
        let inputs: Vec<Input> = map
            .inputs
            .iter()
            .zip(inputs)
            .map(|(map, &dtype)| Input {
                map: map.clone(),
                dtype,
                reg: registers.take(class(dtype)),
            })
            .collect();
        let steps = steps(map, &inputs, dtypes, chained, &mut registers);
        let mut body = Body {
            result_bytes: map
                .results
                .iter()
                .map(|&s| dtypes[s].size_bytes())
                .collect(),
            inputs,
            steps,
            results: map.results.clone(),
            scratch_bytes: registers.bytes,
            block,
            chain: None,
        };
        if let Some(shorter) = &shorter {
            let register_bytes = block * Class::F32.bytes();
            let (chain, bytes) = Chain::new(&body, register_bytes, &shorter.derivatives);
            // A register for each operand, and for each result that is made of floats.
            let registers = body.inputs.len() + body.results.len();
            body.scratch_bytes = registers * register_bytes + bytes;
            body.chain = Some(chain);
        }
        body
    }
}

/// Of a chain all registers hold floats.
fn class_of(chained: bool, dtype: DType) -> Class {
    match chained {
        true => Class::F32,
        false => Class::of(dtype),
    }
}

/// The steps of a body: a result that no step reads goes where it belongs, if values of its dtype lie in memory as in registers.
fn steps(
    map: &Map,
    inputs: &[Input],
    dtypes: &[DType],
    chained: bool,
    registers: &mut Registers,
) -> Vec<Step> {
    let class = |dtype| class_of(chained, dtype);
    // A chain stores what it has as it has to be.
    let is_stored = |dtype| chained || Class::is_native(dtype);
    let last_read = |s: usize| {
        let reads = |step: &MapStep| step.args.contains(&MapArg::Step(s));
        map.body.iter().rposition(reads)
    };
    let once = steps_once(map, chained);
    let spread = |s: usize| {
        let reads =
            |(at, step): (usize, &MapStep)| !once[at] && step.args.contains(&MapArg::Step(s));
        map.results.contains(&s) || map.body.iter().enumerate().any(reads)
    };
    let mut steps: Vec<Step> = Vec::with_capacity(map.body.len());
    for (at, step) in map.body.iter().enumerate() {
        let dtype = dtypes[at];
        let of = |arg: &MapArg| match *arg {
            MapArg::Input(i) => (Arg::Input(i), inputs[i].dtype),
            MapArg::Step(s) => match steps[s].dst {
                Dst::Reg(reg) => (Arg::Reg(reg), steps[s].dtype),
                Dst::Out(_) => unreachable!("invariant: no step reads a step kept in a result"),
            },
        };
        let (args, from): (Vec<Arg>, Vec<DType>) = step.args.iter().map(of).unzip();
        let results: Vec<usize> = (0..map.results.len())
            .filter(|&k| map.results[k] == at)
            .collect();
        let dst = match (last_read(at), results.as_slice()) {
            (None, &[k]) if is_stored(dtype) && !once[at] => Dst::Out(k),
            _ if once[at] => Dst::Reg(registers.fresh(class(dtype))),
            _ => Dst::Reg(registers.take(class(dtype))),
        };
        steps.push(Step {
            op: step.op.clone(),
            args,
            from: from.last().copied().unwrap_or(dtype),
            dtype,
            dst,
            once: once[at],
            spread: spread(at),
        });
        // A register is free again after its last reader; results and constants stay.
        for (s, step) in steps.iter().enumerate() {
            let done = last_read(s).unwrap_or(s) == at;
            let kept = map.results.contains(&s) || step.once;
            if let (true, false, Dst::Reg(reg)) = (done, kept, step.dst) {
                registers.free.push(reg);
            }
        }
    }
    steps
}

/// Which steps are computed once: constants and, unless a chain finds them itself, what is made of nothing but those and operands of
/// one element.
fn steps_once(map: &Map, chained: bool) -> Vec<bool> {
    let uniform = |i: usize| map.inputs[i].axes.iter().all(|axis| axis.from.is_none());
    let mut once: Vec<bool> = Vec::with_capacity(map.body.len());
    for step in &map.body {
        let is_steady = |arg: &MapArg| match *arg {
            MapArg::Input(i) => uniform(i),
            MapArg::Step(s) => once[s],
        };
        let constant = matches!(step.op, ScalarOp::Const(..));
        once.push(constant || !chained && step.args.iter().all(is_steady));
    }
    once
}

/// True if a [`Chain`] can run the map.
fn is_chain(map: &Map, inputs: &[DType], dtypes: &[DType], small: &[usize]) -> bool {
    let constant = |&s: &usize| matches!(map.body[s].op, ScalarOp::Const(..));
    whole::fits(map, inputs, dtypes, small) && !map.results.iter().any(constant)
}
