//! Shared helpers of the cross-executor tests.
