//! Inputs that are gathered into one write.

use tercet_wgpu::internals::{GATHERED_BYTES, InputBuffer};

#[test]
fn writes_become_one() {
    let mut inputs = InputBuffer::default();
    assert_eq!(inputs.dirty_bytes(), None);
    assert!(inputs.take(16, 8, &[1, 2, 3, 4]));
    assert_eq!(inputs.dirty_bytes(), Some((8, &[1, 2, 3, 4][..])));
    assert!(inputs.take(16, 0, &[5, 6]));
    let all = [5, 6, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    assert_eq!(inputs.dirty_bytes(), Some((0, &all[..])));
    inputs.mark_clean();
    assert_eq!(inputs.dirty_bytes(), None);
    // The gathered range covers both later writes; the bytes between them come from the earlier
    // write.
    assert!(inputs.take(16, 4, &[7]));
    assert!(inputs.take(16, 12, &[8, 8, 8, 8]));
    let all = [7, 0, 0, 0, 1, 2, 3, 4, 8, 8, 8, 8];
    assert_eq!(inputs.dirty_bytes(), Some((4, &all[..])));
}

#[test]
fn what_the_device_wrote_is_not_written_over() {
    let mut inputs = InputBuffer::default();
    assert!(inputs.take(16, 0, &[1, 2, 3, 4]));
    inputs.mark_clean();
    inputs.is_foreign();
    assert!(!inputs.take(16, 12, &[1]));
    assert_eq!(inputs.dirty_bytes(), None);
}

#[test]
fn large_buffers_and_what_lies_outside_are_not_gathered() {
    let mut inputs = InputBuffer::default();
    assert!(!inputs.take(GATHERED_BYTES + 4, 0, &[1]));
    assert!(!inputs.take(16, 16, &[1]));
    assert_eq!(inputs.dirty_bytes(), None);
}
