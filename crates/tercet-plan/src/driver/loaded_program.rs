//! What a player of programs implements.

use std::task::{Context, Poll};

use tercet_ir::RunError;

use super::{Fetched, SharedBuffer};
use crate::flow::StageId;
use crate::launch::Launch;
use crate::program::Buffer;

/// A range of a buffer to be read after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The buffer.
    pub buffer: Buffer,
    /// Where the range starts, a multiple of 4.
    pub offset_bytes: u64,
    /// Its size, a multiple of 4.
    pub bytes: u64,
}

/// What the device puts into place between a run and the one behind it.
#[derive(Clone, Copy, Debug)]
pub enum Put<'a> {
    /// Bytes of the host, whole words.
    Bytes {
        /// The buffer.
        buffer: Buffer,
        /// Where they go, a multiple of 4.
        offset_bytes: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A range of one buffer, into another.
    Copy {
        /// The range.
        from: Read,
        /// The other buffer.
        buffer: Buffer,
        /// Where it goes, a multiple of 4.
        offset_bytes: u64,
    },
}

/// The device side of one executable.
///
/// A driver holds the buffers of [`Program::buffers`](crate::Program::buffers), zeroed at first but for the constants, which
/// hold their tensors. Calls come from one thread at a time; between `submit` and `wait` only `wait`,
/// `poll_done` and `submit_behind` are called, unless the submission has no reads: then another may follow. After an error the driver remains usable unless the device is lost.
pub trait Driver: Send + Sized + 'static {
    /// The executor's name.
    const NAME: &'static str;

    /// Writes into a buffer, before the next submission. `offset_bytes` is a multiple of 4; the end
    /// of the bytes need not be: the rest of the last word is then zeroed.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], [`RunError::DeviceLost`].
    fn write(&mut self, buffer: Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), RunError>;

    /// Writes zeros all over a buffer.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn clear(&mut self, buffer: Buffer) -> Result<(), RunError>;

    /// Runs [`Program::prepare`](crate::Program::prepare) with the numbers of `launch` and waits for it.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn prepare(&mut self, launch: &Launch) -> Result<(), RunError>;

    /// A run begins: the times of the last one are forgotten.
    fn begin(&mut self);

    /// Starts these stages of [`Program::steps`](crate::Program::steps), one after the other, each as often as it is named, and
    /// after them the copies for `reads`. `changed` says whether the numbers differ from those of the last
    /// submission. A run without control flow is one submission of the one stage.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn submit(
        &mut self,
        launch: &Launch,
        stages: &[StageId],
        changed: bool,
        reads: &[Read],
    ) -> Result<(), RunError>;

    /// Starts a run of a program without control flow behind the submission that is not waited for yet, once these things are
    /// in their places, and copies for `reads` after it. `changed` as for [`Driver::submit`]. There is one such submission at a time.
    /// False, and nothing is started, where the driver cannot.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn submit_behind(
        &mut self,
        launch: &Launch,
        changed: bool,
        puts: &[Put<'_>],
        reads: &[Read],
    ) -> Result<bool, RunError>;

    /// Waits for the submission, the older one of two, and gives the bytes of each of its reads, in order.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn wait(&mut self, take: &mut dyn FnMut(usize, &[u8])) -> Result<(), RunError>;

    /// Ready when [`Driver::wait`] does not block; the waker of `cx` is called when it is worth asking again. A driver
    /// that is not told when work is done waits for it here.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>>;

    /// A buffer of its own on the device, which executables of one device copy from.
    type Shared: SharedBuffer;

    /// Copies a range into a buffer of its own.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn share(&mut self, range: Read) -> Result<Self::Shared, RunError>;

    /// A buffer of its own with these bytes; a last word that is not whole is filled with zeros.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn share_bytes(&mut self, bytes: &[u8]) -> Result<Self::Shared, RunError>;

    /// True if the buffer is on this driver's device.
    fn reaches(&self, shared: &Self::Shared) -> bool;

    /// Copies the beginning of a buffer into a range of another, before the next submission.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn take(&mut self, shared: &Self::Shared, range: Read) -> Result<(), RunError>;

    /// Reads a range now.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn read(&mut self, read: Read, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError>;

    /// Starts to read a range, as it is now, without waiting for it; a driver that is not told when work is done reads it.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn fetch(&mut self, read: Read) -> Result<Fetched, RunError>;

    /// When each step of the last run started, in nanoseconds from the first, and how long it took, as
    /// (step, start, duration), in the order played: steps of a loop once for each iteration. Empty where the
    /// device does not measure.
    fn step_times(&mut self) -> Vec<(usize, u64, u64)>;

    /// Another driver of the same program that shares parameters, constants and prepared values and
    /// has a copy of the states.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn try_clone(&mut self) -> Result<Self, RunError>;

    /// Makes this driver's parameters, and what is prepared from them, its own before one is
    /// written: clones keep theirs.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn unshare_params(&mut self) -> Result<(), RunError>;
}
