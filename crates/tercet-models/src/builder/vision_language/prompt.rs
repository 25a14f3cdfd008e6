//! Expansion of `<image>` placeholders in prompts, in the format of the reference processor.

use crate::hf::{AROUND, IMAGE, WHOLE};
use crate::image::ImageTiles;

/// Minimum number of marker tokens for an image with these tiles: markers before each tile and
/// after the last.
pub(super) fn tokens_around(tiles: ImageTiles) -> usize {
    2 * tiles.count() + 1
}

/// The prompt with each `<image>` placeholder expanded to `rows` placeholders per tile. The number
/// of placeholders equals the number of images, or there are no images.
pub(super) fn expand_image_tokens(prompt: &str, pictures: &[ImageTiles], rows: usize) -> String {
    if pictures.is_empty() {
        return prompt.to_string();
    }
    let mut parts = prompt.split(IMAGE);
    let mut text = parts.next().unwrap_or_default().to_string();
    for (tiles, rest) in pictures.iter().zip(parts) {
        push_picture(&mut text, *tiles, &IMAGE.repeat(rows));
        text.push_str(rest);
    }
    text
}

/// Number of `<image>` placeholders in a prompt.
pub(super) fn places(prompt: &str) -> usize {
    prompt.matches(IMAGE).count()
}

fn push_picture(text: &mut String, tiles: ImageTiles, places: &str) {
    let ImageTiles { rows, columns } = tiles;
    for row in 1..=rows {
        for column in 1..=columns {
            text.push_str(&format!("{AROUND}<row_{row}_col_{column}>{places}"));
        }
        text.push('\n');
    }
    if tiles.count() > 1 {
        text.push('\n');
    }
    text.push_str(&format!("{AROUND}{WHOLE}{places}{AROUND}"));
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(places("a<image>b<image>"), 2);
        assert_eq!(
            expand_image_tokens("a<image>b<image>", &[whole, split], 2),
            "a<fake_token_around_image><global-img><image><image><fake_token_around_image>b\
             <fake_token_around_image><row_1_col_1><image><image><fake_token_around_image><row_1_col_2><image><image>\n\
             \n<fake_token_around_image><global-img><image><image><fake_token_around_image>"
        );
        assert_eq!(tokens_around(whole), 3);
        assert_eq!(expand_image_tokens("a<image>b", &[], 2), "a<image>b");
    }
}
