//! Continues a text.

use std::error::Error;

use tercet_models::{LanguageModel, TextOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut model = LanguageModel::open("model.gguf")?;
    let options = TextOptions::new().max_tokens(32).stop("\n\n");
    for piece in model.generate_stream("Ownership is", &options)? {
        print!("{}", piece?);
    }
    Ok(())
}
