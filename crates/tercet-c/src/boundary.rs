//! The boundary to C: reading pointers of the caller, and turning errors and panics into a status.
//!
//! A [`Caller`] witnesses that the caller of an exported function keeps the rules of the header: pointers are NULL or
//! valid as documented. Its methods check all that can be checked without reading foreign memory.

use std::any::Any;
use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::error::{CallError, TercetError, TercetStatus};
use crate::handles::{self, HandleObject};

/// Maximum number of elements of an array of names, texts or bounds.
pub(crate) const MAX_COUNT: usize = 1 << 20;
/// Maximum bytes of an options structure of a later version.
const MAX_OPTION_BYTES: usize = 4096;

/// The caller of an exported function.
pub(crate) struct Caller {
    error: *mut *mut TercetError,
}

/// An options structure of the header. Its first field is `struct_size`, and all zeros are the defaults.
///
/// # Safety
/// Every bit pattern is a valid value, and the type is `repr(C)` with a `usize` first.
pub(crate) unsafe trait OptionsStruct: Copy {}

/// Values with pointers to memory that the same object owns and never changes.
pub(crate) struct OwnedViews<T>(pub(crate) Vec<T>);

// SAFETY: the pointers refer to memory of the object that contains the views. All threads only read it.
unsafe impl<T> Send for OwnedViews<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for OwnedViews<T> {}

/// A place of the caller for a result.
pub(crate) struct OutPlace<T>(*mut T);

impl<T> OutPlace<T> {
    pub(crate) fn set(&self, value: T) {
        // SAFETY: `Caller::out` checked the pointer, and a caller keeps the rules of the header.
        unsafe { self.0.write(value) }
    }
}

impl<O> OutPlace<*mut O> {
    /// Stores a handle of a new object.
    pub(crate) fn create<T: HandleObject<Opaque = O>>(&self, object: T) -> Result<(), CallError> {
        self.set(handles::insert(object)?);
        Ok(())
    }
}

impl Caller {
    /// The caller of a function with this `error` argument.
    ///
    /// # Safety
    /// The pointer arguments of the function keep the rules of the header.
    pub(crate) unsafe fn new(error: *mut *mut TercetError) -> Caller {
        Caller { error }
    }

    /// Runs the body of a function. A panic becomes an error: it must not leave the library.
    pub(crate) fn guard(
        &self,
        body: impl FnOnce(&Caller) -> Result<(), CallError>,
    ) -> TercetStatus {
        self.set_error(std::ptr::null_mut());
        match catch_unwind(AssertUnwindSafe(|| body(self))) {
            Ok(Ok(())) => TercetStatus::Ok,
            Ok(Err(error)) => self.report(&error),
            Err(payload) => {
                let reason = format!(
                    "a bug in Tercet, please report it: {}",
                    panic_text(&*payload)
                );
                self.report(&CallError::new(TercetStatus::Internal, reason))
            }
        }
    }

    /// Whether the caller has a place for an error.
    pub(crate) fn wants_error(&self) -> bool {
        is_usable(self.error)
    }

    pub(crate) fn set_error(&self, handle: *mut TercetError) {
        if self.wants_error() {
            // SAFETY: the pointer is not NULL and aligned, and the caller keeps the rules of the header.
            unsafe { self.error.write(handle) }
        }
    }

    /// The place of a result. It is set to `empty`, which stays there if the call fails.
    ///
    /// # Errors
    /// `TERCET_STATUS_NULL`, `TERCET_STATUS_ARGUMENT`.
    pub(crate) fn out<T>(
        &self,
        place: *mut T,
        empty: T,
        what: &str,
    ) -> Result<OutPlace<T>, CallError> {
        check_pointer(place, what)?;
        let place = OutPlace(place);
        place.set(empty);
        Ok(place)
    }

    /// The place of a handle.
    ///
    /// # Errors
    /// Those of [`Caller::out`].
    pub(crate) fn out_handle<T>(
        &self,
        place: *mut *mut T,
        what: &str,
    ) -> Result<OutPlace<*mut T>, CallError> {
        self.out(place, std::ptr::null_mut(), what)
    }

    /// An array for handles. All elements are set to NULL.
    ///
    /// # Errors
    /// Those of [`Caller::out`], and `TERCET_STATUS_ARGUMENT` for too many elements.
    pub(crate) fn out_handles<T>(
        &self,
        first: *mut *mut T,
        count: usize,
        what: &str,
    ) -> Result<Vec<OutPlace<*mut T>>, CallError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        check_count(count, what)?;
        check_pointer(first, what)?;
        let place = |at| self.out_handle(first.wrapping_add(at), what);
        (0..count).map(place).collect()
    }

    /// A text of the caller.
    ///
    /// # Errors
    /// `TERCET_STATUS_NULL`, `TERCET_STATUS_UTF8`.
    pub(crate) fn text(&self, text: *const c_char, what: &str) -> Result<&str, CallError> {
        check_pointer(text, what)?;
        // SAFETY: the pointer is not NULL. By the rules of the header, the text ends with a zero byte and does not
        // change during the call, which the reference does not outlive.
        let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
        utf8(bytes, what)
    }

    /// A text of the caller, or `None` for NULL.
    ///
    /// # Errors
    /// `TERCET_STATUS_UTF8`.
    pub(crate) fn optional_text(
        &self,
        text: *const c_char,
        what: &str,
    ) -> Result<Option<&str>, CallError> {
        match text.is_null() {
            true => Ok(None),
            false => self.text(text, what).map(Some),
        }
    }

    /// An array of texts.
    ///
    /// # Errors
    /// Those of [`Caller::array`] and [`Caller::text`].
    pub(crate) fn texts(
        &self,
        first: *const *const c_char,
        count: usize,
        what: &str,
    ) -> Result<Vec<&str>, CallError> {
        let texts = self.array(first, count, what)?.iter().enumerate();
        texts
            .map(|(at, text)| self.text(*text, &format!("{what}[{at}]")))
            .collect()
    }

    /// An array of at most [`MAX_COUNT`] elements; NULL is allowed if there are none.
    ///
    /// # Errors
    /// `TERCET_STATUS_NULL`, `TERCET_STATUS_ARGUMENT`.
    pub(crate) fn array<T>(
        &self,
        first: *const T,
        count: usize,
        what: &str,
    ) -> Result<&[T], CallError> {
        check_count(count, what)?;
        self.elements(first, count, what)
    }

    /// An array of any size; NULL is allowed if it is empty.
    ///
    /// # Errors
    /// `TERCET_STATUS_NULL`, `TERCET_STATUS_ARGUMENT`.
    pub(crate) fn elements<T>(
        &self,
        first: *const T,
        count: usize,
        what: &str,
    ) -> Result<&[T], CallError> {
        if count == 0 {
            return Ok(&[]);
        }
        check_pointer(first, what)?;
        let bytes = count.checked_mul(size_of::<T>());
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(CallError::argument(format!(
                "`{what}` has {count} elements, more than the address space"
            )));
        }
        // SAFETY: the pointer is not NULL and aligned, and the size fits the address space. By the rules of the header
        // the elements are valid and do not change during the call, which the reference does not outlive.
        Ok(unsafe { std::slice::from_raw_parts(first, count) })
    }

    /// Options of this or another version; NULL stands for the defaults.
    ///
    /// # Errors
    /// `TERCET_STATUS_ARGUMENT` for a wrong `struct_size`, and for fields of a later version that are set.
    pub(crate) fn options<T: OptionsStruct>(
        &self,
        options: *const T,
        what: &str,
    ) -> Result<T, CallError> {
        let mut read = MaybeUninit::<T>::zeroed();
        let own = size_of::<T>();
        if options.is_null() {
            // SAFETY: all zeros are a valid value of an `OptionsStruct`.
            return Ok(unsafe { read.assume_init() });
        }
        check_pointer(options, what)?;
        // SAFETY: the pointer is not NULL and aligned, and the first field of an `OptionsStruct` is a `usize`.
        let given = unsafe { options.cast::<usize>().read() };
        if !(own..=MAX_OPTION_BYTES).contains(&given) {
            return Err(CallError::argument(format!(
                "`{what}->struct_size` is {given}; expected the size of the structure, {own} or more"
            )));
        }
        let bytes = self.elements(options.cast::<MaybeUninit<u8>>(), given, what)?;
        // SAFETY: the caller set `struct_size` to the size of its structure, of which `own` bytes are copied into a
        // value of that size. Every bit pattern is valid.
        let read = unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), read.as_mut_ptr(), 1);
            read.assume_init()
        };
        // Fields of a later version have no padding before them, and callers set them to zero by default.
        // SAFETY: as above; the header requires that callers initialize the whole structure.
        let is_set = |byte: &MaybeUninit<u8>| unsafe { byte.assume_init_read() } != 0;
        match bytes[own..].iter().any(is_set) {
            true => Err(CallError::argument(format!(
                "`{what}` sets fields that library version {} does not have; use a newer library",
                env!("CARGO_PKG_VERSION")
            ))),
            false => Ok(read),
        }
    }
}

fn utf8<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, CallError> {
    std::str::from_utf8(bytes).map_err(|e| {
        let reason = format!(
            "`{what}` is not UTF-8: invalid byte 0x{:02x} at offset {}",
            bytes[e.valid_up_to()],
            e.valid_up_to()
        );
        CallError::new(TercetStatus::Utf8, reason)
    })
}

fn is_usable<T>(pointer: *const T) -> bool {
    !pointer.is_null() && pointer.is_aligned()
}

fn check_pointer<T>(pointer: *const T, what: &str) -> Result<(), CallError> {
    if pointer.is_null() {
        let reason = format!("`{what}` is NULL");
        return Err(CallError::new(TercetStatus::Null, reason));
    }
    match pointer.is_aligned() {
        true => Ok(()),
        false => Err(CallError::argument(format!(
            "`{what}` is not aligned to {} bytes",
            align_of::<T>()
        ))),
    }
}

fn check_count(count: usize, what: &str) -> Result<(), CallError> {
    match count > MAX_COUNT {
        true => Err(CallError::argument(format!(
            "`{what}` has {count} elements; expected at most {MAX_COUNT}"
        ))),
        false => Ok(()),
    }
}

/// UTF-8 text with bytes and a length.
pub(crate) fn text_of_bytes<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, CallError> {
    utf8(bytes, what)
}

/// The message of a panic.
fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("panic")
}

/// A C string; zero bytes inside become replacement characters.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// Bytes of a text with a zero byte after them; zero bytes inside stay.
pub(crate) fn terminated(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() + 1);
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
    bytes
}

/// A lock that a callback cannot take again: instead of a deadlock, that is an error.
pub(crate) struct CallbackLock<T> {
    value: Mutex<T>,
    owner: Mutex<Option<ThreadId>>,
}

/// Access to the value of a [`CallbackLock`].
pub(crate) struct CallbackGuard<'a, T> {
    pub(crate) value: MutexGuard<'a, T>,
    owner: &'a Mutex<Option<ThreadId>>,
}

impl<T> CallbackLock<T> {
    pub(crate) fn new(value: T) -> CallbackLock<T> {
        CallbackLock {
            value: Mutex::new(value),
            owner: Mutex::new(None),
        }
    }

    /// Waits for other threads.
    ///
    /// # Errors
    /// `TERCET_STATUS_BUSY` in a callback of the owner.
    pub(crate) fn lock(&self, what: &str) -> Result<CallbackGuard<'_, T>, CallError> {
        let own = std::thread::current().id();
        if *lock(&self.owner) == Some(own) {
            let reason = format!(
                "`{what}` was called from its own callback; return from the callback first"
            );
            return Err(CallError::new(TercetStatus::Busy, reason));
        }
        let value = lock(&self.value);
        *lock(&self.owner) = Some(own);
        Ok(CallbackGuard {
            value,
            owner: &self.owner,
        })
    }
}

impl<T> Drop for CallbackGuard<'_, T> {
    fn drop(&mut self) {
        *lock(self.owner) = None;
    }
}

/// Locks a mutex. After a panic its value is as after a failed call, which every call starts anew from.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
