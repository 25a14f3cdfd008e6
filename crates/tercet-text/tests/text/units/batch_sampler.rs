//! The assignment of items to batches.

use tercet_text::dataset::{BatchSampler, LastBatchPolicy, shuffled};

#[test]
fn every_item_once_an_epoch() {
    for last in [LastBatchPolicy::Wraps, LastBatchPolicy::Short] {
        for (items, batch) in [(1, 1), (1, 4), (7, 3), (8, 4), (5, 8), (100, 7)] {
            let mut order = BatchSampler::new(items, batch, 3, last);
            let mut stream = Vec::new();
            let mut step = 0;
            while stream.len() < 4 * items {
                let part = order.batch(step);
                assert!(
                    part.len() == batch || (last == LastBatchPolicy::Short && part.len() < batch)
                );
                stream.extend(part);
                step += 1;
            }
            for (epoch, part) in stream.chunks_exact(items).enumerate() {
                let mut sorted = part.to_vec();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..items).collect::<Vec<_>>());
                assert_eq!(part, shuffled(items, 3, epoch as u64));
            }
            for step in 0..40 {
                let (epoch, batch) = order.position(step);
                assert_eq!(order.step_of(epoch, batch), step);
            }
        }
    }
}

#[test]
fn orders_differ_and_are_fixed() {
    assert_ne!(shuffled(50, 1, 0), shuffled(50, 1, 1));
    assert_ne!(shuffled(50, 1, 0), shuffled(50, 2, 0));
    assert_eq!(shuffled(50, 1, 0), shuffled(50, 1, 0));
    // Every position is reached by every item.
    let mut seen = [[0u32; 4]; 4];
    for epoch in 0..400 {
        for (place, item) in shuffled(4, 9, epoch).into_iter().enumerate() {
            seen[place][item] += 1;
        }
    }
    assert!(
        seen.as_flattened().iter().all(|n| (60..140).contains(n)),
        "{seen:?}"
    );
}
