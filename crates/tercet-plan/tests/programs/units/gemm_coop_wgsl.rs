//! Tests of the tilings of matmuls on cooperative matrices in WGSL.

use tercet_ir::DType;
use tercet_plan::gemm_coop::CoopGemmTiling;
use tercet_plan::{DeviceCaps, GemmProblem};

fn problem(m: usize, n: usize, k: usize) -> GemmProblem {
    GemmProblem {
        dtype: DType::F16,
        b_transposed: false,
        m,
        n,
        k,
    }
}

#[test]
fn large_products_have_large_tiles_and_small_ones_parts() {
    let caps = DeviceCaps::h200_without_passthrough();
    let shape = caps.coop_wgsl[0];
    let choose = |p: &GemmProblem, most| {
        CoopGemmTiling::choose_for_wgsl(&caps, shape, p, 1, most)
            .expect("the device has matrices")
            .0
    };
    let large = choose(&problem(4096, 4096, 4096), 8);
    assert_eq!((large.tile, large.splits), ([128, 128, 32], 1));
    let k_major = GemmProblem {
        b_transposed: true,
        ..problem(4096, 4096, 4096)
    };
    assert_eq!(choose(&k_major, 8).tile, [128, 256, 32]);
    let small = problem(128, 128, 8192);
    assert!(choose(&small, 8).splits > 1);
    assert_eq!(choose(&small, 1).splits, 1);
}

#[test]
fn every_shape_of_the_profiles_has_tilings_that_fit() {
    for caps in [DeviceCaps::apple(), DeviceCaps::h200_without_passthrough()] {
        for &shape in &caps.coop_wgsl {
            let all = CoopGemmTiling::wgsl_candidates(&caps, shape);
            assert!(all.len() > 2, "{shape:?}: {all:?}");
            for t in all {
                assert!(t.wgsl_shared_bytes(shape) <= caps.workgroup_bytes);
            }
        }
    }
}
