//! Tests of the SPIR-V modules and tilings of chunked scans.

use tercet_ir::DType;
use tercet_plan::DeviceCaps;
use tercet_plan::internals::state_scan::{ChunkTiling, FRAGMENT};

use super::spirv_interface::all_agree;

#[test]
fn the_modules_declare_the_blocks_the_arguments_and_the_constants() {
    all_agree(&[
        "chunk_rows_f16",
        "chunk_rows_bf16",
        "chunk_walk_f16",
        "chunk_walk_bf16",
    ]);
}

#[test]
fn what_does_not_fit_matrices_goes_step_by_step() {
    let h200 = DeviceCaps::h200();
    let of = |dtype, states, columns| ChunkTiling::choose(&h200, dtype, states, columns);
    for dtype in [DType::F16, DType::BF16] {
        for (states, columns) in [(16, 16), (48, 80), (128, 64), (128, 128)] {
            let t = of(dtype, states, columns).unwrap();
            assert!(columns.is_multiple_of(t.columns), "{t:?}");
            assert!(
                t.columns.is_multiple_of(FRAGMENT * t.parts as usize),
                "{t:?}"
            );
            assert!(t.shared_bytes() <= h200.workgroup_bytes as usize, "{t:?}");
        }
        for (states, columns) in [(0, 16), (16, 0), (20, 64), (64, 40), (144, 64)] {
            assert_eq!(of(dtype, states, columns), None);
        }
    }
    assert_eq!(of(DType::F32, 128, 64), None);
    assert_eq!(
        ChunkTiling::choose(&DeviceCaps::browser(), DType::F16, 128, 64),
        None
    );
    let mut careful = DeviceCaps::h200();
    careful.natives.f16_conversions = false;
    assert_eq!(ChunkTiling::choose(&careful, DType::F16, 128, 64), None);
}
