//! Tests of queues, workers, log lines and other parts that are private to the crate.

mod adapter_paths;
mod fair_queue;
mod forced_tokens;
mod logprobs;
mod pool;
mod queue_ticket;
mod read_history;
mod request_log;
mod row_batcher;
#[cfg(feature = "grammar")]
mod tool_schemas;
mod write_timeout;
