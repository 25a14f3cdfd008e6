//! Zeroed, aligned memory.

use tercet_cpu::internals::AlignedPages;

#[test]
fn memory_of_any_size_is_zeroed_and_written() {
    for len in [0, 1, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 3] {
        let mut pages = AlignedPages::<f32>::zeroed(len).unwrap();
        assert_eq!(pages.len(), len);
        assert!(pages.iter().all(|x| x.to_bits() == 0));
        pages
            .iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x = i as f32);
        assert!(pages.iter().enumerate().all(|(i, x)| *x == i as f32));
    }
}

#[test]
fn memory_that_is_not_there_is_nothing() {
    assert!(AlignedPages::<f32>::zeroed(usize::MAX / 4).is_none());
    assert!(AlignedPages::<i32>::zeroed(usize::MAX).is_none());
}
