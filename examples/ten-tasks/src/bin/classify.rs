//! Prints the class of an image.

use std::error::Error;

use tercet_models::Classifier;

fn main() -> Result<(), Box<dyn Error>> {
    let mut classifier = Classifier::open("image-model")?;
    let found = classifier.classify(&["photo.png"])?;
    println!("{} {:.4}", found[0].label, found[0].score);
    Ok(())
}
