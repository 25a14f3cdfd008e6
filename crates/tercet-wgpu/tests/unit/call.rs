//! Grids of copies and fills.

use tercet_wgpu::internals::flat;

#[test]
fn flat_grids_cover_all_words() {
    assert_eq!(flat(0, 65535), [0, 0, 1]);
    assert_eq!(flat(1, 65535), [1, 1, 1]);
    assert_eq!(flat(257, 65535), [2, 1, 1]);
    assert_eq!(flat(256 * 65536, 65535), [65535, 2, 1]);
}
