//! Tests of the SPIR-V modules and tilings of F16 attention backward.

use tercet_ir::ops::AttentionGradOf;
use tercet_plan::DeviceCaps;
use tercet_plan::internals::attention::GradTiling;

use super::spirv_interface::all_of_lowering_agree;

#[test]
fn the_modules_declare_the_block_the_arguments_and_the_constants() {
    all_of_lowering_agree("attention_training");
}

#[test]
fn tilings_keep_the_constraints_of_the_shader() {
    for caps in [
        DeviceCaps::h200(),
        DeviceCaps::rdna3(32),
        DeviceCaps::rdna3(64),
        DeviceCaps::arc(),
    ] {
        let dims = [[8, 8], [40, 24], [64, 64], [128, 128], [80, 128]];
        let of = [AttentionGradOf::Queries, AttentionGradOf::Keys];
        for (dims, of) in dims.into_iter().flat_map(|dims| of.map(|of| (dims, of))) {
            let Some(t) = GradTiling::choose(&caps, dims, of) else {
                continue;
            };
            let [fm, fn_, fk] = t.fragment;
            assert!(t.step % fn_ == 0 && t.step % fk == 0, "{t:?}");
            assert!(t.step <= t.threads() && t.lines() % fm == 0, "{t:?}");
            assert!(t.dims.iter().all(|d| d % fn_ == 0 && d % fk == 0), "{t:?}");
            assert!(t.dims[0] as usize >= dims[0] && t.dims[1] as usize >= dims[1]);
            assert!(t.shared_bytes() <= caps.workgroup_bytes, "{t:?}");
        }
    }
    let h200 = |of| GradTiling::choose(&DeviceCaps::h200(), [64, 64], of).unwrap();
    let (queries, keys) = (h200(AttentionGradOf::Queries), h200(AttentionGradOf::Keys));
    assert_eq!(
        (queries.subgroups, queries.lines(), queries.step),
        (4, 128, 32)
    );
    let wide = GradTiling::choose(&DeviceCaps::h200(), [128, 128], AttentionGradOf::Keys).unwrap();
    assert_eq!((wide.subgroups, wide.lines(), wide.step), (8, 128, 32));
    assert_eq!((keys.subgroups, keys.lines(), keys.step), (8, 128, 64));
    let browser = GradTiling::choose(&DeviceCaps::browser(), [64, 64], AttentionGradOf::Keys);
    assert_eq!(browser, None);
}
