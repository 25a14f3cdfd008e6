//! Measures Burn through Vulkan on the workloads of `cargo xtask bench gpu`, one line each. Kernels
//! (`kernels.rs`) are printed with name and microseconds, training steps of BERT-base
//! (`training.rs`) in the format of `steps_torch.py`.
//!
//! Run the program on the same machine as the bench and within an hour of it: `cargo run --release
//! -- [FILTER]`. For a step of another size use `-- training_bert_f32 --layers 1 --rows 2`. Each
//! step runs in a separate process; its progress goes to standard error.

mod bert;
mod kernels;
mod training;

use std::error::Error;

use burn::tensor::{Device, DeviceKind};

/// The command-line arguments.
struct Args {
    filter: String,
    size: bert::Size,
    /// The name of the step that this process runs, because a process can set Burn's float type of
    /// a device only once.
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
