//! Prefix store: the second tier of the prefix cache, in host memory and in a folder.
//!
//! A slot of a batch holds the prefix of one sequence. When another sequence takes the slot, the engine
//! copies the whole prefill chunks of the prefix to the store (`engine/prefixes.rs`). A later sequence
//! that begins with them gets them back. An entry is the token ids with the cache rows of
//! their positions. Tokens are compared one by one; digests separate models and scopes only.
//!
//! Entries that were used the longest ago leave when a limit is exceeded. With a folder, a thread also
//! writes each entry to a file (`prefix_store/file.rs`). An entry that leaves the memory stays in its
//! file, and entries of files are found after a restart.

mod file;
pub(crate) mod fingerprint;
mod models;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tercet::{CompileOptions, Device, Tensor};

use super::{ModelError, ModelGraph};

use file::PrefixHeader;
pub(crate) use fingerprint::Sha256Digest;
pub(crate) use models::ModelTag;
use models::ModelTags;

/// Limits of a [`PrefixStore`].
///
/// ```
/// use tercet_networks::PrefixStoreOptions;
/// let options = PrefixStoreOptions { memory_bytes: 1 << 30, ..PrefixStoreOptions::default() };
/// assert_eq!(options.folder, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixStoreOptions {
    /// Maximum bytes of the entries in memory.
    pub memory_bytes: u64,
    /// Folder that entries are also written to; `None` stores them in memory only. It is created if it
    /// does not exist. The files contain the tokens of prompts.
    pub folder: Option<PathBuf>,
    /// Maximum bytes of the files in the folder.
    pub disk_bytes: u64,
}

/// Prefixes of sequences that no slot holds any more, in host memory and optionally in a folder.
///
/// Copies of the handle share the entries. Several generators can use one store: entries are found
/// only by generators of the same model, compiled with the same options for the same device. In memory,
/// these are the generators of one [`BatchDecoder`](crate::BatchDecoder). With a folder, all weights are
/// digested when a generator is compiled. Set the store as
/// [`BatchOptions::prefix_store`](crate::BatchOptions::prefix_store).
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet::Device;
/// use tercet_networks::{BatchDecoder, BatchOptions, PrefixStore, Sequence};
/// let store = PrefixStore::in_memory(64 << 20);
/// let options = BatchOptions {
///     chunk: 16,
///     prefix_store: Some(store.clone()),
///     ..BatchOptions::new(&spec, 1)
/// };
/// let mut generator = BatchDecoder::build(&spec, &weights, options)?.generator(&Device::cpu())?;
/// // Two conversations take turns in one slot.
/// for seed in [0, 100, 0, 100] {
///     generator.start(Sequence::new((seed..seed + 40).collect(), 1))?;
///     while !generator.step()?.is_empty() {}
/// }
/// // The second turn of each read 8 of 40 tokens again: the last chunk is not whole.
/// assert_eq!(store.stats().restored_tokens, 2 * 32);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PrefixStore {
    shared: Arc<SharedStore>,
}

/// Contents and use counts of a [`PrefixStore`].
///
/// ```
/// use tercet_networks::{PrefixStore, PrefixStoreStats};
/// assert_eq!(PrefixStore::in_memory(1 << 20).stats(), PrefixStoreStats::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStoreStats {
    /// Number of entries.
    pub entries: usize,
    /// Bytes of the entries in memory.
    pub memory_bytes: u64,
    /// Bytes of the files.
    pub disk_bytes: u64,
    /// Tokens that sequences got from the store instead of computing them.
    pub restored_tokens: u64,
}

/// The sequences that can share a prefix: same model, scope and adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixKey {
    pub(crate) model: Sha256Digest,
    /// Digest of the cache scope, salted for this store: files do not reveal scopes.
    pub(crate) scope: Sha256Digest,
    pub(crate) adapter: Option<usize>,
}

/// The part of an entry that a sequence can reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrefixRule {
    /// Any number of whole chunks of this many tokens: caches of all positions.
    WholeChunks(usize),
    /// All tokens of the entry: window caches and recurrent states at its end.
    AllTokens,
}

/// Cache rows and states of a prefix: names without the slot, and tensors of one axis.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixRows {
    pub(crate) parts: Vec<(String, Tensor)>,
}

/// A stored prefix that a sequence can reuse.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundPrefix {
    id: u64,
    /// Number of tokens that the sequence can reuse.
    pub(crate) tokens: usize,
}

/// An entry with its rows.
pub(crate) struct StoredPrefix {
    pub(crate) tokens: Arc<[u32]>,
    pub(crate) rows: Arc<PrefixRows>,
}

struct SharedStore {
    options: PrefixStoreOptions,
    salt: Sha256Digest,
    models: ModelTags,
    warn: Box<dyn Fn(&str) + Send + Sync>,
    entries: Mutex<EntryList>,
    /// Locked while a file is written, so that only one is.
    writing: Mutex<()>,
    /// Wakes the thread that writes files; the thread ends when this is dropped.
    wake: Option<Sender<()>>,
    restored: AtomicU64,
    /// True if the last file could not be written: the next failure is not reported again.
    is_failing: AtomicBool,
}

#[derive(Default)]
struct EntryList {
    list: Vec<StoredEntry>,
    /// Source of ids and of times of use.
    counter: u64,
}

struct StoredEntry {
    id: u64,
    key: PrefixKey,
    tokens: Arc<[u32]>,
    /// True if sequences diverged at the end of the prefix, so that longer entries do not replace it.
    is_branch: bool,
    /// `None` if the rows are in the file only.
    rows: Option<Arc<PrefixRows>>,
    file: FileState,
    /// Bytes in memory.
    bytes: u64,
    last_used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileState {
    /// No file, and none is to be written.
    Absent,
    /// To be written.
    Due,
    Writing,
    /// A file of this many bytes.
    OnDisk(u64),
}

impl PrefixRows {
    /// Bytes of all tensors.
    fn bytes(&self) -> u64 {
        let bytes = self.parts.iter().map(|(_, part)| part.loose_bytes().len());
        bytes.sum::<usize>() as u64
    }
}

impl PrefixRule {
    /// Number of tokens of an entry that a prompt can reuse. The last token of a prompt never counts,
    /// because its logits are required.
    fn reusable(self, entry: &[u32], prompt: &[u32]) -> usize {
        let common = common(entry, prompt);
        match self {
            PrefixRule::WholeChunks(chunk) => common - common % chunk,
            PrefixRule::AllTokens if common == entry.len() => common,
            PrefixRule::AllTokens => 0,
        }
    }
}

/// Number of leading tokens that an entry has in common with a prompt, without its last token.
fn common(entry: &[u32], prompt: &[u32]) -> usize {
    let prompt = &prompt[..prompt.len().saturating_sub(1)];
    entry.iter().zip(prompt).take_while(|(a, b)| a == b).count()
}

impl EntryList {
    fn tick(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn get(&mut self, id: u64) -> Option<&mut StoredEntry> {
        self.list.iter_mut().find(|entry| entry.id == id)
    }

    fn touch(&mut self, id: u64) {
        let now = self.tick();
        if let Some(entry) = self.get(id) {
            entry.last_used = now;
        }
    }

    fn memory_bytes(&self) -> u64 {
        let held = self.list.iter().filter(|entry| entry.rows.is_some());
        held.map(|entry| entry.bytes).sum()
    }

    fn disk_bytes(&self) -> u64 {
        let files = self.list.iter().map(|entry| match entry.file {
            FileState::OnDisk(bytes) => bytes,
            FileState::Absent | FileState::Due | FileState::Writing => 0,
        });
        files.sum()
    }

    /// The entry of these that was used the longest ago.
    fn oldest(&self, of: impl Fn(&StoredEntry) -> bool) -> Option<usize> {
        let entries = self.list.iter().enumerate().filter(|(_, entry)| of(entry));
        let oldest = entries.min_by_key(|(_, entry)| entry.last_used);
        oldest.map(|(at, _)| at)
    }

    /// Removes an entry that has neither rows nor a file.
    fn drop_if_empty(&mut self, at: usize) {
        let entry = &self.list[at];
        if entry.rows.is_none() && entry.file == FileState::Absent {
            self.list.remove(at);
        }
    }
}

impl PrefixStore {
    /// A store without a folder.
    pub fn in_memory(memory_bytes: u64) -> PrefixStore {
        let options = PrefixStoreOptions {
            memory_bytes,
            ..PrefixStoreOptions::default()
        };
        PrefixStore::open(options, |_| {})
    }

    /// Opens a store. With a folder, it has the entries of the files in it. `warn` gets a line about each
    /// file that cannot be used, and about a folder that cannot be read or written; the store then goes
    /// on without them.
    ///
    /// A folder belongs to one store at a time. Two stores on one folder may delete each other's files,
    /// which costs tokens that are computed again and nothing else.
    ///
    /// ```
    /// use tercet_networks::{PrefixStore, PrefixStoreOptions};
    /// let folder = std::env::temp_dir().join(format!("prefixes-{}", std::process::id()));
    /// let options = PrefixStoreOptions {
    ///     memory_bytes: 1 << 30,
    ///     folder: Some(folder.clone()),
    ///     disk_bytes: 10 << 30,
    /// };
    /// let store = PrefixStore::open(options, |line| eprintln!("{line}"));
    /// assert_eq!(store.stats().entries, 0);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn open(
        options: PrefixStoreOptions,
        warn: impl Fn(&str) + Send + Sync + 'static,
    ) -> PrefixStore {
        let warn: Box<dyn Fn(&str) + Send + Sync> = Box::new(warn);
        let (salt, found) = match &options.folder {
            Some(folder) => (file::salt(folder, &*warn), file::scan(folder, &*warn)),
            None => (fingerprint::random(), Vec::new()),
        };
        let mut entries = EntryList::default();
        for (header, bytes) in found {
            let id = entries.tick();
            entries.list.push(StoredEntry {
                id,
                key: header.key(),
                bytes: header.memory_bytes(),
                is_branch: header.is_branch,
                tokens: header.tokens.into(),
                rows: None,
                file: FileState::OnDisk(bytes),
                last_used: id,
            });
        }
        let (wake, woken) = channel();
        let has_folder = options.folder.is_some();
        let shared = Arc::new(SharedStore {
            options,
            salt,
            models: ModelTags::default(),
            warn,
            entries: Mutex::new(entries),
            writing: Mutex::new(()),
            wake: has_folder.then_some(wake),
            restored: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
        });
        if has_folder {
            let store: Weak<SharedStore> = Arc::downgrade(&shared);
            let write = move || {
                while woken.recv().is_ok() {
                    while store.upgrade().is_some_and(|store| store.write_next()) {}
                }
            };
            let thread = std::thread::Builder::new().name("tercet-prefixes".into());
            // Without the thread, files are written when entries leave the memory and by `flush`.
            let _ = thread.spawn(write);
        }
        shared.enforce_disk(0);
        PrefixStore { shared }
    }

    /// Number of entries and their bytes.
    pub fn stats(&self) -> PrefixStoreStats {
        let entries = self.shared.lock();
        PrefixStoreStats {
            entries: entries.list.len(),
            memory_bytes: entries.memory_bytes(),
            disk_bytes: entries.disk_bytes(),
            restored_tokens: self.shared.restored.load(Ordering::Relaxed),
        }
    }

    /// Limits of the store.
    pub fn options(&self) -> &PrefixStoreOptions {
        &self.shared.options
    }

    /// Writes all entries that have no file yet and waits until they are complete. Without a folder this
    /// does nothing.
    pub fn flush(&self) {
        while self.shared.write_next() {}
        // Another thread may be writing the last file.
        drop(lock(&self.shared.writing));
    }

    /// The tag of a model for its entries. With a folder, all weights are digested.
    ///
    /// # Errors
    /// [`ModelError::Compile`] of the device.
    pub(crate) fn tag(
        &self,
        description: &str,
        model: &ModelGraph,
        device: &Device,
        options: &CompileOptions,
    ) -> Result<ModelTag, ModelError> {
        let facts = fingerprint::of_facts(description, model, device, options)?;
        if self.shared.options.folder.is_some() {
            return Ok(ModelTag::from_weights(facts, model));
        }
        // Entries of models that no generator uses any more would be found by none.
        let models = &self.shared.models;
        let mut entries = self.shared.lock();
        entries
            .list
            .retain(|entry| models.is_used(&entry.key.model));
        drop(entries);
        Ok(models.tag(facts, model))
    }

    pub(crate) fn key(
        &self,
        model: Sha256Digest,
        scope: &str,
        adapter: Option<usize>,
    ) -> PrefixKey {
        PrefixKey {
            model,
            scope: fingerprint::digest(&[b"prefix scope", &self.shared.salt, scope.as_bytes()]),
            adapter,
        }
    }

    /// Passes a line to the receiver of warnings.
    pub(crate) fn warn(&self, line: &str) {
        (self.shared.warn)(line);
    }

    /// Number of entries of a model, and of entries of other models.
    pub(crate) fn count(&self, model: &Sha256Digest) -> [usize; 2] {
        let entries = self.shared.lock();
        let own = entries.list.iter().filter(|e| e.key.model == *model);
        let own = own.count();
        [own, entries.list.len() - own]
    }

    /// True if an entry of this many bytes fits the limits.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        let options = &self.shared.options;
        bytes <= options.memory_bytes || self.shared.fits_disk(bytes)
    }

    /// True if a stored entry makes one of these tokens unnecessary. That entry counts as used.
    pub(crate) fn covers(&self, key: &PrefixKey, tokens: &[u32], rule: PrefixRule) -> bool {
        let mut entries = self.shared.lock();
        let covers = |entry: &&StoredEntry| {
            entry.key == *key
                && match rule {
                    PrefixRule::WholeChunks(_) => entry.tokens.starts_with(tokens),
                    PrefixRule::AllTokens => *entry.tokens == *tokens,
                }
        };
        let found = entries.list.iter().find(covers).map(|entry| entry.id);
        if let Some(id) = found {
            entries.touch(id);
        }
        found.is_some()
    }

    /// The longest common prefix of a prompt and the entries in whole chunks, and whether it is all of an
    /// entry.
    pub(crate) fn longest_common(
        &self,
        key: &PrefixKey,
        prompt: &[u32],
        chunk: usize,
    ) -> Option<(usize, bool)> {
        let entries = self.shared.lock();
        let own = entries.list.iter().filter(|entry| entry.key == *key);
        let common = own.map(|entry| {
            let common = common(&entry.tokens, prompt);
            let common = common - common % chunk;
            (common, common == entry.tokens.len())
        });
        common.max()
    }

    /// The entry with the longest reusable prefix of a prompt, if it has more than `more_than` tokens.
    pub(crate) fn find(
        &self,
        key: &PrefixKey,
        prompt: &[u32],
        rule: PrefixRule,
        more_than: usize,
    ) -> Option<FoundPrefix> {
        let entries = self.shared.lock();
        let own = entries.list.iter().filter(|entry| entry.key == *key);
        let found = own.map(|entry| FoundPrefix {
            id: entry.id,
            tokens: rule.reusable(&entry.tokens, prompt),
        });
        let found = found.max_by_key(|found| found.tokens);
        found.filter(|found| found.tokens > more_than)
    }

    /// The rows of an entry, from memory or from its file. `None`, after a warning, if the file cannot be
    /// used; the entry is then gone.
    pub(crate) fn load(&self, found: FoundPrefix) -> Option<StoredPrefix> {
        let shared = &self.shared;
        let (key, tokens) = {
            let mut entries = shared.lock();
            entries.touch(found.id);
            let entry = entries.get(found.id)?;
            let tokens = Arc::clone(&entry.tokens);
            if let Some(rows) = &entry.rows {
                let rows = Arc::clone(rows);
                return Some(StoredPrefix { tokens, rows });
            }
            (entry.key, tokens)
        };
        let path = shared.path(&key, &tokens)?;
        match file::read(&path, &key, &tokens) {
            Ok(rows) => {
                file::mark_used(&path);
                let rows = Arc::new(rows);
                shared.promote(found.id, &rows);
                Some(StoredPrefix { tokens, rows })
            }
            Err(e) => {
                self.warn(&format!(
                    "stored prefix {} is ignored: {}",
                    path.display(),
                    tercet::one_line(&e)
                ));
                self.remove(found);
                None
            }
        }
    }

    /// Removes an entry and its file.
    pub(crate) fn remove(&self, found: FoundPrefix) {
        let mut entries = self.shared.lock();
        let at = entries.list.iter().position(|entry| entry.id == found.id);
        let removed = at.map(|at| entries.list.remove(at));
        drop(entries);
        self.shared.delete_files(removed.as_slice());
    }

    /// Counts tokens that a sequence got from the store.
    pub(crate) fn count_restored(&self, tokens: usize) {
        let restored = &self.shared.restored;
        restored.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Stores a prefix. It replaces the entries that it contains: those that are
    /// prefixes of it, except branches that only a sequence of exactly their tokens can reuse.
    pub(crate) fn insert(
        &self,
        key: PrefixKey,
        tokens: &[u32],
        (rows, is_branch): (PrefixRows, bool),
        rule: PrefixRule,
    ) {
        let shared = &self.shared;
        let bytes = rows.bytes() + std::mem::size_of_val(tokens) as u64;
        if !self.fits(bytes) {
            return;
        }
        let file = match shared.fits_disk(bytes) {
            true => FileState::Due,
            false => FileState::Absent,
        };
        let is_replaced = |entry: &StoredEntry| {
            let stays = entry.is_branch && rule == PrefixRule::AllTokens;
            entry.key == key && tokens.starts_with(&entry.tokens) && !stays
        };
        let mut entries = shared.lock();
        let same = entries
            .list
            .iter()
            .find(|e| e.key == key && *e.tokens == *tokens);
        if let Some(id) = same.map(|entry| entry.id) {
            return entries.touch(id);
        }
        let (replaced, kept) = std::mem::take(&mut entries.list)
            .into_iter()
            .partition(is_replaced);
        entries.list = kept;
        let id = entries.tick();
        entries.list.push(StoredEntry {
            id,
            key,
            tokens: tokens.into(),
            is_branch,
            rows: Some(Arc::new(rows)),
            file,
            bytes,
            last_used: id,
        });
        drop(entries);
        let replaced: Vec<StoredEntry> = replaced;
        shared.delete_files(&replaced);
        if bytes > shared.options.memory_bytes {
            // It would drive all others out of the memory and leave as well.
            shared.write_first(|entry| entry.id == id);
            shared.release(id);
        }
        shared.enforce_memory();
        if let Some(wake) = &shared.wake {
            // Without the thread, the entry is written later.
            let _ = wake.send(());
        }
    }
}

impl std::fmt::Debug for PrefixStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut of = f.debug_struct("PrefixStore");
        of.field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl SharedStore {
    fn lock(&self) -> MutexGuard<'_, EntryList> {
        lock(&self.entries)
    }

    /// True if an entry of this many bytes in memory may have a file.
    fn fits_disk(&self, bytes: u64) -> bool {
        self.options.folder.is_some() && bytes <= self.options.disk_bytes
    }

    fn path(&self, key: &PrefixKey, tokens: &[u32]) -> Option<PathBuf> {
        let folder = self.options.folder.as_ref()?;
        Some(folder.join(file::name(key, tokens)))
    }

    /// Deletes the files of removed entries. A file that cannot be deleted is found at the next start.
    fn delete_files(&self, removed: &[StoredEntry]) {
        for entry in removed {
            if let (FileState::OnDisk(_), Some(path)) =
                (entry.file, self.path(&entry.key, &entry.tokens))
            {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Holds rows that were read from a file in memory, if they fit.
    fn promote(&self, id: u64, rows: &Arc<PrefixRows>) {
        let mut entries = self.lock();
        if let Some(entry) = entries.get(id)
            && entry.bytes <= self.options.memory_bytes
        {
            entry.rows = Some(Arc::clone(rows));
        }
        drop(entries);
        self.enforce_memory();
    }

    /// Releases the rows of an entry, which stays if it has a file.
    fn release(&self, id: u64) {
        let mut entries = self.lock();
        if let Some(at) = entries.list.iter().position(|entry| entry.id == id) {
            entries.list[at].rows = None;
            entries.drop_if_empty(at);
        }
    }

    /// Releases rows until the memory limit holds. An entry without its file is written first.
    fn enforce_memory(&self) {
        loop {
            let mut entries = self.lock();
            if entries.memory_bytes() <= self.options.memory_bytes {
                return;
            }
            let Some(at) = entries.oldest(|entry| entry.rows.is_some()) else {
                return;
            };
            let (id, is_due) = (entries.list[at].id, entries.list[at].file == FileState::Due);
            if !is_due {
                entries.list[at].rows = None;
                entries.drop_if_empty(at);
                continue;
            }
            drop(entries);
            self.write_first(|entry| entry.id == id);
        }
    }

    /// Deletes files until `bytes` more fit the limit.
    fn enforce_disk(&self, bytes: u64) {
        let mut removed = Vec::new();
        let mut entries = self.lock();
        while entries.disk_bytes().saturating_add(bytes) > self.options.disk_bytes {
            let Some(at) = entries.oldest(|entry| matches!(entry.file, FileState::OnDisk(_)))
            else {
                break;
            };
            let entry = &mut entries.list[at];
            removed.extend(self.path(&entry.key, &entry.tokens));
            entry.file = FileState::Absent;
            entries.drop_if_empty(at);
        }
        drop(entries);
        for path in removed {
            // A file that cannot be deleted is found at the next start.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Writes the file of one entry that has none yet. Returns false if all have one.
    fn write_next(&self) -> bool {
        self.write_first(|_| true)
    }

    /// Writes the file of the oldest of these entries that has none yet. Returns false if there is none.
    fn write_first(&self, of: impl Fn(&StoredEntry) -> bool) -> bool {
        let _turn = lock(&self.writing);
        let mut entries = self.lock();
        let Some(at) = entries.oldest(|entry| entry.file == FileState::Due && of(entry)) else {
            return false;
        };
        let entry = &mut entries.list[at];
        let Some(rows) = entry.rows.clone() else {
            entry.file = FileState::Absent;
            return true;
        };
        entry.file = FileState::Writing;
        let (id, key, is_branch) = (entry.id, entry.key, entry.is_branch);
        let tokens = Arc::clone(&entry.tokens);
        drop(entries);
        let path = self.path(&key, &tokens);
        let header = PrefixHeader::new(&key, &tokens, is_branch, &rows);
        let written = path.as_deref().map(|path| self.write(path, &header, &rows));
        drop(rows);
        let state = match written {
            Some(Some(bytes)) => FileState::OnDisk(bytes),
            _ => FileState::Absent,
        };
        let mut entries = self.lock();
        let at = entries.list.iter().position(|entry| entry.id == id);
        match (at, path) {
            (Some(at), _) => {
                entries.list[at].file = state;
                entries.drop_if_empty(at);
            }
            // A longer entry has replaced this one.
            (None, Some(path)) => drop(std::fs::remove_file(path)),
            (None, None) => {}
        }
        true
    }

    /// Writes a file and returns its size; `None`, after a warning, if that is impossible.
    fn write(&self, path: &Path, header: &PrefixHeader, rows: &PrefixRows) -> Option<u64> {
        let bytes = header.file_bytes()?;
        if bytes > self.options.disk_bytes {
            return None;
        }
        self.enforce_disk(bytes);
        match file::write(path, header, rows) {
            Ok(()) => {
                self.is_failing.store(false, Ordering::Relaxed);
                Some(bytes)
            }
            Err(e) => {
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    (self.warn)(&format!(
                        "cannot write prefixes to {}: {e}; they stay in memory only",
                        path.parent().unwrap_or(path).display()
                    ));
                }
                None
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that can panic runs while these locks are locked, so a poisoned value is valid.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
