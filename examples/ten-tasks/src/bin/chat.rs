//! Answers a question.

use std::error::Error;

use tercet_models::dataset::{ChatMessage, Role};
use tercet_models::{LanguageModel, TextOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut model = LanguageModel::open("model.gguf")?;
    let system = ChatMessage::new(Role::System, "Answer in one sentence.");
    let messages = [system, ChatMessage::new(Role::User, "What is a trait?")];
    let options = TextOptions::new().temperature(0.7).seed(1).max_tokens(64);
    println!("{}", model.chat(&messages, &options)?);
    Ok(())
}
