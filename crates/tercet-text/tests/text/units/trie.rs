//! Prefixes in a set of strings.

use tercet_text::internals::Trie;

#[test]
fn finds_every_prefix() {
    let strings = ["a", "ab", "abc", "b", "\u{2581}", "\u{2581}a"];
    let trie = Trie::new(strings.iter().copied().zip(0..));
    let of = |text: &str| trie.prefixes(text.as_bytes()).collect::<Vec<_>>();
    assert_eq!(of("abd"), [(1, 0), (2, 1)]);
    assert_eq!(of("abcd"), [(1, 0), (2, 1), (3, 2)]);
    assert_eq!(of("\u{2581}a"), [(3, 4), (4, 5)]);
    assert_eq!(of("c"), []);
    assert_eq!(trie.longest(b"abcabc"), Some((3, 2)));
    assert_eq!(Trie::default().longest(b"a"), None);
    assert_eq!(Trie::new([].into_iter()).longest(b"a"), None);
}
