//! Tests of the tilings of attention on cooperative matrices in WGSL.

use tercet_plan::internals::attention::WgslAttentionTiling;
use tercet_plan::{DeviceCaps, WgslCoopType};

#[test]
fn tilings_keep_the_constraints_of_the_shader() {
    let mut software = DeviceCaps::apple();
    software.subgroup = Some(8);
    let devices = [
        DeviceCaps::h200_without_passthrough(),
        DeviceCaps::apple(),
        software,
    ];
    for caps in devices {
        for ty in [WgslCoopType::F16, WgslCoopType::F32] {
            for dims in [[8, 8], [40, 24], [64, 64], [80, 80], [128, 128], [192, 128]] {
                // Operands of F32 with these heads exceed the shared memory of the devices.
                let fits = ty == WgslCoopType::F16 || dims != [192, 128];
                for rows in [1, 100, 10_000] {
                    let tiling = WgslAttentionTiling::choose(&caps, ty, dims, rows, 4);
                    let is_expected = fits && caps.has_wgsl_matrices(ty);
                    assert_eq!(tiling.is_some(), is_expected, "{dims:?}");
                    let Some(t) = tiling else { continue };
                    assert!(t.shared_bytes() <= caps.workgroup_bytes, "{t:?}");
                    assert!(t.threads() <= caps.max_workgroup, "{t:?}");
                    assert!(t.dims[0] as usize >= dims[0] && t.dims[1] as usize >= dims[1]);
                }
            }
        }
    }
}

#[test]
fn many_rows_have_large_tiles_and_few_rows_small_ones() {
    let caps = DeviceCaps::h200_without_passthrough();
    let choose = |rows, heads| {
        let tiling = WgslAttentionTiling::choose(&caps, WgslCoopType::F16, [64, 64], rows, heads);
        tiling.expect("the device has matrices").rows()
    };
    assert_eq!(choose(1024, 128), 64);
    assert_eq!(choose(64, 8), 16);
    let none = DeviceCaps::browser();
    let tiling = WgslAttentionTiling::choose(&none, WgslCoopType::F16, [64, 64], 64, 1);
    assert_eq!(tiling, None);
    // Columns of values beyond the variables of the shader.
    let tiling = WgslAttentionTiling::choose(&caps, WgslCoopType::F16, [16, 272], 64, 1);
    assert_eq!(tiling, None);
}
