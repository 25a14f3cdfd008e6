//! Tests of the partitioning of a tensor into regions.

use tercet_plan::internals::binding_limit::{
    IndexRegion, PartitionSpec, cut, first_of, from_elements, numel,
};

#[test]
fn elements_that_are_a_region_are_found() {
    let sizes = [2, 3, 4];
    assert_eq!(from_elements(&sizes, 0..24), Some(vec![0..2, 0..3, 0..4]));
    assert_eq!(from_elements(&sizes, 12..24), Some(vec![1..2, 0..3, 0..4]));
    assert_eq!(from_elements(&sizes, 16..24), Some(vec![1..2, 1..3, 0..4]));
    assert_eq!(from_elements(&sizes, 17..19), Some(vec![1..2, 1..2, 1..3]));
    assert_eq!(from_elements(&sizes, 8..16), None);
    assert_eq!(from_elements(&sizes, 3..5), None);
}

#[test]
fn parts_cover_a_tensor_in_its_order() {
    for (sizes, most, align) in [
        (&[7, 3, 4][..], 30, 4),
        (&[1, 9, 4], 20, 8),
        (&[3, 2, 8], 8, 16),
        (&[2, 64], 32, 64),
    ] {
        let fits = |r: &IndexRegion| numel(r).is_some_and(|n| n <= most);
        let bytes = |r: &IndexRegion| vec![4 * numel(r).unwrap_or(0) as u64];
        let parts = cut(
            sizes,
            &PartitionSpec {
                axes: sizes.len(),
                is_small_enough: &fits,
                bytes: &bytes,
                align_bytes: align,
                any_offset: false,
                preferred_extent: None,
            },
        );
        let mut next = 0;
        for part in parts.expect("it can be cut") {
            assert!(fits(&part), "{part:?}");
            let first = first_of(sizes, &part);
            assert_eq!(first, next);
            assert!((4 * first as u64).is_multiple_of(align), "{part:?}");
            next += numel(&part).expect("it is small");
        }
        assert_eq!(next, sizes.iter().product::<usize>());
    }
}
