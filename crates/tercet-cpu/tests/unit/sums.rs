//! Sums of quantized operands.

use tercet_cpu::internals::linear;

#[test]
fn bytes_that_stand_for_something_else_are_not_taken() {
    let line = |byte: usize| (byte as f32 - 7.0) * 0.3;
    assert_eq!(linear(false, line), Some([7.0, 0.3]));
    assert_eq!(linear(false, |byte| line(byte).max(-1.0)), None);
    let signed = |byte: usize| (f32::from(byte as u8 as i8) - 127.0) * 0.25;
    assert_eq!(linear(true, signed), Some([127.0, 0.25]));
    assert_eq!(linear(true, |_| 0.0), None);
}
