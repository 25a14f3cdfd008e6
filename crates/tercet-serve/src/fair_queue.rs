//! A queue that shares the workers of a model between API keys.
//!
//! Requests of a lower priority number go first. Among equal ones, those of the key with the fewest
//! running requests go first, then those of the key whose last start was the earliest, then those that
//! arrived first. If the queue is full, a new request takes the place of a less urgent one, or of one of
//! a key that has more waiting requests.

use std::collections::{HashMap, VecDeque};

use crate::request_terms::RequestOrder;

/// The queue is full.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// Waiting items with their order.
#[doc(hidden)]
#[derive(Debug)]
pub struct FairQueue<T> {
    /// In the order of their arrival.
    waiting: VecDeque<WaitingItem<T>>,
    /// Number of running items of each key.
    running: HashMap<Option<usize>, usize>,
    /// Number of the last start of each key.
    last_starts: HashMap<Option<usize>, u64>,
    started: u64,
    arrived: u64,
}

#[derive(Debug)]
struct WaitingItem<T> {
    id: u64,
    order: RequestOrder,
    item: T,
}

impl<T> Default for FairQueue<T> {
    fn default() -> FairQueue<T> {
        FairQueue::new()
    }
}

impl<T> FairQueue<T> {
    /// An empty queue.
    pub fn new() -> FairQueue<T> {
        FairQueue {
            waiting: VecDeque::new(),
            running: HashMap::new(),
            last_starts: HashMap::new(),
            started: 0,
            arrived: 0,
        }
    }

    /// Number of waiting items.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds an item. Returns its id, with which it can be removed.
    pub fn push(&mut self, order: RequestOrder, item: T) -> u64 {
        let id = self.arrived;
        self.arrived += 1;
        self.waiting.push_back(WaitingItem { id, order, item });
        id
    }

    /// Makes room for `count` items of this order among at most `capacity` waiting ones. Returns the
    /// items that lost their place.
    ///
    /// # Errors
    /// [`QueueFull`] if too few waiting items have to stand back; the queue is unchanged.
    pub fn make_room(
        &mut self,
        order: RequestOrder,
        count: usize,
        capacity: usize,
    ) -> Result<Vec<T>, QueueFull> {
        let mut displaced = self.displaced(order, count, capacity).ok_or(QueueFull)?;
        displaced.sort_unstable();
        let last_first = displaced.into_iter().rev();
        let items = last_first.filter_map(|at| Some(self.waiting.remove(at)?.item));
        Ok(items.collect())
    }

    /// Whether [`FairQueue::make_room`] succeeds.
    pub(crate) fn can_make_room(&self, order: RequestOrder, count: usize, capacity: usize) -> bool {
        self.displaced(order, count, capacity).is_some()
    }

    /// Positions of the items that lose their place to `count` new ones; `None` if there are too few.
    fn displaced(&self, order: RequestOrder, count: usize, capacity: usize) -> Option<Vec<usize>> {
        let total = self.waiting.len().saturating_add(count);
        let excess = total.saturating_sub(capacity);
        let mut displaced = Vec::new();
        if excess == 0 {
            return Some(displaced);
        }
        let mut counts: HashMap<Option<usize>, usize> = HashMap::from([(order.key, count)]);
        for waiting in &self.waiting {
            *counts.entry(waiting.order.key).or_default() += 1;
        }
        while displaced.len() < excess {
            let count_of = |key| counts.get(&key).copied().unwrap_or(0);
            let stands_back = |waiting: &WaitingItem<T>| {
                let is_equal = waiting.order.priority == order.priority;
                let has_more = count_of(waiting.order.key) > count_of(order.key);
                waiting.order.priority > order.priority || (is_equal && has_more)
            };
            let all = self.waiting.iter().enumerate();
            let (at, key) = all
                .filter(|(at, waiting)| !displaced.contains(at) && stands_back(waiting))
                .max_by_key(|(at, WaitingItem { order, .. })| {
                    (order.priority, count_of(order.key), *at)
                })
                .map(|(at, waiting)| (at, waiting.order.key))?;
            if let Some(count) = counts.get_mut(&key) {
                *count -= 1;
            }
            displaced.push(at);
        }
        Some(displaced)
    }

    /// The next item to start.
    pub fn peek(&self) -> Option<&T> {
        Some(&self.waiting.get(self.next()?)?.item)
    }

    /// Takes the next item, which counts as running.
    pub fn pop(&mut self) -> Option<T> {
        let WaitingItem { order, item, .. } = self.waiting.remove(self.next()?)?;
        self.started += 1;
        self.last_starts.insert(order.key, self.started);
        *self.running.entry(order.key).or_default() += 1;
        Some(item)
    }

    /// An item of this key has ended.
    pub fn end(&mut self, key: Option<usize>) {
        if let Some(running) = self.running.get_mut(&key) {
            *running = running.saturating_sub(1);
        }
    }

    /// Sets the number of running items of each key.
    pub(crate) fn set_running(&mut self, running: HashMap<Option<usize>, usize>) {
        self.running = running;
    }

    /// Takes a waiting item; `None` if it has started.
    pub fn remove(&mut self, id: u64) -> Option<T> {
        let at = self.waiting.iter().position(|waiting| waiting.id == id)?;
        Some(self.waiting.remove(at)?.item)
    }

    /// Drops the waiting items for which `keeps` returns false.
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&T) -> bool) {
        self.waiting.retain(|waiting| keeps(&waiting.item));
    }

    /// Drops all waiting items.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Position of the next item.
    fn next(&self) -> Option<usize> {
        let all = self.waiting.iter().enumerate();
        let next = all.min_by_key(|(at, waiting)| {
            let RequestOrder { key, priority } = waiting.order;
            let running = self.running.get(&key).copied().unwrap_or(0);
            let last_start = self.last_starts.get(&key).copied().unwrap_or(0);
            (priority, running, last_start, *at)
        });
        Some(next?.0)
    }
}
