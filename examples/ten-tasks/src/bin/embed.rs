//! Prints the similarity of two sentences.

use std::error::Error;

use tercet_models::{Embedder, OpenModel};

fn main() -> Result<(), Box<dyn Error>> {
    let sentences = ["How do I reset my password?", "I forgot my password."];
    let vectors = Embedder::open("encoder")?.embed(&sentences)?;
    // The vectors of most models have length 1, so that their product is the cosine.
    let products = vectors[0].iter().zip(&vectors[1]).map(|(x, y)| x * y);
    println!("{:.4}", products.sum::<f32>());
    Ok(())
}
