//! Lists the devices, and compiles a model for a chosen one.

use std::error::Error;

use tercet::{Device, devices};
use tercet_models::{LanguageModel, TextOptions};

fn main() -> Result<(), Box<dyn Error>> {
    for info in devices() {
        println!("{}: {}", info.name, info.description);
    }
    // The names are those of the list, such as `vulkan:1`; `auto` is the best device.
    let device = Device::by_name("cpu")?;
    let mut model = LanguageModel::options().device(device).open("model.gguf")?;
    let options = TextOptions::new().max_tokens(16);
    println!("{}", model.generate("A trait is", &options)?);
    Ok(())
}
