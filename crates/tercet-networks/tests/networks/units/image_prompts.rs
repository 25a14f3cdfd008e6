use std::ops::Range;

use tercet_networks::image::ImageTiles;
use tercet_networks::internals::{expand_image_tokens, places, tokens_around};

/// The marker before each tile and after the last.
const AROUND: &str = "<fake_token_around_image>";

fn expand(
    prompt: &str,
    literal: &[Range<usize>],
    pictures: &[ImageTiles],
    rows: usize,
) -> (String, Vec<Range<usize>>) {
    let places = places(prompt, literal);
    expand_image_tokens((prompt, literal), &places, pictures, rows)
}

#[test]
fn rows_and_columns_are_counted_from_one() {
    let whole = ImageTiles {
        rows: 0,
        columns: 0,
    };
    let split = ImageTiles {
        rows: 1,
        columns: 2,
    };
    assert_eq!(places("a<image>b<image>", &[]), [1, 9]);
    assert_eq!(
        expand("a<image>b<image>", &[], &[whole, split], 2).0,
        "a<fake_token_around_image><global-img><image><image><fake_token_around_image>b\
             <fake_token_around_image><row_1_col_1><image><image><fake_token_around_image><row_1_col_2><image><image>\n\
             \n<fake_token_around_image><global-img><image><image><fake_token_around_image>"
    );
    assert_eq!(tokens_around(whole), 3);
    assert_eq!(expand("a<image>b", &[], &[], 2).0, "a<image>b");
    // The user's words (the literal range) between two images spell a placeholder.
    let (text, literal) = expand(
        "<image><image>b<image>",
        std::slice::from_ref(&(7..15)),
        &[whole, whole],
        1,
    );
    assert_eq!(
        literal.iter().map(|r| &text[r.clone()]).collect::<String>(),
        "<image>b"
    );
    assert_eq!(text.matches(AROUND).count(), 4);
}
