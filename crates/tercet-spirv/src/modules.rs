//! Folder of compiled SPIR-V modules: each WGSL source is compiled once, not once per process.
//!
//! A module's file is named after the digest of all its inputs. The file contains that digest
//! again, and a digest of its content.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::files;
use crate::lower::{LowerError, RuntimeChecks, lower};

/// Version of the lowering. Increase this number with every change to the output of `lower.rs`.
const LOWERING: u32 = 2;
/// Version of naga; other versions may generate different code.
const NAGA: &str = "30.0.1";

const MAGIC: [u8; 8] = *b"tercetSV";
const EXTENSION: &str = "spv";
/// Bytes of the header: magic, key, and the digest of magic, key and words.
const HEADER_BYTES: usize = 8 + 32 + 32;
/// Maximum file size, for reading and writing. Typical modules have tens of KiB.
const MAX_FILE_BYTES: usize = 8 << 20;
/// Maximum size of the folder: some thousands of modules.
const MAX_FOLDER_BYTES: u64 = 128 << 20;
/// Number of new modules between two checks of the folder size.
const LOOKED_AT_EVERY: u64 = 64;

/// Counters of compiled and cached modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleCounts {
    /// Modules compiled by naga.
    pub lowered: u64,
    /// Modules read from the folder.
    pub loaded: u64,
}

/// SPIR-V modules by WGSL source, cached in a folder if there is one.
#[derive(Debug, Default)]
pub struct ModuleCache {
    folder: Option<PathBuf>,
    lowered: AtomicU64,
    loaded: AtomicU64,
    in_work: KeysInWork,
}

/// Keys of the modules that threads compile at this moment.
#[derive(Debug, Default)]
struct KeysInWork {
    keys: Mutex<HashSet<[u8; 32]>>,
    removed: Condvar,
}

/// A key that one thread holds until it drops this value.
struct KeyInWork<'a> {
    owner: &'a KeysInWork,
    key: [u8; 32],
}

impl KeysInWork {
    /// Waits until no other thread holds the key, and holds it.
    fn hold(&self, key: [u8; 32]) -> KeyInWork<'_> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        while !keys.insert(key) {
            keys = self
                .removed
                .wait(keys)
                .unwrap_or_else(PoisonError::into_inner);
        }
        KeyInWork { owner: self, key }
    }
}

impl Drop for KeyInWork<'_> {
    fn drop(&mut self) {
        let keys = self.owner.keys.lock();
        keys.unwrap_or_else(PoisonError::into_inner)
            .remove(&self.key);
        self.owner.removed.notify_all();
    }
}

impl ModuleCache {
    /// A cache below `cache_dir`. Without a folder, every call compiles.
    pub fn new(cache_dir: Option<&Path>) -> ModuleCache {
        ModuleCache {
            folder: cache_dir.map(|dir| dir.join("spirv")),
            ..ModuleCache::default()
        }
    }

    /// Same as [`lower`], but reads the module from the cache folder if the folder has it.
    ///
    /// # Errors
    /// Same as [`lower`].
    pub fn lower(
        &self,
        text: &str,
        entry: &str,
        checks: RuntimeChecks,
    ) -> Result<Vec<u32>, LowerError> {
        let Some(folder) = &self.folder else {
            self.lowered.fetch_add(1, Ordering::Relaxed);
            return lower(text, entry, checks);
        };
        let reading = tracing::debug_span!("load cached SPIR-V").entered();
        let key = key(text, entry, checks);
        // Kernels are compiled in parallel, and some have equal sources: the second thread waits and
        // reads the file of the first.
        let _held = self.in_work.hold(key);
        let file = folder.join(name(&key));
        let kept = files::read(&file, MAX_FILE_BYTES as u64);
        if let Some(words) = kept.and_then(|bytes| decode(&bytes, &key)) {
            self.loaded.fetch_add(1, Ordering::Relaxed);
            return Ok(words);
        }
        drop(reading);
        let _span = tracing::debug_span!("compile WGSL to SPIR-V").entered();
        let words = lower(text, entry, checks)?;
        let lowered = self.lowered.fetch_add(1, Ordering::Relaxed);
        let bytes = encode(&words, &key);
        // If the file cannot be written, the next process compiles again.
        let is_kept = bytes.len() <= MAX_FILE_BYTES && files::replace(&file, &bytes).is_ok();
        if is_kept && lowered.is_multiple_of(LOOKED_AT_EVERY) {
            files::evict_to(folder, EXTENSION, MAX_FOLDER_BYTES);
        }
        Ok(words)
    }

    /// Counters of compiled and cached modules so far.
    pub fn counts(&self) -> ModuleCounts {
        ModuleCounts {
            lowered: self.lowered.load(Ordering::Relaxed),
            loaded: self.loaded.load(Ordering::Relaxed),
        }
    }
}

/// Digest of all inputs of a module.
fn key(text: &str, entry: &str, checks: RuntimeChecks) -> [u8; 32] {
    let checks: u32 = match checks {
        RuntimeChecks::All => 1,
        RuntimeChecks::None => 0,
    };
    let mut digest = Sha256::new();
    for word in [LOWERING, checks] {
        digest.update(word.to_le_bytes());
    }
    // Each part is preceded by its length, so that different lists of parts never give the same
    // bytes.
    for part in [NAGA, entry, text] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

fn name(key: &[u8; 32]) -> String {
    let hex: String = key.iter().map(|b| format!("{b:02x}")).collect();
    format!("{hex}.{EXTENSION}")
}

fn digest(key: &[u8; 32], words: &[u8]) -> [u8; 32] {
    let digest = Sha256::new()
        .chain_update(MAGIC)
        .chain_update(key)
        .chain_update(words);
    digest.finalize().into()
}

fn encode(words: &[u32], key: &[u8; 32]) -> Vec<u8> {
    let words: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    [&MAGIC[..], key, &digest(key, &words), &words].concat()
}

/// The SPIR-V words of a file. `None` if the file is damaged or has another key.
fn decode(bytes: &[u8], key: &[u8; 32]) -> Option<Vec<u32>> {
    let (header, words) = bytes.split_at_checked(HEADER_BYTES)?;
    let is_whole =
        header[..8] == MAGIC && header[8..40] == *key && header[40..] == digest(key, words);
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let chunks = words.chunks_exact(4);
    (is_whole && !words.is_empty() && chunks.remainder().is_empty())
        .then(|| chunks.map(word).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::fs;
    use std::thread;

    use super::*;
    use crate::files::tests::TestFolder;

    fn text(n: u32) -> String {
        format!(
            "@group(0) @binding(1) var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(64)
            fn main(@builtin(global_invocation_id) id: vec3<u32>) {{ y[id.x] = {n}u; }}
            @compute @workgroup_size(1)
            fn other() {{ y[0] = {n}u; }}"
        )
    }

    fn the_file(folder: &TestFolder) -> PathBuf {
        let entries = fs::read_dir(folder.0.join("spirv")).unwrap();
        let all: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    /// The module as a new process gets it, and whether it came from the folder.
    fn get(folder: &TestFolder, n: u32) -> (Vec<u32>, bool) {
        let modules = ModuleCache::new(Some(&folder.0));
        let words = modules
            .lower(&text(n), "main", RuntimeChecks::None)
            .unwrap();
        let ModuleCounts { lowered, loaded } = modules.counts();
        assert_eq!(lowered + loaded, 1);
        (words, loaded == 1)
    }

    #[test]
    fn the_second_process_reads_what_the_first_one_made() {
        let folder = TestFolder::new("modules");
        let made = lower(&text(1), "main", RuntimeChecks::None).unwrap();
        assert_eq!(get(&folder, 1), (made.clone(), false));
        assert_eq!(get(&folder, 1), (made.clone(), true));
        assert_ne!(get(&folder, 2).0, made);
    }

    #[test]
    fn threads_compile_equal_sources_once() {
        let folder = TestFolder::new("equal");
        let modules = ModuleCache::new(Some(&folder.0));
        let barrier = std::sync::Barrier::new(8);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..20 {
                        barrier.wait();
                        modules
                            .lower(&text(n), "main", RuntimeChecks::None)
                            .unwrap();
                    }
                });
            }
        });
        let counts = ModuleCounts {
            lowered: 20,
            loaded: 140,
        };
        assert_eq!(modules.counts(), counts);
    }

    #[test]
    fn a_module_is_of_its_text_entry_and_checks() {
        let folder = TestFolder::new("keys");
        let modules = ModuleCache::new(Some(&folder.0));
        for _ in 0..2 {
            for (n, entry, checks) in [
                (1, "main", RuntimeChecks::None),
                (1, "main", RuntimeChecks::All),
                (1, "other", RuntimeChecks::None),
                (2, "main", RuntimeChecks::None),
            ] {
                let made = modules.lower(&text(n), entry, checks).unwrap();
                assert_eq!(made, lower(&text(n), entry, checks).unwrap());
            }
        }
        let counts = ModuleCounts {
            lowered: 4,
            loaded: 4,
        };
        assert_eq!(modules.counts(), counts);
        assert_ne!(
            key("ab", "c", RuntimeChecks::None),
            key("a", "bc", RuntimeChecks::None)
        );
    }

    #[test]
    fn damage_costs_nothing_but_time() {
        let folder = TestFolder::new("damaged-modules");
        let (made, _) = get(&folder, 1);
        let file = the_file(&folder);
        let good = fs::read(&file).unwrap();
        let other = encode(&[1, 2, 3], &[7; 32]);
        let long = vec![0; MAX_FILE_BYTES + 1];
        let mut bad: Vec<Vec<u8>> = vec![other, long, [&good[..], &[0; 4]].concat()];
        for cut in [0, 1, 8, HEADER_BYTES - 1, HEADER_BYTES, good.len() - 4] {
            bad.push(good[..cut].to_vec());
        }
        for at in 0..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 1 << (at % 8);
            assert_eq!(
                decode(&flipped, &key(&text(1), "main", RuntimeChecks::None)),
                None
            );
            if at % 97 == 0 {
                bad.push(flipped);
            }
        }
        for bytes in bad {
            files::replace(&file, &bytes).unwrap();
            assert_eq!(get(&folder, 1), (made.clone(), false));
            // The damaged file was replaced.
            assert_eq!(fs::read(&file).unwrap(), good);
        }
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(get(&folder, 1), (made, false));
    }

    #[test]
    fn a_module_that_is_right_for_another_text_is_not_taken() {
        let folder = TestFolder::new("foreign-modules");
        let (one, _) = get(&folder, 1);
        let file = the_file(&folder);
        let bytes = fs::read(&file).unwrap();
        let moved = file.with_file_name(name(&key(&text(2), "main", RuntimeChecks::None)));
        files::replace(&moved, &bytes).unwrap();
        let (two, loaded) = get(&folder, 2);
        assert!(!loaded);
        assert_ne!(one, two);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        for dir in ["/proc/none", "/dev/null"] {
            let modules = ModuleCache::new(Some(Path::new(dir)));
            assert!(modules.lower(&text(1), "main", RuntimeChecks::None).is_ok());
        }
    }

    #[test]
    fn writers_at_once_leave_whole_files() {
        let folder = TestFolder::new("module-writers");
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..8).for_each(|n| drop(get(&folder, n))));
            }
        });
        for n in 0..8 {
            let made = lower(&text(n), "main", RuntimeChecks::None).unwrap();
            assert_eq!(get(&folder, n), (made, true));
        }
    }

    #[test]
    fn the_version_of_naga_is_part_of_the_key() {
        // A package contains a lock file.
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let locks = [folder.join("Cargo.lock"), folder.join("../../Cargo.lock")];
        let lock = locks.iter().find(|path| path.is_file()).unwrap();
        let lock = fs::read_to_string(lock).unwrap();
        let (_, after) = lock.split_once("name = \"naga\"\nversion = \"").unwrap();
        let (version, _) = after.split_once('"').unwrap();
        assert_eq!(version, NAGA, "the naga version changed: update `NAGA`");
    }
}
