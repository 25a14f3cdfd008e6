//! The program `tercet`. The code is in the library, so that cargo compiles it once for the program and
//! its tests.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    tercet_cli::main()
}
