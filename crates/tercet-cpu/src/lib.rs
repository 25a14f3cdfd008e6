//! tercet-cpu
