//! Memory that the executables of a process share: packed weights with equal contents, and arenas.

use std::any::TypeId;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tercet_ir::RunError;

use crate::aligned_alloc::AlignedBuffer;
use crate::args::PackedConst;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Packed operands by a hash of a part of their contents.
type PackedConsts = HashMap<u64, Vec<Weak<PackedConst>>>;

/// Packed operands of at least this many bytes are shared.
const MIN_SHARED_BYTES: usize = 1 << 12;

/// Entries of the table from which entries of dropped operands are searched, at least.
const MIN_SWEPT: usize = 1 << 12;

static PACKED: Mutex<Option<PackedConsts>> = Mutex::new(None);

/// The operand itself, or one with the same contents that an executable of this process holds. Several compiled
/// forms of one model then hold its weights once.
pub fn shared(packed: PackedConst) -> Arc<PackedConst> {
    let (kind, bytes) = packed.contents();
    if bytes.len() < MIN_SHARED_BYTES {
        return Arc::new(packed);
    }
    let key = sample(kind, bytes);
    let known: Vec<Weak<PackedConst>> = {
        let table = locked(&PACKED);
        let found = table.as_ref().and_then(|table| table.get(&key));
        found.cloned().unwrap_or_default()
    };
    // The comparison runs without the lock.
    for other in known.iter().filter_map(Weak::upgrade) {
        if other.contents() == (kind, bytes) {
            return other;
        }
    }
    let packed = Arc::new(packed);
    let mut table = locked(&PACKED);
    let table = table.get_or_insert_default();
    if table.len() >= MIN_SWEPT && table.len() == table.capacity() {
        table.retain(|_, list| list.iter().any(|other| other.strong_count() > 0));
    }
    let list = table.entry(key).or_default();
    list.retain(|other| other.strong_count() > 0);
    list.push(Arc::downgrade(&packed));
    packed
}

/// A hash of the length and of some words; equal hashes need a comparison of all bytes.
fn sample(kind: TypeId, bytes: &[u8]) -> u64 {
    const WORDS: usize = 64;
    let mut hasher = DefaultHasher::new();
    (kind, bytes.len()).hash(&mut hasher);
    let step = (bytes.len() / WORDS).max(8);
    for word in bytes.chunks(step) {
        word[..word.len().min(8)].hash(&mut hasher);
    }
    hasher.finish()
}

/// Arenas that no run uses at the moment. Executables of one process share them, because an arena has no contents
/// between runs.
#[derive(Default)]
pub struct ArenaPool(pub Mutex<Vec<AlignedBuffer>>);

static ARENAS: Mutex<Weak<ArenaPool>> = Mutex::new(Weak::new());

impl ArenaPool {
    /// The pool of this process; it is dropped with the last executable.
    pub(super) fn of_process() -> Arc<ArenaPool> {
        let mut known = locked(&ARENAS);
        known.upgrade().unwrap_or_else(|| {
            let pool = Arc::new(ArenaPool::default());
            *known = Arc::downgrade(&pool);
            pool
        })
    }

    /// The smallest free arena of at least this size, or a new one in place of a smaller one.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`] if the allocation fails.
    pub fn take(&self, bytes: usize) -> Result<AlignedBuffer, RunError> {
        let mut free = locked(&self.0);
        let fits = free
            .iter()
            .enumerate()
            .filter(|(_, arena)| arena.bytes().len() >= bytes);
        if let Some((at, _)) = fits.min_by_key(|(_, arena)| arena.bytes().len()) {
            return Ok(free.swap_remove(at));
        }
        free.pop();
        drop(free);
        AlignedBuffer::zeroed(bytes, "the arena")
    }

    /// Returns an arena after a run.
    pub fn give_back(&self, arena: AlignedBuffer) {
        locked(&self.0).push(arena);
    }
}
