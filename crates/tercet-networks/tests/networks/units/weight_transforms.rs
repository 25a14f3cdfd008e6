use tercet::{Scheme, Tensor};
use tercet_networks::internals::{BLOCK, CODES, part_pairs, repack, transpose_rows};

#[test]
fn rows_are_turned_and_parted() {
    // Two experts of 4 x 3, stored as 3 x 4.
    let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let stored = Tensor::from_slice(&[2, 3, 4], &values).unwrap();
    let plain = transpose_rows("w", &stored, [2, 4, 3], false).unwrap();
    let want = [0.0, 4.0, 8.0, 1.0, 5.0, 9.0];
    assert_eq!(plain.as_slice::<f32>().unwrap()[..6], want);
    let parted = transpose_rows("w", &stored, [2, 4, 3], true).unwrap();
    let want = [0.0, 4.0, 8.0, 2.0, 6.0, 10.0, 1.0, 5.0, 9.0, 3.0, 7.0, 11.0];
    assert_eq!(parted.as_slice::<f32>().unwrap()[..12], want);
    let mut bias = Tensor::from_slice(&[2, 4], &values[..8]).unwrap();
    part_pairs("b", &mut bias).unwrap();
    let want = [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0];
    assert_eq!(bias.as_slice::<f32>().unwrap(), want);
}

#[test]
fn blocks_of_mxfp4_keep_their_values() {
    // Values 0 to 15, then 15 to 0, two per byte.
    let all: Vec<u8> = (0..16).chain((0..16).rev()).collect();
    let codes: Vec<u8> = all.chunks(2).map(|c| c[0] | c[1] << 4).collect();
    let mut block = [0; 1 + CODES];
    repack(&codes, 128, &mut block);
    let mut values = [0f32; BLOCK];
    Scheme::Mxfp4.dequantize(&block, &mut values).unwrap();
    const TABLE: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (code, value) in all.iter().zip(values) {
        let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
        assert_eq!(value, 2.0 * sign * TABLE[usize::from(code & 7)], "{code}");
    }
}
