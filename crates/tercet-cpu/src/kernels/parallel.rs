//! How kernels spread work: a fixed grid of independent tasks, so that the
//! result never depends on how many threads ran them.

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
    if tasks <= 1 || threads.count() <= 1 {
        (0..tasks).for_each(task);
    } else {
        (0..tasks).into_par_iter().with_max_len(1).for_each(task);
    }
}

/// Runs `task(i, part)` where each task owns its own part of `scratch`, cut
/// into equal parts of `part_len`; at most as many tasks run as there are parts.
pub(crate) fn for_each_with_scratch(
    threads: Threads,
    tasks: usize,
    scratch: &mut [f32],
    part_len: usize,
    task: impl Fn(usize, &mut [f32]) + Send + Sync,
) {
    let workers = threads.count().min(tasks.max(1));
    if workers <= 1 || part_len == 0 {
        if part_len == 0 {
            return for_each(threads, tasks, |i| task(i, &mut []));
        }
        let part = &mut scratch[..part_len];
        return (0..tasks).for_each(|i| task(i, part));
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    // Workers take tasks from a shared counter: balanced, and each worker keeps
    // its scratch hot.
    scratch[..workers * part_len]
        .par_chunks_exact_mut(part_len)
        .with_max_len(1)
        .for_each(|part| {
            loop {
                let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if i >= tasks {
                    break;
                }
                task(i, part);
            }
        });
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
