//! tercet
