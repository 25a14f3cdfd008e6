//! Pieces and parts of documents.

use tercet_text::dataset::TokenizedDocument;
use tercet_text::internals::piece_len;

#[test]
fn pieces_end_with_lines() {
    assert_eq!(piece_len("ab\ncd", 5), 5);
    assert_eq!(piece_len("ab\ncd", 4), 3);
    assert_eq!(piece_len("abcd", 3), 3);
    assert_eq!(piece_len("\u{e9}\u{e9}", 3), 2);
}

#[test]
fn parts_keep_what_is_learnt() {
    let document = TokenizedDocument::masked(vec![1, 2, 3, 4], vec![true, false, true]);
    assert_eq!(document.loss_tokens(), 1);
    let part = document.part(1..4);
    assert_eq!(part.tokens(), [2, 3, 4]);
    assert!(part.is_in_loss(1) && !part.is_in_loss(2));
    assert_eq!(document.part(2..4).loss_tokens(), 0);
}
