//! Tests which matmuls the dequantization of weights overlaps with.

use tercet_plan::SlotId;
use tercet_plan::internals::schedule::{DequantSchedule, SharedLhsGroup};

/// Index of the earlier matmul group during which weights of `own` bytes are dequantized;
/// `bytes` gives the weight sizes of the earlier groups.
fn beside(bytes: &[u64], own: u64, most: u64) -> Option<u32> {
    let sets = bytes.iter().enumerate().map(|(at, &bytes)| SharedLhsGroup {
        rows: SlotId(at as u32),
        last: SlotId(at as u32),
        bytes,
        after: SlotId(0),
    });
    let decoding = DequantSchedule {
        sets: sets.collect(),
        ..DequantSchedule::default()
    };
    decoding.overlap_slot(own, most).map(|slot| slot.0)
}

#[test]
fn weights_are_decoded_beside_the_heaviest_of_three_sets_that_memory_allows() {
    let layer = [50, 34, 235, 117];
    // The weights to dequantize are QKV of the next layer, then attention output, then gate and
    // up.
    assert_eq!(beside(&layer, 50, 1000), Some(2));
    assert_eq!(beside(&[50, 34, 235, 117, 50], 34, 1000), Some(2));
    assert_eq!(beside(&[50, 34, 235, 117, 50, 34], 235, 1000), Some(3));
    assert_eq!(beside(&layer[..3], 117, 1000), Some(2));
    // Of two groups with equal sizes, the later one is selected.
    assert_eq!(beside(&[10, 10], 10, 1000), Some(1));
    // The weights to dequantize, gate and up, and down take 402 bytes together; the weights to
    // dequantize and down take 167.
    assert_eq!(beside(&layer, 50, 401), Some(3));
    assert_eq!(beside(&layer, 50, 166), None);
    assert_eq!(beside(&[], 50, 1000), None);
}
