//! Tests of parsers, formats, messages and other parts that are private to the command.

mod argument_values;
mod arguments;
#[cfg(feature = "serve")]
mod catalog;
mod chat_history;
mod chat_input;
mod compact_numbers;
mod drivers;
mod dump;
mod errors;
#[cfg(feature = "hub")]
mod hub_arguments;
mod interrupt;
mod logit_biases;
mod logits_file;
mod mcp_messages;
#[cfg(unix)]
mod mcp_servers;
mod memory;
mod npy;
mod npy_header;
mod output;
mod progress;
mod prompt_ids;
mod recompute;
mod tensors;
mod tune;
