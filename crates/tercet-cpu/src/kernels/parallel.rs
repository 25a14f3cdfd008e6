//! How kernels spread work: a fixed grid of independent tasks, so that the
//! result never depends on how many threads ran them.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

/// Whether a kernel may use the current rayon pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Run on the calling thread: for callers that are themselves parallel.
    Serial,
    /// Spread over the current rayon pool.
    Pool,
}

impl Threads {
    /// How many tasks can run at once.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Threads::Serial => 1,
            Threads::Pool => rayon::current_num_threads().max(1),
        }
    }
}

/// Runs `task(0..tasks)`, each exactly once, in any order.
pub fn for_each(threads: Threads, tasks: usize, task: impl Fn(usize) + Send + Sync) {
    let workers = threads.count().min(tasks);
    if workers <= 1 {
        return (0..tasks).for_each(task);
    }
    let queue = Queue::new(tasks);
    (0..workers)
        .into_par_iter()
        .with_max_len(1)
        .for_each(|_| queue.take().for_each(&task));
}

/// Runs `task(i, part)` where each worker owns its own part of `scratch`, cut
/// into equal parts of `part_len`.
pub(crate) fn for_each_with_scratch(
    threads: Threads,
    tasks: usize,
    scratch: &mut [f32],
    part_len: usize,
    task: impl Fn(usize, &mut [f32]) + Send + Sync,
) {
    if part_len == 0 {
        return for_each(threads, tasks, |i| task(i, &mut []));
    }
    let workers = threads.count().min(tasks);
    if workers <= 1 {
        let part = &mut scratch[..part_len];
        return (0..tasks).for_each(|i| task(i, part));
    }
    let queue = Queue::new(tasks);
    scratch[..workers * part_len]
        .par_chunks_exact_mut(part_len)
        .with_max_len(1)
        .for_each(|part| queue.take().for_each(|i| task(i, part)));
}

/// Tasks that workers take one by one: balanced whatever else the machine does,
/// for one fork and join per kernel.
struct Queue {
    next: AtomicUsize,
    end: usize,
}

impl Queue {
    fn new(end: usize) -> Self {
        Self {
            next: AtomicUsize::new(0),
            end,
        }
    }

    fn take(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::from_fn(|| Some(self.next.fetch_add(1, Ordering::Relaxed)))
            .take_while(|i| *i < self.end)
    }
}

/// A pointer that tasks with disjoint targets may share.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<T>(*mut T);

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

    /// The elements `start..start + len`.
    ///
    /// # Safety
    /// The range lies inside the slice, and no other task touches it.
    pub(crate) unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}
