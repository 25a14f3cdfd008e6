//! Parallel loops of kernels: a fixed grid of independent tasks, so that the result never depends
//! on the number of threads.
//!
//! Every thread starts with its own share of the tasks, the same one in each call. So the data that
//! a kernel leaves in a core's caches is reused by the next kernel. A thread that finishes its
//! share takes tasks from other shares (work stealing).

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::worker_pool;
pub use super::worker_pool::helpers_called;

/// Whether a kernel may use several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelThreads {
    /// Calling thread only, for callers that are themselves parallel.
    Serial,
    /// The rayon pool of the backend; outside of a backend, the caller's pool: see
    /// [`CpuBackend::new`](crate::CpuBackend::new).
    Pool,
}

impl KernelThreads {
    /// Number of tasks that can run in parallel.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            KernelThreads::Serial => 1,
            KernelThreads::Pool => worker_pool::current().threads(),
        }
    }

    /// [`KernelThreads::Pool`] if `parallel`, else `KernelThreads::Serial`.
    pub(crate) fn parallel(parallel: bool) -> KernelThreads {
        match parallel {
            true => KernelThreads::Pool,
            false => KernelThreads::Serial,
        }
    }
}

/// Runs `task(0..tasks)`, each exactly once, in any order.
pub fn for_each(threads: KernelThreads, tasks: usize, task: impl Fn(usize) + Send + Sync) {
    let workers = threads.count().min(tasks);
    if workers <= 1 {
        return (0..tasks).for_each(task);
    }
    let queue = TaskQueue::new(tasks, workers);
    worker_pool::current().run(workers, &|worker| queue.tasks(worker).for_each(&task));
}

/// Runs `task(i, part)` with a private part of `scratch` per worker. `scratch` is split into equal
/// parts of `part_len`; their number limits the number of workers.
pub fn for_each_with_scratch<T: Send>(
    threads: KernelThreads,
    tasks: usize,
    scratch: &mut [T],
    part_len: usize,
    task: impl Fn(usize, &mut [T]) + Send + Sync,
) {
    for_workers(threads, tasks, scratch, part_len, |tasks, part| {
        tasks.for_each(|i| task(i, part));
    });
}

/// Calls `work(tasks, part)` once on each worker, which runs the tasks of the iterator. The parts
/// are the same as for [`for_each_with_scratch`]. The contents of a part persist between the tasks
/// of a worker.
pub(crate) fn for_workers<T: Send>(
    threads: KernelThreads,
    tasks: usize,
    scratch: &mut [T],
    part_len: usize,
    work: impl Fn(ClaimedTasks<'_>, &mut [T]) + Send + Sync,
) {
    let parts = scratch.len().checked_div(part_len).unwrap_or(usize::MAX);
    let workers = threads.count().min(tasks).min(parts).max(1);
    let queue = TaskQueue::new(tasks, workers);
    if workers == 1 {
        return work(queue.tasks(0), &mut scratch[..part_len]);
    }
    let parts = SharedMut::new(scratch);
    worker_pool::current().run(workers, &|worker| {
        // SAFETY: each worker has its own number, which is below the number of parts.
        let part = unsafe { parts.slice(worker * part_len, part_len) };
        work(queue.tasks(worker), part);
    });
}

/// Runs `task(i, part)` for each part.
pub(crate) fn for_each_part<P: DisjointParts>(
    threads: KernelThreads,
    parts: P,
    task: impl Fn(usize, P::Part) + Send + Sync,
) {
    for_each(threads, parts.count(), |i| {
        // SAFETY: each number below the count occurs once.
        task(i, unsafe { parts.part(i) });
    });
}

/// Tasks split into shares, one for each of the first workers.
struct TaskQueue {
    shares: [TaskShare; SHARES],
    count: usize,
    tasks: usize,
}

/// Maximum number of shares; additional workers start with a share that another worker has too.
const SHARES: usize = 16;

/// Next task of a share; aligned to avoid false sharing.
#[repr(align(64))]
struct TaskShare(AtomicUsize);

impl TaskQueue {
    fn new(tasks: usize, workers: usize) -> TaskQueue {
        let count = workers.min(SHARES);
        TaskQueue {
            shares: std::array::from_fn(|i| TaskShare(AtomicUsize::new(i * tasks / count))),
            count,
            tasks,
        }
    }

    /// Iterator over the tasks of a worker.
    fn tasks(&self, worker: usize) -> ClaimedTasks<'_> {
        ClaimedTasks {
            queue: self,
            worker,
            done: 0,
        }
    }
}

/// Tasks claimed by one worker: first from its own share, then from other shares.
pub(crate) struct ClaimedTasks<'q> {
    queue: &'q TaskQueue,
    worker: usize,
    /// Number of exhausted shares.
    done: usize,
}

impl Iterator for ClaimedTasks<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let TaskQueue {
            shares,
            count,
            tasks,
        } = self.queue;
        while self.done < *count {
            let share = (self.worker + self.done) % count;
            let end = (share + 1) * tasks / count;
            let next = &shares[share].0;
            // Checked before the increment, so that counters do not run far past their ends.
            if next.load(Ordering::Relaxed) < end {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task < end {
                    return Some(task);
                }
            }
            self.done += 1;
        }
        None
    }
}

/// Memory split into parts that belong to different tasks.
pub(crate) trait DisjointParts: Send + Sync {
    /// A part.
    type Part;

    fn count(&self) -> usize;

    /// Returns part `i`.
    ///
    /// # Safety
    /// `i` is below the count, and each part is requested once.
    unsafe fn part(&self, i: usize) -> Self::Part;
}

/// Parts of equal length; the last may be shorter.
pub(crate) struct DisjointChunks<'a, T> {
    data: SharedMut<T>,
    len: usize,
    of: usize,
    slice: PhantomData<&'a mut [T]>,
}

impl<'a, T: Send> DisjointChunks<'a, T> {
    /// Splits `data` into parts of `len` elements; no parts if `len` is 0.
    pub(crate) fn new(data: &'a mut [T], len: usize) -> DisjointChunks<'a, T> {
        DisjointChunks {
            of: data.len() * usize::from(len > 0),
            data: SharedMut::new(data),
            len: len.max(1),
            slice: PhantomData,
        }
    }
}

// SAFETY: each part is handed out once (`DisjointParts::part`), for use by one thread.
unsafe impl<T: Send> Sync for DisjointChunks<'_, T> {}

impl<'a, T: Send> DisjointParts for DisjointChunks<'a, T> {
    type Part = &'a mut [T];

    fn count(&self) -> usize {
        self.of.div_ceil(self.len)
    }

    unsafe fn part(&self, i: usize) -> &'a mut [T] {
        let start = i * self.len;
        // SAFETY: the range is inside the slice and disjoint from other parts.
        unsafe { self.data.slice(start, self.len.min(self.of - start)) }
    }
}

/// Pairs of parts with equal index; the shorter sequence determines their number.
impl<A: DisjointParts, B: DisjointParts> DisjointParts for (A, B) {
    type Part = (A::Part, B::Part);

    fn count(&self) -> usize {
        self.0.count().min(self.1.count())
    }

    unsafe fn part(&self, i: usize) -> Self::Part {
        // SAFETY: the caller guarantees the requirements.
        unsafe { (self.0.part(i), self.1.part(i)) }
    }
}

/// Pointer that tasks with disjoint targets share.
pub(crate) struct SharedMut<T>(*mut T);

impl<T> Clone for SharedMut<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMut<T> {}

// SAFETY: different tasks write disjoint elements; each use site states why its targets are
// disjoint.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: different tasks write disjoint elements; each use site states why its targets are
// disjoint.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    pub(crate) fn ptr(self) -> *mut T {
        self.0
    }

    /// The pointer advanced by `start` elements.
    pub(crate) fn from(self, start: usize) -> Self {
        Self(self.0.wrapping_add(start))
    }

    /// The elements `start..start + len`.
    ///
    /// # Safety
    /// The range is inside the slice, and no other task accesses it.
    pub(crate) unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller guarantees the requirements.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}
