//! Tests of the SPIR-V modules and tilings of attention on cooperative matrices.

use tercet_plan::internals::attention::{AttentionTiling, MmaPrecision};
use tercet_plan::{CoopShape, CoopType, DeviceCaps};

use super::spirv_interface::all_agree;

#[test]
fn the_module_declares_the_block_the_arguments_and_the_constants() {
    all_agree(&[
        "attention_lanes_f16",
        "attention_coop_f16",
        "attention_convert_f16",
        "attention_halves_f32",
        "attention_halves_convert_f32",
        "attention_coop_lse_f16",
        "attention_convert_lse_f16",
    ]);
}

#[test]
fn tilings_keep_the_constraints_of_the_shader() {
    let mut software = DeviceCaps::h200();
    software.subgroup = Some(8);
    software.workgroup_bytes = 32 << 10;
    software.coop = vec![CoopShape {
        ty: CoopType::F16,
        m: 8,
        n: 8,
        k: 8,
        narrow_accumulators: true,
    }];
    let others = [
        DeviceCaps::rdna3(32),
        DeviceCaps::rdna3(64),
        DeviceCaps::arc(),
    ];
    for caps in [DeviceCaps::h200(), software].into_iter().chain(others) {
        for dims in [[8, 8], [40, 24], [64, 64], [128, 128], [80, 128], [192, 64]] {
            let rows = [1, 100, 10_000].into_iter();
            for (rows, factors) in rows.flat_map(|n| {
                [
                    MmaPrecision::F16,
                    MmaPrecision::SplitF16,
                    MmaPrecision::Scaled,
                ]
                .map(|of| (n, of))
            }) {
                let Some(t) = AttentionTiling::choose(&caps, dims, rows, 4, factors) else {
                    assert!(caps.device.registers_of(16) < 127, "{dims:?}");
                    continue;
                };
                assert_eq!(Some(t.subgroup), caps.subgroup);
                assert!(t.threads() <= caps.max_workgroup, "{t:?}");
                let [fm, fn_, fk] = t.fragment;
                assert!(fk % 8 == 0 && fn_ % 8 == 0, "{t:?}");
                assert!(
                    t.rows[0].is_multiple_of(t.rows[1]) && t.rows[1].is_multiple_of(fm),
                    "{t:?}"
                );
                assert!(
                    t.keys.is_multiple_of(fn_) && t.keys.is_multiple_of(fk),
                    "{t:?}"
                );
                assert!(t.keys >= 2 * fn_, "{t:?}");
                assert!(
                    t.dims[0].is_multiple_of(fk) && t.dims[1].is_multiple_of(fn_),
                    "{t:?}"
                );
                assert!(t.dims[0] as usize >= dims[0], "{t:?}");
                assert!(t.dims[1] as usize >= dims[1], "{t:?}");
                assert!(t.shared_bytes() <= caps.workgroup_bytes, "{t:?}");
            }
        }
    }
    let large =
        AttentionTiling::choose(&DeviceCaps::h200(), [64, 64], 1024, 128, MmaPrecision::F16)
            .unwrap();
    assert_eq!((large.rows, large.keys), ([128, 32], 32));
    let wide = AttentionTiling::choose(
        &DeviceCaps::h200(),
        [128, 128],
        1024,
        128,
        MmaPrecision::F16,
    )
    .unwrap();
    assert_eq!((wide.rows, wide.keys), ([128, 16], 32));
    assert_eq!(
        AttentionTiling::choose(&DeviceCaps::browser(), [64, 64], 64, 1, MmaPrecision::F16),
        None
    );
}
