//! Initial weights and data computed from their names, with the formula of
//! `tests/data/training/models.py`.

use tercet::Tensor;

use super::{f32s, i32s};

/// 16 bits for each of `n` elements, from SplitMix64 seeded with the FNV hash of the name.
fn words(name: &str, n: usize) -> impl Iterator<Item = u64> {
    const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x0000_0100_0000_01b3);
    let hash = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(FNV.1);
    let first = name.bytes().fold(FNV.0, hash);
    (1..=n as u64).map(move |i| {
        let x = first.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) >> 48
    })
}

fn unit(name: &str, shape: &[usize]) -> Vec<f64> {
    let words = words(name, shape.iter().product());
    words.map(|word| word as f64 / 32768.0 - 1.0).collect()
}

/// Numbers from -1 to 1.
pub(super) fn floats(name: &str, shape: &[usize]) -> Tensor {
    f32s(shape, &unit(name, shape))
}

/// Integers from 0 to `below - 1`.
pub(super) fn integers(name: &str, below: u64, shape: &[usize]) -> Vec<i32> {
    let words = words(name, shape.iter().product());
    words.map(|word| (word % below) as i32).collect()
}

/// As [`integers`], as a tensor.
pub(super) fn indices(name: &str, below: u64, shape: &[usize]) -> Tensor {
    i32s(shape, &integers(name, below, shape))
}

/// The initial value of a weight: from -0.25 to 0.25, around 1 for the gains of norms, and 0 for
/// `lora_B`.
pub(super) fn weight(name: &str, shape: &[usize]) -> Tensor {
    let is_gain = name.to_lowercase().contains("norm") && name.ends_with("weight");
    let (factor, middle) = match name {
        _ if name.ends_with("lora_B") => (0.0, 0.0),
        _ if is_gain => (0.25, 1.0),
        _ => (0.25, 0.0),
    };
    let values = unit(name, shape).into_iter();
    let values: Vec<f64> = values.map(|x| middle + factor * x).collect();
    f32s(shape, &values)
}
