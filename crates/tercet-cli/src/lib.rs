//! The `tercet` command: generates text, embeds sentences, inspects model files, runs graphs.
//!
//! This library is no public interface. The program calls [`main`], and the tests of the crate use
//! [`internals`]; both change without notice. `tercet` and `tercet-models` are the interfaces for Rust.
//!
//! Each command is a module of `commands` with its arguments and one `run`. Progress and notes go
//! to standard error, results to standard output. With `--json`, standard output is one JSON
//! document. Exit codes: see `EXIT_CODES`.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "the library is no public interface, and comments on arguments would be their help"
)]

mod command_line;
mod commands;
mod drivers;
mod error;
mod interrupt;
mod npy;
mod output;
mod output_path;
mod progress;

pub use command_line::main;

/// Private items that the tests of this crate use. They are no interface: they change without
/// notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::command_line::{EXIT_CODES, TercetCli, arguments};
    pub use crate::commands::chat::history::{HistoryFile, MAX_ENTRIES};
    pub use crate::commands::chat::input::{ChatInput, MAX_MESSAGE, read_line};
    pub use crate::commands::chat::mcp::{McpClientArgs, McpTools};
    pub use crate::commands::dump::file_name;
    pub use crate::commands::finetune::FinetuneArgs;
    pub use crate::commands::finetune::memory::with_remedy;
    pub use crate::commands::finetune::prepare::{TrainingRun, prepare};
    pub use crate::commands::generate::{PromptIds, open_model};
    pub use crate::commands::generation::logits_file::LogitsRecorder;
    #[cfg(feature = "hub")]
    pub use crate::commands::hub::arguments::rewritten;
    pub use crate::commands::sampling_args::bias;
    #[cfg(feature = "serve")]
    pub use crate::commands::serve::catalog::{ListedModelFile, ModelList, is_later_part};
    pub use crate::commands::{memory_size, seed, tokens};
    pub use crate::drivers::filter_line;
    pub use crate::error::{CliError, causes, indented};
    pub use crate::interrupt::InterruptAction;
    pub use crate::npy::{
        MAX_ARRAY_BYTES, MAX_RANK, NpyArray, NpyDtype, NpyError, NpyFormatError, read_npy,
    };
    pub use crate::output::compact_numbers::CompactNumberFormatter;

    /// Messages of MCP servers.
    pub mod mcp {
        pub use crate::commands::chat::mcp::client::text_of;
        #[cfg(any(feature = "hub", feature = "serve"))]
        pub use crate::commands::chat::mcp::http::event;
        pub use crate::commands::chat::mcp::stdio::split_words;
    }

    /// NumPy files.
    pub mod npy {
        pub use crate::npy::npz::{read_archive, read_npz, write_npz};
        pub use crate::npy::{len_bytes, read, write_npy};
    }

    /// Headers of NumPy files.
    pub mod npy_header {
        pub use crate::npy::header::{
            ALIGN_BYTES, NpyByteOrder, NpyHeader, NpyOrder, parse, print, read,
        };
    }

    /// Readable and escaped texts.
    pub mod output {
        pub use crate::output::{bytes, clip, count, escape_line, escape_lines};
    }

    /// Lines of progress.
    pub mod progress {
        pub use crate::progress::{WatchedWork, line};
    }

    /// Tensors as text, JSON and NumPy arrays.
    pub mod tensors {
        pub use crate::commands::tensors::{JsonElements, PIECE, print, to_array, to_tensor};
    }

    /// Sizes and results of autotuning.
    pub mod tune {
        pub use crate::commands::tune::{line, shape};
    }
}
