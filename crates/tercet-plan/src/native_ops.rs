//! What a device's own arithmetic does as IEEE 754 says: conversions between F32 and F16, and sums, differences and
//! products of F32 with subnormal numbers; and whether its subgroups are neighbours.
//!
//! WGSL and Vulkan leave open how conversions round and whether subnormal numbers are kept, so kernels convert by
//! integer operations, a dozen an element, and look at the sizes of what they add and multiply. Most GPUs do
//! both right in one. Which do is found by trying: every F16 to F32, to F16 every F32 half way between two of them, with its
//! neighbours, and sums and products around the least normal number.
//!
//! Nor do they say which invocations of a workgroup are a subgroup, though on every device known they are numbered one
//! after the other. Kernels that bring neighbours together by shuffles are tried with sums of integers, which are exact, over
//! rows of one, several and all invocations of a workgroup.

use half::f16;
use tercet_ir::ops::ReduceFn;
use tercet_ir::{DType, Element, Graph, OpError, Tensor, Type};

use crate::caps::Caps;
use crate::families::portable;

/// The lines of the prelude and of `scalar/floats.wgsl` that say what kernels leave to the device, and what they become.
const HALVES: [&str; 2] = [
    "const NATIVE_HALVES: bool = false;",
    "const NATIVE_HALVES: bool = true;",
];
const FLOATS: [&str; 2] = [
    "const NATIVE_FLOATS: bool = false;",
    "const NATIVE_FLOATS: bool = true;",
];
/// What stands before the device's conversions of F16 there.
const ONLY_NATIVE: &str = "// native: ";

/// What brings neighbouring invocations together, and what it becomes where shuffles do.
const CLUSTER: [&str; 2] = [
    portable!("cluster.wgsl"),
    portable!("cluster_subgroup.wgsl"),
];
const CLUSTER_SIZE: [&str; 2] = ["override CLUSTER: u32 = 4u", "const CLUSTER: u32 = "];

/// What a device does right by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Natives {
    /// Conversions between F32 and F16.
    pub halves: bool,
    /// Sums, differences and products of F32, subnormal operands and results among them.
    pub floats: bool,
    /// Shuffles between invocations whose numbers within the workgroup are neighbours.
    pub shuffles: bool,
}

impl Natives {
    /// The text of a kernel with the device's operations instead of portable ones, and clusters of so many invocations, if
    /// it is another.
    pub(crate) fn in_text(self, text: &str, cluster: u32) -> Option<String> {
        let mut own = std::borrow::Cow::Borrowed(text);
        if self.halves && text.contains(HALVES[0]) {
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

/// A graph whose results show what a device's operations do, and its inputs.
#[derive(Debug)]
pub struct NativeTrial {
    /// Casts `halves` to F32 and `floats` to F16; adds, subtracts and multiplies `a` and `b`; sums rows of `short` and
    /// `long`, which a few and all invocations of a workgroup take.
    pub graph: Graph,
    inputs: [(&'static str, Tensor); INPUTS],
}

const INPUTS: usize = 6;
const SHORT: [usize; 2] = [70, 64];
const LONG: [usize; 2] = [3, 2048];

/// The graph that tries a device, and the capabilities to compile it with there.
///
/// # Errors
/// Never for the graph that this is: those of its builder.
pub fn native_trial(caps: &Caps) -> Result<(NativeTrial, Caps), OpError> {
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
    let caps = Caps {
        natives: Natives {
            halves: true,
            floats: true,
            shuffles: caps.shuffles,
        },
        ..caps.clone()
    };
    Ok((NativeTrial { graph, inputs }, caps))
}

fn tensor<T: Element>(values: &[T]) -> Tensor {
    Tensor::from_slice(&[values.len()], values).expect("invariant: as many values as the shape has")
}

/// Integers from 0 to 4095 without a pattern: sums of a few thousand are exact in any order.
fn integers(shape: [usize; 2]) -> Tensor {
    let [rows, len] = shape;
    let values = (0..(rows * len) as u32).map(|i| {
        let mixed = (i + 1).wrapping_mul(0x9e37_79b1);
        ((mixed ^ (mixed >> 13)).wrapping_mul(0x85eb_ca77) >> 20) as f32
    });
    let values: Vec<f32> = values.collect();
    Tensor::from_slice(&shape, &values).expect("invariant: as many values as the shape has")
}

/// Numbers of F32 that F16 may round wrong.
fn floats() -> Vec<f32> {
    const INFINITY: u16 = 0x7c00;
    // Beyond the greatest F16, the next would be 65536: half way to it is infinity.
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

/// Operands whose sums, differences and products are subnormal, or have subnormal operands, beside others.
fn pairs() -> (Vec<f32>, Vec<f32>) {
    const LEAST: f32 = f32::MIN_POSITIVE;
    let small = [
        0.0,
        f32::from_bits(1),
        f32::from_bits(2),
        f32::from_bits(0x0000_ffff),
        f32::from_bits(0x0040_0001),
        LEAST.next_down(),
        LEAST,
        LEAST.next_up(),
        LEAST * 1.75,
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

/// True for the same bits, or NaN on both sides.
fn are_same(want: f32, got: f32) -> bool {
    want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan()
}

impl NativeTrial {
    /// The inputs of the graph.
    pub fn inputs(&self) -> [(&str, &Tensor); INPUTS] {
        self.inputs.each_ref().map(|(name, tensor)| (*name, tensor))
    }

    /// What is right of these results, bit for bit but for NaN.
    pub fn judge(&self, outputs: &[Tensor]) -> Natives {
        let [wide, narrow, sum, difference, product, short, long] = outputs else {
            return Natives::default();
        };
        let inputs = self.inputs.each_ref().map(|(_, tensor)| tensor);
        let [halves, floats, a, b, rows @ ..] = inputs;
        let is_result = |got: &Tensor, f: fn(f32, f32) -> f32| is_each(a, b, got, f);
        Natives {
            halves: widens(halves, wide) && narrows(floats, narrow),
            floats: is_result(sum, |a, b| a + b)
                && is_result(difference, |a, b| a - b)
                && is_result(product, |a, b| a * b),
            shuffles: are_sums(rows[0], short) && are_sums(rows[1], long),
        }
    }
}

/// Whether `got` are the sums of the rows of `x`.
fn are_sums(x: &Tensor, got: &Tensor) -> bool {
    let (&[_, len], Ok(x), Ok(got)) = (x.shape(), x.as_slice::<f32>(), got.as_slice::<f32>())
    else {
        return false;
    };
    x.chunks_exact(len)
        .map(|row| row.iter().sum::<f32>())
        .eq(got.iter().copied())
}

/// Whether `wide` is what F16 `halves` are in F32.
fn widens(halves: &Tensor, wide: &Tensor) -> bool {
    let (Ok(halves), Ok(wide)) = (halves.as_slice::<f16>(), wide.as_slice::<f32>()) else {
        return false;
    };
    let mut both = halves.iter().zip(wide);
    halves.len() == wide.len() && both.all(|(h, got)| are_same(h.to_f32(), *got))
}

/// Whether `narrow` is what F32 `floats` are in F16.
fn narrows(floats: &Tensor, narrow: &Tensor) -> bool {
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

/// Whether `got` is `f` of each pair.
fn is_each(a: &Tensor, b: &Tensor, got: &Tensor, f: fn(f32, f32) -> f32) -> bool {
    let slice = |t: &Tensor| t.as_slice::<f32>().map(<[f32]>::to_vec);
    let (Ok(a), Ok(b), Ok(got)) = (slice(a), slice(b), slice(got)) else {
        return false;
    };
    let mut all = a.iter().zip(&b).zip(&got);
    a.len() == got.len() && all.all(|((a, b), got)| are_same(f(*a, *b), *got))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::{Piece, text};

    const ALL: Natives = Natives {
        halves: true,
        floats: true,
        shuffles: true,
    };
    const NO_SHUFFLES: Natives = Natives {
        shuffles: false,
        ..ALL
    };

    #[test]
    fn the_prelude_has_the_switches() {
        let portable = text(&[Piece::Floats]);
        assert_eq!(Natives::default().in_text(&portable, 32), None);
        let text = ALL.in_text(&portable, 32).unwrap();
        for [line, native] in [HALVES, FLOATS] {
            assert!(portable.contains(line) && text.contains(native) && !text.contains(line));
        }
        let converts = |text: &str| {
            let code = |line: &&str| !line.trim_start().starts_with("//");
            text.lines()
                .filter(code)
                .filter(|l| l.contains("pack2x16float"))
                .count()
        };
        assert_eq!((converts(&portable), converts(&text)), (0, 2));
    }

    #[test]
    fn right_results_are_told_from_wrong_ones() {
        let (trial, caps) = native_trial(&Caps::browser()).unwrap();
        assert_eq!(caps.natives, NO_SHUFFLES);
        let [halves, floats, a, b, short, long] = trial.inputs().map(|(_, tensor)| tensor);
        let sums_of = |x: &Tensor| -> Vec<f32> {
            let rows = x.as_slice::<f32>().unwrap().chunks_exact(x.shape()[1]);
            rows.map(|row| row.iter().sum()).collect()
        };
        let (short, long) = (sums_of(short), sums_of(long));
        let wide: Vec<f32> = halves
            .as_slice::<f16>()
            .unwrap()
            .iter()
            .map(|h| h.to_f32())
            .collect();
        let floats = floats.as_slice::<f32>().unwrap();
        let narrow: Vec<f16> = floats.iter().map(|x| f16::from_f32(*x)).collect();
        let pairs = a
            .as_slice::<f32>()
            .unwrap()
            .iter()
            .zip(b.as_slice::<f32>().unwrap());
        let of =
            |f: fn(f32, f32) -> f32| pairs.clone().map(|(a, b)| f(*a, *b)).collect::<Vec<f32>>();
        let (sum, difference, product) = (of(|a, b| a + b), of(|a, b| a - b), of(|a, b| a * b));
        let judge = |wide: &[f32], narrow: &[f16], sum: &[f32], product: &[f32], long: &[f32]| {
            let rest = [sum, &difference, product, &short, long].map(tensor);
            let results = [&[tensor(wide), tensor(narrow)], &rest[..]].concat();
            trial.judge(&results)
        };
        let of_floats = |sum: &[f32], product: &[f32]| judge(&wide, &narrow, sum, product, &long);
        assert_eq!(of_floats(&sum, &product), ALL);
        let flushed = |of: &[f32], least: f32| -> Vec<f32> {
            of.iter()
                .map(|x| if x.abs() < least { 0.0 } else { *x })
                .collect()
        };
        let no_halves = Natives {
            halves: false,
            ..ALL
        };
        let no_floats = Natives {
            floats: false,
            ..ALL
        };
        let small = flushed(&wide, 6.1e-5);
        assert_eq!(judge(&small, &narrow, &sum, &product, &long), no_halves);
        let least = f32::MIN_POSITIVE;
        assert_eq!(of_floats(&flushed(&sum, least), &product), no_floats);
        assert_eq!(of_floats(&sum, &flushed(&product, least)), no_floats);
        // Rounded towards zero.
        let cut: Vec<f16> = floats
            .iter()
            .map(|x| match f16::from_f32(*x) {
                h if h.to_f32().abs() > x.abs() => f16::from_bits(h.to_bits() - 1),
                h => h,
            })
            .collect();
        assert_eq!(judge(&wide, &cut, &sum, &product, &long), no_halves);
        let swapped = [long[1], long[0], long[2]];
        assert_eq!(judge(&wide, &narrow, &sum, &product, &swapped), NO_SHUFFLES);
        assert_eq!(trial.judge(&[]), Natives::default());
    }
}
