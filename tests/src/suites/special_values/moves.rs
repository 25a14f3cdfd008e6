//! Data movement: every element keeps its bits, those of NaN included.
//!
//! The expected result is the same operator applied to the indices of the elements.

use libtest_mimic::Failed;
use tercet::Device;
use tercet_ir::ops::PadMode;
use tercet_ir::{DType, Graph, OpError, OpKind, Tensor, TensorType, Type, Value};

use super::{compile, everywhere, is_gpu, run};
use crate::SuiteTest;

const ROWS: usize = 4;
/// Row lengths of the operand.
const LENGTHS: [usize; 6] = [1, 3, 4, 6, 33, 64];

type MoveFn = fn(&mut Graph, Value, usize) -> Result<Value, OpError>;

/// A movement of the elements of `x [4, n]`.
#[derive(Clone, Copy)]
struct MoveCase {
    kind: OpKind,
    name: &'static str,
    build: MoveFn,
}

const fn case(kind: OpKind, name: &'static str, build: MoveFn) -> MoveCase {
    MoveCase { kind, name, build }
}

const CASES: &[MoveCase] = &[
    case(OpKind::Reshape, "reshape", |g, x, n| {
        g.reshape(x, [2, 2 * n])
    }),
    case(OpKind::Transpose, "transpose", |g, x, _| {
        g.transpose(x, &[1, 0])
    }),
    case(OpKind::Slice, "slice", |g, x, n| {
        g.slice_axis(x, 0, 1, n as i64 + 4, 1)
    }),
    case(OpKind::Slice, "reverse", |g, x, _| g.reverse(x, 1)),
    case(OpKind::Concat, "concat_rows", |g, x, _| {
        g.concat(&[x, x], 0)
    }),
    case(OpKind::Concat, "concat_columns", |g, x, _| {
        g.concat(&[x, x], 1)
    }),
    case(OpKind::Expand, "expand", |g, x, n| {
        let x = g.reshape(x, [ROWS, 1, n])?;
        g.expand(x, [ROWS, 3, n])
    }),
    case(OpKind::Pad, "pad_edge", |g, x, _| {
        g.pad(x, &[1, 2], &[0, 3], PadMode::Edge, 0.0)
    }),
    case(OpKind::Tile, "tile", |g, x, _| g.tile(x, &[2, 3])),
    case(OpKind::Roll, "roll", |g, x, _| g.roll(x, &[1, 2])),
    case(OpKind::Gather, "gather", |g, x, _| {
        let idx = indices(g, &[3], &[3, 0, 2])?;
        g.gather(x, idx, 0)
    }),
    case(OpKind::GatherElements, "gather_elements", |g, x, n| {
        let at: Vec<i32> = (0..2 * n).map(|i| (i % ROWS) as i32).collect();
        let idx = indices(g, &[2, n], &at)?;
        g.gather_elements(x, idx, 0)
    }),
    case(OpKind::GatherNd, "gather_nd", |g, x, n| {
        let idx = indices(g, &[3, 2], &[3, 0, 1, n as i32 - 1, 2, n as i32 / 2])?;
        g.gather_nd(x, idx, 0)
    }),
    case(OpKind::DynamicSlice, "dynamic_slice", |g, x, n| {
        let starts = indices(g, &[2], &[1, 0])?;
        g.dynamic_slice(x, starts, [2, n])
    }),
    case(
        OpKind::DynamicUpdateSlice,
        "dynamic_update_slice",
        |g, x, _| {
            let starts = indices(g, &[2], &[2, 0])?;
            let update = g.slice_axis(x, 0, 0, 1, 1)?;
            g.dynamic_update_slice(x, update, starts)
        },
    ),
    case(OpKind::Trilu, "trilu", |g, x, _| g.trilu(x, false, 0)),
    case(OpKind::StopGradient, "stop_gradient", |g, x, _| {
        g.stop_gradient(x)
    }),
    case(OpKind::Checkpoint, "checkpoint", |g, x, _| g.checkpoint(x)),
];

fn indices(g: &mut Graph, shape: &[usize], values: &[i32]) -> Result<Value, OpError> {
    let tensor = Tensor::from_slice(shape, values).expect("one index for each element");
    g.constant(tensor)
}

/// The operators that this file tests.
pub(super) fn kinds() -> Vec<OpKind> {
    CASES.iter().map(|case| case.kind).collect()
}

/// The tests of this file.
pub(super) fn tests() -> Vec<SuiteTest> {
    let mut tests = Vec::new();
    for &case in CASES {
        for &dtype in DType::ALL {
            let name = format!("special/{}/{dtype}", case.name);
            tests.extend(everywhere(&name, move |device| check(device, case, dtype)));
        }
    }
    tests
}

/// The bit patterns of a dtype: signed zeros, subnormals, extremes, infinities, and NaN with several
/// payloads.
fn patterns(dtype: DType) -> Vec<Vec<u8>> {
    let words: Vec<u64> = match dtype {
        DType::F32 => vec![
            0,
            0x8000_0000,
            1,
            0x8000_0001,
            0x007f_ffff,
            0x7f7f_ffff,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0xffc1_2345,
            0x7f80_0001,
        ],
        DType::F16 => vec![
            0, 0x8000, 1, 0x8001, 0x03ff, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0xfe12, 0x7c01,
        ],
        DType::BF16 => vec![
            0, 0x8000, 1, 0x8001, 0x007f, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81,
        ],
        DType::F64 => vec![
            0,
            1 << 63,
            1,
            0x7fef_ffff_ffff_ffff,
            0x7ff0 << 48,
            0xfff0 << 48,
            0x7ff8 << 48,
            0xfff8_1234_5678_9abc,
            0x7ff0_0000_0000_0001,
        ],
        DType::Bool => vec![0, 1, 1],
        // GPUs store I64 in 32 bits.
        DType::I64 => vec![0, 1, u64::MAX, 0x7fff_ffff, 0xffff_ffff_8000_0000],
        DType::I32 | DType::U32 | DType::I16 | DType::I8 | DType::U8 => {
            vec![
                0,
                1,
                u64::MAX,
                0x7fff_ffff,
                0x8000_0000,
                0x7fff,
                0x8000,
                0x7f,
                0x80,
            ]
        }
    };
    let size = dtype.size_bytes();
    words
        .iter()
        .map(|w| w.to_le_bytes()[..size].to_vec())
        .collect()
}

/// The element with the bit that makes a NaN quiet, if it is a NaN of 16 bits.
fn quiet(dtype: DType, element: &[u8]) -> Vec<u8> {
    let infinity: u16 = match dtype {
        DType::F16 => 0x7c00,
        DType::BF16 => 0x7f80,
        _ => return element.to_vec(),
    };
    let word = u16::from_le_bytes([element[0], element[1]]);
    match word & 0x7fff > infinity {
        // The highest bit of the mantissa.
        true => (word | (infinity & infinity.wrapping_neg()) >> 1)
            .to_le_bytes()
            .to_vec(),
        false => element.to_vec(),
    }
}

fn graph(case: MoveCase, dtype: DType) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    for n in LENGTHS {
        let x = g.input(&format!("x{n}"), Type::new(dtype, [ROWS, n]))?;
        let y = (case.build)(&mut g, x, n)?;
        g.output(&format!("y{n}"), y)?;
    }
    Ok(g)
}

/// Runs the movement on one tensor for each length.
fn moved(
    device: &Device,
    case: MoveCase,
    dtype: DType,
    data: impl Fn(usize) -> Tensor,
) -> Result<Vec<Tensor>, Failed> {
    let graph = graph(case, dtype).map_err(|e| tercet::one_line(&e))?;
    let mut executable = compile(device, &graph)?;
    let inputs = LENGTHS.map(|n| (format!("x{n}"), data(n)));
    let inputs: Vec<_> = inputs.iter().map(|(name, t)| (name.as_str(), t)).collect();
    run(&mut *executable, &inputs)
}

fn check(device: &Device, case: MoveCase, dtype: DType) -> Result<(), Failed> {
    if is_gpu(device) && dtype == DType::F64 {
        return Ok(());
    }
    // Index 0 marks elements that do not come from the operand: they are 0.
    let places = moved(&Device::reference(), case, DType::I32, |n| {
        let all: Vec<i32> = (1..=(ROWS * n) as i32).collect();
        Tensor::from_slice(&[ROWS, n], &all).expect("one index for each element")
    })?;
    let all = patterns(dtype);
    let element = |i: usize| all[i * 7 % all.len()].clone();
    let got = moved(device, case, dtype, |n| {
        let bytes: Vec<u8> = (0..ROWS * n).flat_map(element).collect();
        let ty = TensorType::new(dtype, &[ROWS, n]);
        Tensor::from_bytes(ty, &bytes).expect("the bytes of the elements")
    })?;
    for ((n, places), got) in LENGTHS.iter().zip(&places).zip(&got) {
        let from = places.as_slice::<i32>().map_err(|e| tercet::one_line(&e))?;
        let want = from.iter().map(|&i| match i {
            0 => vec![0; dtype.size_bytes()],
            i => element(i as usize - 1),
        });
        let bytes = got.bytes();
        let elements = bytes.chunks_exact(dtype.size_bytes());
        for (at, (got, want)) in elements.zip(want).enumerate() {
            // CPUs select 16-bit floats in F32, and the conversion makes a signaling NaN quiet.
            let is_same = got == want || got == quiet(dtype, &want);
            if !is_same {
                return Err(format!("{n} columns: element {at} is {got:x?}, not {want:x?}").into());
            }
        }
    }
    Ok(())
}
