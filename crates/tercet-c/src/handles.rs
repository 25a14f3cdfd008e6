//! The table of live objects. A handle is the number of an object in the shape of a pointer. Numbers are not reused,
//! so a handle that was freed can be told from a live one.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::{CallError, TercetStatus};

/// Distance of two handles, so that no handle lies between them.
const STEP: usize = 16;

/// An object that handles refer to.
pub(crate) trait HandleObject: Any + Send + Sync {
    /// Name of the C type.
    const TYPE: &'static str;
    /// The opaque C type.
    type Opaque;
}

struct HandleEntry {
    ty: &'static str,
    object: Arc<dyn Any + Send + Sync>,
}

#[derive(Default)]
struct HandleTable {
    entries: HashMap<usize, HandleEntry>,
    last: usize,
}

fn table() -> MutexGuard<'static, HandleTable> {
    static TABLE: OnceLock<Mutex<HandleTable>> = OnceLock::new();
    // No operation on the table can leave it inconsistent.
    TABLE
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// A handle for a new object.
///
/// # Errors
/// `TERCET_STATUS_MEMORY` if the numbers are used up, after 2^28 objects of a 32-bit process.
pub(crate) fn insert<T: HandleObject>(object: T) -> Result<*mut T::Opaque, CallError> {
    let mut table = table();
    let Some(number) = table.last.checked_add(STEP) else {
        let reason = "the process has created too many handles; restart it";
        return Err(CallError::new(TercetStatus::Memory, reason));
    };
    table.last = number;
    let entry = HandleEntry {
        ty: T::TYPE,
        object: Arc::new(object),
    };
    table.entries.insert(number, entry);
    Ok(std::ptr::without_provenance_mut(number))
}

/// The object of a handle; `what` names the argument.
///
/// # Errors
/// `TERCET_STATUS_NULL`, `TERCET_STATUS_HANDLE`.
pub(crate) fn get<T: HandleObject>(
    handle: *const T::Opaque,
    what: &str,
) -> Result<Arc<T>, CallError> {
    if handle.is_null() {
        let reason = format!("`{what}` is NULL; expected a {}", T::TYPE);
        return Err(CallError::new(TercetStatus::Null, reason));
    }
    let table = table();
    let Some(entry) = table.entries.get(&handle.addr()) else {
        return Err(not_live(what, T::TYPE));
    };
    Arc::clone(&entry.object).downcast().map_err(|_| {
        let reason = format!("`{what}` is a {}; expected a {}", entry.ty, T::TYPE);
        CallError::new(TercetStatus::Handle, reason)
    })
}

/// Removes the object of a handle of any type.
///
/// # Errors
/// `TERCET_STATUS_HANDLE`.
pub(crate) fn remove(handle: *const c_void) -> Result<(), CallError> {
    if handle.is_null() {
        return Ok(());
    }
    let removed = table().entries.remove(&handle.addr());
    // The object is dropped outside the lock, because a release callback may call the library.
    match removed {
        Some(_) => Ok(()),
        None => Err(not_live("handle", "handle")),
    }
}

/// The number of live handles.
pub(crate) fn count() -> usize {
    table().entries.len()
}

fn not_live(what: &str, expected: &str) -> CallError {
    let reason = format!(
        "`{what}` is not a live {expected}: it was freed, or is not from this library; \
         use it before `tercet_free`"
    );
    CallError::new(TercetStatus::Handle, reason)
}
