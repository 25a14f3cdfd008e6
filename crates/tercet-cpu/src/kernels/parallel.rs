//! How kernels spread work: a fixed grid of independent tasks, so that the
//! result never depends on how many threads ran them.
//!
//! Every thread begins with its own share of the tasks, the same one in each call: what a kernel left
//! in a core's caches is where the next one looks for it. Who is done takes what is left of the others.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::team;
pub use super::team::helpers_called;

/// Whether a kernel may use helpers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Run on the calling thread: for callers that are themselves parallel.
    Serial,
    /// Spread over the rayon pool of the backend, elsewhere that of the caller: see [`CpuBackend::new`](crate::CpuBackend::new).
    Pool,
}

impl Threads {
    /// How many tasks can run at once.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Threads::Serial => 1,
            Threads::Pool => team::current().threads(),
        }
    }

    /// [`Threads::Pool`] if so.
    pub(crate) fn parallel(parallel: bool) -> Threads {
        match parallel {
            true => Threads::Pool,
            false => Threads::Serial,
        }
    }
}

/// Runs `task(0..tasks)`, each exactly once, in any order.
pub fn for_each(threads: Threads, tasks: usize, task: impl Fn(usize) + Send + Sync) {
    let workers = threads.count().min(tasks);
    if workers <= 1 {
        return (0..tasks).for_each(task);
    }
    let queue = Queue::new(tasks, workers);
    team::current().run(workers, &|worker| queue.tasks(worker).for_each(&task));
}

/// Runs `task(i, part)` where each worker owns its own part of `scratch`, cut
/// into equal parts of `part_len`; as many work as there are parts.
pub(crate) fn for_each_with_scratch<T: Send>(
    threads: Threads,
    tasks: usize,
    scratch: &mut [T],
    part_len: usize,
    task: impl Fn(usize, &mut [T]) + Send + Sync,
) {
    for_workers(threads, tasks, scratch, part_len, |tasks, part| {
        tasks.for_each(|i| task(i, part));
    });
}

/// Calls `work(tasks, part)` once on each worker, which runs what the iterator gives it; parts are those of
/// [`for_each_with_scratch`]. What a task leaves in its part is there for the worker's next one.
pub(crate) fn for_workers<T: Send>(
    threads: Threads,
    tasks: usize,
    scratch: &mut [T],
    part_len: usize,
    work: impl Fn(Tasks<'_>, &mut [T]) + Send + Sync,
) {
    let parts = scratch.len().checked_div(part_len).unwrap_or(usize::MAX);
    let workers = threads.count().min(tasks).min(parts).max(1);
    let queue = Queue::new(tasks, workers);
    if workers == 1 {
        return work(queue.tasks(0), &mut scratch[..part_len]);
    }
    let parts = SharedMut::new(scratch);
    team::current().run(workers, &|worker| {
        // SAFETY: a worker's number is its own, below that of parts.
        let part = unsafe { parts.slice(worker * part_len, part_len) };
        work(queue.tasks(worker), part);
    });
}

/// Runs `task(i, part)` for each part.
pub(crate) fn for_each_part<P: Parts>(
    threads: Threads,
    parts: P,
    task: impl Fn(usize, P::Part) + Send + Sync,
) {
    for_each(threads, parts.count(), |i| {
        // SAFETY: each number below the count comes once.
        task(i, unsafe { parts.part(i) });
    });
}

/// Tasks in shares, one for each of the first workers.
struct Queue {
    shares: [Share; SHARES],
    count: usize,
    tasks: usize,
}

/// Shares at most: beyond that workers begin with one that others have, too.
const SHARES: usize = 16;

/// The next task of a share; apart from the others in memory.
#[repr(align(64))]
struct Share(AtomicUsize);

impl Queue {
    fn new(tasks: usize, workers: usize) -> Queue {
        let count = workers.min(SHARES);
        Queue {
            shares: std::array::from_fn(|i| Share(AtomicUsize::new(i * tasks / count))),
            count,
            tasks,
        }
    }

    /// The tasks of a worker.
    fn tasks(&self, worker: usize) -> Tasks<'_> {
        Tasks {
            queue: self,
            worker,
            done: 0,
        }
    }
}

/// Tasks that no other worker has: those of the worker's own share, then what is left of others.
pub(crate) struct Tasks<'q> {
    queue: &'q Queue,
    worker: usize,
    /// Shares that are used up.
    done: usize,
}

impl Iterator for Tasks<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let Queue {
            shares,
            count,
            tasks,
        } = self.queue;
        while self.done < *count {
            let share = (self.worker + self.done) % count;
            let end = (share + 1) * tasks / count;
            let next = &shares[share].0;
            // Asked first, so that counters stay near the ends.
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

/// Memory cut into parts that tasks own.
pub(crate) trait Parts: Send + Sync {
    /// A part.
    type Part;

    fn count(&self) -> usize;

    /// Part `i`.
    ///
    /// # Safety
    /// `i` is below the count, and each part is asked for once.
    unsafe fn part(&self, i: usize) -> Self::Part;
}

/// Parts of one length; the last may be shorter.
pub(crate) struct Chunks<'a, T> {
    data: SharedMut<T>,
    len: usize,
    of: usize,
    slice: PhantomData<&'a mut [T]>,
}

impl<'a, T: Send> Chunks<'a, T> {
    /// Parts of `len` elements, none of an empty length.
    pub(crate) fn new(data: &'a mut [T], len: usize) -> Chunks<'a, T> {
        Chunks {
            of: data.len() * usize::from(len > 0),
            data: SharedMut::new(data),
            len: len.max(1),
            slice: PhantomData,
        }
    }
}

// SAFETY: parts are handed out once each (`Parts::part`), to be used by one thread.
unsafe impl<T: Send> Sync for Chunks<'_, T> {}

impl<'a, T: Send> Parts for Chunks<'a, T> {
    type Part = &'a mut [T];

    fn count(&self) -> usize {
        self.of.div_ceil(self.len)
    }

    unsafe fn part(&self, i: usize) -> &'a mut [T] {
        let start = i * self.len;
        // SAFETY: inside the slice, and apart from other parts.
        unsafe { self.data.slice(start, self.len.min(self.of - start)) }
    }
}

/// Parts of two in step, as many as both have.
impl<A: Parts, B: Parts> Parts for (A, B) {
    type Part = (A::Part, B::Part);

    fn count(&self) -> usize {
        self.0.count().min(self.1.count())
    }

    unsafe fn part(&self, i: usize) -> Self::Part {
        // SAFETY: passed on to the caller.
        unsafe { (self.0.part(i), self.1.part(i)) }
    }
}

/// A pointer that tasks with disjoint targets may share.
pub(crate) struct SharedMut<T>(*mut T);

impl<T> Clone for SharedMut<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMut<T> {}

// SAFETY: users write disjoint elements from different tasks; each use site
// states why its targets are disjoint.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    pub(crate) fn ptr(self) -> *mut T {
        self.0
    }

    /// What begins `start` elements further.
    pub(crate) fn from(self, start: usize) -> Self {
        Self(self.0.wrapping_add(start))
    }

    /// The elements `start..start + len`.
    ///
    /// # Safety
    /// The range lies inside the slice, and no other task touches it.
    pub(crate) unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}
