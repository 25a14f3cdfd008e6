//! Copies of strided views.

use tercet_cpu::internals::{KernelView, copy_view, place};
use tercet_ir::DType;
use tercet_ir::layout::Layout;

#[test]
fn transposes_of_every_size_are_copied() {
    let data: Vec<u8> = (0..60_000).map(|i| (i * 7 % 251) as u8).collect();
    for (a, b, c) in [
        (33, 1, 47),
        (16, 1, 16),
        (64, 3, 32),
        (5, 2, 3),
        (2, 40, 19),
        (1, 2, 50),
        (70, 20, 3),
    ] {
        // The axes of a dense `[c, b, a]` in every order that moves the last one.
        let strides = [1, a as isize, (a * b) as isize];
        let sizes = [a, b, c];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 0, 1]] {
            let shape = order.map(|axis| sizes[axis]);
            let steps = order.map(|axis| strides[axis]);
            let layout = Layout::new(&shape, &steps, 3);
            let view = KernelView {
                root: &data,
                within: 0,
                dtype: DType::U8,
                layout: &layout,
            };
            let at = |index: usize| data[place(&layout, index) as usize];
            let want: Vec<u8> = (0..a * b * c).map(at).collect();
            for parallel in [false, true] {
                let mut to = vec![0u8; want.len()];
                copy_view(&view, &mut to, parallel);
                assert!(to == want, "{shape:?} {steps:?}");
            }
        }
    }
}

#[test]
fn strided_reversed_and_broadcast_views_are_copied_in_order() {
    let data: Vec<u16> = (0..24).collect();
    let check = |shape: &[usize], strides: &[isize], offset: usize, want: &[u16]| {
        let layout = Layout::new(shape, strides, offset);
        let view = KernelView {
            root: bytemuck::cast_slice(&data),
            within: 0,
            dtype: DType::F16,
            layout: &layout,
        };
        for parallel in [false, true] {
            let mut to = vec![0u16; want.len()];
            copy_view(&view, bytemuck::cast_slice_mut(&mut to), parallel);
            assert_eq!(to, want, "{shape:?} {strides:?}");
        }
    };
    check(&[2, 3], &[1, 2], 0, &[0, 2, 4, 1, 3, 5]);
    check(&[2, 3], &[12, -1], 2, &[2, 1, 0, 14, 13, 12]);
    check(&[2, 2, 2], &[0, 1, 0], 5, &[5, 5, 6, 6, 5, 5, 6, 6]);
    check(
        &[2, 2, 3],
        &[12, 6, 2],
        1,
        &[1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23],
    );
    check(&[], &[], 7, &[7]);
}
