use tercet_networks::internals::{overlap_start, piece_boundary};

#[test]
fn pieces_end_and_begin_at_words() {
    let text = "one two three";
    assert_eq!(piece_boundary(text, 0, 10), 7);
    assert_eq!(piece_boundary(text, 0, 99), text.len());
    // No white space in the second half.
    assert_eq!(piece_boundary(text, 8, 11), 11);
    let wide = "日本語";
    assert_eq!(piece_boundary(wide, 0, 4), 3);
    assert_eq!(piece_boundary(wide, 3, 4), 6);
}

#[test]
fn pieces_overlap_by_words() {
    let of = |text: &str| overlap_start(text, 0..text.len());
    assert_eq!(of("one two three four x"), Some(19));
    assert_eq!(of("one two three four"), Some(14));
    assert_eq!(of("one twothreefourfive"), Some(4));
    assert_eq!(of("onetwothree"), Some(9));
    assert_eq!(of("one"), None);
    assert_eq!(of("日本語日本語"), Some(15));
    assert_eq!(overlap_start("a bcd", 2..5), None);
}
