//! Dequantization, compared bitwise with independent values.

use std::path::PathBuf;

use tercet_ir::Scheme;

/// The bytes of an array of a `.npy` file (format version 1), after checking its dtype.
fn npy(name: &str, descr: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/quants")
        .join(name);
    let data = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(&data[..8], b"\x93NUMPY\x01\x00", "{name}");
    let header = usize::from(u16::from_le_bytes([data[8], data[9]]));
    let text = String::from_utf8_lossy(&data[10..10 + header]);
    assert!(
        text.contains(&format!("'descr': '{descr}'")) && text.contains("'fortran_order': False"),
        "{name}: {text}"
    );
    data[10 + header..].to_vec()
}

fn file_name(scheme: Scheme) -> String {
    scheme.name().to_uppercase()
}

fn check(scheme: Scheme, bytes: &[u8], want: &[u8]) {
    let want: Vec<f32> = want
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let mut got = vec![f32::from_bits(0xdead_beef); want.len()];
    scheme.dequantize(bytes, &mut got).expect("whole blocks");
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(same, "{scheme:?} element {i}: {got:?} instead of {want:?}");
    }
    let (n, k) = (scheme.block_bytes(), scheme.block_len());
    let mut one = vec![0.0; k];
    for (block, row) in bytes.chunks_exact(n).zip(got.chunks_exact(k)) {
        scheme.dequantize_block(block, &mut one);
        assert!(one.iter().zip(row).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

#[test]
fn blocks_mean_what_the_reference_says() {
    // F16 has no reference file: the test below checks every bit pattern.
    for &scheme in Scheme::ALL.iter().filter(|s| **s != Scheme::F16) {
        let name = file_name(scheme);
        for (blocks, values) in [("blocks", "f32"), ("edge", "edge_f32")] {
            let blocks = npy(&format!("{name}.{blocks}.npy"), "|u1");
            let values = npy(&format!("{name}.{values}.npy"), "<f4");
            assert!(!blocks.is_empty() && values.len() >= 4);
            check(scheme, &blocks, &values);
        }
    }
}

/// The value of a binary16 pattern, from the definition of the format.
fn binary16(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match (exponent, fraction) {
        (0, f) => f * 2f64.powi(-24),
        (31, 0.0) => f64::INFINITY,
        (31, _) => f64::NAN,
        (e, f) => (1024.0 + f) * 2f64.powi(e - 25),
    }
}

#[test]
fn f16_is_binary16() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let want: Vec<u8> = (0..=u16::MAX)
        .flat_map(|bits| (binary16(bits) as f32).to_le_bytes())
        .collect();
    check(Scheme::F16, &bytes, &want);
}
