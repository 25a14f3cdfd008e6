//! Prints the text of a recording.

use std::error::Error;

use tercet_models::Transcriber;

fn main() -> Result<(), Box<dyn Error>> {
    let mut transcriber = Transcriber::open("speech-model")?;
    let transcript = transcriber.transcribe("speech.flac")?;
    println!("{}", transcript.text());
    Ok(())
}
