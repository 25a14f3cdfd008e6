//! Times of Burn through Vulkan on the work of `cargo xtask bench gpu`, one line each: kernels by name and microseconds
//! (`kernels.rs`), a training step of BERT-base as `steps_torch.py` says them (`training.rs`).
//!
//! Run it on the machine of the bench, in the same hour: `cargo run --release -- [FILTER]`, or a step of another size as
//! `-- training_bert_f32 --layers 1 --rows 2`. Each step has a process of its own. What a step is doing goes to the error output.

mod bert;
mod kernels;
mod training;

use std::error::Error;

use burn::tensor::{Device, DeviceKind};

/// What to measure.
struct Args {
    filter: String,
    size: bert::Size,
    /// The only thing this process does: Burn takes the float type of a device once in a process.
    step: Option<String>,
}

impl Args {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Args, Box<dyn Error>> {
        let mut args = Args {
            filter: String::new(),
            size: bert::Size::BASE,
            step: None,
        };
        while let Some(word) = words.next() {
            let field = match word.as_str() {
                "--layers" => &mut args.size.layers,
                "--rows" => &mut args.size.rows,
                "--length" => &mut args.size.length,
                "--vocab" => &mut args.size.vocab,
                "--step" => {
                    args.step = words.next();
                    continue;
                }
                _ => {
                    args.filter = word;
                    continue;
                }
            };
            let number = words.next().ok_or(format!("{word} takes a number"))?;
            *field = number.parse()?;
        }
        Ok(args)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::read(std::env::args().skip(1))?;
    let device = Device::vulkan(DeviceKind::DefaultDevice);
    if let Some(name) = &args.step {
        return training::run(name, args.size, device);
    }
    if !args.filter.starts_with(training::PREFIX) {
        kernels::all(device, &args.filter);
    }
    training::all(&args.filter)
}
