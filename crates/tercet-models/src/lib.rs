//! tercet-models
