//! Tests of the SPIR-V modules and tilings of F32 attention backward.

use tercet_plan::DeviceCaps;
use tercet_plan::internals::attention::{MmaPrecision, PairTiling};

use super::spirv_interface::all_of_lowering_agree;

#[test]
fn the_modules_declare_the_block_the_arguments_and_the_constants() {
    all_of_lowering_agree("attention_training_pairs");
}

#[test]
fn tilings_keep_the_constraints_of_the_shader() {
    let mut found = 0;
    for caps in [
        DeviceCaps::h200(),
        DeviceCaps::rdna3(32),
        DeviceCaps::rdna3(64),
        DeviceCaps::arc(),
    ] {
        for dims in [[8, 8], [40, 24], [64, 64], [128, 128], [80, 128]] {
            for factors in [MmaPrecision::SplitF16, MmaPrecision::Scaled] {
                let Some(pairs) = PairTiling::choose(&caps, dims, factors) else {
                    continue;
                };
                found += 1;
                let t = pairs.tiling;
                let [fm, fn_, fk] = t.fragment;
                assert!(t.step % fn_ == 0 && t.step % fk == 0, "{t:?}");
                assert!(t.step <= t.threads() && t.lines() % fm == 0, "{t:?}");
                assert!(t.dims.iter().all(|d| d % fn_ == 0 && d % fk == 0), "{t:?}");
                assert!(t.dims[0] as usize >= dims[0] && t.dims[1] as usize >= dims[1]);
                assert!(pairs.shared_bytes() <= caps.workgroup_bytes, "{t:?}");
            }
        }
    }
    assert!(found >= 8, "{found}");
    for factors in [MmaPrecision::SplitF16, MmaPrecision::Scaled] {
        let h200 = PairTiling::choose(&DeviceCaps::h200(), [64, 64], factors).unwrap();
        assert_eq!((h200.tiling.lines(), h200.tiling.step), (128, 32));
        assert_eq!(
            PairTiling::choose(&DeviceCaps::browser(), [64, 64], factors),
            None
        );
    }
}
