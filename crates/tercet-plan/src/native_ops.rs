//! Conformance probes for native device operations: F32/F16 conversions, F32 arithmetic with
//! subnormal numbers, and the assignment of threads to subgroups.
//!
//! WGSL and Vulkan do not specify how conversions round, or whether subnormal numbers are flushed.
//! Portable kernels therefore convert with integer operations, about a dozen per element, and test
//! operands for subnormals. Most GPUs convert correctly in one instruction and keep subnormal
//! numbers. The probe converts every F16 number to F32. It also converts every F32 midpoint between
//! two F16 numbers, and the F32 neighbors of the midpoint, to F16. The probe also adds and
//! multiplies numbers around the smallest normal number.
//!
//! Neither the WGSL nor the Vulkan specification says which threads of a workgroup form a subgroup.
//! On all known devices, a subgroup consists of consecutive threads. The probe runs shuffle-based
//! row sums of integers, which are exact, with one, several and all threads of a workgroup per row.

use half::f16;
use tercet_ir::ops::ReduceFn;
use tercet_ir::{DType, Element, Graph, OpError, Tensor, Type};

use crate::caps::DeviceCaps;
use crate::lowerings::portable;

/// WGSL declaration of the flag that selects native F16 conversions, in the prelude: the portable
/// declaration and its native replacement.
pub const HALVES: [&str; 2] = [
    "const NATIVE_HALVES: bool = false;",
    "const NATIVE_HALVES: bool = true;",
];
/// The same for native F32 operations, in `scalar/floats.wgsl`.
pub const FLOATS: [&str; 2] = [
    "const NATIVE_FLOATS: bool = false;",
    "const NATIVE_FLOATS: bool = true;",
];
/// Comment marker in front of WGSL lines that use native F16 conversions; it is removed to enable
/// them.
const ONLY_NATIVE: &str = "// native: ";

/// Two WGSL fragments that combine values of neighbouring threads: one through shared memory, one
/// through subgroup shuffles.
const CLUSTER: [&str; 2] = [
    portable!("cluster.wgsl"),
    portable!("cluster_subgroup.wgsl"),
];
const CLUSTER_SIZE: [&str; 2] = ["override CLUSTER: u32 = 4u", "const CLUSTER: u32 = "];

/// Native operations of a device that were measured to be correct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NativeOps {
    /// The native conversions between F32 and F16 are correct.
    pub f16_conversions: bool,
    /// Native F32 addition, subtraction and multiplication are correct, also for subnormal operands
    /// and results.
    pub floats: bool,
    /// Subgroup shuffles between threads with neighbouring indices in the workgroup are correct.
    pub shuffles: bool,
}

impl NativeOps {
    /// Replaces portable operations in a WGSL source by native ones, and sets the number of threads
    /// that exchange values to `cluster`. `None` if nothing changes.
    #[doc(hidden)]
    pub fn in_text(self, text: &str, cluster: u32) -> Option<String> {
        let mut own = std::borrow::Cow::Borrowed(text);
        if self.f16_conversions && text.contains(HALVES[0]) {
            let text = own.replacen(HALVES[0], HALVES[1], 1);
            own = text.replace(ONLY_NATIVE, "").into();
        }
        if self.floats && text.contains(FLOATS[0]) {
            own = own.replacen(FLOATS[0], FLOATS[1], 1).into();
        }
        if self.shuffles && cluster > 1 && text.contains(CLUSTER[0]) {
            let size = format!("{}{cluster}u", CLUSTER_SIZE[1]);
            let piece = CLUSTER[1].replacen(CLUSTER_SIZE[0], &size, 1);
            own = own.replacen(CLUSTER[0], &piece, 1).into();
        }
        match own {
            std::borrow::Cow::Borrowed(_) => None,
            std::borrow::Cow::Owned(text) => Some(text),
        }
    }
}

/// Probe graph for native operations, with its inputs.
#[derive(Debug)]
pub struct NativeOpsProbe {
    /// The graph. The graph casts `halves` to F32 and `floats` to F16, and adds, subtracts and
    /// multiplies `a` and `b`. It sums the rows of `short` with a few threads each, and those of
    /// `long` with all threads of a workgroup.
    pub graph: Graph,
    inputs: [(&'static str, Tensor); INPUTS],
}

const INPUTS: usize = 6;
const SHORT: [usize; 2] = [70, 64];
const LONG: [usize; 2] = [3, 2048];

/// Builds a graph that is run once when a device is opened. Its results show whether the native
/// conversions, additions and subgroup sums of the device are exact enough to use. The returned
/// capabilities enable them for this graph.
///
/// # Errors
/// [`OpError`] of the graph builder; it does not occur for this fixed graph.
pub fn native_ops_probe(caps: &DeviceCaps) -> Result<(NativeOpsProbe, DeviceCaps), OpError> {
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let floats = floats();
    let (a, b) = pairs();
    let mut graph = Graph::new();
    let h = graph.input("halves", Type::new(DType::F16, [halves.len()]))?;
    let x = graph.input("floats", Type::new(DType::F32, [floats.len()]))?;
    let left = graph.input("a", Type::new(DType::F32, [a.len()]))?;
    let right = graph.input("b", Type::new(DType::F32, [b.len()]))?;
    let wide = graph.cast(h, DType::F32)?;
    let narrow = graph.cast(x, DType::F16)?;
    let sum = graph.plus(left, right)?;
    let difference = graph.sub(left, right)?;
    let product = graph.mul(left, right)?;
    let short = graph.input("short", Type::new(DType::F32, SHORT))?;
    let long = graph.input("long", Type::new(DType::F32, LONG))?;
    let short = graph.reduce(ReduceFn::Sum, short, &[1], false)?;
    let long = graph.reduce(ReduceFn::Sum, long, &[1], false)?;
    let results = [
        ("wide", wide),
        ("narrow", narrow),
        ("sum", sum),
        ("difference", difference),
        ("product", product),
        ("sums of short", short),
        ("sums of long", long),
    ];
    for (name, value) in results {
        graph.output(name, value)?;
    }
    let inputs = [
        ("halves", tensor(&halves)),
        ("floats", tensor(&floats)),
        ("a", tensor(&a)),
        ("b", tensor(&b)),
        ("short", integers(SHORT)),
        ("long", integers(LONG)),
    ];
    let caps = DeviceCaps {
        natives: NativeOps {
            f16_conversions: true,
            floats: true,
            shuffles: caps.shuffles,
        },
        ..caps.clone()
    };
    Ok((NativeOpsProbe { graph, inputs }, caps))
}

fn tensor<T: Element>(values: &[T]) -> Tensor {
    Tensor::from_slice(&[values.len()], values)
        .expect("invariant: the number of values matches the shape")
}

/// Pseudorandom integers from 0 to 4095. Sums of a few thousand of these integers are exact in any
/// order.
fn integers(shape: [usize; 2]) -> Tensor {
    let [rows, len] = shape;
    let values = (0..(rows * len) as u32).map(|i| {
        let mixed = (i + 1).wrapping_mul(0x9e37_79b1);
        ((mixed ^ (mixed >> 13)).wrapping_mul(0x85eb_ca77) >> 20) as f32
    });
    let values: Vec<f32> = values.collect();
    Tensor::from_slice(&shape, &values).expect("invariant: the number of values matches the shape")
}

/// F32 numbers that a nonconforming conversion to F16 rounds wrong.
fn floats() -> Vec<f32> {
    const INFINITY: u16 = 0x7c00;
    // Above the largest F16, the next number would be 65536. The midpoint between the largest F16
    // and 65536 rounds to infinity.
    let half_way = (0..INFINITY).map(|bits| {
        let low = f16::from_bits(bits).to_f32();
        let high = match bits + 1 {
            INFINITY => 65536.0,
            next => f16::from_bits(next).to_f32(),
        };
        (low + high) * 0.5
    });
    let near = half_way.flat_map(|x| [x.next_down(), x, x.next_up()]);
    let far = [
        0.0,
        f32::MIN_POSITIVE,
        1e-40,
        1e-10,
        1e6,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    near.chain(far).flat_map(|x| [x, -x]).collect()
}

/// Operand pairs with subnormal operands or results, mixed with normal ones.
fn pairs() -> (Vec<f32>, Vec<f32>) {
    const MIN_NORMAL: f32 = f32::MIN_POSITIVE;
    let small = [
        0.0,
        f32::from_bits(1),
        f32::from_bits(2),
        f32::from_bits(0x0000_ffff),
        f32::from_bits(0x0040_0001),
        MIN_NORMAL.next_down(),
        MIN_NORMAL,
        MIN_NORMAL.next_up(),
        MIN_NORMAL * 1.75,
        1e-30,
        1.1e-19,
        f32::from_bits(0x1fc0_0001),
        0.5,
        0.999_999_94,
        1.0,
        1.000_000_1,
        3.0,
        8_388_609.0,
        1e30,
        f32::MAX,
        f32::INFINITY,
    ];
    let all: Vec<f32> = small.iter().flat_map(|x| [*x, -*x]).collect();
    let each = |pick: fn((f32, f32)) -> f32| {
        let pairs = all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b)));
        pairs.map(pick).collect()
    };
    (each(|(a, _)| a), each(|(_, b)| b))
}

/// True if both values have the same bits, or if both are NaN.
fn are_same(want: f32, got: f32) -> bool {
    want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan()
}

impl NativeOpsProbe {
    /// Names and values of the graph inputs.
    pub fn inputs(&self) -> [(&str, &Tensor); INPUTS] {
        self.inputs.each_ref().map(|(name, tensor)| (*name, tensor))
    }

    /// Returns the native operations whose results are correct bit for bit; any NaN matches any
    /// NaN.
    pub fn judge(&self, outputs: &[Tensor]) -> NativeOps {
        let [wide, narrow, sum, difference, product, short, long] = outputs else {
            return NativeOps::default();
        };
        let inputs = self.inputs.each_ref().map(|(_, tensor)| tensor);
        let [halves, floats, a, b, rows @ ..] = inputs;
        let is_result = |got: &Tensor, f: fn(f32, f32) -> f32| matches_elementwise(a, b, got, f);
        NativeOps {
            f16_conversions: widens(halves, wide) && matches_f16(floats, narrow),
            floats: is_result(sum, |a, b| a + b)
                && is_result(difference, |a, b| a - b)
                && is_result(product, |a, b| a * b),
            shuffles: are_sums(rows[0], short) && are_sums(rows[1], long),
        }
    }
}

/// Whether `got` holds the row sums of `x`.
fn are_sums(x: &Tensor, got: &Tensor) -> bool {
    let (&[_, len], Ok(x), Ok(got)) = (x.shape(), x.as_slice::<f32>(), got.as_slice::<f32>())
    else {
        return false;
    };
    x.chunks_exact(len)
        .map(|row| row.iter().sum::<f32>())
        .eq(got.iter().copied())
}

/// Whether `wide` holds the F16 values `halves` converted to F32.
fn widens(halves: &Tensor, wide: &Tensor) -> bool {
    let (Ok(halves), Ok(wide)) = (halves.as_slice::<f16>(), wide.as_slice::<f32>()) else {
        return false;
    };
    let mut both = halves.iter().zip(wide);
    halves.len() == wide.len() && both.all(|(h, got)| are_same(h.to_f32(), *got))
}

/// Whether `narrow` holds the F32 values `floats` correctly rounded to F16.
fn matches_f16(floats: &Tensor, narrow: &Tensor) -> bool {
    let (Ok(floats), Ok(narrow)) = (floats.as_slice::<f32>(), narrow.as_slice::<f16>()) else {
        return false;
    };
    let mut both = floats.iter().zip(narrow);
    floats.len() == narrow.len()
        && both.all(|(x, got)| {
            let want = f16::from_f32(*x);
            want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan()
        })
}

/// Whether `got` holds `f(a, b)` for each pair of elements.
fn matches_elementwise(a: &Tensor, b: &Tensor, got: &Tensor, f: fn(f32, f32) -> f32) -> bool {
    let slice = |t: &Tensor| t.as_slice::<f32>().map(<[f32]>::to_vec);
    let (Ok(a), Ok(b), Ok(got)) = (slice(a), slice(b), slice(got)) else {
        return false;
    };
    let mut all = a.iter().zip(&b).zip(&got);
    a.len() == got.len() && all.all(|((a, b), got)| are_same(f(*a, *b), *got))
}
