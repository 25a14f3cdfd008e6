//! Whether a device's own conversions between F32 and F16 are right.
//!
//! WGSL and Vulkan leave open how they round and whether they keep subnormal numbers, so kernels convert by
//! integer operations, a dozen an element. Most GPUs convert as IEEE 754 says, in one. Which do is found by
//! trying: every F16 to F32, and to F16 every F32 half way between two of them, with its neighbours.

use half::f16;
use tercet_ir::{DType, Element, Graph, OpError, Tensor, Type};

/// The line of the prelude that says which conversions kernels use.
const PORTABLE: &str = "const NATIVE_HALVES: bool = false;";
const NATIVE: &str = "const NATIVE_HALVES: bool = true;";
/// What stands before the device's conversions there.
const ONLY_NATIVE: &str = "// native: ";

/// The text of a kernel with the device's conversions instead of portable ones.
pub(crate) fn with_native_halves(text: &str) -> String {
    text.replacen(PORTABLE, NATIVE, 1).replace(ONLY_NATIVE, "")
}

/// A graph whose results show what conversions do, and its inputs.
///
/// Run it where [`Caps::native_halves`](crate::Caps::native_halves) is set, and ask [`NativeHalves::are_right`].
#[derive(Debug)]
pub struct NativeHalves {
    /// Casts `halves` to F32, then `floats` to F16.
    pub graph: Graph,
    halves: Tensor,
    floats: Tensor,
}

/// The graph that tries a device's conversions of F16.
///
/// # Errors
/// Never for the graph that this is: those of its builder.
pub fn native_halves() -> Result<NativeHalves, OpError> {
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let floats = floats();
    let mut graph = Graph::new();
    let h = graph.input("halves", Type::new(DType::F16, [halves.len()]))?;
    let x = graph.input("floats", Type::new(DType::F32, [floats.len()]))?;
    for (name, value, to) in [("wide", h, DType::F32), ("narrow", x, DType::F16)] {
        let y = graph.cast(value, to)?;
        graph.output(name, y)?;
    }
    Ok(NativeHalves {
        graph,
        halves: tensor(&halves),
        floats: tensor(&floats),
    })
}

fn tensor<T: Element>(values: &[T]) -> Tensor {
    Tensor::from_slice(&[values.len()], values).expect("invariant: as many values as the shape has")
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

impl NativeHalves {
    /// The inputs of the graph.
    pub fn inputs(&self) -> [(&str, &Tensor); 2] {
        [("halves", &self.halves), ("floats", &self.floats)]
    }

    /// True if these results are those of IEEE 754 conversions to nearest even, bit for bit but for NaN.
    pub fn are_right(&self, outputs: &[Tensor]) -> bool {
        let [wide, narrow] = outputs else {
            return false;
        };
        let of = |t: &Tensor| t.as_slice::<f16>().map(<[f16]>::to_vec);
        let of_wide = |t: &Tensor| t.as_slice::<f32>().map(<[f32]>::to_vec);
        let (Ok(halves), Ok(wide)) = (of(&self.halves), of_wide(wide)) else {
            return false;
        };
        let (Ok(floats), Ok(narrow)) = (of_wide(&self.floats), of(narrow)) else {
            return false;
        };
        let mut widened = halves.iter().zip(&wide);
        let mut narrowed = floats.iter().zip(&narrow);
        halves.len() == wide.len()
            && floats.len() == narrow.len()
            && widened.all(|(h, got)| {
                let want = h.to_f32();
                want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan()
            })
            && narrowed.all(|(x, got)| {
                let want = f16::from_f32(*x);
                want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::PRELUDE;

    #[test]
    fn the_prelude_has_the_switch() {
        assert!(PRELUDE.contains(PORTABLE));
        let text = with_native_halves(PRELUDE);
        assert!(text.contains(NATIVE) && !text.contains(PORTABLE));
        let converts = |text: &str| {
            let code = |line: &&str| !line.trim_start().starts_with("//");
            text.lines()
                .filter(code)
                .filter(|l| l.contains("pack2x16float"))
                .count()
        };
        assert_eq!((converts(PRELUDE), converts(&text)), (0, 2));
    }

    #[test]
    fn right_results_are_told_from_wrong_ones() {
        let tried = native_halves().unwrap();
        let inputs = tried.inputs();
        let halves: &[f16] = inputs[0].1.as_slice().unwrap();
        let wide: Vec<f32> = halves.iter().map(|h| h.to_f32()).collect();
        let floats: &[f32] = inputs[1].1.as_slice().unwrap();
        let narrow: Vec<f16> = floats.iter().map(|x| f16::from_f32(*x)).collect();
        let results = |wide: &[f32], narrow: &[f16]| [tensor(wide), tensor(narrow)];
        assert!(tried.are_right(&results(&wide, &narrow)));
        // Subnormal numbers taken for zero.
        let flushed: Vec<f32> = wide
            .iter()
            .map(|x| if x.abs() < 6.1e-5 { 0.0 } else { *x })
            .collect();
        assert!(!tried.are_right(&results(&flushed, &narrow)));
        // Rounded towards zero.
        let cut: Vec<f16> = floats
            .iter()
            .map(|x| match f16::from_f32(*x) {
                h if h.to_f32().abs() > x.abs() => f16::from_bits(h.to_bits() - 1),
                h => h,
            })
            .collect();
        assert!(!tried.are_right(&results(&wide, &cut)));
        assert!(!tried.are_right(&[]));
    }
}
