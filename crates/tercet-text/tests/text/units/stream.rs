//! Complete characters in pieces of bytes.

use tercet_text::internals::take_complete;

#[test]
fn pieces_join_to_the_lossy_text_wherever_they_are_cut() {
    let bytes = b"a\xC3\xA9\xFF\xE2\x82\xAC\xE2\x82x\xF0\x9F\x98\x80\xC0\x80\xF0\x9F\x98";
    let whole = String::from_utf8_lossy(bytes);
    for first in 0..=bytes.len() {
        for second in first..=bytes.len() {
            let mut pending = Vec::new();
            let mut text = String::new();
            for part in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                pending.extend_from_slice(part);
                text.push_str(&take_complete(&mut pending));
            }
            text.push_str(&String::from_utf8_lossy(&pending));
            assert_eq!(text, whole, "cut at {first} and {second}");
        }
    }
}
