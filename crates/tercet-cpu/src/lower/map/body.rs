//! Steps of an elementwise map and their registers, allocated at compile time.

use tercet_ir::ops::{IndexMap, Map, MapArg, MapStep};
use tercet_ir::scalar::ScalarOp;
use tercet_ir::{DType, DTypeClass, Dim, Op, Shape};

use super::BLOCK;
use super::chain::{CHAIN_BLOCK, MapChain};
use super::derivative::FoldedDerivatives;
use super::integer_range;

/// Storage class of a register's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapRegisterClass {
    /// f32; used for f32, f16 and bf16.
    F32,
    /// f64.
    F64,
    /// i64; used for every integer dtype.
    Int,
    /// u8, 0 or 1.
    Bool,
}

impl MapRegisterClass {
    pub(super) fn for_dtype(dtype: DType) -> MapRegisterClass {
        match (dtype, dtype.class()) {
            (DType::F64, _) => MapRegisterClass::F64,
            (_, DTypeClass::Float) => MapRegisterClass::F32,
            (_, DTypeClass::Bool) => MapRegisterClass::Bool,
            (_, DTypeClass::Signed | DTypeClass::Unsigned) => MapRegisterClass::Int,
        }
    }

    fn bytes(self) -> usize {
        match self {
            MapRegisterClass::F32 => 4,
            MapRegisterClass::F64 | MapRegisterClass::Int => 8,
            MapRegisterClass::Bool => 1,
        }
    }

    /// True if memory of this dtype has the same representation as a register of this class.
    pub(super) fn is_native(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::F64 | DType::Bool | DType::I64)
    }
}

/// A register: a range of the scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapRegister {
    pub(super) offset: usize,
    pub(super) class: MapRegisterClass,
}

impl MapRegister {
    /// Byte range of `len` elements.
    pub(super) fn range(self, len: usize) -> std::ops::Range<usize> {
        self.offset..self.offset + len * self.class.bytes()
    }
}

/// Destination of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapStepDst {
    /// A register.
    Reg(MapRegister),
    /// Memory of result `k`; no later step reads it.
    Out(usize),
}

/// Operand of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapStepArg {
    Input(usize),
    Reg(MapRegister),
}

#[derive(Clone, Debug)]
pub(super) struct MapBodyStep {
    pub(super) op: ScalarOp,
    pub(super) args: Vec<MapStepArg>,
    /// Dtype of the last operand; without operands, dtype of the result.
    pub(super) from: DType,
    pub(super) dtype: DType,
    pub(super) dst: MapStepDst,
    /// True if the step is computed once per task, for its first block, and its register is reused
    /// for later blocks. The flag is true for constants. If the map is not a chain, the flag is
    /// also true for values that are the same for all elements of the result.
    pub(super) once: bool,
    /// True if another step reads the uniform value element by element, so its register must be
    /// filled.
    pub(super) broadcast: bool,
}

#[derive(Clone, Debug)]
pub(super) struct MapBodyInput {
    pub(super) map: IndexMap,
    pub(super) dtype: DType,
    /// Register into which the operand is loaded if it cannot be read in place.
    pub(super) reg: MapRegister,
}

/// A compiled map.
#[derive(Clone, Debug)]
pub(super) struct MapBody {
    pub(super) inputs: Vec<MapBodyInput>,
    pub(super) steps: Vec<MapBodyStep>,
    pub(super) results: Vec<usize>,
    /// Bytes of an element of each result.
    pub(super) result_bytes: Vec<usize>,
    /// Bytes of the registers of one task.
    pub(super) scratch_bytes: usize,
    /// Elements of a block, and of a register.
    pub(super) block: usize,
    /// All steps as one call of the chain kernel. Present if all values are f32, integers that f32
    /// represents exactly, or booleans that only steps read.
    pub(super) chain: Option<MapChain>,
}

/// Converts an elementwise operator to a map of one step.
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
        _ => unreachable!(
            "invariant: the kernel table maps only elementwise operators to this kernel"
        ),
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

/// Allocates registers and reuses freed ones.
struct MapRegisterAllocator {
    block: usize,
    free: Vec<MapRegister>,
    bytes: usize,
}

impl MapRegisterAllocator {
    fn take(&mut self, class: MapRegisterClass) -> MapRegister {
        if let Some(at) = self.free.iter().rposition(|r| r.class == class) {
            return self.free.swap_remove(at);
        }
        self.fresh(class)
    }

    /// A register that no earlier step used, for values that must persist across blocks.
    fn fresh(&mut self, class: MapRegisterClass) -> MapRegister {
        let reg = MapRegister {
            offset: self.bytes,
            class,
        };
        self.bytes += self.block * class.bytes();
        reg
    }
}

impl MapBody {
    /// Compiles a map. `small` are the I32 operands whose values are within [`integer_range::SMALL`].
    pub(super) fn new(map: &Map, inputs: &[DType], dtypes: &[DType], small: &[usize]) -> MapBody {
        let chained = is_chain(map, inputs, dtypes, small);
        let shorter = chained.then(|| {
            let (map, dtypes) = integer_range::without_copies(map, inputs, dtypes);
            FoldedDerivatives::new(&map, &dtypes)
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
        let mut registers = MapRegisterAllocator {
            block,
            free: Vec::new(),
            bytes: 0,
        };
        let inputs: Vec<MapBodyInput> = map
            .inputs
            .iter()
            .zip(inputs)
            .map(|(map, &dtype)| MapBodyInput {
                map: map.clone(),
                dtype,
                reg: registers.take(class(dtype)),
            })
            .collect();
        let steps = steps(map, &inputs, dtypes, chained, &mut registers);
        let mut body = MapBody {
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
            let register_bytes = block * MapRegisterClass::F32.bytes();
            let (chain, bytes) = MapChain::new(&body, register_bytes, &shorter.derivatives);
            // One register per operand, and one per result that is converted from floats.
            let registers = body.inputs.len() + body.results.len();
            body.scratch_bytes = registers * register_bytes + bytes;
            body.chain = Some(chain);
        }
        body
    }
}

/// Register class of a dtype; in a chain all registers hold f32.
fn class_of(chained: bool, dtype: DType) -> MapRegisterClass {
    match chained {
        true => MapRegisterClass::F32,
        false => MapRegisterClass::for_dtype(dtype),
    }
}

/// Allocates the steps of a body. A result that no step reads is written directly to memory if
/// registers and memory have the same representation.
fn steps(
    map: &Map,
    inputs: &[MapBodyInput],
    dtypes: &[DType],
    chained: bool,
    registers: &mut MapRegisterAllocator,
) -> Vec<MapBodyStep> {
    let class = |dtype| class_of(chained, dtype);
    // In a chain, every result can be written directly, because a chain converts results when it
    // stores them.
    let is_stored = |dtype| chained || MapRegisterClass::is_native(dtype);
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
    let mut steps: Vec<MapBodyStep> = Vec::with_capacity(map.body.len());
    for (at, step) in map.body.iter().enumerate() {
        let dtype = dtypes[at];
        let of = |arg: &MapArg| match *arg {
            MapArg::Input(i) => (MapStepArg::Input(i), inputs[i].dtype),
            MapArg::Step(s) => match steps[s].dst {
                MapStepDst::Reg(reg) => (MapStepArg::Reg(reg), steps[s].dtype),
                MapStepDst::Out(_) => {
                    unreachable!("invariant: no step reads a step stored in a result")
                }
            },
        };
        let (args, from): (Vec<MapStepArg>, Vec<DType>) = step.args.iter().map(of).unzip();
        let results: Vec<usize> = (0..map.results.len())
            .filter(|&k| map.results[k] == at)
            .collect();
        let dst = match (last_read(at), results.as_slice()) {
            (None, &[k]) if is_stored(dtype) && !once[at] => MapStepDst::Out(k),
            _ if once[at] => MapStepDst::Reg(registers.fresh(class(dtype))),
            _ => MapStepDst::Reg(registers.take(class(dtype))),
        };
        steps.push(MapBodyStep {
            op: step.op.clone(),
            args,
            from: from.last().copied().unwrap_or(dtype),
            dtype,
            dst,
            once: once[at],
            broadcast: spread(at),
        });
        // A register is free after its last reader; registers of results and constants stay
        // allocated.
        for (s, step) in steps.iter().enumerate() {
            let done = last_read(s).unwrap_or(s) == at;
            let kept = map.results.contains(&s) || step.once;
            if let (true, false, MapStepDst::Reg(reg)) = (done, kept, step.dst) {
                registers.free.push(reg);
            }
        }
    }
    steps
}

/// For each step, true if it is computed once: it is a constant or, if the map is not a chain,
/// depends only on constants and single-element operands.
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

/// True if a [`MapChain`] can run the map.
fn is_chain(map: &Map, inputs: &[DType], dtypes: &[DType], small: &[usize]) -> bool {
    let constant = |&s: &usize| matches!(map.body[s].op, ScalarOp::Const(..));
    integer_range::is_exact_in_f32(map, inputs, dtypes, small) && !map.results.iter().any(constant)
}
