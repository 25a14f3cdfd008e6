use tercet_networks::internals::{EncoderBatchBounds, group};

#[test]
fn texts_of_similar_length_run_together() {
    let lens = [3, 3, 3, 4, 9, 9, 10, 40];
    let order: Vec<usize> = (0..lens.len()).collect();
    let of = |from: usize, batch| {
        let bounds = EncoderBatchBounds {
            batch,
            max_tokens: 40,
        };
        group(&order[from..], bounds, usize::MAX, &|at| lens[at])
    };
    assert_eq!(of(0, 8), [0, 1, 2, 3]);
    assert_eq!(of(0, 2), [0, 1]);
    assert_eq!(of(4, 8), [4, 5, 6]);
    assert_eq!(of(7, 8), [7]);
    let bounds = EncoderBatchBounds {
        batch: 8,
        max_tokens: 40,
    };
    assert_eq!(group(&order, bounds, 9, &|at| lens[at]), [0, 1, 2]);
}

#[test]
fn long_texts_have_batches_of_their_own() {
    let bounds = |batch, most| EncoderBatchBounds {
        batch,
        max_tokens: most,
    };
    assert_eq!(
        EncoderBatchBounds::for_batch(None, 256),
        (bounds(32, 256), None)
    );
    let (all, short) = EncoderBatchBounds::for_batch(None, 8192);
    assert_eq!((all, short), (bounds(2, 8192), Some(bounds(32, 512))));
    let (all, _) = EncoderBatchBounds::for_batch(Some(5), 100_000);
    assert_eq!(all, bounds(5, 100_000));
    // The first long text ends a batch of short texts.
    let lens = [500, 510, 520];
    let order = [0, 1, 2];
    assert_eq!(
        group(&order, bounds(8, 512), usize::MAX, &|at| lens[at]),
        [0, 1]
    );
}
