//! Memory that executables share.

use std::sync::Arc;

use tercet_cpu::internals::{AlignedPages, ArenaPool, PackedConst, shared};

fn packed(seed: usize, len: usize) -> PackedConst {
    let mut pages = AlignedPages::<f32>::zeroed(len).unwrap();
    let values = pages.iter_mut().enumerate();
    values.for_each(|(i, x)| *x = ((i * 31 + seed) % 1009) as f32);
    PackedConst::new(pages)
}

#[test]
fn equal_operands_are_held_once_while_someone_holds_them() {
    let (a, b) = (shared(packed(3, 9000)), shared(packed(3, 9000)));
    assert!(Arc::ptr_eq(&a, &b));
    let other = shared(packed(4, 9000));
    assert!(!Arc::ptr_eq(&a, &other));
    // Operands that differ in one element which the hash skips.
    let mut pages = AlignedPages::<f32>::zeroed(9000).unwrap();
    pages.copy_from_slice(a.downcast_ref::<AlignedPages<f32>>().unwrap());
    pages[301] += 1.0;
    assert!(!Arc::ptr_eq(&a, &shared(PackedConst::new(pages))));
    let (small, same) = (shared(packed(1, 5)), shared(packed(1, 5)));
    assert!(!Arc::ptr_eq(&small, &same));
    let held = Arc::downgrade(&a);
    drop((a, b));
    assert!(held.upgrade().is_none(), "the table holds no memory");
    assert_eq!(Arc::strong_count(&shared(packed(3, 9000))), 1);
}

#[test]
fn an_arena_serves_all_executables_that_fit() {
    let pool = ArenaPool::default();
    let arena = pool.take(1000).unwrap();
    let second = pool.take(10).unwrap();
    let at = arena.bytes().as_ptr();
    pool.give_back(arena);
    let arena = pool.take(500).unwrap();
    assert_eq!(arena.bytes().as_ptr(), at);
    pool.give_back(arena);
    pool.give_back(second);
    assert_eq!(pool.take(7).unwrap().bytes().len(), 10);
    // A larger arena replaces the free one.
    let large = pool.take(5000).unwrap();
    assert!(pool.0.lock().unwrap().is_empty());
    pool.give_back(large);
    assert_eq!(pool.take(1000).unwrap().bytes().len(), 5000);
}
