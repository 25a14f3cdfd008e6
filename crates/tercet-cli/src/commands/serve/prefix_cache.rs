//! The cache of prefixes whose slots other requests have taken: its flags.

use std::path::PathBuf;

use tercet::Device;
use tercet_models::{PrefixStore, PrefixStoreOptions};

use super::size;
use crate::output;

/// Maximum default of `--cache-memory`.
const MAX_DEFAULT_BYTES: u64 = 8 << 30;
/// Part of the free memory that is the default of `--cache-memory`.
const DEFAULT_SHARE: u64 = 8;

/// Limits of the prefix cache beyond the slots.
#[derive(clap::Args)]
pub(crate) struct PrefixCacheArgs {
    /// Maximum host memory of cached prefixes whose slots other requests have taken, such as 8GiB; 0
    /// turns it off [default: an eighth of the free memory, at most 8GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    cache_memory: Option<u64>,
    /// Folder that cached prefixes are also written to, so that a restarted server finds them. The files
    /// contain the tokens of prompts
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Maximum size of the files in --cache-dir
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "16GiB", requires = "cache_dir")]
    cache_disk: u64,
}

impl PrefixCacheArgs {
    /// Opens the store; `None` if it is turned off.
    pub(super) fn open(&self) -> Option<PrefixStore> {
        let default = || {
            // Without a known amount, the memory may be small.
            let free = Device::cpu().free_memory_bytes().unwrap_or(0);
            (free / DEFAULT_SHARE).min(MAX_DEFAULT_BYTES)
        };
        let options = PrefixStoreOptions {
            memory_bytes: self.cache_memory.unwrap_or_else(default),
            folder: self.cache_dir.clone(),
            disk_bytes: self.cache_disk,
        };
        if options.memory_bytes == 0 && options.folder.is_none() {
            return None;
        }
        let warn = |line: &str| {
            output::print_note(format_args!("warning: {}", output::escape_line(line)));
        };
        Some(PrefixStore::open(options, warn))
    }
}
