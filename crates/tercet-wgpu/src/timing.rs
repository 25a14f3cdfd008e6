//! GPU timestamps of the steps of a run.

use crate::buffers::{BufferError, create_buffer};
use crate::device::WgpuDevice;

/// Places in a command stream that can hold device timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimestampSupport {
    /// Timestamps may be written between the dispatches of a pass.
    InsidePass,
    /// Timestamps are only written at the boundaries of a pass, so each dispatch gets its own pass.
    PassBoundary,
}

/// Two timestamps per dispatch of a submission: the queries and the buffer that they are resolved
/// into.
#[derive(Debug)]
pub(crate) struct TimestampTimer {
    pub(crate) marks: TimestampSupport,
    sets: Vec<wgpu::QuerySet>,
    resolved: wgpu::Buffer,
    period_ns: f64,
}

impl TimestampTimer {
    /// A timer for `calls` dispatches; `None` if the device has no timestamps.
    ///
    /// # Errors
    /// [`BufferError`] if the device is out of memory.
    pub(crate) fn new(
        gpu: &WgpuDevice,
        calls: usize,
    ) -> Result<Option<TimestampTimer>, BufferError> {
        let has = |f| gpu.features.contains(f);
        let marks = match (
            has(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES),
            has(wgpu::Features::TIMESTAMP_QUERY),
        ) {
            (_, false) => return Ok(None),
            (true, true) => TimestampSupport::InsidePass,
            (false, true) => TimestampSupport::PassBoundary,
        };
        let mut sets = Vec::new();
        let mut left = 2 * calls as u32;
        while left > 0 {
            let count = left.min(wgpu::QUERY_SET_MAX_QUERIES);
            let descriptor = wgpu::QuerySetDescriptor {
                label: Some("times"),
                ty: wgpu::QueryType::Timestamp,
                count,
            };
            let set = gpu.scoped(|| gpu.device.create_query_set(&descriptor));
            sets.push(set.map_err(|trouble| BufferError {
                fault: trouble,
                what: "a set of timestamps",
                bytes: 8 * u64::from(count),
            })?);
            left -= count;
        }
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let bytes = 16 * calls as u64;
        Ok(Some(TimestampTimer {
            marks,
            sets,
            resolved: create_buffer(gpu, "the buffer of timestamps", bytes, usage)?,
            period_ns: f64::from(gpu.queue.get_timestamp_period()),
        }))
    }

    /// The bytes of the timestamps of `calls` dispatches.
    pub(crate) fn bytes(calls: usize) -> u64 {
        16 * calls as u64
    }

    /// The query set of a dispatch and the index of the first of its two queries.
    pub(crate) fn queries(&self, call: usize) -> (&wgpu::QuerySet, u32) {
        let (query, each) = (2 * call, wgpu::QUERY_SET_MAX_QUERIES as usize);
        (&self.sets[query / each], (query % each) as u32)
    }

    /// Encodes the copy of the timestamps of the first `calls` dispatches into a buffer.
    pub(crate) fn resolve(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        calls: usize,
        to: &wgpu::Buffer,
        at: u64,
    ) {
        let mut left = 2 * calls as u32;
        for (i, set) in self.sets.iter().enumerate() {
            let offset = 8 * u64::from(wgpu::QUERY_SET_MAX_QUERIES) * i as u64;
            let count = left.min(set.count());
            if count > 0 {
                encoder.resolve_query_set(set, 0..count, &self.resolved, offset);
            }
            left -= count;
        }
        encoder.copy_buffer_to_buffer(&self.resolved, 0, to, at, TimestampTimer::bytes(calls));
    }

    /// Decodes timestamps into (step, start, duration) in nanoseconds relative to `origin`. If
    /// there is no origin yet, the first timestamp becomes the origin.
    pub(crate) fn times(
        &self,
        steps: &[usize],
        bytes: &[u8],
        origin: &mut Option<u64>,
    ) -> Vec<(usize, u64, u64)> {
        let (words, _) = bytes.as_chunks::<8>();
        let ticks: Vec<u64> = words.iter().map(|w| u64::from_le_bytes(*w)).collect();
        let first = *origin.get_or_insert(ticks.first().copied().unwrap_or(0));
        let ns = |t: u64| (t.saturating_sub(first) as f64 * self.period_ns) as u64;
        let (pairs, _) = ticks.as_chunks::<2>();
        let timed = steps.iter().zip(pairs);
        timed
            .map(|(step, &[start, end])| (*step, ns(start), ns(end).saturating_sub(ns(start))))
            .collect()
    }
}
