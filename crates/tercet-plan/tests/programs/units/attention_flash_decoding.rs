//! Tests of the SPIR-V module and the division of keys of flash decoding.

use tercet_plan::internals::attention::{FlashDecodeSplit, STAGED};
use tercet_plan::{CoopShape, CoopType, DeviceCaps};

use super::spirv_interface::all_agree;

#[test]
fn the_module_declares_the_block_the_arguments_and_the_constants() {
    all_agree(&["attention_pieces_f16"]);
}

#[test]
fn cuts_keep_the_constraints_of_the_shader() {
    let shape = |[m, n, k]: [u32; 3]| CoopShape {
        ty: CoopType::F16,
        m,
        n,
        k,
        narrow_accumulators: true,
    };
    let mut found = DeviceCaps::h200();
    found.coop.push(shape([16, 8, 16]));
    let mut software = DeviceCaps::h200();
    software.subgroup = Some(8);
    software.workgroup_bytes = 32 << 10;
    software.coop = vec![shape([8, 8, 8])];
    for caps in [DeviceCaps::h200(), found.clone(), software] {
        for dims in [[32, 32], [64, 64], [128, 128], [64, 128]] {
            for group in [1, 3, 8] {
                let cut = FlashDecodeSplit::choose(&caps, dims, [group, 8], 600).unwrap();
                let [fm, fn_, fk] = cut.fragment;
                assert!(
                    STAGED.is_multiple_of(fm) && STAGED.is_multiple_of(fk),
                    "{cut:?}"
                );
                assert!(group <= fn_ as usize, "{cut:?}");
                for dim in cut.dims {
                    assert!(dim.is_multiple_of(fm) && dim.is_multiple_of(fk), "{cut:?}");
                    assert!((STAGED * dim / 8).is_multiple_of(cut.subgroup), "{cut:?}");
                }
                assert!(cut.shared_bytes() <= caps.workgroup_bytes, "{cut:?}");
            }
        }
    }
    // The selected fragment is the one with the fewest columns that still has one column per
    // query head.
    let few = FlashDecodeSplit::choose(&found, [128, 128], [4, 8], 4096).unwrap();
    assert_eq!((few.fragment, few.keys()), ([16, 8, 16], 256));
    // With fewer keys, each workgroup gets fewer keys, so that all compute units have work.
    let short = FlashDecodeSplit::choose(&found, [128, 128], [4, 8], 1024).unwrap();
    assert_eq!(short.keys(), 64);
    let many = FlashDecodeSplit::choose(&found, [128, 128], [16, 2], 4096).unwrap();
    assert_eq!(many.fragment, [16, 16, 16]);
    assert_eq!(
        FlashDecodeSplit::choose(&found, [128, 128], [17, 2], 4096),
        None
    );
    assert_eq!(
        FlashDecodeSplit::choose(&found, [96, 96], [4, 8], 4096),
        None
    );
    assert_eq!(
        FlashDecodeSplit::choose(&DeviceCaps::browser(), [64, 64], [1, 8], 4096),
        None
    );
}
