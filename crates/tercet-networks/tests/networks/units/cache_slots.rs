use tercet_networks::Sequence;
use tercet_networks::internals::{CacheSlot, PrefixCheckpoint};

#[test]
fn prefixes_are_shared_within_a_scope_only() {
    let prompt = vec![1, 2, 3, 4, 5];
    let mut slot = CacheSlot::default();
    slot.cached_tokens = prompt.clone();
    slot.chunk_aligned = 4;
    slot.cache_scope = "a".into();
    slot.checkpoint = Some(PrefixCheckpoint {
        at: 2,
        bank: 0,
        states: Vec::new(),
        is_branch: false,
    });
    for (scope, adapter, whole_chunks, checkpoint) in [
        ("a", None, 4, 2),
        ("b", None, 0, 0),
        ("", None, 0, 0),
        ("a", Some(0), 0, 0),
    ] {
        let sequence = Sequence {
            cache_scope: scope.into(),
            adapter,
            ..Sequence::new(prompt.clone(), 1)
        };
        assert_eq!(slot.same(&sequence, 2), whole_chunks, "{scope}");
        assert_eq!(slot.checkpoint_match(&sequence), checkpoint, "{scope}");
    }
}
