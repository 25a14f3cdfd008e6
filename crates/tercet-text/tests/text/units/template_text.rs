//! The origin of the parts of texts.

use tercet_text::internals::TemplateTextBuilder;

#[test]
fn parts_keep_their_origin() {
    let mut whole = TemplateTextBuilder::default();
    whole.push_str("<s>", false);
    whole.push_str("ab", true);
    whole.push_str("cd", true);
    whole.push_str("</s>", false);
    whole.push_str("e", true);
    let whole = whole.finish();
    assert_eq!(whole.literal_ranges(), [3..7, 11..12]);
    assert_eq!(whole.part(4..12).literal_ranges(), [0..3, 7..8]);
    assert!(whole.part(0..3).literal_ranges().is_empty());
    assert_eq!(whole.part(3..7).range_count(), 0);
    assert_eq!(
        whole
            .part_of(whole.trim_start_matches("<s>a"))
            .literal_ranges(),
        [0..3, 7..8]
    );
    assert!(whole.part(0..0).literal_ranges().is_empty());
    assert_eq!(
        whole.mapped("X").literal_ranges(),
        std::slice::from_ref(&(0..1))
    );
    let mut two = TemplateTextBuilder::default();
    two.push(&whole);
    two.push_part(&whole, 3..5);
    assert_eq!(two.finish().literal_ranges(), [3..7, 11..14]);
}
