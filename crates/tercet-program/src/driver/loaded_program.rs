//! The trait that a GPU runtime implements to execute programs.

use std::task::{Context, Poll};

use tercet_ir::RunError;

use super::{PendingReadback, SharedBuffer};
use crate::flow::StageId;
use crate::launch::LaunchSizes;
use crate::program::ProgramBuffer;

/// A buffer range to read back after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadbackRange {
    /// The buffer to read from.
    pub buffer: ProgramBuffer,
    /// Start of the range in bytes, a multiple of 4.
    pub offset_bytes: u64,
    /// Size of the range in bytes, a multiple of 4.
    pub bytes: u64,
}

/// An update of an input that the device performs after the first and before the second of two
/// pipelined runs.
#[derive(Clone, Copy, Debug)]
pub enum InputUpdate<'a> {
    /// Writes bytes from the host, in whole words.
    Bytes {
        /// The buffer to write to.
        buffer: ProgramBuffer,
        /// Offset of the bytes in the buffer, a multiple of 4.
        offset_bytes: u64,
        /// The bytes to write.
        bytes: &'a [u8],
    },
    /// Copies a buffer range into another buffer.
    Copy {
        /// The range to copy from.
        from: ReadbackRange,
        /// The buffer to copy to.
        buffer: ProgramBuffer,
        /// Offset in the target buffer in bytes, a multiple of 4.
        offset_bytes: u64,
    },
}

/// A program loaded into a GPU runtime (a driver): buffers, submission and waiting.
///
/// A driver owns the buffers of [`GpuProgram::buffers`](crate::GpuProgram::buffers). Constant
/// buffers contain their tensors initially; all others are zero. One thread calls all methods of a
/// driver. Between `submit` and `wait`, only `wait`, `poll_done` and `submit_pipelined` may be
/// called. Exception: after a submission without reads, `submit` may be called again. The driver
/// remains usable after an error, unless the device is lost.
pub trait LoadedProgram: Send + Sized + 'static {
    /// Name of the executor.
    const NAME: &'static str;

    /// Writes bytes into a buffer before the next submission. `offset_bytes` is a multiple of 4. If
    /// the bytes end within a word, the rest of this word is zeroed.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], [`RunError::DeviceLost`].
    fn write(
        &mut self,
        buffer: ProgramBuffer,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), RunError>;

    /// Fills a whole buffer with zeros.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn clear(&mut self, buffer: ProgramBuffer) -> Result<(), RunError>;

    /// Runs [`GpuProgram::prepare`](crate::GpuProgram::prepare) with the values of `launch` and waits for
    /// completion.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn prepare(&mut self, launch: &LaunchSizes) -> Result<(), RunError>;

    /// Marks the start of a run and clears the step times of the previous one.
    fn begin(&mut self);

    /// Submits these stages of [`GpuProgram::steps`](crate::GpuProgram::steps) in order, followed
    /// by the copies for `reads`. A stage may occur several times in `stages`. `changed` is true if
    /// the launch-time values differ from those of the last submission. A run without control flow
    /// is a single submission of its only stage.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn submit(
        &mut self,
        launch: &LaunchSizes,
        stages: &[StageId],
        changed: bool,
        reads: &[ReadbackRange],
    ) -> Result<(), RunError>;

    /// Submits a second run while the previous submission is still in flight (pipelined). The
    /// device performs the input updates, then the run, then the copies for `reads`. A pipelined
    /// run is only allowed for a program without control flow. `changed` is true if the launch-time
    /// values differ from those of the last submission, as for [`LoadedProgram::submit`]. At most
    /// one pipelined run is in flight. Returns false and submits nothing if the driver does not
    /// support pipelined runs.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn submit_pipelined(
        &mut self,
        launch: &LaunchSizes,
        changed: bool,
        puts: &[InputUpdate<'_>],
        reads: &[ReadbackRange],
    ) -> Result<bool, RunError>;

    /// Waits for the oldest submission in flight and passes the bytes of each of its reads to
    /// `take`, in order.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn wait(&mut self, take: &mut dyn FnMut(usize, &[u8])) -> Result<(), RunError>;

    /// Returns `Ready` once [`LoadedProgram::wait`] would not block. The driver calls the waker of
    /// `cx` once polling again may return `Ready`. A driver without completion callbacks blocks
    /// until the submission completes.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>>;

    /// A separate device buffer, which all executables on the device can copy from.
    type Shared: SharedBuffer;

    /// Copies a buffer range into a new device buffer that does not belong to the program.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn share(&mut self, range: ReadbackRange) -> Result<Self::Shared, RunError>;

    /// Creates a device buffer that does not belong to the program, with these bytes; zeros pad the
    /// last word.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn share_bytes(&mut self, bytes: &[u8]) -> Result<Self::Shared, RunError>;

    /// True if the shared buffer is on this driver's device.
    fn is_on_device(&self, shared: &Self::Shared) -> bool;

    /// Copies the start of a shared buffer into a range of a program buffer, before the next
    /// submission.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn copy_from_shared(
        &mut self,
        shared: &Self::Shared,
        range: ReadbackRange,
    ) -> Result<(), RunError>;

    /// Reads a buffer range back and blocks until the bytes have arrived.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn read(&mut self, read: ReadbackRange, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError>;

    /// Starts the readback of a buffer range and returns a future of its current contents. A driver
    /// without completion callbacks reads the range immediately.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn fetch(&mut self, read: ReadbackRange) -> Result<PendingReadback, RunError>;

    /// Times of the steps of the last run as (step index, start, duration) in execution order. All
    /// times are in nanoseconds; start times count from the start of the first step. The list
    /// contains the steps of a loop once per iteration. The list is empty if the device does not
    /// support step timings.
    fn step_times(&mut self) -> Vec<(usize, u64, u64)>;

    /// Returns a second driver of the same program. Both drivers share parameters, constants and
    /// prepared values; the new driver has its own copy of the states.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn try_clone(&mut self) -> Result<Self, RunError>;

    /// Replaces parameters and prepared values that the driver shares with other drivers by private
    /// copies, before the caller writes a parameter. Other clones of the executable keep the shared
    /// buffers.
    ///
    /// # Errors
    /// The errors of [`LoadedProgram::write`].
    fn unshare_params(&mut self) -> Result<(), RunError>;
}
